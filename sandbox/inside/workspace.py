"""The directories a program may write: sized, emptied between runs, and read after one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import confine
import container

FETCH_BYTES, FETCH_FILES = 10 << 20, 100


class Workspace:
    """The part of the supervisor that looks after files."""

    config: dict[str, Any]
    fresh: bool
    spent: bool
    sizes: tuple[int, int]
    to_zygote: Callable[..., None]
    until: Callable[[str], tuple[dict[str, Any], list[int]]]

    def fetch(self, paths: list[str]) -> tuple[list[list[Any]], dict[str, str], list[bytes]]:
        """Contents of the files asked for, read from descriptors that the zygote opened."""
        files: list[list[Any]] = []
        errors: dict[str, str] = {}
        contents: list[bytes] = []
        left = FETCH_BYTES
        for path in paths[:FETCH_FILES]:
            if self.spent:
                errors[path] = "gone with the processes that had to be killed all at once"
                continue
            self.to_zygote({"do": "fetch", "path": path})
            message, descriptors = self.until("file")
            if not descriptors:
                errors[message["file"]] = message["error"]
                continue
            with open(descriptors[0], "rb") as file:
                if os.fstat(file.fileno()).st_size > left:
                    errors[message["file"]] = f"larger than the {left} bytes left of what may be fetched"
                    continue
                data = file.read(left + 1)
            left -= len(data)
            files.append([message["file"], len(data)])
            contents.append(data)
        for path in paths[FETCH_FILES:]:
            errors[path] = f"more than {FETCH_FILES} files asked for"
        return files, errors, contents

    def set_sizes(self, size: int, inodes: int, first: bool = False) -> None:
        if first or (size, inodes) != self.sizes:
            for path in self.config["writable"]:
                confine.mount_tmpfs(path, size, inodes, remount=not first)
            self.sizes = (size, inodes)

    def reset(self) -> bool:
        """Empty the writable directories; False if that failed."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.config["workdir"], "main.py"))
        for path in self.config["writable"]:
            if self.config["mounts"]:
                if os.listdir(path):
                    confine.unmount(path)
                    confine.mount_tmpfs(path, *self.sizes)
                    self.fresh = True
            elif not emptied(path):
                return False
        if self.config.get("container") and not self.config["landlock"]:
            return container.names_intact(self.config["names"])
        return True


def emptied(path: str) -> bool:
    """Whether `path`, which a program may have closed to us or filled beyond what can be named, is empty now."""
    try:
        os.chmod(path, 0o700)
        return not os.listdir(path) or empty(path, time.monotonic() + 2)
    except (OSError, RecursionError):
        return False


def empty(path: str, deadline: float) -> bool:
    """Delete all beneath `path`, following no link; False if it is not done by `deadline`.

    Every process of the run is dead by now, so nothing changes under our feet.
    """
    os.chmod(path, 0o700)
    for entry in list(os.scandir(os.fsencode(path))):
        if time.monotonic() > deadline:
            return False
        if entry.is_dir(follow_symlinks=False):
            if not empty(os.fsdecode(entry.path), deadline):
                return False
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
    return True

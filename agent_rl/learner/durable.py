"""Files that are on the disk when a call returns, and what is in them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_directory(path: Path) -> None:
    """Make a directory's entries durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(path: Path) -> None:
    """Make every file and directory below `path`, and `path` itself, durable."""
    for found in path.rglob("*"):
        flush_directory(found)  # fsync is the same call for files and directories
    flush_directory(path)

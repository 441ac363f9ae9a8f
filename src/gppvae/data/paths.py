"""Checks of input paths: plain files, inside the given folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def kind_of(path: str | os.PathLike[str]) -> str:
    """What is at a path: "a file", "a folder", "a pipe", "a socket", "a device" or "no such file"."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISDIR(mode):
        return "a folder"
    # Never opened: a pipe would block until a writer comes, and a device may be endless.
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def plain_file(path: str | os.PathLike[str], what: str) -> Path:
    """The path, if it is a plain file or a link to one.

    Args:
        path: of the file.  what: expected kind of file, with its article: "a CSV table".
    """
    found = kind_of(path)
    if found == "no such file":
        raise FileNotFoundError(f"expected {what} at {path}, found no such file; check the path")
    if found != "a file":
        raise ValueError(f"expected {what} at {path}, found {found}; give the path of a plain file")
    return Path(path)


def path_inside(folder: str | os.PathLike[str], name: str, outside: bool = False) -> Path:
    """The path of a file given relative to a folder.

    Args:
        folder: given by the user.
        name: a path relative to it, or an absolute one.
        outside: whether the file may be outside the folder. Links inside the folder are followed in either case: the
            owner of the folder made them, and tools that store data sets by checksum link every file.
    """
    root = os.path.abspath(folder)
    # normpath resolves ".." in the text, and the result is what gets opened: a linked subfolder cannot redirect it.
    path = os.path.normpath(os.path.join(root, name))
    if not outside and os.path.commonpath([root, path]) != root:
        raise ValueError(
            f"expected image names inside {folder}, got {name!r}; "
            "move the file there, or allow paths elsewhere with outside=True (--outside)"
        )
    return Path(path)

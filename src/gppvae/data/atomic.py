"""Atomic writes: a file is either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
from pathlib import Path

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CANNOT_FLUSH_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


class WriteError(OSError):
    """A file could not be written; the message names it, what is left on disk and what to do.

    Attributes:
        errno: of the system.  filename: of the target.
    """

    def __init__(self, sentence: str, number: int | None, path: Path) -> None:
        super().__init__(sentence)
        self.errno, self.filename = number, str(path)

    def __str__(self) -> str:
        return str(self.args[0])


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write to a temporary name in the same folder (created if missing), flush to disk, rename, flush the folder.

    Temporary files that dead processes of this machine left behind are removed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    temporary = part_of(target)
    kept = "the previous file is unchanged" if target.exists() else "no file was left"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        kept = "the new file is there, but may not outlast a power failure"
        _flush_folder(target.parent)
    except OSError as error:
        raise write_error(error, target, kept) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return target


def part_of(target: Path) -> Path:
    """The temporary name of a file or folder that this process is writing."""
    return target.with_name(f".{target.name}.{this_host()}-{os.getpid()}.part")


def write_error(error: OSError, path: Path, kept: str) -> WriteError:
    """The error for a failed write: the file, what is left on disk (`kept`) and what to do."""
    advice = "free some space and try again" if error.errno in NO_SPACE else "check the folder and try again"
    reason = error.strerror or str(error)
    return WriteError(f"could not write {path}: {reason}; {kept}: {advice}", error.errno, path)


def _flush_folder(folder: Path) -> None:
    """Flush the folder entry: without this, a power failure may undo the rename."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH_FOLDERS:
            raise


def remove_leftovers(target: Path) -> None:
    """Remove temporary files or folders for this target left by dead processes of this machine."""
    if os.name != "posix":  # on other systems, signal 0 may end the process
        return
    # The host name protects files that another machine is writing on a shared disk.
    part = re.compile(rf"\.{re.escape(target.name)}\.({re.escape(this_host())}-)?([0-9]+)\.part")
    for name in os.listdir(target.parent):
        found = part.fullmatch(name)
        if found and not is_alive(int(found[2])):
            left = target.with_name(name)
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def is_alive(process: int) -> bool:
    """Whether a process of this machine is running (POSIX)."""
    try:
        os.kill(process, 0)  # signal 0 is not delivered
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def this_host() -> str:
    """Name of this machine, safe for a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "", platform.node())[:32] or "host"

"""One run per folder: a lock that is released when its process ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path

import filelock

from gppvae.data.atomic import this_host, write_bytes

LOCK, OWNER = ".lock", ".lock.json"

log = logging.getLogger("gppvae")


class FolderLock:
    """The right to write a run into a folder.

    The system releases the lock when the process ends, however it ends, so no stale lock is ever left. A file beside it
    says who holds it.

    Args:
        folder: to lock; it must exist when the lock is acquired.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Not per thread: the thread that releases it need not be the one that acquired it.
        self._lock = filelock.FileLock(str(folder / LOCK), thread_local=False)

    def acquire(self, patience: float = 0.0) -> None:
        """Take the lock, or raise ValueError that names its holder.

        Args:
            patience: seconds to wait for it.
        """
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout=patience, poll_interval=0.05)
        except filelock.Timeout:
            raise ValueError(
                f"{self.folder} is being written by another run ({self._owner()}); wait for it or choose another folder"
            ) from None
        except NotImplementedError:  # some network file systems
            log.warning("%s is on a file system without locks; start no other run in it", self.folder)
            return
        about = {"process": os.getpid(), "machine": this_host(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            write_bytes(self.folder / OWNER, json.dumps(about).encode())
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                (self.folder / OWNER).unlink(missing_ok=True)
            self._lock.release()

    def _owner(self) -> str:
        try:
            about = json.loads((self.folder / OWNER).read_bytes())
            return f"process {about['process']} on {about['machine']} since {about['since']}"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "a process that has only just started"

"""The run folder: the files of a run, from which an interrupted run resumes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
from torch import Tensor

from gppvae.data.atomic import this_host, write_bytes, write_error
from gppvae.data.header import read_object
from gppvae.data.run_files import CHECKPOINT, CONFIG, METRICS, MODEL
from gppvae.data.words import shortened
from gppvae.data.world import ALONE, World
from gppvae.training.checkpoint import read_tensors, write_json, write_tensors
from gppvae.training.distributed import on_first, restarted

# Sections of config.json: arguments as given, settings as trained, names of custom classes, checksums of the data.
SECTIONS = {"given", "trained", "own", "data"}

LOCK, OWNER = ".lock", ".lock.json"
NO_CODE = ("results", "docs", "*.md")  # paths in the repository that do not affect results

log = logging.getLogger("gppvae")


class RunFolder:
    """config.json, metrics.jsonl, checkpoint.safetensors and, once finished, model.safetensors.

    Args:
        path: of the folder.

    Attributes:
        world: the processes of the run; all read the folder, only the first writes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.world: World = ALONE
        self._lock = FolderLock(self.path)

    def check_unfinished(self) -> None:
        """Raise ValueError if the folder holds a finished run.

        A process restarted by torchrun does not raise: the run may have finished before another worker died, in this
        fit or in a later one of the same script. Resuming from the last checkpoint then gives the same model.
        """
        if self.finished() and not restarted():
            raise ValueError(f"{self.path} already holds a finished run; choose another folder or remove it")

    def check_writable(self) -> None:
        """Raise OSError unless the folder can be created or written; nothing is created."""
        path = self.path.absolute()
        nearest = next(place for place in (path, *path.parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            reason = "no permission in" if nearest.is_dir() else "the file"
            raise OSError(f"expected a writable folder at {self.path}, got {reason} {nearest}; choose another one")

    def prepare(self, config: dict[str, Any]) -> bool:
        """Create and lock the folder; True if it holds an unfinished run of this configuration to resume.

        The lock is held until `release`, or until this process ends.

        Raises:
            ValueError: the folder holds a finished run, a run with other settings, or one that is still running.
            OSError: the folder cannot be written.
        """
        return on_first(self.world, lambda: self._prepare(config))

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def _prepare(self, config: dict[str, Any]) -> bool:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"expected a writable folder at {self.path}, got {error.strerror}; choose another one"
            ) from None
        self._lock.acquire(timeout=10.0 if restarted() else 0.0)
        try:
            existing = self.path / CONFIG
            self.check_unfinished()
            if existing.exists():
                self._check_same(read_config(self.path), config)
            else:
                write_json(existing, {"settings": config, "about": provenance()})
        except BaseException:
            self._lock.release()
            raise
        return (self.path / CHECKPOINT).exists()

    def _check_same(self, existing: dict[str, Any], config: dict[str, Any]) -> None:
        old, new = existing["settings"], json.loads(json.dumps(config))
        for section in config:  # "given" comes first: its names are those that the user wrote
            for key in sorted(old[section].keys() | new[section].keys()):
                before, now = old[section].get(key), new[section].get(key)
                if before != now:
                    raise ValueError(
                        f"{self.path} holds an unfinished run with other settings "
                        f"({shortened(key)} was {shortened(repr(before))}, now {shortened(repr(now))}); "
                        "use the same settings to continue it, or another folder"
                    )

    def save_checkpoint(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if self.world.first:
            write_tensors(self.path / CHECKPOINT, tensors, meta)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return read_tensors(self.path / CHECKPOINT)

    def truncate_metrics(self, count: int) -> list[dict[str, Any]]:
        """Keep and return the first `count` rows of metrics.jsonl; later ones were written after the checkpoint.

        Rows are not flushed to disk one by one, so a power failure may lose the last ones.
        """
        path = self.path / METRICS
        lines = path.read_bytes().splitlines()[:count] if path.exists() else []
        rows: list[dict[str, Any]] = []
        for line in lines:
            try:
                rows.append(read_object(line, path))
            except ValueError:
                break
        if self.world.first:
            if len(rows) < count:
                log.warning("%s has lost %d of %d rows; training continues", path, count - len(rows), count)
            write_bytes(path, b"".join(line + b"\n" for line in lines[: len(rows)]))
        return rows

    def add_metrics(self, row: dict[str, Any]) -> None:
        if not self.world.first:
            return
        path = self.path / METRICS
        try:
            with open(path, "ab") as file:
                file.write((json.dumps(row) + "\n").encode())
        except OSError as error:
            raise write_error(error, path, "the checkpoint is unchanged") from error

    def finished(self) -> bool:
        return (self.path / MODEL).exists()


class FolderLock:
    """A lock on a run folder.

    The operating system releases it when the process ends, however it ends, so no stale lock remains. A file beside it
    names the process that holds it.

    Args:
        folder: to lock; it must exist when the lock is acquired.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Not per thread: another thread may release it.
        self._lock = filelock.FileLock(str(folder / LOCK), thread_local=False)

    def acquire(self, timeout: float = 0.0) -> None:
        """Acquire the lock, or raise a ValueError that names its holder.

        Args:
            timeout: seconds to wait for it.
        """
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout=timeout, poll_interval=0.05)
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


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """config.json of a run folder; an error if it is missing, damaged or of another version."""
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"expected a run folder at {folder}, found no {CONFIG} in it; check the name")
    content = read_object(path.read_bytes(), path)
    settings = content.get("settings")
    if not isinstance(settings, dict) or not settings.keys() >= SECTIONS:
        raise ValueError(f"{path} was written by another version of gppvae; start again in another folder")
    if not all(isinstance(section, dict) for section in settings.values()):
        raise ValueError(f"{path} is damaged (a section of its settings is not an object); start in another folder")
    return content


def provenance() -> dict[str, Any]:
    """Versions, commit and machine of this run.

    `clean` is whether the code is exactly that of the commit (results and pages may differ); None outside a repository.
    """
    packages = ("gppvae", "torch", "gpytorch", "numpy", "scipy", "pandas")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", ":/", *(f":(top,exclude){name}" for name in NO_CODE))
    return {
        "python": sys.version.split()[0],
        "versions": versions,
        "commit": commit or "unknown",
        "clean": None if commit is None or changed is None else not changed,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _git(*words: str) -> str | None:
    """Output of a git command in the repository of this file; None outside a repository."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None

"""The run folder: what a run leaves on disk, and what a stopped run continues from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gppvae.data.atomic import write_bytes
from gppvae.data.world import ALONE, World
from gppvae.training.checkpoint import read_tensors, write_json, write_tensors
from gppvae.training.distributed import restarted

CONFIG, METRICS, CHECKPOINT, MODEL = (
    "config.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "model.safetensors",
)


class RunFolder:
    """config.json, metrics.jsonl, checkpoint.safetensors and, when done, model.safetensors.

    Args:
        path: of the folder.  world: the processes of the run; all may read the folder, the first one writes.
    """

    def __init__(self, path: str | os.PathLike[str], world: World = ALONE) -> None:
        self.path, self.world = Path(path), world

    def check_unfinished(self) -> None:
        """Raise ValueError when the folder holds a finished run.

        Not in a process that torchrun started again: the run may have ended before another worker died, in this fit or
        in a later one of the same script. Its last checkpoint then gives the same model once more.
        """
        if self.finished() and not restarted():
            raise ValueError(f"{self.path} already holds a finished run; choose another folder or remove it")

    def check_writable(self) -> None:
        """Raise OSError unless this is, or can become, a folder to write in; leaves nothing behind."""
        path = self.path.absolute()
        nearest = next(place for place in (path, *path.parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            reason = "no permission in" if nearest.is_dir() else "the file"
            raise OSError(
                f"expected a folder that can be written at {self.path}, got {reason} {nearest}; choose another one"
            )

    def prepare(self, config: dict[str, Any]) -> bool:
        """Make the folder for this configuration; True when it holds an unfinished run to continue.

        Raises:
            ValueError: it holds a finished run, or an unfinished one with other settings.
            OSError: it cannot be written.
        """
        answer = torch.zeros(1)
        if self.world.first:
            answer += self._prepare(config)
        self.world.sum_([answer])
        return bool(answer)

    def _prepare(self, config: dict[str, Any]) -> bool:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"expected a folder that can be written at {self.path}, got {error.strerror}; choose another one"
            ) from None
        existing = self.path / CONFIG
        self.check_unfinished()
        if existing.exists():
            self._check_same(json.loads(existing.read_text()), config)
        else:
            write_json(existing, {"settings": config, "about": provenance()})
        return (self.path / CHECKPOINT).exists()

    def _check_same(self, existing: dict[str, Any], config: dict[str, Any]) -> None:
        old, new = _flat(existing.get("settings", {})), _flat(json.loads(json.dumps(config)))
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        if changed:
            key = changed[0]
            raise ValueError(
                f"{self.path} holds an unfinished run with other settings "
                f"({key} was {old.get(key)!r}, now {new.get(key)!r}); "
                "use the same settings to continue it, or another folder"
            )

    def save_checkpoint(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if self.world.first:
            write_tensors(self.path / CHECKPOINT, tensors, meta)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return read_tensors(self.path / CHECKPOINT)

    def keep_metrics(self, count: int) -> list[dict[str, Any]]:
        """The first `count` rows of the log; later ones, written after the checkpoint, are dropped."""
        path = self.path / METRICS
        lines = path.read_text().splitlines()[:count] if path.exists() else []
        if self.world.first:
            write_bytes(path, "".join(line + "\n" for line in lines).encode())
        return [json.loads(line) for line in lines]

    def add_metrics(self, row: dict[str, Any]) -> None:
        if self.world.first:
            with open(self.path / METRICS, "a") as file:
                file.write(json.dumps(row) + "\n")

    def finished(self) -> bool:
        return (self.path / MODEL).exists()


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Sections of a configuration as one: each setting by its own name, the first section that has it."""
    found: dict[str, Any] = {}
    for section in config.values():
        found = section | found
    return found


def provenance() -> dict[str, Any]:
    """Versions, commit and machine of this run, for the record."""
    packages = ("gppvae", "torch", "gpytorch", "numpy", "scipy", "pandas")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": sys.version.split()[0],
        "versions": versions,
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _commit() -> str:
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, timeout=10
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"

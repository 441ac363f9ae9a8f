"""Names of the files in a run folder."""

from __future__ import annotations

import os
from pathlib import Path

CONFIG, METRICS, CHECKPOINT, MODEL = "config.json", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors"


def model_file(path: str | os.PathLike[str]) -> Path:
    """The model file in a folder, or the path itself if it is a file."""
    folder = Path(path)
    return folder / MODEL if folder.is_dir() else folder


def finished_model(path: str | os.PathLike[str]) -> Path:
    """The same; ValueError if the run in the folder is not finished."""
    file = model_file(path)
    if not file.exists() and (Path(path) / CHECKPOINT).exists():
        raise ValueError(f"{path} holds a run that is not finished; run the same fit again to continue it")
    return file

"""Tensors and JSON in one file that is either complete or absent. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from gppvae.data.atomic import write_bytes
from gppvae.data.digest import digest
from gppvae.data.header import FORMAT, checked_header, read_whole


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors, with JSON in the header, to one file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(meta)
    header = {"format": FORMAT, "meta": text, "sha256": digest(plain, text)}
    write_bytes(path, save_safetensors(plain, metadata=header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of `write_tensors`; ValueError if it is missing, truncated, damaged or of another format."""
    content = read_whole(path)
    meta = checked_header(content, path)
    return load_safetensors(content), meta


def check_finite(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise ValueError at NaN or infinity, unless the tensor equals that of a new model, `own` (infinite bounds)."""
    for name, value in tensors.items():
        if not value.isfinite().all() and not (name in own and torch.equal(value, own[name].to(value.device))):
            raise ValueError(f"{name} is not finite")


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries whose name starts with `prefix.`, by the rest of the name."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}

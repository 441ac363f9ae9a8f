"""A checksum of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of a text and of the name, type, shape and bytes of each tensor (on the CPU)."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        found.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

"""Tensors and JSON in one file that is either whole or not there. Nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from gppvae.data.atomic import write_bytes
from gppvae.data.digest import digest

FORMAT = "gppvae-2"
ADVICE = "restore it from a copy or fit again"


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Tensors with JSON beside them in the header, one file, renamed into place."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(meta)
    header = {"format": FORMAT, "meta": text, "sha256": digest(plain, text)}
    write_bytes(path, save_safetensors(plain, metadata=header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; a missing, cut, damaged or foreign file is one clear ValueError."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a gppvae file at {path}, found none; check the folder's name")
    content = path.read_bytes()
    try:
        tensors = load_safetensors(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path} is cut short or not a gppvae file; restore it from a copy or fit again") from None
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} was not written by this version of gppvae (expected format {FORMAT}, "
            f"got {header.get('format', 'none')}); fit again or use the version that wrote it"
        )
    text = header.get("meta", "")
    if header.get("sha256") != digest(tensors, text):
        raise ValueError(f"{path} is damaged (its checksum does not match); restore it from a copy or fit again")
    return tensors, read_object(text, path)


def read_object(text: str | bytes, path: Path) -> dict[str, Any]:
    """A JSON object; anything else, and an absurdly deep one, is one ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"expected JSON in {path}, got something else; {ADVICE}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object in {path}, got {type(found).__name__}; {ADVICE}")
    return found


class MismatchError(ValueError):
    """What was given beside a file does not fit it; the file is not at fault, and the message says what is."""


@contextlib.contextmanager
def checked_content(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is the fault of a file's content, and becomes one ValueError that names the file.

    Code that reads a file may then take its content as it should be: a key that is missing, a number where a list
    should be and a tensor of another shape all end here. Checks are needed only for what would go unnoticed.
    """
    try:
        yield
    except (OSError, MismatchError):
        raise
    except Exception as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} does not hold what this version of gppvae writes ({reason or type(error).__name__}); {ADVICE}"
        ) from None


def check_finite(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise ValueError at NaN or infinity, unless `own`, the tensors of a fresh model, has it there (open bounds)."""
    for name, value in tensors.items():
        if not value.isfinite().all() and not (name in own and torch.equal(value, own[name].to(value.device))):
            raise ValueError(f"{name} is not finite")


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries whose name starts with `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}

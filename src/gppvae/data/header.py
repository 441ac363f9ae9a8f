"""The metadata of a gppvae file: JSON in the header of a safetensors file, verified without PyTorch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from gppvae.data.words import reason

FORMAT = "gppvae-2"
ADVICE = "restore it from a copy or fit again"
# Type names of safetensors as those of PyTorch, which digest() uses.
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
         "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip


def read_header(path: Path) -> dict[str, Any]:
    """The JSON metadata; a truncated, damaged or foreign file raises ValueError, a missing one FileNotFoundError."""
    return checked_header(read_whole(path), path)


def read_whole(path: Path) -> bytes:
    """The bytes of a gppvae file."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a gppvae file at {path}, found none; check the folder's name")
    return path.read_bytes()


def checked_header(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON metadata in a file's bytes, after verification of format and checksum."""
    try:
        tensors = dict(deserialize(content))
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path} is cut short or not a gppvae file; {ADVICE}") from None
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} was not written by this version of gppvae (expected format {FORMAT}, "
            f"got {header.get('format', 'none')}); fit again or use the version that wrote it"
        )
    text = header.get("meta", "")
    found = hashlib.sha256(text.encode())  # as digest() does for tensors in memory
    for name in sorted(tensors):
        info = tensors[name]
        found.update(f"{name} torch.{TYPES.get(info['dtype'])} {tuple(info['shape'])}".encode())
        found.update(info["data"])
    if header.get("sha256") != found.hexdigest():
        raise ValueError(f"{path} is damaged (its checksum does not match); {ADVICE}")
    return read_object(text, path)


def read_object(text: str | bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object; anything else, or one that is nested too deeply, raises ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"expected JSON in {path}, got something else; {ADVICE}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object in {path}, got {type(found).__name__}; {ADVICE}")
    return found


class MismatchError(ValueError):
    """Arguments do not match a file, which itself is valid."""


@contextlib.contextmanager
def checked_content(path: Path) -> Iterator[None]:
    """Turn any error inside into a ValueError that names the file.

    Code inside may assume valid content: a missing key, a number instead of a list or a tensor of the wrong shape all
    end up here. Explicit checks are needed only for mistakes that raise no error.
    """
    try:
        yield
    except (OSError, MismatchError):
        raise
    except Exception as error:
        found = f"no {error}" if isinstance(error, KeyError) else reason(error)
        raise ValueError(f"{path} does not hold what this version of gppvae writes ({found}); {ADVICE}") from None

"""The binary response format: a JSON header, then float32 arrays that the browser reads without parsing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def pack(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray | None]) -> bytes:
    """The length of the header (4 bytes, little-endian), the header, and the concatenated arrays.

    The header is `facts` and "arrays", the name and shape of each. It is padded with spaces to align the numbers to
    four bytes. Arrays that are None are left out.
    """
    present = {name: np.ascontiguousarray(array, dtype="<f4") for name, array in arrays.items() if array is not None}
    head = json.dumps({**facts, "arrays": [[name, list(array.shape)] for name, array in present.items()]}).encode()
    head += b" " * (-len(head) % 4)
    return b"".join([len(head).to_bytes(4, "little"), head, *(array.tobytes() for array in present.values())])


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The inverse of `pack`: the facts and the arrays."""
    end = 4 + int.from_bytes(content[:4], "little")
    facts = json.loads(content[4:end])
    arrays = {}
    for name, shape in facts.pop("arrays"):
        size = int(np.prod(shape))
        arrays[name] = np.frombuffer(content, dtype="<f4", count=size, offset=end).reshape(shape)
        end += 4 * size
    return facts, arrays

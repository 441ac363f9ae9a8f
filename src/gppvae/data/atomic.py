"""Files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write to a temporary name in the same folder (made if need be), flush to disk, rename."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target

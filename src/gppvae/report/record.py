"""Results as JSON files, written atomically, with versions, commit and machine."""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path
from typing import Any

from gppvae.data.atomic import write_bytes
from gppvae.training.folder import provenance

_NUMBERS = re.compile(r"\[\s+((?:-?[\d.eE+-]+|null)(?:,\s+(?:-?[\d.eE+-]+|null))*)\s+\]")


def write_results(path: str | os.PathLike[str], content: dict[str, Any], about: dict[str, Any] | None = None) -> Path:
    """Write results with versions, commit, machine and time of writing; lists of numbers take one line each.

    Args:
        path: of the file.  content: the results.
        about: `provenance()` at the start of the work; by default that of now.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    text = json.dumps(content | {"about": (about or provenance()) | {"written": now}}, indent=1, allow_nan=False)
    flat = _NUMBERS.sub(lambda found: "[" + re.sub(r",\s+", ", ", found.group(1)) + "]", text)
    write_bytes(file, (flat + "\n").encode())
    return file


def read_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of `write_results`; a file that is not JSON raises ValueError."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"expected results at {file}, found none; run the experiment first")
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError:
        raise ValueError(f"expected JSON in {file}, got something else; run the experiment again") from None
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object in {file}, got a {type(content).__name__}; run the experiment again")
    return content


def rounded(values: Any, digits: int = 6) -> list[float]:
    """Numbers rounded to `digits` significant digits, to keep files small."""
    return [float(f"{float(value):.{digits}g}") for value in values]

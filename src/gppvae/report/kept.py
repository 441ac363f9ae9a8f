"""Cache of the report sections that need the data, for later reports without the data."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from gppvae.data.atomic import write_bytes

KEPT = "report_sections.json"


def keep_sections(folder: Path, model_file: Path, title: str, about: str, sections: dict[str, str]) -> None:
    """Write the HTML of the sections and the title of the page, with the checksum of the model file."""
    content = {"model": _checksum(model_file), "title": title, "about": about, "sections": sections}
    write_bytes(folder / KEPT, json.dumps(content).encode("utf-8"))


@dataclass(frozen=True)
class Kept:
    """Content of the cache; `current`: whether it belongs to the current model file."""

    title: str | None = None
    about: str | None = None
    sections: dict[str, str] = field(default_factory=dict)
    current: bool = True


def kept_sections(folder: Path, model_file: Path) -> Kept:
    """The cached sections of a folder; none if there is no file."""
    path = folder / KEPT
    if not path.is_file():
        return Kept()
    try:
        content = json.loads(path.read_text("utf-8"))
        sections = {str(heading): str(html) for heading, html in content["sections"].items()}
        current = content["model"] == _checksum(model_file)
        return Kept(str(content["title"]), str(content["about"]), sections, current)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"expected sections of a report in {path}, got something else; remove the file") from None


def _checksum(file: Path) -> int | None:
    return zlib.crc32(file.read_bytes()) if file.is_file() else None

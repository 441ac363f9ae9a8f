"""Samples from files dropped on the page: pictures, or tables of values."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import math
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gppvae.estimator import GPPVAE
from gppvae.explore.columns import ColumnFacts, check_row
from gppvae.report.images import is_image

MAX_FILES = 64
MAX_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")
WHITE = 255
MISSING = ("", "nan", "na")  # entries of missing values


def new_object(model: GPPVAE, columns: list[ColumnFacts], asked: Any) -> tuple[np.ndarray, dict[str, list[Any]]]:
    """Samples and their rows from a request: {"column", "id", "files": [base64 ...], "rows": [{column: value} ...]}.

    Returns:
        samples as `GPPVAE.add_objects` takes them, and the table of their rows.
    """
    column = _new_column(columns, asked.get("column"))
    name = asked.get("id")
    if not isinstance(name, str) or not name.strip():
        raise ValueError("expected a name for the new object, got none; use for example 'mine'")
    if name in (column.levels or []):
        raise ValueError(f"expected a new name, got {name!r:.60}, which the model knows; choose another one")
    files, rows = asked.get("files"), asked.get("rows")
    if not isinstance(files, list) or not 1 <= len(files) <= MAX_FILES:
        raise ValueError(f"expected 1 to {MAX_FILES} files, got {len(files) if isinstance(files, list) else 'none'}")
    samples = [sample for number, file in enumerate(files, 1) for sample in _samples(model, file, f"file {number}")]
    if not isinstance(rows, list) or len(rows) != len(samples):
        raise ValueError(f"expected a row for each of {len(samples)} samples, got {len(rows or [])}; give their views")
    checked = [check_row(columns, {**row, column.name: name}) for row in rows if isinstance(row, dict)]
    table = {c.name: [row[c.name] for row in checked] for c in columns}
    return _as_given(model, np.stack(samples)), table


def _as_given(model: GPPVAE, samples: np.ndarray) -> np.ndarray:
    """Pictures in the axis order and scale of the user's training samples; vectors unchanged."""
    if not is_image(model.shape_):
        return samples
    pixels = samples if model.scale is None else (samples / (WHITE * model.scale)).astype(np.float32)
    if model.shape_[0] == 1:
        return pixels[:, 0]
    return np.moveaxis(pixels, 1, -1) if model.channels == "last" else pixels


def _new_column(columns: list[ColumnFacts], name: Any) -> ColumnFacts:
    open_columns = [column for column in columns if column.takes_new]
    if not open_columns:
        raise ValueError(
            "expected a kernel with a Learned or Categorical column that takes new objects, got none; fit with one"
        )
    found = open_columns[0] if name is None else next((c for c in open_columns if c.name == name), None)
    if found is None:
        raise ValueError(f"column {name!r:.60} cannot take new objects; {open_columns[0].name!r} can")
    return found


def _samples(model: GPPVAE, file: Any, what: str) -> list[np.ndarray]:
    """The samples of one file: one picture, or one vector per line."""
    try:
        content = base64.b64decode(file, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError(f"expected {what} in base64, got something else") from None
    if is_image(model.shape_):
        return [picture(content, model.shape_, what)]
    return list(values(content, model.shape_, what, model.sample_names_, model.missing == "mask"))


def picture(content: bytes, shape: tuple[int, ...], what: str) -> np.ndarray:
    """A picture with the size and channels of the training samples, uint8, (channels, h, w)."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"expected a model of grey or colour pictures, got {channels} channels; use add_objects()")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if math.prod(image.size) > MAX_PIXELS:
                raise ValueError(f"expected at most {MAX_PIXELS} pixels in {what}, got {math.prod(image.size)}")
            upright = ImageOps.exif_transpose(image)
            shown = upright.convert("RGB" if channels == 3 else "L").resize((width, height), Image.Resampling.BOX)
    except ValueError:
        raise
    except Exception:  # Pillow's parsers raise anything
        raise ValueError(f"expected a picture ({', '.join(FORMATS)}) in {what}, got another kind of file") from None
    pixels = np.asarray(shown)
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]


def values(
    content: bytes, shape: tuple[int, ...], what: str, names: list[str] | None = None, gaps: bool = False
) -> np.ndarray:
    """Vectors (n, K) from CSV with one sample per line, with or without a header line.

    Args:
        names: of the training samples' values, to find the columns by a header line.
        gaps: whether values may be missing: empty entries, "nan" and "na" are then NaN.
    """
    try:
        lines = [line for line in csv.reader(io.StringIO(content.decode("utf-8-sig"))) if line]
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"expected a CSV table of values in {what}, got something else") from None
    if lines and _is_header(lines[0], names):
        header, lines = lines[0], lines[1:]
        lines = lines if names is None else _in_training_order(header, lines, names, what)
    if not lines or any(len(line) != shape[0] for line in lines):
        got = next((f"a line of {len(line)} entries" for line in lines if len(line) != shape[0]), "none")
        raise ValueError(f"expected lines of {shape[0]} numbers in {what}, got {got}; one sample per line")
    for number, line in enumerate(lines, 1):
        wrong = next((entry for entry in line if not (_is_number(entry) or (gaps and _is_missing(entry)))), None)
        if wrong is not None:
            hint = "; the model was fitted without missing values" if _is_missing(wrong) else ""
            raise ValueError(f"expected numbers in {what}, got {wrong!r:.60} in sample {number}{hint}")
    return np.array([[np.nan if _is_missing(entry) else float(entry) for entry in line] for line in lines], np.float32)


def _is_header(line: list[str], names: list[str] | None) -> bool:
    """Whether a line has the names of columns: text, or all names of the values, which may be numbers."""
    if not all(_is_number(entry) or _is_missing(entry) for entry in line):
        return True
    return bool(names) and {entry.strip() for entry in line}.issuperset(names or [])


def _in_training_order(header: list[str], lines: list[list[str]], names: list[str], what: str) -> list[list[str]]:
    """The columns of the training samples' values, in the order of training."""
    position = {name.strip(): i for i, name in enumerate(header)}
    missing = next((name for name in names if name not in position), None)
    if missing is not None:
        raise ValueError(
            f"expected a column {missing!r:.60} in the first line of {what}, got none; name all {len(names)} values "
            "there, or leave that line out and keep their order"
        )
    return [[line[position[name]] if position[name] < len(line) else "" for name in names] for line in lines]


def _is_number(entry: str) -> bool:
    try:
        return math.isfinite(float(entry))
    except ValueError:
        return False


def _is_missing(entry: str) -> bool:
    return entry.strip().lower() in MISSING

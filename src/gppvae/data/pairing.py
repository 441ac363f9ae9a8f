"""Matches image files to the rows of a table."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gppvae.data.images import SUFFIXES, ImageFiles, image_names
from gppvae.data.paths import kind_of, path_inside
from gppvae.data.table import Table, id_text


def pair_images(
    folder: str | os.PathLike[str],
    frame: Any,
    image_column: str | None = None,
    size: tuple[int, int] | None = None,
    outside: bool = False,
) -> tuple[ImageFiles, str]:
    """The images of a folder in the order of the table's rows, and a sentence about how they were paired.

    Images are paired by a column: `image_column`, or the one in which every value names a different file of the folder,
    by relative path or file name, with or without suffix. Without such a column, the sorted files are paired with the
    rows in order.

    Args:
        folder: of the images; names may also refer to files in subfolders.
        frame: the table (DataFrame, dict of columns or Table); None reads all images, sorted by name.
        image_column: the column with the images' names.
        size: (height, width) to resize to.
        outside: whether names may be outside the folder, by ".." or as absolute paths.
    """
    if kind_of(folder) != "a folder":
        raise ValueError(f"expected a folder of images at {folder}, found {kind_of(folder)}; check the path")
    shown = os.path.join(folder, "")  # with a trailing slash
    if frame is None:
        if image_column is not None:
            raise ValueError("expected --table together with --image-column, got none; give the table with that column")
        paths = image_names(folder)
        return ImageFiles(paths, size), f"read {len(paths)} files of {shown} in the order of {_order(paths)}"
    table = Table(frame)
    files = _FolderIndex(folder, outside)
    column = _check(image_column, table[image_column], files) if image_column else _find_column(table, files)
    if column is not None:
        sentence = f"paired {len(table)} rows with {len(column.paths)} of {files.count} files of {shown}"
        return ImageFiles(column.paths, size), f"{sentence} by column {column.name!r}"
    paths = image_names(folder)
    if len(paths) != len(table):
        raise ValueError(
            f"expected one image of {shown} per row, got {len(table)} rows and {len(paths)} files; "
            "name the column of the table that holds the file names with --image-column"
        )
    return ImageFiles(paths, size), (
        f"paired {len(table)} rows with {len(paths)} files of {shown} in the order of {_order(paths)}; "
        "name a column with --image-column if that is wrong"
    )


@dataclass(frozen=True)
class _ImageColumn:
    """A column in which every value names a file."""

    name: str
    paths: list[str]


class _FolderIndex:
    """The images of a folder and its subfolders, indexed by all names that a table may use."""

    def __init__(self, folder: str | os.PathLike[str], outside: bool) -> None:
        self.folder, self.outside = os.path.abspath(folder), outside
        self.count = 0
        self._paths: dict[str, str] = {}  # by path relative to the folder
        self._short: dict[str, list[str]] = {}  # paths by path without suffix, by name, by name without suffix
        for parent, _, names in os.walk(self.folder):
            for name in sorted(names):
                if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                    self._add(os.path.relpath(os.path.join(parent, name), self.folder))

    def _add(self, path: str) -> None:
        self.count += 1
        name = os.path.basename(path)
        self._paths[path] = path
        for short in {os.path.splitext(path)[0], name, os.path.splitext(name)[0]} - {path}:
            self._short.setdefault(short, []).append(path)

    def find(self, text: str) -> list[str]:
        """Files of the folder that match a text; more than one if it is ambiguous."""
        path = os.path.normpath(text)
        if os.path.isabs(path):
            path = os.path.relpath(path, self.folder)
        start = os.path.basename(self.folder) + os.sep  # of paths relative to the parent folder
        for known in (path, path.removeprefix(start)):
            if known in self._paths:
                return [self._paths[known]]
            if known in self._short:
                return self._short[known]
        return []


def _find_column(table: Table, files: _FolderIndex) -> _ImageColumn | None:
    """The column in which every value names a different file; None if there is none."""
    with_suffix: list[_ImageColumn] = []
    without_suffix: list[_ImageColumn] = []
    errors: list[ValueError] = []
    for name, values in table.columns.items():
        texts = [id_text(value) for value in values if not pd.isna(value)]
        has_suffix = bool(texts) and all(text.lower().endswith(SUFFIXES) for text in texts)
        if not has_suffix and not (len(texts) == len(table) and all(files.find(text) for text in texts)):
            continue
        try:
            (with_suffix if has_suffix else without_suffix).append(_check(name, values, files))
        except ValueError as error:
            # Names with a suffix must match; other columns may match file names by chance.
            errors += [error] if has_suffix else []
    found = with_suffix or without_suffix
    if not found and errors:
        raise errors[0]
    different = next((other for other in found if other.paths != found[0].paths), None)
    if different is not None:
        first, second = found[0].name, different.name
        raise ValueError(
            f"expected one column that names the images of {files.folder}, got columns {first!r} and {second!r} "
            "that name them in different orders; choose one with --image-column"
        )
    return found[0] if found else None


def _check(name: str, values: np.ndarray, files: _FolderIndex) -> _ImageColumn:
    """The column's files, each of which must exist and be named once."""
    first_row: dict[str, int] = {}
    for row, value in enumerate(values):
        if pd.isna(value):
            raise ValueError(
                f"column {name!r} must name an image in every row, got a missing value in row {row}; remove or fill it"
            )
        path = _path_of(name, id_text(value), row, files)
        if path in first_row:
            raise ValueError(
                f"column {name!r} must name each image once, got {os.path.relpath(path, files.folder)} twice, "
                f"in rows {first_row[path]} and {row}; remove one of them"
            )
        first_row[path] = row
    return _ImageColumn(name, list(first_row))


def _path_of(name: str, text: str, row: int, files: _FolderIndex) -> str:
    found = files.find(text)
    if len(found) > 1:
        raise ValueError(
            f"column {name!r} must name one image per row, got {text!r} in row {row}, which may be "
            f"{found[0]} and {found[1]}; write the path in the folder"
        )
    path = str(path_inside(files.folder, found[0] if found else text, files.outside))
    if not found and kind_of(path) == "no such file":
        raise ValueError(
            f"column {name!r} must name images of {files.folder}, got {text!r} in row {row}, where there is "
            "no such file; correct the table or the folder"
        )
    return path


def _order(paths: Sequence[Path]) -> str:
    """Describes the order of sorted names, and where it differs from numeric order."""
    names = [path.name for path in paths]
    keys = [_by_number(name) for name in names]
    descent = next((n for n in range(len(names) - 1) if keys[n] > keys[n + 1]), None)
    remark = "" if descent is None else f"; {names[descent]} comes before {names[descent + 1]}"
    return f"their names ({names[0]} first, {names[-1]} last{remark})"


def _by_number(name: str) -> list[tuple[str, int]]:
    """A natural sort key, 9.png before 10.png: pairs of text and the number after it."""
    parts = [*re.split(r"([0-9]+)", name), "0"]  # text, digits, text, digits, ..., text, and a last number
    return [(text, int(digits)) for text, digits in zip(parts[0::2], parts[1::2], strict=True)]

"""Stored arrays with unwritten or lost parts, which HDF5 and Zarr silently read as the fill value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

MAX_COUNTED = 1_000_000  # chunks of a remote array; counting more would take too long
CHUNK_NAME = re.compile(r"(c[./])?[0-9]+([./][0-9]+)*")  # formats 2 and 3, with either separator


@dataclass(frozen=True)
class Unwritten:
    """An array that is not stored completely.

    Attributes:
        stored, total: number of stored units, and of all units.
        unit: "chunks", "shards" or "values".  fill: the value that missing units are read as.
    """

    stored: int
    total: int
    unit: str
    fill: Any

    def error(self, name: str) -> str:
        """The message of the error that rejects the array."""
        return (
            f"expected all {self.total} {self.unit} of {name}, got {self.stored or 'none'}; the others would be read "
            f"as {self.fill}: restore them, or, if they hold nothing else, pass fill_unwritten=True (--fill-unwritten)"
        )

    def warning(self, name: str) -> str:
        """The message for the log where the array is accepted."""
        missing = f"{self.total - self.stored} of {self.total} {self.unit}"
        return f"{missing} of {name} are not stored and read as {self.fill}"


def unwritten_part(data: Any) -> Unwritten | None:
    """The missing part of an HDF5 data set or Zarr array; None if it is complete, and for other arrays.

    Arrays with a fill value of NaN are not reported: NaN means not observed.
    """
    if isinstance(data, h5py.Dataset):
        found = _in_hdf5(data)
    elif is_zarr(data):
        found = _in_zarr(data)
    else:
        return None
    return None if found is None or _is_nan(found.fill) else found


def is_zarr(data: Any) -> bool:
    """Whether this is a Zarr array, without importing zarr."""
    return type(data).__module__.partition(".")[0] == "zarr" and hasattr(data, "chunks")


def zarr_folder(array: Any) -> str | None:
    """The local folder of a Zarr array, if it has one."""
    root = getattr(array.store, "root", None) or getattr(array.store, "path", None)  # zarr 3, zarr 2
    if not isinstance(root, (str, os.PathLike)) or not os.path.isdir(root):
        return None
    return os.path.join(root, array.path or "")


def _in_hdf5(data: h5py.Dataset) -> Unwritten | None:
    """The missing part of the data set itself; hdf5.py checks the sources of virtual ones."""
    if not data.size or data.is_virtual:
        return None
    if data.chunks is not None:
        total, stored = _cells(data.shape, data.chunks), data.id.get_num_chunks()
        return None if stored >= total else Unwritten(stored, total, "chunks", data.fillvalue)
    allocated = data.id.get_space_status() != h5py.h5d.SPACE_STATUS_NOT_ALLOCATED
    return None if allocated or data.external else Unwritten(0, data.size, "values", data.fillvalue)


def _in_zarr(array: Any) -> Unwritten | None:
    if 0 in array.shape:
        return None
    shards = getattr(array, "shards", None)
    unit = "shards" if shards else "chunks"
    folder, cell = zarr_folder(array), shards or array.chunks
    if folder is not None:
        total, stored = _cells(array.shape, cell), _stored_chunks(folder, array.shape, cell)
    elif array.nchunks <= MAX_COUNTED:
        total, stored, unit = array.nchunks, array.nchunks_initialized, "chunks"
    else:
        return None
    return None if stored >= total else Unwritten(stored, total, unit, array.fill_value)


def _stored_chunks(folder: str, shape: Sequence[int], cell: Sequence[int]) -> int:
    """Number of files in a folder whose names are positions in the grid of chunks.

    zarr would check every position of the grid, which takes forever with a damaged shape.
    """
    grid = [-(-n // size) for n, size in zip(shape, cell, strict=True)]
    count = 0
    for path, _ in files_below(folder):
        if CHUNK_NAME.fullmatch(path):
            numbers = [int(part) for part in re.split("[./]", path.removeprefix("c")) if part]
            count += len(numbers) == len(grid) and all(n < end for n, end in zip(numbers, grid, strict=True))
    return count


def files_below(folder: str | os.PathLike[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All files below a folder, with their relative paths, separated by "/"."""
    waiting = [("", os.fspath(folder))]
    while waiting:
        start, path = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):  # links may form a cycle
                    waiting.append((f"{start}{entry.name}/", entry.path))
                elif not entry.is_dir():
                    yield start + entry.name, entry


def _cells(shape: Sequence[int], cell: Sequence[int]) -> int:
    return math.prod(-(-n // size) for n, size in zip(shape, cell, strict=True))


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))

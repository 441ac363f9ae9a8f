"""Stored arrays with parts that were never written or got lost: they would silently be read as the fill value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

COUNTED = 1_000_000  # chunks of an array that is not in a local folder; asking for more would take too long
CHUNK_NAME = re.compile(r"(c[./])?[0-9]+([./][0-9]+)*")  # formats 2 and 3, with either separator


@dataclass(frozen=True)
class Unwritten:
    """An array that is not stored completely.

    Attributes:
        stored, total: number of units that are stored, and that should be.
        unit: "chunks", "shards" or "values".  fill: what the missing ones are read as.
    """

    stored: int
    total: int
    unit: str
    fill: Any

    def refusal(self, name: str) -> str:
        """The error message that refuses the array."""
        return (
            f"expected all {self.total} {self.unit} of {name}, got {self.stored or 'none'}; the others would be read "
            f"as {self.fill}: restore them, or, if they hold nothing else, pass fill_unwritten=True (--fill-unwritten)"
        )

    def remark(self, name: str) -> str:
        """The message for the log, where the array is accepted as it is."""
        missing = f"{self.total - self.stored} of {self.total} {self.unit}"
        return f"{missing} of {name} are not stored and read as {self.fill}"


def unwritten_part(data: Any) -> Unwritten | None:
    """How much of an HDF5 data set or Zarr array is not stored; None if it is complete, and for other arrays.

    A fill value of NaN already means that nothing was observed, so it is not reported.
    """
    if isinstance(data, h5py.Dataset):
        found = _in_hdf5(data)
    elif is_zarr(data):
        found = _in_zarr(data)
    else:
        return None
    return None if found is None or _is_nan(found.fill) else found


def is_zarr(data: Any) -> bool:
    """Whether this is an array of the zarr package, which need not be installed."""
    return type(data).__module__.partition(".")[0] == "zarr" and hasattr(data, "chunks")


def zarr_folder(array: Any) -> str | None:
    """The local folder of a Zarr array, if it has one."""
    root = getattr(array.store, "root", None) or getattr(array.store, "path", None)  # zarr 3, zarr 2
    if not isinstance(root, (str, os.PathLike)) or not os.path.isdir(root):
        return None
    return os.path.join(root, array.path or "")


def _in_hdf5(data: h5py.Dataset) -> Unwritten | None:
    """Of the data set itself; the sources of a virtual one are checked in hdf5.py."""
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
    elif array.nchunks <= COUNTED:
        total, stored, unit = array.nchunks, array.nchunks_initialized, "chunks"
    else:
        return None
    return None if stored >= total else Unwritten(stored, total, unit, array.fill_value)


def _stored_chunks(folder: str, shape: Sequence[int], cell: Sequence[int]) -> int:
    """Number of files of a folder whose names are positions in the grid of chunks.

    Listed here and not by zarr, which visits every position of the grid: with a damaged shape that might never end.
    """
    grid = [-(-n // size) for n, size in zip(shape, cell, strict=True)]
    count = 0
    for place, _ in files_below(folder):
        if CHUNK_NAME.fullmatch(place):
            numbers = [int(part) for part in re.split("[./]", place.removeprefix("c")) if part]
            count += len(numbers) == len(grid) and all(n < end for n, end in zip(numbers, grid, strict=True))
    return count


def files_below(folder: str | os.PathLike[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All files below a folder, with their paths relative to it, joined by "/"."""
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

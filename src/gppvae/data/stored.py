"""Rows of an array wherever it is stored: in memory, memory-mapped, or in chunks (HDF5, Zarr)."""

from __future__ import annotations

import abc
import mmap
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

UNIT_BYTES = 1 << 18  # chunks smaller than this are read several at a time
BUFFER_BYTES = 32 << 20  # of chunks that are shuffled together; twice as much is kept
RELEASE_BYTES = 32 << 20  # of a memory map that may stay resident


class Reader(abc.ABC):
    """Reads rows of one array-like.

    Attributes:
        unit_rows: rows that are read together at no extra cost; 1 where any row is as near as any other.
        buffer_units: units that are held at a time.
    """

    unit_rows: int = 1
    buffer_units: int = 1

    @abc.abstractmethod
    def rows(self, index: np.ndarray) -> np.ndarray:
        """Rows at `index`, in that order; a row may be asked for twice."""

    @abc.abstractmethod
    def block(self, start: int, stop: int) -> np.ndarray:
        """Rows from `start` up to `stop`."""


class ArrayReader(Reader):
    """A NumPy array. Of a read-only memory map, pages that were read are given back now and then.

    The system would take such pages back itself when memory runs short; giving them back keeps the resident size of
    the process honest and small.
    """

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        mapped = getattr(data, "_mmap", None)
        readable = isinstance(data, np.memmap) and data.mode == "r" and hasattr(mmap, "MADV_DONTNEED")
        self._map = mapped if readable else None
        self._touched = 0

    def rows(self, index: np.ndarray) -> np.ndarray:
        return self._copied(self.data[index])

    def block(self, start: int, stop: int) -> np.ndarray:
        view = self.data[start:stop]
        return view if self._map is None else self._copied(np.array(view))

    def _copied(self, rows: np.ndarray) -> np.ndarray:
        if self._map is not None:
            # Around a row of a map the system brings in 64 KiB, whatever the size of the row.
            self._touched += max(rows.nbytes, len(rows) << 16)
            if self._touched > RELEASE_BYTES:
                self._map.madvise(mmap.MADV_DONTNEED)
                self._touched = 0
        return rows


class ChunkReader(Reader):
    """An array stored in chunks of rows: whole chunks are read, and the last ones are kept.

    Only slices are asked of the array, which HDF5 and Zarr (2 and 3) both serve fast.
    """

    def __init__(self, data: Any, chunk_rows: int) -> None:
        self.data, self.n_rows = data, int(data.shape[0])
        row_bytes = max(1, int(np.dtype(data.dtype).itemsize * np.prod(data.shape[1:])))
        self.unit_rows = chunk_rows * max(1, UNIT_BYTES // (chunk_rows * row_bytes))
        self.buffer_units = max(2, BUFFER_BYTES // (self.unit_rows * row_bytes))
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, index: np.ndarray) -> np.ndarray:
        out = np.empty((len(index), *self.data.shape[1:]), dtype=self.data.dtype)
        units = index // self.unit_rows
        with self._lock:
            for number in np.unique(units).tolist():
                where = units == number
                out[where] = self._unit(number)[index[where] - number * self.unit_rows]
        return out

    def _unit(self, number: int) -> np.ndarray:
        if number not in self._kept:
            start = number * self.unit_rows
            self._kept[number] = self.block(start, min(start + self.unit_rows, self.n_rows))
            if len(self._kept) > 2 * self.buffer_units:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]

    def block(self, start: int, stop: int) -> np.ndarray:
        return np.asarray(self.data[start:stop])


class PointReader(Reader):
    """Any other array-like, asked for increasing positions without repeats."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def rows(self, index: np.ndarray) -> np.ndarray:
        distinct, inverse = np.unique(index, return_inverse=True)
        return np.asarray(self.data[distinct])[inverse]

    def block(self, start: int, stop: int) -> np.ndarray:
        return np.asarray(self.data[start:stop])


def reader_of(data: Any) -> Reader:
    """The reader that suits an array-like."""
    if isinstance(data, np.ndarray):
        return ArrayReader(data)
    chunks = getattr(data, "chunks", None)
    if chunks and isinstance(chunks[0], int):
        return ChunkReader(data, max(1, min(chunks[0], int(data.shape[0]))))
    return PointReader(data)

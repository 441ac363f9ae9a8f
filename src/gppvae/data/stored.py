"""Readers for rows of arrays in memory, memory-mapped, or stored in chunks (HDF5, Zarr)."""

from __future__ import annotations

import abc
import math
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import scipy.sparse

from gppvae.data.named import Named
from gppvae.data.subset import Subset
from gppvae.data.unwritten import is_zarr, zarr_folder
from gppvae.data.words import reason

UNIT_BYTES = 1 << 18  # smaller chunks are read several at a time
BUFFER_BYTES = 32 << 20  # size of the shuffle buffer; the cache is twice as large
MAX_CHUNK_BYTES = 1 << 31  # a chunk is decompressed as a whole


class Reader(abc.ABC):
    """Reads rows of one array-like.

    Attributes:
        unit_rows: rows that are read together at no extra cost; 1 where single rows can be read.
        buffer_units: units in the shuffle buffer.
        threads: number of threads that read ahead.
        cacheable: whether all rows may be loaded into memory as one dense array, if small enough.
    """

    unit_rows: int = 1
    buffer_units: int = 1
    threads: int = 1
    cacheable: bool = True

    @abc.abstractmethod
    def rows(self, index: np.ndarray) -> np.ndarray:
        """Rows at `index`, in this order; repeats are allowed."""

    @abc.abstractmethod
    def block(self, start: int, stop: int) -> np.ndarray:
        """Rows from `start` up to `stop`."""


class ArrayReader(Reader):
    """A NumPy array."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def rows(self, index: np.ndarray) -> np.ndarray:
        return self.data[index]

    def block(self, start: int, stop: int) -> np.ndarray:
        return self.data[start:stop]


class MapReader(Reader):
    """A read-only memory map, read through its file descriptor.

    Pages of a map stay resident once touched, and random access soon touches all of them.
    """

    def __init__(self, data: np.memmap) -> None:
        self.shape, self.dtype = data.shape[1:], data.dtype
        self._row_bytes = int(data.dtype.itemsize * np.prod(self.shape))
        page = mmap.ALLOCATIONGRANULARITY
        mapped = np.frombuffer(data._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
        # The map starts at a page boundary, before the first byte of the array.
        self._start = data.offset - data.offset % page + data.ctypes.data - mapped.ctypes.data
        self._file = os.open(str(data.filename), os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    @staticmethod
    def suits(data: np.ndarray) -> bool:
        """Whether this is a read-only map of a contiguous part of a file."""
        return (
            isinstance(data, np.memmap)
            and data.mode == "r"
            and data.filename is not None
            and bool(data.flags.c_contiguous)
            and getattr(data, "_mmap", None) is not None
            and hasattr(os, "preadv")
        )

    def rows(self, index: np.ndarray) -> np.ndarray:
        out = np.empty((len(index), *self.shape), dtype=self.dtype)
        for i, number in enumerate(index.tolist()):
            self._fill(out[i : i + 1], number)
        return out

    def block(self, start: int, stop: int) -> np.ndarray:
        out = np.empty((stop - start, *self.shape), dtype=self.dtype)
        self._fill(out, start)
        return out

    def _fill(self, out: np.ndarray, row: int) -> None:
        into = out.reshape(-1).view(np.uint8).data  # the bytes of `out`
        done = 0
        while done < into.nbytes:
            got = os.preadv(self._file, [into[done:]], self._start + row * self._row_bytes + done)
            if got == 0:
                raise ValueError(
                    f"expected {into.nbytes} bytes at row {row} of the mapped file, got its end; restore it"
                )
            done += got


class ChunkReader(Reader):
    """An array stored in chunks of rows, read through an LRU cache of full chunks.

    The array is read by slices only, which are fast in HDF5 and Zarr (2 and 3). A single prefetch thread reads the
    batches in order, and so every chunk once per epoch.
    """

    def __init__(self, data: Any, chunk_rows: int) -> None:
        self.data, self.n_rows = data, int(data.shape[0])
        row_bytes = max(1, int(np.dtype(data.dtype).itemsize * np.prod(data.shape[1:])))
        self.unit_rows = chunk_rows * max(1, UNIT_BYTES // (chunk_rows * row_bytes))
        self.buffer_units = max(2, BUFFER_BYTES // (self.unit_rows * row_bytes))
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()
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
        if number not in self._cache:
            start = number * self.unit_rows
            self._cache[number] = self.block(start, min(start + self.unit_rows, self.n_rows))
            if len(self._cache) > 2 * self.buffer_units:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        return self._cache[number]

    def block(self, start: int, stop: int) -> np.ndarray:
        return _read(self.data, start, stop, lambda: self.data[start:stop])


class PointReader(Reader):
    """Any other array-like, such as image files; indexed by increasing positions without repeats, as h5py requires."""

    threads = min(4, os.cpu_count() or 1)

    def __init__(self, data: Any) -> None:
        self.data = data

    def rows(self, index: np.ndarray) -> np.ndarray:
        distinct, inverse = np.unique(index, return_inverse=True)
        if not len(distinct):
            return np.asarray(self.data[0:0])
        return _read(self.data, int(distinct[0]), int(distinct[-1]) + 1, lambda: self.data[distinct])[inverse]

    def block(self, start: int, stop: int) -> np.ndarray:
        return _read(self.data, start, stop, lambda: self.data[start:stop])


class SparseReader(Reader):
    """A scipy sparse matrix or array in memory; the rows of a batch become dense."""

    cacheable = False

    def __init__(self, data: Any) -> None:
        self.data = data.tocsr()

    def rows(self, index: np.ndarray) -> np.ndarray:
        return self.data[index].toarray()

    def block(self, start: int, stop: int) -> np.ndarray:
        return self.data[start:stop].toarray()


class SubsetReader(Reader):
    """A subset of rows, read through the reader of the whole array."""

    def __init__(self, data: Subset) -> None:
        self.index, self._whole = data.index, reader_of(data.data)
        share = len(data) / max(1, data.data.shape[0])
        in_order = bool((np.diff(data.index) > 0).all())
        self.unit_rows = max(1, round(self._whole.unit_rows * share)) if in_order else 1
        self.buffer_units, self.threads = self._whole.buffer_units, self._whole.threads
        self.cacheable = self._whole.cacheable

    def rows(self, index: np.ndarray) -> np.ndarray:
        return self._whole.rows(self.index[index])

    def block(self, start: int, stop: int) -> np.ndarray:
        return self._whole.rows(self.index[start:stop])


def check_chunks(data: Any) -> None:
    """Reject chunks that would fill the memory; damaged metadata can claim any size."""
    chunks = getattr(data, "chunks", None)
    if not chunks or not all(isinstance(n, int) for n in chunks):
        return
    size = math.prod(chunks) * np.dtype(data.dtype).itemsize
    if size > MAX_CHUNK_BYTES:
        raise ValueError(
            f"expected chunks of at most {MAX_CHUNK_BYTES} bytes, got {size} for chunks of shape {tuple(chunks)}; "
            "store it in smaller chunks"
        )


def _read(data: Any, start: int, stop: int, values: Callable[[], Any]) -> np.ndarray:
    """`values()`, which reads rows between `start` and `stop`; a damaged array raises ValueError."""
    try:
        return np.asarray(values())
    except Exception as error:  # the type depends on the compressor
        if isinstance(data, h5py.Dataset):
            name = f"{data.file.filename}:{data.name}"
        elif is_zarr(data):
            name = zarr_folder(data) or str(data.store)
        else:
            raise  # an error of the user's own array
        raise ValueError(
            f"expected rows {start} to {stop - 1} to be whole in {name}, got damaged ones ({reason(error)}); "
            "restore the data"
        ) from None


def reader_of(data: Any) -> Reader:
    """The reader that suits an array-like."""
    if isinstance(data, Named):
        return reader_of(data.values)
    check_chunks(data)
    if isinstance(data, Subset):
        return SubsetReader(data)
    if scipy.sparse.issparse(data):
        return SparseReader(data)
    if isinstance(data, np.ndarray):
        return MapReader(data) if isinstance(data, np.memmap) and MapReader.suits(data) else ArrayReader(data)
    chunks = getattr(data, "chunks", None)
    if chunks and isinstance(chunks[0], int):
        return ChunkReader(data, max(1, min(chunks[0], int(data.shape[0]))))
    return PointReader(data)

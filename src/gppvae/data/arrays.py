"""Samples: any array-like in, float32 batches out."""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gppvae.data.images import ImageFiles, is_path_list
from gppvae.data.missing import MissingValues
from gppvae.data.named import Named, from_frame, names_of
from gppvae.data.stored import reader_of
from gppvae.data.subset import Subset
from gppvae.data.unwritten import is_zarr, unwritten_part
from gppvae.data.world import ALONE, World

IN_MEMORY_BYTES = 1 << 30
CHUNK_BYTES = 8 << 20
MOMENT_ROWS = 256
LARGEST = float(np.finfo(np.float32).max)
COARSE = 100  # a value whose range is below this many float32 steps is coarse: rounding merges its samples

log = logging.getLogger(__name__)


class Samples:
    """N samples of one shape, read by index; an array on disk stays there.

    Args:
        data: array-like with shape, dtype and indexing: NumPy array or memory map, tensor, HDF5 or Zarr array;
            (N, height, width), (N, channels, height, width), (N, height, width, channels) or (N, values).
            Or image files: a list or column of paths, or ImageFiles. Or a numeric DataFrame. Or a scipy sparse matrix,
            which becomes dense batch by batch.
        channels: "first" or "last", for four-dimensional arrays.
        scale: factor on the values; by default 1/255 for uint8 images, 1/65535 for uint16 images and 1 otherwise.
        missing: "error" rejects NaN, "mask" treats it as not observed. Masked entries of a masked array become NaN.

    Attributes:
        shape: of one sample: (values,) or (channels, height, width).
        layout_in: layout of the input: "vector", "grey" (no channel axis), "first" or "last"; see to_input_layout.
        names: of the values of a sample, if they came as named columns.
        scale: factor on the values.  integers: whether all scaled values are integers; set by check().
        missing_values: counts of missing values; set by check().
        coarse_values: indices of the values of vectors that float32 resolves poorly; set by check().
        labels: the index of a DataFrame, else None.
    """

    def __init__(self, data: Any, channels: str = "first", scale: float | None = None, missing: str = "error") -> None:
        if is_path_list(data):
            data = ImageFiles(data)
        self.labels = data.index if isinstance(data, pd.DataFrame) else None
        if isinstance(data, pd.DataFrame):
            data = from_frame(data)
        if isinstance(data.data if isinstance(data, Subset) else data, ImageFiles):
            channels = "first"
        if isinstance(data, (list, tuple)):
            data = np.asarray(data)
        if isinstance(data, Tensor):
            data = data.detach().cpu()
            data = (data.float() if data.dtype == torch.bfloat16 else data).numpy()  # NumPy has no bfloat16
        if not (hasattr(data, "shape") and hasattr(data, "dtype")):
            raise TypeError(f"expected an array of samples, got {type(data).__name__}; pass for example a NumPy array")
        if channels not in ("first", "last"):
            raise ValueError(f"channels must be 'first' or 'last', got {channels!r}; 'first' is the default")
        if missing not in ("error", "mask"):
            raise ValueError(f"missing must be 'error' or 'mask', got {missing!r}; 'error' is the default")
        dtype = np.dtype(data.dtype)
        if dtype.kind not in "buif":
            raise TypeError(f"expected samples of an integer or float type, got {data.dtype}; convert the array")
        if isinstance(data, np.ma.MaskedArray):
            data = _masked_as_nan(data)
        self.data, self.missing, self.names = data, missing, names_of(data)
        self.shape = _sample_shape(tuple(data.shape), channels)
        self.layout_in = {2: "vector", 3: "grey"}.get(len(data.shape), channels)
        self.scale = float(scale) if scale is not None else _white_to_one(dtype, self.shape)
        self.integers = dtype.kind in "bui" and self.scale == 1.0
        _warn_if_unwritten(_stored(data))
        self._reader = reader_of(data)
        self._tensor: Tensor | None = None

    def __len__(self) -> int:
        return int(self.data.shape[0])

    def part(self, index: np.ndarray) -> Samples:
        """The samples at these positions, in this order; read on demand."""
        other = copy.copy(self)
        other.data, other.labels = Subset(self.data, index), None
        other._reader = reader_of(other.data)
        other._tensor = None if self._tensor is None else self._tensor[torch.from_numpy(other.data.index)]
        return other

    @property
    def in_memory(self) -> bool:
        return self._tensor is not None

    @property
    def threads(self) -> int:
        """Number of threads that read ahead; 0 in memory."""
        return 0 if self.in_memory else self._reader.threads

    @property
    def storage_units(self) -> tuple[int, int]:
        """Rows per storage unit, and units buffered at a time; (1, 1) without chunks."""
        return (1, 1) if self.in_memory else (self._reader.unit_rows, self._reader.buffer_units)

    def check(self, world: World = ALONE) -> tuple[float, float]:
        """Minimum and maximum; empty, infinite or (unless masked) NaN data raise ValueError.

        One pass, one block in memory at a time. Each process of `world` reads its part of the blocks.
        """
        if len(self) == 0 or 0 in self.shape:
            raise ValueError(f"expected at least one sample, got an array of shape {tuple(self.data.shape)}")
        lowest, highest, integers = np.inf, -np.inf, True
        ranges = ValueRanges(self.shape[0] if self.layout_in == "vector" else 0)
        self.missing_values = MissingValues(len(self), self.shape[0], self.layout_in == "last")
        for start, block in self._blocks(world):
            bad = ~np.isfinite(block) if self.missing == "error" else np.isinf(block)
            if bad.any():
                first = start + int(np.argwhere(bad.reshape(len(block), -1).any(1))[0, 0])
                raise ValueError(
                    f"expected finite samples, got NaN or infinity in sample {first}; "
                    "clean the data, or pass missing='mask' (--missing mask) for NaN"
                )
            if self.missing == "mask":
                self.missing_values.add(start, block)
            observed = block[np.isfinite(block)]
            if observed.size and np.abs(observed).max() > LARGEST:
                raise ValueError(
                    f"expected samples of at most {LARGEST:.2g}, the largest number in float32, got "
                    f"{np.abs(observed).max():.2g}; rescale them, for example with scale=1e-6"
                )
            ranges.add(block)
            if observed.size:
                lowest, highest = min(lowest, float(observed.min())), max(highest, float(observed.max()))
                integers = integers and bool((observed == np.round(observed)).all())
        stats = torch.zeros(world.size, 3, dtype=torch.float64)  # one row per process, so that a sum gathers them
        stats[world.rank] = torch.tensor([lowest, highest, float(integers)])
        world.sum_([stats])
        self.missing_values.sum_over(world)
        self.coarse_values = ranges.coarse(world)
        lowest, highest, self.integers = float(stats[:, 0].min()), float(stats[:, 1].max()), bool(stats[:, 2].all())
        if not np.isfinite(lowest):
            raise ValueError("expected at least one observed value, got only NaN; check the data")
        return lowest, highest

    def moments(self, world: World = ALONE) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of observed values, per channel of images or per value of vectors, (C,)."""
        sums = torch.zeros(3, self.shape[0], dtype=torch.float64)  # power sums 0 to 2, (3, C)
        starts = range(0, len(self), MOMENT_ROWS)
        # Shifted by some value: the variance of values far from zero would suffer from cancellation.
        pivot = self._some_mean()
        for start in starts[world.part(len(starts))]:
            y, mask = self.read(torch.arange(start, min(start + MOMENT_ROWS, len(self))))
            flat = y.double().reshape(len(y), self.shape[0], -1) - pivot[:, None]  # (B, C, values of a channel)
            observed = torch.ones_like(flat) if mask is None else mask.reshape(flat.shape).double()
            sums += torch.stack([(observed * flat**k).sum((0, 2)) for k in range(3)])
        world.sum_([sums])
        count = sums[0].clamp_min(1.0)
        mean = sums[1] / count
        return pivot + mean, (sums[2] / count - mean.square()).clamp_min(0.0).sqrt()

    def _some_mean(self) -> Tensor:
        """Mean of the observed values of each channel in the first sample that has any, among a few, (C,)."""
        y, mask = self.read(torch.arange(1 if self.missing == "error" else min(MOMENT_ROWS, len(self))))
        flat = y.double().reshape(len(y), self.shape[0], -1)  # (B, C, values of a channel)
        if mask is None:
            return flat[0].mean(1)
        seen = mask.reshape(flat.shape)
        count = seen.sum(2)  # (B, C)
        first = (count > 0).double().argmax(0)  # (C,)
        return ((flat * seen).sum(2) / count.clamp_min(1)).gather(0, first.unsqueeze(0)).squeeze(0)

    def totals(self, world: World) -> Tensor:
        """Totals of the samples with observed values, float64; a total of zero raises ValueError."""
        found = torch.zeros(2, len(self), dtype=torch.float64)  # total, and 1 if anything was observed, (2, N)
        starts = range(0, len(self), MOMENT_ROWS)
        for start in starts[world.part(len(starts))]:
            stop = min(start + MOMENT_ROWS, len(self))
            y, mask = self.read(torch.arange(start, stop))
            found[0, start:stop] = y.double().flatten(1).sum(1)
            found[1, start:stop] = 1.0 if mask is None else mask.flatten(1).any(1).double()
        world.sum_([found])
        empty = torch.nonzero((found[0] <= 0.0) & (found[1] > 0.0)).flatten()
        if len(empty):
            raise ValueError(
                f"expected samples with a total count above zero, got a total of 0 in sample {int(empty[0])} "
                f"({len(empty)} such samples); remove them, or name a column of sizes"
            )
        return found[0, found[1] > 0.0]

    def _blocks(self, world: World) -> Iterator[tuple[int, np.ndarray]]:
        rows = max(1, CHUNK_BYTES // max(1, 8 * int(np.prod(self.shape))))
        unit = self._reader.unit_rows
        rows = max(unit, rows // unit * unit)  # full chunks
        starts = range(0, len(self), rows)
        for start in starts[world.part(len(starts))]:
            block = self._reader.block(start, min(start + rows, len(self)))
            yield start, np.asarray(block, dtype=np.float64) * self.scale

    def keep_in_memory(self) -> None:
        """Load the samples as one float32 tensor if they are small enough."""
        if (
            self._tensor is None
            and self._reader.cacheable
            and 4 * len(self) * int(np.prod(self.shape)) <= IN_MEMORY_BYTES
        ):
            self._tensor = self._whole()

    def _whole(self) -> Tensor:
        held = torch.empty(len(self), *self.shape)
        rows = max(1, CHUNK_BYTES // (4 * int(np.prod(self.shape))))
        for start in range(0, len(self), rows):
            stop = min(start + rows, len(self))
            held[start:stop] = self._convert(self._reader.block(start, stop))
        return held

    def checksum(self) -> int:
        """CRC-32 of all samples if they are in memory, else of some spread evenly over the data."""
        if self._tensor is not None:
            return zlib.crc32(self._tensor.numpy().data)
        some, _ = self.read(torch.linspace(0, len(self) - 1, min(64, len(self))).long().unique())
        return zlib.crc32(some.numpy().data)

    def read(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Samples at `index` as float32 (B, *shape), zero where missing, and the mask of observed values or None."""
        y = self._convert(self._reader.rows(index.numpy())) if self._tensor is None else self._tensor[index]
        if self.missing == "error":
            return y, None
        return torch.nan_to_num(y), torch.isfinite(y)

    def with_gaps(self, index: np.ndarray) -> np.ndarray:
        """Samples at `index` as float32 (B, *shape), NaN where nothing was observed."""
        y, mask = self.read(torch.from_numpy(index))
        return y.numpy() if mask is None else np.where(mask.numpy(), y.numpy(), np.nan)

    def _convert(self, block: np.ndarray) -> Tensor:
        y = torch.from_numpy(np.array(block, dtype=np.float32))
        if self.scale != 1.0:
            y *= self.scale
        if self.layout_in == "last":
            y = y.movedim(3, 1).contiguous()  # (B, height, width, channels) -> (B, channels, height, width)
        return y.reshape(len(y), *self.shape)


class ValueRanges:
    """Minimum and maximum of each value of vectors, to find values that float32 resolves poorly."""

    def __init__(self, n_values: int) -> None:
        self._ends = np.full((2, n_values), np.inf)  # minimum, negative maximum

    def add(self, block: np.ndarray) -> None:
        """Update the ranges with a block of vectors, (B, values); missing values do not count."""
        if self._ends.size:
            ends = [np.where(np.isnan(signed), np.inf, signed).min(0) for signed in (block, -block)]
            self._ends = np.minimum(self._ends, ends)

    def coarse(self, world: World) -> list[int]:
        """Indices of the values whose range is less than COARSE steps of float32 at their magnitude."""
        ends = torch.zeros(world.size, *self._ends.shape, dtype=torch.float64)  # one row per process
        ends[world.rank] = torch.from_numpy(self._ends).clamp(-LARGEST, LARGEST)
        world.sum_([ends])
        low, high = ends[:, 0].amin(0).numpy(), -ends[:, 1].amin(0).numpy()
        step = np.finfo(np.float32).eps * np.maximum(np.abs(low), np.abs(high))
        return np.flatnonzero((high > low) & (high - low < COARSE * step)).tolist()


Array = TypeVar("Array", np.ndarray, Tensor)


def to_input_layout(array: Array, layout: str) -> Array:
    """Samples in the axis order of the user's data.

    Args:
        array: (..., N, channels, height, width), or (..., N, values) for vectors; NumPy array or tensor.
        layout: the `layout_in` of the Samples: "vector" and "first" leave the array as it is, "grey" gives
            (..., N, height, width) and "last" gives (..., N, height, width, channels).
    """
    if layout not in ("vector", "grey", "first", "last"):
        raise ValueError(f"the layout must be 'vector', 'grey', 'first' or 'last', got {layout!r}; see layout_in")
    if layout == "vector":
        return array
    shape = tuple(array.shape)
    if len(shape) < 4:
        raise ValueError(f"expected images of shape (N, channels, height, width), got shape {shape}; check the layout")
    if layout == "first":
        return array
    if layout == "grey":
        if shape[-3] != 1:
            raise ValueError(f"expected one channel for the layout 'grey', got shape {shape}; check the layout")
        return array[..., 0, :, :]
    return array.movedim(-3, -1) if isinstance(array, Tensor) else np.moveaxis(array, -3, -1)


def shape_out(n: int, shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Shape of n samples of shape `shape` in the given layout, see `to_input_layout`."""
    return n, *to_input_layout(np.empty((0, *shape)), layout).shape[1:]


def from_input_layout(array: Array, layout: str) -> Array:
    """The inverse of `to_input_layout`: (..., N, channels, height, width)."""
    if layout == "grey":
        return array[..., None, :, :]
    if layout == "last":
        return array.movedim(-1, -3) if isinstance(array, Tensor) else np.moveaxis(array, -1, -3)
    return array


def _masked_as_nan(data: np.ma.MaskedArray) -> np.ndarray:
    """A masked array as a plain one, NaN where it is masked."""
    if not np.ma.is_masked(data):
        return np.asarray(data.data)
    hidden = np.ma.getmaskarray(data)
    return np.where(hidden, np.nan, data.data.astype(np.result_type(data.dtype, np.float32)))


def _stored(data: Any) -> Any:
    """The array behind a subset or a named array."""
    if isinstance(data, Subset):
        return _stored(data.data)
    return data.values if isinstance(data, Named) else data


def _warn_if_unwritten(data: Any) -> None:
    """Only a warning, since the user opened this array. Files opened by path are rejected (open.py)."""
    unwritten = unwritten_part(data)
    if unwritten is not None:
        log.warning(unwritten.warning("the Zarr array" if is_zarr(data) else "the HDF5 data set"))


def _white_to_one(dtype: np.dtype[Any], shape: tuple[int, ...]) -> float:
    """The factor that scales 8-bit and 16-bit images to [0, 1]; other types have no defined white."""
    if len(shape) != 3 or dtype.kind != "u" or dtype.itemsize > 2:
        return 1.0
    return 1.0 / (255.0 if dtype.itemsize == 1 else 65535.0)


def _sample_shape(shape: tuple[int, ...], channels: str) -> tuple[int, ...]:
    if len(shape) == 2:
        return shape[1:]
    if len(shape) == 3:
        return (1, *shape[1:])
    if len(shape) != 4:
        raise ValueError(
            f"expected samples of shape (N, values), (N, height, width) or (N, channels, height, width), got {shape}; "
            "reshape the array"
        )
    if channels == "last":
        return (shape[3], shape[1], shape[2])
    if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
        raise ValueError(f"expected channels first, got shape {shape}; pass channels='last'")
    return shape[1:]

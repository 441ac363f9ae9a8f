"""Image files as an array that is decoded on demand."""

from __future__ import annotations

import logging
import numbers
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gppvae.data.decode import read_header, read_pixels
from gppvae.data.paths import path_inside

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
MAX_PIXELS = 1 << 26  # of one sample: 8192 x 8192, which is 256 MiB as float32
DTYPES: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 16: np.dtype(np.uint16), 32: np.dtype(np.float32)}

log = logging.getLogger(__name__)


class ImageFiles:
    """N image files as one array, (N, height, width), or (N, 3, height, width) if any of them is in colour.

    The constructor reads all headers; pixels are decoded on demand. The type is uint8, or uint16 if any file has 16
    bits per value, or float32 if any has floats; white is 255, 65535 or 1. The EXIF orientation is applied, palettes
    are expanded, transparent pixels are blended over black, and colour profiles are not applied.

    Args:
        paths: of the files, one per row of the table.
        size: (height, width) to resize to; by default all images must have the size of the first.
        colour: True for three channels, False for grey; None for colour if any file is in colour.
    """

    def __init__(self, paths: Sequence[Any], size: tuple[int, int] | None = None, colour: bool | None = None) -> None:
        self.paths = [os.fspath(path) for path in paths]
        if not self.paths:
            raise ValueError("expected at least one image file, got none; check the folder or the list")
        self.resized = size is not None
        wanted = None if size is None else _checked_size(size)
        headers = [read_header(path) for path in self.paths]
        self.size = wanted or headers[0].size
        for path, header in zip(self.paths, headers, strict=True):
            if not self.resized:
                _check_same_size(path, header.size, self.size)
        self.colour = any(header.colour for header in headers) if colour is None else bool(colour)
        self.shape = (len(self.paths), *((3,) if self.colour else ()), *self.size)
        self.dtype = DTYPES[max(header.depth for header in headers)]
        transparent = sum(header.alpha for header in headers)
        if transparent:
            log.info("%d of %d images may be transparent; they are shown over black", transparent, len(headers))

    @classmethod
    def in_folder(
        cls,
        folder: str | os.PathLike[str],
        size: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
        outside: bool = False,
    ) -> ImageFiles:
        """The images with these names; without names, all images of the folder, sorted by name.

        Args:
            folder: of the images.  size: (height, width) to resize to.
            names: paths relative to the folder.
            outside: whether names may be outside the folder, by ".." or as absolute paths.
        """
        if names is not None:
            return cls([path_inside(folder, name, outside) for name in names], size)
        return cls(image_names(folder), size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: Any) -> np.ndarray:
        wanted = range(len(self.paths))[key] if isinstance(key, slice) else np.asarray(key, dtype=np.int64).tolist()
        out = np.empty((len(wanted), *self.shape[1:]), dtype=self.dtype)
        for i, number in enumerate(wanted):
            out[i] = self._decode(self.paths[number])
        return out

    def _decode(self, path: str) -> np.ndarray:
        pixels = read_pixels(path)  # (height, width) or (height, width, 3)
        if pixels.ndim == 3 and not self.colour:
            pixels = _to_grey(pixels)
        pixels = _to_type(pixels, self.dtype)
        if self.resized:
            pixels = _resize(pixels, self.size)
        else:
            _check_same_size(path, pixels.shape[:2], self.size)  # the file may have changed since its header was read
        if not self.colour:
            return pixels
        # (3, height, width)
        return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else np.broadcast_to(pixels, (3, *self.size))


def image_names(folder: str | os.PathLike[str]) -> list[Path]:
    """Paths of the images in a folder, sorted by name; hidden files are skipped."""
    found = sorted(
        path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if not found:
        raise ValueError(
            f"expected image files in {folder}, found none; their names end in {', '.join(SUFFIXES)}, "
            "and those of subfolders must be named by a column of the table"
        )
    return found


def is_path_list(data: Any) -> bool:
    """Whether these are paths: a list or column of str or Path."""
    if not isinstance(data, (list, tuple)):
        dtype = str(getattr(data, "dtype", ""))
        textual = dtype in ("object", "str", "string") or dtype.startswith(("<U", ">U"))
        if len(getattr(data, "shape", ())) != 1 or not textual:
            return False
        data = np.asarray(data)
    return len(data) > 0 and all(isinstance(item, (str, os.PathLike)) for item in data)


def _checked_size(size: Any) -> tuple[int, int]:
    if not isinstance(size, Sequence) or isinstance(size, str) or len(size) != 2:
        raise ValueError(f"the size of images must be (height, width), got {size!r}; give for example (64, 64)")
    if not all(isinstance(side, numbers.Integral) for side in size):
        raise TypeError(f"height and width of images must be whole numbers, got {size!r}; give for example (64, 64)")
    height, width = int(size[0]), int(size[1])
    if height < 1 or width < 1:
        raise ValueError(f"height and width of images must be at least 1, got {height} x {width}; use for example 64")
    if height * width > MAX_PIXELS:
        raise ValueError(f"images may have at most {MAX_PIXELS} pixels, got {height} x {width}; choose a smaller size")
    return height, width


def _check_same_size(path: str, found: tuple[int, ...], wanted: tuple[int, int]) -> None:
    if found != wanted:
        raise ValueError(
            f"expected images of {wanted[0]} x {wanted[1]} pixels, got {found[0]} x {found[1]} in {path}; "
            "pass ImageFiles(paths, size=(height, width)) or --image-size to resize them"
        )


def _to_grey(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8:
        return np.asarray(Image.fromarray(pixels).convert("L"))
    return np.rint(pixels @ np.array([0.299, 0.587, 0.114])).astype(pixels.dtype)  # luma of ITU-R 601, as Pillow's


def _to_type(pixels: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Pixels converted to a type of at least their depth; white stays white."""
    if pixels.dtype == dtype:
        return pixels
    white = np.iinfo(pixels.dtype).max
    if dtype == np.uint16:
        return pixels.astype(np.uint16) * np.uint16(65535 // white)
    return pixels.astype(np.float32) / np.float32(white)


def _resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    shape = (size[1], size[0])
    if pixels.dtype == np.uint8:
        return np.asarray(Image.fromarray(pixels).resize(shape, Image.Resampling.BILINEAR))
    if pixels.ndim == 3:
        return np.stack([_resize(channel, size) for channel in np.moveaxis(pixels, 2, 0)], axis=2)
    # Pillow resizes 16-bit images well only as floats; float32 represents 16 bits exactly.
    resized = np.asarray(Image.fromarray(pixels.astype(np.float32)).resize(shape, Image.Resampling.BILINEAR))
    return resized if pixels.dtype == np.float32 else np.rint(resized).astype(pixels.dtype)

"""Image files as an array that is decoded when it is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
GREY_MODES = ("1", "L", "I", "I;16", "F", "LA")


class ImageFiles:
    """N image files as uint8 of shape (N, height, width), or (N, 3, height, width) when they have colours.

    Args:
        paths: of the files, in the order of the table's rows.
        size: (height, width) to resize to; without it all images must have the size of the first.
        colour: True for three channels, False for grey; that of the first image when None.
    """

    def __init__(self, paths: Sequence[Any], size: tuple[int, int] | None = None, colour: bool | None = None) -> None:
        self.paths = [os.fspath(path) for path in paths]
        if not self.paths:
            raise ValueError("expected at least one image file, got none; check the folder or the list")
        with _open(self.paths[0]) as first:
            found = (first.height, first.width)
            self.colour = first.mode not in GREY_MODES if colour is None else bool(colour)
        self.resized = size is not None
        self.size = (int(size[0]), int(size[1])) if size is not None else found
        self.shape = (len(self.paths), *((3,) if self.colour else ()), *self.size)
        self.dtype = np.dtype(np.uint8)

    @classmethod
    def in_folder(
        cls,
        folder: str | os.PathLike[str],
        size: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
    ) -> ImageFiles:
        """The images of these names; all of a folder, sorted by name, when no names are given."""
        if names is not None:
            return cls([Path(folder) / name for name in names], size)
        found = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES)
        if not found:
            raise ValueError(f"expected image files in {folder}, found none; their names end in {', '.join(SUFFIXES)}")
        return cls(found, size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: Any) -> np.ndarray:
        numbers = range(len(self.paths))[key] if isinstance(key, slice) else np.asarray(key, dtype=np.int64).tolist()
        out = np.empty((len(numbers), *self.shape[1:]), dtype=np.uint8)
        for place, number in enumerate(numbers):
            out[place] = self._decode(self.paths[number])
        return out

    def _decode(self, path: str) -> np.ndarray:
        with _open(path) as image:
            try:
                pixels = image.convert("RGB" if self.colour else "L")
            except (OSError, SyntaxError) as error:  # what Pillow raises for files that end early
                raise ValueError(f"expected a whole image in {path}, got a damaged one ({error}); replace it") from None
        height, width = self.size
        if self.resized:
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
        elif (pixels.height, pixels.width) != self.size:
            raise ValueError(
                f"expected images of {height} x {width} pixels, got {pixels.height} x {pixels.width} in {path}; "
                "pass ImageFiles(paths, size=(height, width)) or --image-size to resize them"
            )
        array = np.asarray(pixels)
        return array.transpose(2, 0, 1) if self.colour else array


def is_path_list(data: Any) -> bool:
    """Whether these are paths: a list or column of text or Path objects."""
    if isinstance(data, (str, bytes, os.PathLike)) or not hasattr(data, "__len__") or len(data) == 0:
        return False
    if isinstance(data, (list, tuple)):
        return all(isinstance(item, (str, os.PathLike)) for item in data)
    shape, dtype = getattr(data, "shape", ()), str(getattr(data, "dtype", ""))
    textual = dtype in ("object", "str", "string") or dtype.startswith(("<U", ">U"))
    return len(shape) == 1 and textual and all(isinstance(item, (str, os.PathLike)) for item in np.asarray(data))


def _open(path: str) -> Image.Image:
    try:
        return Image.open(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"expected an image at {path}, found no such file; check the list of paths") from None
    except UnidentifiedImageError:
        raise ValueError(f"expected an image in {path}, got a file of another kind; remove it from the list") from None

"""Samples from a path: .npy, HDF5, Zarr, or a folder of images. Only metadata is read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gppvae.data.hdf5 import open_hdf5
from gppvae.data.images import ImageFiles
from gppvae.data.paths import kind_of, plain_file
from gppvae.data.stored import check_chunks
from gppvae.data.zarr_files import is_zarr_folder, open_zarr

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")


def open_samples(
    path: str | os.PathLike[str],
    image_size: tuple[int, int] | None = None,
    names: Sequence[str] | None = None,
    outside: bool = False,
    fill_unwritten: bool = False,
) -> Any:
    """An array-like over the samples in a file or folder.

    Args:
        path: a .npy file (memory-mapped), an HDF5 file (`faces.h5`, or `faces.h5:images` to name the data set), a
            Zarr array (its folder) or a folder of images, sorted by name.
        image_size: (height, width) to resize images of a folder to.
        names: of images in the folder, one per row of the table; by default all of them, sorted.
        outside: whether image names and HDF5 files may refer to files elsewhere.
        fill_unwritten: whether parts of HDF5 data sets and Zarr arrays that are not stored may be read as their fill
            value. Zarr 3 omits chunks that hold only the fill value; otherwise such parts were lost or never written.

    Example:
        >>> import numpy as np
        >>> from gppvae.data.open import open_samples
        >>> np.save("images.npy", np.zeros((3, 28, 28), dtype=np.uint8))
        >>> open_samples("images.npy").shape
        (3, 28, 28)
    """
    text = os.fspath(path)
    name, _, inside = text.rpartition(":") if Path(text.rpartition(":")[0]).suffix in HDF5_SUFFIXES else (text, "", "")
    file = Path(name)
    folder = kind_of(file) == "a folder"
    zarr = file.suffix == ".zarr" or (folder and is_zarr_folder(file))
    if not folder:
        plain_file(file, "a .npy array" if file.suffix == ".npy" else "samples")
    images = folder and not zarr
    if not images and (names is not None or image_size is not None):
        raise ValueError(f"expected a folder of images at {file}, got a file; names and sizes are for images only")
    if images:
        return ImageFiles.in_folder(file, image_size, names, outside)
    if file.suffix in HDF5_SUFFIXES:
        opened = open_hdf5(file, inside, outside, fill_unwritten)
    else:
        opened = open_zarr(file, fill_unwritten) if zarr else _npy(file)
    check_chunks(opened)
    return opened


def _npy(file: Path) -> np.ndarray:
    with open(file, "rb") as content:
        if content.read(2) == b"PK":  # a zip archive, which numpy.savez writes
            raise ValueError(
                f"expected one array in a .npy file at {file}, got an archive of several; save the one you need"
            )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # overflow in the shape of a damaged header
            return np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is a Python literal, and parsing a damaged one raises anything
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's own message: no permission, input/output error
        raise ValueError(
            f"expected a whole .npy file of numbers at {file}, got one that is cut short, pickled or of another kind; "
            "write it with numpy.save"
        ) from None

"""Samples from a path: .npy, HDF5, Zarr, or a folder of images. Nothing is read but what describes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from gppvae.data.images import ImageFiles

HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")


def open_samples(
    path: str | os.PathLike[str], image_size: tuple[int, int] | None = None, names: Sequence[str] | None = None
) -> Any:
    """An array-like over the samples in a file or folder.

    Args:
        path: a .npy file (memory-mapped), an HDF5 file (`faces.h5`, or `faces.h5:images` to name the data set), a
            Zarr array (a folder or file ending in .zarr) or a folder of images, sorted by name.
        image_size: (height, width) to resize images of a folder to.
        names: of the images in the folder, one per row of the table, instead of all of them sorted.
    """
    text = os.fspath(path)
    name, _, inside = text.rpartition(":") if Path(text.rpartition(":")[0]).suffix in HDF5_SUFFIXES else (text, "", "")
    file = Path(name)
    if not file.exists():
        what = "a .npy array" if file.suffix == ".npy" else "samples"
        raise FileNotFoundError(f"expected {what} at {file}, found no such file")
    images = file.is_dir() and file.suffix != ".zarr"
    if not images and (names is not None or image_size is not None):
        raise ValueError(f"expected a folder of images at {file}, got a file; names and sizes are for images only")
    if images:
        return ImageFiles.in_folder(file, image_size, names)
    if file.suffix in HDF5_SUFFIXES:
        return _hdf5(file, inside)
    return _zarr(file) if file.suffix == ".zarr" else _npy(file)


def _npy(file: Path) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        raise ValueError(
            f"expected a whole .npy file of numbers at {file}, got one that is cut short, pickled or of another kind; "
            "write it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(
            f"expected one array in a .npy file at {file}, got an archive of several; save the one you need"
        )
    return array


def _hdf5(file: Path, inside: str) -> Any:
    try:
        content = h5py.File(file, "r")
    except OSError:
        raise ValueError(f"expected an HDF5 file at {file}, got something else; write it with h5py") from None
    names: list[str] = []
    content.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    wanted = inside.strip("/") or (names[0] if len(names) == 1 else "")
    if wanted not in names:
        raise ValueError(
            f"expected one data set of {file} by name ({', '.join(names) or 'it has none'}), got {inside or 'none'}; "
            f"write for example {file}:{names[0] if names else 'images'}"
        )
    return content[wanted]


def _zarr(file: Path) -> Any:
    try:
        import zarr
    except ImportError:
        raise ValueError(f"{file} needs the zarr package; install gppvae[zarr]") from None
    array = zarr.open(str(file), mode="r")
    if not hasattr(array, "dtype"):
        raise ValueError(f"expected a Zarr array at {file}, got a group; give the path of one array in it")
    return array

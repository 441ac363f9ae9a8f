"""One Zarr array in a folder, checked to be complete and made of plain files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gppvae.data.paths import kind_of, plain_file
from gppvae.data.unwritten import files_below, unwritten_part
from gppvae.data.words import reason

MARKS = ("zarr.json", ".zarray", ".zgroup")  # of formats 3 and 2


def is_zarr_folder(folder: Path) -> bool:
    """Whether a folder is a Zarr array or group, by its suffix or its files."""
    return folder.suffix == ".zarr" or any(os.path.lexists(folder / mark) for mark in MARKS)


def open_zarr(folder: Path, fill_unwritten: bool = False) -> Any:
    """The array in a folder.

    Args:
        folder: of the array; an array in a group has its own folder.
        fill_unwritten: whether chunks that are not stored may be read as the fill value.
    """
    try:
        import zarr
    except ImportError:
        raise ValueError(
            f"{folder} needs the package zarr, which is not installed; pip install 'gppvae[zarr]'"
        ) from None
    if kind_of(folder) != "a folder":
        raise ValueError(f"expected a Zarr array at {folder}, got {kind_of(folder)}; give the folder of the array")
    _check_plain(folder)
    try:
        array = zarr.open(str(folder), mode="r")
        unwritten = unwritten_part(array) if hasattr(array, "dtype") else None
    except Exception as error:  # damaged metadata raises JSON, key, type, value and division errors
        raise ValueError(
            f"expected a Zarr array at {folder}, got something else or a damaged one "
            f"({reason(error)}); write it with zarr"
        ) from None
    if not hasattr(array, "dtype"):
        raise ValueError(f"expected a Zarr array at {folder}, got a group; give the path of one array in it")
    if unwritten is not None and not fill_unwritten:
        raise ValueError(unwritten.error(str(folder)))
    return array


def _check_plain(folder: Path) -> None:
    """Reject a pipe among the chunks, which would block training silently."""
    for _, entry in files_below(folder):
        if not entry.is_file():
            plain_file(entry.path, "a chunk")

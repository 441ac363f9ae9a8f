"""Samples by path: each format opened without being read, and told apart from what it is not."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from gppvae.data.open import open_samples

DATA = np.arange(24.0).reshape(4, 6)


def test_npy_files_are_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", DATA)
    opened = open_samples(tmp_path / "a.npy")
    assert isinstance(opened, np.memmap)
    np.testing.assert_array_equal(opened, DATA)


def test_hdf5_data_sets_are_found_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/y"] = DATA
    assert open_samples(tmp_path / "a.h5")[1, 2] == DATA[1, 2]
    assert open_samples(f"{tmp_path / 'a.h5'}:group/y").shape == (4, 6)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"], file["y"] = DATA, DATA + 1
    assert open_samples(f"{tmp_path / 'b.h5'}:y")[0, 0] == 1.0
    with pytest.raises(ValueError, match=r"one data set of .*b\.h5 by name \(x, y\), got none"):
        open_samples(tmp_path / "b.h5")
    with pytest.raises(ValueError, match="got z"):
        open_samples(f"{tmp_path / 'b.h5'}:z")


def test_zarr_arrays_are_opened(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    array = zarr.open_array(str(tmp_path / "a.zarr"), mode="w", shape=DATA.shape, chunks=(2, 6), dtype="f8")
    array[:] = DATA
    np.testing.assert_array_equal(open_samples(tmp_path / "a.zarr")[:], DATA)
    zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    with pytest.raises(ValueError, match="got a group"):
        open_samples(tmp_path / "g.zarr")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_samples(tmp_path / "none.npy")
    (tmp_path / "a.npy").write_text("text")
    with pytest.raises(ValueError, match=r"whole \.npy file of numbers"):
        open_samples(tmp_path / "a.npy")
    (tmp_path / "a.h5").write_text("text")
    with pytest.raises(ValueError, match=r"HDF5 file at .*, got something else"):
        open_samples(tmp_path / "a.h5")
    np.savez(tmp_path / "b.npz", a=DATA)
    with pytest.raises(ValueError, match="archive of several"):
        open_samples(tmp_path / "b.npz")

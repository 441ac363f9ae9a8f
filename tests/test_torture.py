"""The short form of `make torture`: every kind of attack, seconds in all, the same ones every time."""

import sys
from pathlib import Path

import numpy as np
import pytest

from torture import crashes, inputs

UNREADABLE_HDF5 = (133, 359)  # a type that NumPy does not have, a name that is not UTF-8

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, signals and /proc of Linux")


def test_changed_arrays(tmp_path: Path) -> None:
    found = [inputs.check_array(tmp_path, np.random.default_rng([1, n])) for n in range(300)]
    assert {"refused", "finite"} == set(found)


def test_changed_zarr_arrays_and_hdf5_files(tmp_path: Path) -> None:
    found = [inputs.check_hdf5(tmp_path, np.random.default_rng([9, n])) for n in (*range(100), *UNREADABLE_HDF5)]
    assert {"refused", "finite"} == set(found)
    found = [inputs.check_zarr(tmp_path, np.random.default_rng([9, n])) for n in range(60)]
    assert "refused" in found and set(found) <= {"refused", "finite"}  # few changes leave metadata and checksums whole


def test_changed_images(tmp_path: Path) -> None:
    found = [inputs.check_image(tmp_path, np.random.default_rng([2, n])) for n in range(300)]
    assert {"refused", "finite"} == set(found)


def test_random_kernels() -> None:
    found = [inputs.check_kernel(np.random.default_rng([3, n])) for n in range(1000)]
    assert {"refused", "finite"} == set(found)


def test_random_settings() -> None:
    found = [inputs.check_settings(np.random.default_rng([4, n])) for n in range(150)]
    assert {"refused", "finite"} == set(found)


def test_random_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs.write_data(tmp_path)
    found = [inputs.check_command(tmp_path, np.random.default_rng([5, n]), n) for n in range(100)]
    assert {"refused", "finite"} == set(found)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("inference", crashes.INFERENCES)
def test_kills_change_nothing(inference: str, tmp_path: Path) -> None:
    assert crashes.check_kills(tmp_path, inference, np.random.default_rng(6), most=3) > 0


def test_a_failing_disk_changes_nothing(tmp_path: Path) -> None:
    assert crashes.check_disk(tmp_path, "minibatch", every=7) > 5

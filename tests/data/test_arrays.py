"""Samples from any array: types, scales, channels, masks, files larger than memory, and clear refusals."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from gppvae.data import arrays
from gppvae.data.arrays import Samples, to_input_layout

INDEX = torch.tensor([4, 0, 4, 2])


def images(dtype: type = np.float32, shape: tuple[int, ...] = (6, 5, 4)) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) * 200).astype(dtype)


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.uint16, ">u2", np.int16, np.int64, np.float16, np.float32, np.float64, bool, ">f8"]
)
@pytest.mark.parametrize("held", [False, True], ids=["read", "held"])
def test_every_number_type_comes_as_float32(dtype: type, held: bool) -> None:
    data = images().astype(dtype)
    samples = Samples(data)
    if held:
        samples.keep_in_memory()
    y, mask = samples.read(INDEX)
    assert mask is None and y.dtype == torch.float32 and y.shape == (4, 1, 5, 4)
    scale = {"|u1": 1 / 255, "<u2": 1 / 65535, ">u2": 1 / 65535}.get(np.dtype(dtype).str, 1.0)
    np.testing.assert_allclose(y[:, 0].numpy(), data[INDEX.numpy()].astype(np.float64) * scale, rtol=1e-6)


def test_integers_of_8_and_16_bits_are_scaled_only_as_images_and_unless_told() -> None:
    assert Samples(images(np.uint16)).scale == 1 / 65535
    assert Samples(images(np.uint16, (6, 5))).scale == 1.0
    assert Samples(images(np.uint16), scale=1.0).scale == 1.0
    assert Samples(images(np.int16)).scale == 1.0 and Samples(images(np.uint32)).scale == 1.0
    assert Samples(images(np.uint8)).scale == 1 / 255
    assert Samples(images(np.uint8, (6, 5))).scale == 1.0
    assert Samples(images(np.uint8), scale=0.5).scale == 0.5
    y, _ = Samples(images(np.float32), scale=0.5).read(INDEX)
    np.testing.assert_allclose(y[:, 0].numpy(), 0.5 * images()[INDEX.numpy()], rtol=1e-6)


def test_channels_last_become_first() -> None:
    data = images(shape=(6, 5, 4, 3))
    samples = Samples(data, channels="last")
    assert samples.shape == (3, 5, 4)
    np.testing.assert_array_equal(samples.read(INDEX)[0].numpy(), data[INDEX.numpy()].transpose(0, 3, 1, 2))
    samples.keep_in_memory()
    np.testing.assert_array_equal(samples.read(INDEX)[0].numpy(), data[INDEX.numpy()].transpose(0, 3, 1, 2))
    first = Samples(data.transpose(0, 3, 1, 2))
    assert first.shape == (3, 5, 4)
    torch.testing.assert_close(first.read(INDEX)[0], samples.read(INDEX)[0])


def test_channels_last_matters_only_for_four_dimensions() -> None:
    assert Samples(images(), channels="last").shape == (1, 5, 4)
    assert Samples(images(shape=(6, 5)), channels="last").shape == (5,)


def test_lists_and_tensors_are_taken() -> None:
    assert Samples([[1.0, 2.0], [3.0, 4.0]]).read(torch.tensor([1]))[0].tolist() == [[3.0, 4.0]]
    tensor = torch.ones(2, 3, requires_grad=True)
    assert Samples(tensor).read(torch.tensor([0]))[0].tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("kind", ["memmap", "hdf5", "zarr"])
def test_arrays_on_disk_are_read_by_index(kind: str, tmp_path: Path) -> None:
    data = images(np.float64, (6, 5, 4))
    if kind == "memmap":
        np.save(tmp_path / "a.npy", data)
        stored = np.load(tmp_path / "a.npy", mmap_mode="r")
    elif kind == "hdf5":
        stored = h5py.File(tmp_path / "a.h5", "w").create_dataset("y", data=data)
    else:
        zarr = pytest.importorskip("zarr", reason="zarr is not installed")
        stored = zarr.open_array(str(tmp_path / "a.zarr"), mode="w", shape=data.shape, chunks=(2, 5, 4), dtype="f8")
        stored[:] = data
    samples = Samples(stored)
    assert len(samples) == 6 and samples.shape == (1, 5, 4)
    y, _ = samples.read(INDEX)  # out of order, one row twice
    np.testing.assert_allclose(y[:, 0].numpy(), data[INDEX.numpy()], rtol=1e-6)
    low, high = samples.check()
    assert low == pytest.approx(data.min()) and high == pytest.approx(data.max())
    samples.keep_in_memory()
    np.testing.assert_allclose(samples.read(INDEX)[0][:, 0].numpy(), data[INDEX.numpy()], rtol=1e-6)
    if kind == "hdf5":
        stored.file.close()


def test_large_arrays_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    data = images()
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES", 4 * data.size - 1)
    samples = Samples(data)
    samples.keep_in_memory()
    data[4] = -1.0
    assert (samples.read(INDEX)[0][0] == -1.0).all()


def test_check_goes_through_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = images(np.float32, (10, 3))
    data[7, 1], data[2, 0] = -5.0, 999.0
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 8 * 3 * 2)
    assert Samples(data).check() == (-5.0, 999.0)
    data[9, 2] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity in sample 9"):
        Samples(data).check()


def test_whole_numbers_are_recognised() -> None:
    for data, whole in (
        (images(np.int16), True),
        (np.round(images()), True),
        (images(), False),
        (images(np.uint8), False),
    ):
        samples = Samples(data)
        samples.check()
        assert samples.integers is whole


def test_missing_values_are_masked_when_asked() -> None:
    data = images(np.float32, (6, 4))
    data[4, 1] = np.nan
    samples = Samples(data, missing="mask")
    low, high = samples.check()
    assert np.isfinite([low, high]).all()
    for _ in range(2):
        y, mask = samples.read(INDEX)
        assert mask[0].tolist() == [True, False, True, True] and mask[1].all()
        assert y[0, 1] == 0.0 and torch.isfinite(y).all()
        samples.keep_in_memory()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_located(bad: float) -> None:
    data = images(np.float64, (6, 4))
    data[3, 1] = bad
    with pytest.raises(ValueError, match=r"finite samples, got NaN or infinity in sample 3; .*missing='mask'"):
        Samples(data).check()


def test_infinity_is_refused_also_with_masks_and_nothing_observed_too() -> None:
    data = np.zeros((2, 2))
    data[1, 1] = np.inf
    with pytest.raises(ValueError, match="sample 1"):
        Samples(data, missing="mask").check()
    with pytest.raises(ValueError, match="only NaN"):
        Samples(np.full((2, 2), np.nan), missing="mask").check()


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ("text", {}, TypeError, "array of samples, got str"),
        (np.array([["a"]]), {}, TypeError, "integer or float type"),
        (np.zeros((2, 2), dtype=complex), {}, TypeError, "integer or float type, got complex128"),
        (np.zeros(3), {}, ValueError, r"got \(3,\); reshape"),
        (np.zeros((1, 2, 3, 4, 5)), {}, ValueError, r"got \(1, 2, 3, 4, 5\); reshape"),
        (np.zeros((2, 8, 8, 3)), {}, ValueError, r"channels first, got shape \(2, 8, 8, 3\); pass channels='last'"),
        (np.zeros((2, 3)), {"channels": "middle"}, ValueError, "'first' or 'last', got 'middle'"),
        (np.zeros((2, 3)), {"missing": "drop"}, ValueError, "'error' or 'mask', got 'drop'"),
    ],
)
def test_what_is_no_sample_array_is_explained(
    data: object, options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Samples(data, **options)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_empty_arrays_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Samples(np.zeros(shape)).check()


@pytest.mark.parametrize(
    ("shape", "channels", "layout"),
    [
        ((6, 7), "first", "vector"),
        ((6, 5, 4), "first", "grey"),
        ((6, 5, 4), "last", "grey"),
        ((6, 3, 5, 4), "first", "first"),
        ((6, 1, 5, 4), "first", "first"),
        ((6, 5, 4, 3), "last", "last"),
        ((6, 5, 4, 1), "last", "last"),
    ],
)
def test_samples_go_back_as_they_came(shape: tuple[int, ...], channels: str, layout: str) -> None:
    data = images(shape=shape)
    samples = Samples(data, channels=channels)
    assert samples.layout_in == layout
    y, _ = samples.read(torch.arange(6))
    back = to_input_layout(y, layout)
    assert isinstance(back, torch.Tensor) and torch.equal(back, torch.from_numpy(data))
    back = to_input_layout(y.numpy(), layout)
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, data)
    draws = np.stack([y.numpy(), y.numpy() + 1])  # more dimensions in front stay
    np.testing.assert_array_equal(to_input_layout(draws, layout), np.stack([data, data + 1]))


def test_the_last_axis_becomes_the_channels_entry_by_entry() -> None:
    y = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    back = to_input_layout(y, "last")
    for n, c, h, w in np.ndindex(2, 3, 4, 5):
        assert back[n, h, w, c] == y[n, c, h, w]


def test_layouts_that_do_not_fit_are_explained() -> None:
    with pytest.raises(ValueError, match=r"one channel .* got shape \(2, 3, 4, 5\)"):
        to_input_layout(np.zeros((2, 3, 4, 5)), "grey")
    with pytest.raises(ValueError, match=r"\(N, channels, height, width\), got shape \(2, 3\)"):
        to_input_layout(np.zeros((2, 3)), "last")
    with pytest.raises(ValueError, match="'vector', 'grey', 'first' or 'last', got 'middle'"):
        to_input_layout(np.zeros((2, 3)), "middle")


def test_masked_arrays_are_not_read_under_their_mask() -> None:
    data = np.ma.MaskedArray(np.arange(6.0).reshape(3, 2), mask=[[0, 0], [0, 1], [0, 0]])
    y, mask = Samples(data, missing="mask").read(torch.arange(3))
    assert mask is not None and mask.tolist() == [[True, True], [True, False], [True, True]] and y[1, 1] == 0.0
    with pytest.raises(ValueError, match="NaN or infinity in sample 1"):
        Samples(data).check()
    assert Samples(np.ma.MaskedArray(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))).scale == 1 / 255
    integers = Samples(
        np.ma.MaskedArray(np.full((1, 2, 3), 255, dtype=np.uint8), mask=[[[1, 0, 0], [0, 0, 0]]]), missing="mask"
    )
    y, mask = integers.read(torch.arange(1))
    assert mask is not None and mask.sum() == 5 and y[mask].tolist() == [1.0] * 5


def test_short_floats_of_tensors_are_taken() -> None:
    assert Samples(torch.ones(2, 3, dtype=torch.bfloat16)).read(torch.tensor([0]))[0].tolist() == [[1.0] * 3]


@pytest.mark.parametrize(
    "data", [np.array([[1, None]], dtype=object), np.zeros((2, 3), dtype=[("a", "f4"), ("b", "i2")])]
)
def test_objects_and_records_are_refused(data: np.ndarray) -> None:
    with pytest.raises(TypeError, match="integer or float type, got"):
        Samples(data)


def test_values_that_networks_of_32_bits_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 3\.4e"):
        Samples(np.full((2, 3), 1e39)).check()
    assert Samples(np.full((2, 3), 1e39), scale=1e-30).check() == pytest.approx((1e9, 1e9))


def test_values_that_float32_cannot_tell_apart_are_found() -> None:
    """A range of 4 is 64 steps of float32 at a million; a constant has no range to lose."""
    y = np.linspace(-2.0, 2.0, 50)[:, None] + np.array([0.0, 1e3, 1e6, 1e9])
    y = np.column_stack([y, np.full(50, 1e9)])
    y[3, 2] = np.nan
    samples = Samples(y, missing="mask")
    samples.check()
    assert samples.coarse_values == [2, 3]
    images = Samples(1e9 + np.random.default_rng(0).normal(size=(4, 3, 3)))
    images.check()
    assert images.coarse_values == []


def test_moments_keep_their_digits_where_the_first_sample_is_missing() -> None:
    """A constant has a standard deviation of exactly 0, since any other number would become the unit of the value."""
    rng = np.random.default_rng(0)
    y = np.column_stack([np.full(5000, 0.1), 1e9 + 1e3 * rng.normal(size=5000), rng.normal(size=5000)]).astype(
        np.float32
    )
    y[0, :2], y[1, 0] = np.nan, np.nan
    mean, std = Samples(y, missing="mask").moments()
    assert std[0] == 0.0
    np.testing.assert_allclose(mean, [np.nanmean(column.astype(np.float64)) for column in y.T], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(std[1:], [np.nanstd(column.astype(np.float64)) for column in y[:, 1:].T], rtol=1e-9)
    images = np.full((300, 3, 4, 4), 1 / 3, dtype=np.float32)
    images[0, 1], images[0, 0, :2], images[7] = np.nan, np.nan, np.nan
    assert Samples(images, missing="mask").moments()[1].tolist() == [0.0, 0.0, 0.0]

"""Each figure must hold the data it was given: artists are read back and compared with the input."""

import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from artists import line
from gppvae.report import figures


@pytest.mark.parametrize("channels", [(), (3,)])
def test_montage_shows_every_image(channels: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    truth, model, std = (rng.random((3, 4, 5, *channels)) for _ in range(3))
    fig = figures.prediction_montage(truth, {"model": model}, std)
    axes = [ax for ax in fig.axes if ax.get_label() != "<colorbar>"]
    shown = [np.asarray(ax.images[0].get_array()) for ax in axes]
    np.testing.assert_array_equal(shown[:3], np.rint(255 * truth))
    np.testing.assert_array_equal(shown[3:6], np.rint(255 * model))
    heat = std.mean(axis=-1) if channels else std
    np.testing.assert_array_equal(shown[6:], heat)
    assert {ax.images[0].get_clim() for ax in axes[6:]} == {(0.0, heat.max())}
    assert [ax.get_ylabel() for ax in axes[::3]] == ["truth", "model", "std"]
    assert len(figures.prediction_montage(truth, {"model": model}).axes) == 6


def test_cluster_order_joins_correlated_rows() -> None:
    groups = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    scale = np.linspace(0.5, 3.0, 9)
    matrix = np.where(groups[:, None] == groups, 0.9, 0.0) * np.outer(scale, scale)
    matrix[np.diag_indices(9)] = scale**2
    order = figures.cluster_order(matrix)
    assert sorted(order) == list(range(9))
    assert np.count_nonzero(np.diff(groups[order])) == 2  # three unbroken runs
    np.testing.assert_array_equal(figures.cluster_order([[2.0]]), [0])


def test_covariance_pair_orders_objects_only() -> None:
    objects = np.eye(5)
    objects[0, 4] = objects[4, 0] = 0.9
    views = np.array([[1.0, 0.5], [0.5, 1.0]])
    fig = figures.covariance_pair(objects, views, [0, 90])
    left, right = (ax for ax in fig.axes if ax.get_label() != "<colorbar>")
    shown = np.asarray(left.images[0].get_array())
    assert np.abs(np.diff(np.argwhere(shown == 0.9), axis=1)).tolist() == [[1], [1]]
    np.testing.assert_array_equal(right.images[0].get_array(), views)
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["0", "90"]


def test_covariance_labels_stay_inside_the_picture() -> None:
    labels = [f"{22.5 * i:g}" for i in range(16)]
    fig = figures.covariance_pair(np.eye(16), np.eye(16), labels)
    figures.render(fig, "png", dpi=100)  # lays the figure out
    height = fig.bbox.height
    for ax in fig.axes:
        box = ax.get_tightbbox()
        assert box is not None
        assert box.y0 >= 0
        assert box.y1 <= height


def test_calibration_draws_coverage_against_levels() -> None:
    (ax,) = figures.calibration([0.5, 0.9], {"joint": [0.4, 0.8], "dis": [0.6, 0.95]}).axes
    assert line(ax, label="joint").get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.8]]
    assert line(ax, label="dis").get_xydata().tolist() == [[0.5, 0.6], [0.9, 0.95]]
    assert line(ax, label="perfect").get_xydata().tolist() == [[0, 0], [1, 1]]
    (ax,) = figures.calibration([0.5], [0.25]).axes
    assert line(ax, label="observed").get_xydata().tolist() == [[0.5, 0.25]]


def test_save_writes_both_formats_at_print_quality(tmp_path: Path) -> None:
    png, pdf = figures.save(Figure(figsize=(2, 1)), tmp_path / "deep" / "figure.2a")
    assert (png.name, pdf.name) == ("figure.2a.png", "figure.2a.pdf")
    with Image.open(png) as image:
        assert image.size == (400, 200)
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert sorted(os.listdir(png.parent)) == ["figure.2a.pdf", "figure.2a.png"]


def test_equal_figures_give_equal_files(tmp_path: Path) -> None:
    first, second = (figures.calibration([0.5, 0.9], [0.4, 0.8]) for _ in range(2))
    for a, b in zip(figures.save(first, tmp_path / "a"), figures.save(second, tmp_path / "b"), strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def refuse(source: Path, target: Path) -> None:
        assert Path(source).parent == Path(target).parent == tmp_path
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        figures.save(Figure(figsize=(1, 1)), tmp_path / "a")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.png"]


def test_style_does_not_leak() -> None:
    before = dict(matplotlib.rcParams)
    figures.calibration([0.5], [0.5])
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.prediction_montage(np.zeros((2, 3)), {}), r"truth must have shape .*\(2, 3\)"),
        (
            lambda: figures.prediction_montage(np.zeros((2, 3, 3)), {"m": np.zeros((1, 3, 3))}),
            r"shape of truth \(2, 3, 3\), got m \(1, 3, 3\)",
        ),
        (lambda: figures.cluster_order(np.zeros((2, 3))), r"matrix must be a finite square matrix.*\(2, 3\)"),
        (lambda: figures.covariance_pair(np.eye(2), np.eye(2), ["a"]), r"one label per row \(2\), got 1"),
        (lambda: figures.calibration([0.1, 0.2], [0.1]), "coverage 'observed' must be a vector of length 2"),
        (lambda: figures.to_uint8([0.5], vmin=1.0, vmax=1.0), "vmax must be greater than vmin"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

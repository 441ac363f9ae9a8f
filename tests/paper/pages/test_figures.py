"""Each figure must hold the data it was given: artists are read back and compared with the input."""

import base64
import io
import os
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from artists import ends_of_bars, legend_texts, line
from gppvae.paper.pages import figures


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


def test_a_page_keeps_the_size_and_alt_of_a_figure() -> None:
    page = figures.FigurePage("T")
    page.figure(Figure(figsize=(3, 2), facecolor="#ff0000"), "<Cap>", 'red "field"')
    (found,) = re.findall(
        r'<img class="plot" width="(\d+)" height="(\d+)" src="data:image/png;base64,([^"]+)" alt="([^"]+)">',
        page.html(),
    )
    assert found[:2] == ("288", "192")
    assert found[3] == "red &quot;field&quot;"
    assert "&lt;Cap&gt;" in page.html()
    with Image.open(io.BytesIO(base64.b64decode(found[2], validate=True))) as opened:
        pixels = np.array(opened)
    assert pixels.shape[:2] == (384, 576)
    assert (pixels[..., :3] == [255, 0, 0]).all()


def test_bar_mse_shows_means_errors_and_published_values() -> None:
    reference = {"CVAE": 0.0796, "joint": 0.028, "dis": None}
    fig = figures.bar_mse(["CVAE", "dis", "joint"], [0.08, 0.031, 0.0275], [0.002, 0.001, 0.0008], reference)
    (ax,) = fig.axes
    assert [bar.get_height() for bar in ax.patches] == [0.08, 0.031, 0.0275]
    (errors,) = (c for c in ax.containers if type(c).__name__ == "ErrorbarContainer")
    np.testing.assert_allclose(ends_of_bars(errors), [[0.078, 0.082], [0.03, 0.032], [0.0267, 0.0283]])
    paper = line(ax, gid="paper")
    np.testing.assert_allclose(paper.get_xydata(), [[0, 0.0796], [2, 0.028]])
    assert paper.get_markerfacecolor() == "white"
    assert [text.get_text() for text in ax.texts] == ["0.0800", "0.0310", "0.0275"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["CVAE", "dis", "joint"]
    assert figures.bar_mse(["a"], [1.0], [0.1]).axes[0].get_legend() is None


def test_density_is_the_kernel_sum() -> None:
    samples = {"a": np.array([0.0, 1.0, 1.5, 4.0]), "b": np.array([2.0, 2.5, 7.0])}
    (ax,) = figures.density(samples, "variance").axes
    assert ax.get_xlabel() == "variance"
    for name, values in samples.items():
        x, y = line(ax, label=name).get_xydata().T
        width = values.std(ddof=1) * len(values) ** (-1 / 5)  # Scott's rule
        bumps = [np.exp(-0.5 * ((x - centre) / width) ** 2) for centre in values]
        expected = sum(bumps) / (width * np.sqrt(2 * np.pi) * len(values))
        np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-300)
        assert 0.99 < np.sum(y) * (x[1] - x[0]) < 1.001


def test_curve_marks_the_chosen_setting() -> None:
    fig = figures.curve_with_choice([0.1, 1, 10], [3, 1, 2], [0.3, 0.1, 0.2], 1.0, "weight", "MSE", True)
    (ax,) = fig.axes
    assert (ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "weight", "MSE")
    (curve,) = ax.containers
    np.testing.assert_array_equal(curve[0].get_xydata(), [[0.1, 3], [1, 1], [10, 2]])
    np.testing.assert_allclose(ends_of_bars(curve), [[2.7, 3.3], [0.9, 1.1], [1.8, 2.2]])
    assert line(ax, gid="chosen").get_xydata().tolist() == [[1, 1]]
    plain = figures.curve_with_choice([1, 2], [3, 4], None, 2, "x", "y").axes[0]
    assert plain.get_xscale() == "linear"


def test_lines_by_k_draw_means_and_errors() -> None:
    series = {"GP": ([3, 2, 1], [0.3, 0.2, 0.1]), "CVAE": ([4, 4, 4], None)}
    fig = figures.lines_by_k([1, 2, 4], series, "MSE")
    (ax,) = fig.axes
    gp, cvae = ax.containers
    np.testing.assert_array_equal(gp[0].get_xydata(), [[1, 3], [2, 2], [4, 1]])
    np.testing.assert_allclose(ends_of_bars(gp), [[2.7, 3.3], [1.8, 2.2], [0.9, 1.1]])
    np.testing.assert_array_equal(cvae[0].get_ydata(), [4, 4, 4])
    assert legend_texts(ax) == ["GP", "CVAE"]
    assert ax.get_ylabel() == "MSE"


@pytest.mark.parametrize("channels", [(), (3,)])
def test_turning_gif_plays_the_frames(tmp_path: Path, channels: tuple[int, ...]) -> None:
    values = np.array([0.0, 0.25, 0.5, 1.0])
    frames = np.broadcast_to(values.reshape(4, 1, 1, *[1] * len(channels)), (4, 6, 5, *channels)).copy()
    frames[:, :3] = 0.75
    path = figures.turning_gif(frames, tmp_path / "turn.gif", ms=80, min_side=12)
    assert os.listdir(tmp_path) == ["turn.gif"]
    with Image.open(path) as gif:
        assert (gif.format, gif.n_frames, gif.size, gif.info["loop"]) == ("GIF", 4, (15, 18), 0)
        for i, value in enumerate(values):
            gif.seek(i)
            assert gif.info["duration"] == 80
            pixels = np.array(gif.convert("RGB")).astype(int)
            assert np.abs(pixels[:9] - 191).max() <= 1
            assert np.abs(pixels[9:] - round(255 * value)).max() <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.prediction_montage(np.zeros((2, 3)), {}), r"truth must have shape .*\(2, 3\)"),
        (
            lambda: figures.prediction_montage(np.zeros((2, 3, 3)), {"m": np.zeros((1, 3, 3))}),
            r"shape of truth \(2, 3, 3\), got m \(1, 3, 3\)",
        ),
        (lambda: figures.covariance_pair(np.eye(2), np.eye(2), ["a"]), r"one label per row \(2\), got 1"),
        (lambda: figures.calibration([0.1, 0.2], [0.1]), "coverage 'observed' must be a vector of length 2"),
        (
            lambda: figures.bar_mse(["a"], [1, 2], [1]),
            r"means must be a vector of length 1, got shape \(2,\)",
        ),
        (
            lambda: figures.bar_mse(["a"], [1], [1], {"b": 1.0}),
            r"reference names must be among \['a'\].*\['b'\]",
        ),
        (lambda: figures.density({"a": [1.0, 1.0]}, "x"), "series 'a' must hold finite, differing values"),
        (lambda: figures.density({"a": [1.0, np.nan]}, "x"), "series 'a' must hold finite, differing values"),
        (
            lambda: figures.curve_with_choice([1, 2], [1, 2], None, 3, "", ""),
            "chosen must be one of x .* got 3",
        ),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

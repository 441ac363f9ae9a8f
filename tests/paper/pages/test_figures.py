"""Each figure must hold the data it was given: artists are read back and compared with the input."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from artists import ends_of_bars, legend_texts, line
from gppvae.paper.pages import figures


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

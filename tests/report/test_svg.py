"""Charts hold the numbers they were given: positions are read back from the SVG and compared with the input."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from gppvae.report.svg import (
    Chart,
    Plot,
    Series,
    bar_chart,
    heat_map,
    line_chart,
    nice_ticks,
    scatter_map,
)


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def of_class(chart: Chart, tag: str, name: str) -> list[ElementTree.Element]:
    return [element for element in parsed(chart).iter(tag) if name in (element.get("class") or "").split()]


def is_affine(pixels: list[float], values: list[float]) -> bool:
    slope, offset = np.polyfit(values, pixels, 1)
    return bool(np.abs(np.array(pixels) - slope * np.array(values) - offset).max() < 0.11)


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path)]


def test_a_line_goes_through_its_points_and_breaks_at_nan() -> None:
    x, y = [0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 3.0, np.nan, 2.0, 5.0]
    (line,) = of_class(line_chart([Series(x, y)]), "path", "line")
    path = line.get("d") or ""
    assert [letter for letter in path if letter in "ML"] == ["M", "L", "M", "L"]
    drawn = points(path)
    assert is_affine([a for a, _ in drawn], [0.0, 1.0, 3.0, 4.0])
    assert is_affine([b for _, b in drawn], [1.0, 3.0, 2.0, 5.0])
    assert drawn[1][1] < drawn[0][1]  # larger values are higher


def test_a_band_is_two_standard_deviations() -> None:
    x, y, std = [0.0, 1.0, 2.0], [0.0, 1.0, 0.0], [0.5, 0.25, 1.0]
    chart = line_chart([Series(x, y, std=std)])
    (band,) = of_class(chart, "polygon", "band")
    corners = [float(pair.split(",")[1]) for pair in (band.get("points") or "").split()]
    assert is_affine(corners, [1.0, 1.5, 2.0, -2.0, 0.5, -1.0])


def test_ids_have_bars_instead_of_a_band() -> None:
    chart = line_chart([Series([0, 1], [0.0, 1.0], std=[0.1, 0.2], line=False, dots=True)], x_names=["a", "b"])
    bars = of_class(chart, "line", "line")
    assert len(bars) == 2 and of_class(chart, "polygon", "band") == []
    ends = [float(bar.get(side) or "") for bar in bars for side in ("y1", "y2")]
    assert is_affine(ends, [-0.2, 0.2, 0.6, 1.4])
    texts = [element.text for element in parsed(chart).iter("text")]
    assert {"a", "b"} <= set(texts)


def test_log_axes_are_logarithmic() -> None:
    values = [1.0, 10.0, 1000.0]
    (line,) = of_class(line_chart([Series([0, 1, 2], values)], log=True), "path", "line")
    assert is_affine([y for _, y in points(line.get("d") or "")], [0.0, 1.0, 3.0])


def test_every_cell_of_a_heat_map_says_what_it_is() -> None:
    matrix = np.array([[1.0, -0.5], [-0.5, 2.0]])
    cells = [cell for cell in of_class(heat_map(matrix, ["p", "q"]), "rect", "dot") if cell.find("title") is not None]
    said = [cell.findtext("title") for cell in cells]
    assert said == ["p, p: 1", "p, q: \u22120.5", "q, p: \u22120.5", "q, q: 2"]
    assert [float(cell.get("fill-opacity") or "") for cell in cells] == [0.5, 0.25, 0.25, 1.0]
    assert ["k1" in (cell.get("class") or "") for cell in cells] == [False, True, True, False]
    with pytest.raises(ValueError, match="one label per row"):
        heat_map(matrix, ["p"])


def test_bars_are_as_long_as_their_values() -> None:
    chart = bar_chart(["a", "b", "c"], [0.5, -0.25, 0.75], percent=True)
    bars = of_class(chart, "rect", "dot")
    assert is_affine([float(bar.get("width") or "") for bar in bars], [0.5, 0.25, 0.75])
    assert bars[1].findtext("title") == "b: -25.0 %"


def test_a_map_has_a_dot_at_every_place() -> None:
    places, values = np.array([[0.0, 0.0], [2.0, 1.0], [1.0, 3.0]]), np.array([1.0, -2.0, 0.5])
    dots = of_class(scatter_map(places, values, "m", "x", "y", signed=True), "circle", "dot")
    assert is_affine([float(dot.get("cx") or "") for dot in dots], places[:, 0].tolist())
    assert is_affine([-float(dot.get("cy") or "") for dot in dots], places[:, 1].tolist())
    assert ["k1" in (dot.get("class") or "") for dot in dots] == [False, True, False]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.0), (1e-9, 3e-9), (99990.0, 100010.0), (0.013, 0.0141)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert min(ticks) >= low - 1e-9 * high and max(ticks) <= high * (1 + 1e-9)
    assert all(float(f"{tick:.6g}") == pytest.approx(tick, rel=1e-9, abs=1e-24) for tick in ticks)


def test_labels_up_the_side_differ_and_have_room() -> None:
    """Numbers that differ late get the digits they need, and the name of the axis stays left of them."""
    chart = line_chart(
        [Series([0.0, 1.0], [121.0001, 121.0009])], y_label="a name that is longer than the axis is high"
    )
    texts = of_class(chart, "text", "soft")
    ends = [text for text in texts if text.get("text-anchor") == "end"]
    labels = [text.text or "" for text in ends]
    assert len(labels) >= 3 and len(set(labels)) == len(labels)
    assert min(float(text.get("x") or 0) - 6.0 * len(text.text or "") for text in ends) > 14
    (name,) = [text for text in texts if "rotate(-90)" in (text.get("transform") or "")]
    assert (name.text or "").endswith("\u2026") and len(name.text or "") * 6 < chart.height


def test_constant_and_empty_series_are_drawn() -> None:
    for y in ([2.0, 2.0], [np.nan, np.nan], [0.0, 0.0]):
        parsed(line_chart([Series([1.0, 1.0], y, std=[0.0, 0.0], dots=True)], "t", "x", "y"))


def test_a_plot_is_one_file_that_needs_no_page(tmp_path: Path) -> None:
    charts = [line_chart([Series([0, 1], [i, 1])], f"chart <{i}>") for i in range(4)]
    plot = Plot(charts, "Four & more")
    file = plot.save(tmp_path / "deep" / "plot.svg")
    tree = ElementTree.parse(file).getroot()
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}svg"))) == 5
    style = tree.findtext("{http://www.w3.org/2000/svg}style") or ""
    assert "prefers-color-scheme:dark" in style and "--k0" in style
    assert "4 charts" in repr(plot)
    assert "Four &amp; more" in plot._repr_html_()


def test_long_titles_are_broken_not_cut() -> None:
    title = "urea 0: what Learned(subject) * RBF(age) does"
    chart, short = (line_chart([Series([0.0, 1.0], [0.0, 1.0])], t, width=200) for t in (title, "urea 0"))
    lines = [element.text or "" for element in of_class(chart, "text", "bold")]
    assert len(lines) > 1 and " ".join(lines) == title
    assert chart.height == short.height + 14 * (len(lines) - 1)


def test_a_band_ends_where_values_end() -> None:
    (band,) = of_class(line_chart([Series([0.0, 1.0], [1.0, 2.0], std=[1.0, 0.5], least=0.0)]), "polygon", "band")
    corners = [float(pair.split(",")[1]) for pair in (band.get("points") or "").split()]
    assert is_affine(corners, [3.0, 3.0, 1.0, 0.0])
    (band,) = of_class(line_chart([Series([0.0, 1.0], [1.0, 2.0], std=[1.0, 0.5], most=2.0)]), "polygon", "band")
    corners = [float(pair.split(",")[1]) for pair in (band.get("points") or "").split()]
    assert is_affine(corners, [2.0, 2.0, 1.0, -1.0])

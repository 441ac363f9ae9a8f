"""The report page: its text, its pictures (decoded by Pillow, not by our code) and that it loads nothing."""

import base64
import io
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gppvae.report.page import MAX_SIDE, Page, Panel
from gppvae.report.svg import Plot, Series, line_chart

VOID = {"meta", "link", "img", "input", "br"}


class Reader(HTMLParser):
    """A plain list of (tag, attributes, text directly inside), and a check that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {[self.elements[i][0] for i in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} repeats an attribute: {attrs}"
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.elements[self._open[-1]][2].append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        """(attributes, text) of every element of that tag whose class is the wanted one."""
        name = wanted.get("kind")
        return [(a, "".join(t)) for e, a, t in self.elements if e == tag and name in (None, a.get("class"))]


def decode(uri: str | None) -> np.ndarray:
    """Pixels of a PNG data URI."""
    assert uri is not None
    kind, _, data = uri.partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
        assert image.format == "PNG"
        return np.array(image)


def quantise(image: np.ndarray, low: float, high: float) -> np.ndarray:
    """Grey levels 0..255 by loops: clip, scale, round half to even."""
    out = np.zeros(image.shape, dtype=np.uint8)
    for index, value in np.ndenumerate(image):
        share = min(max((float(value) - low) / (high - low), 0.0), 1.0)
        out[index] = round(255 * share)
    return out


def turntable_data(page: Page) -> dict[str, Any]:
    ((attributes, _),) = Reader(page.html()).all("figure", kind="turntable")
    return json.loads(attributes["data-turntable"] or "")


def full_page() -> Page:
    rng = np.random.default_rng(0)
    page = Page("Report", subtitle="All parts")
    page.section("First", "One paragraph.\n\nAnother one.")
    page.table(["model", "MSE"], [["VAE", 0.5], ["GPPVAE", 0.25]], "A table", highlight_row=1)
    page.plot(Plot([line_chart([Series([0, 1], [0, 1])], "A chart")], "A plot"))
    page.download("numbers.csv", "a,b\n1,2\n", "two numbers")
    page.section("Second")
    frames = rng.random((2, 3, 4, 5))
    page.turntable({"truth": frames, "model": frames}, list("012"), "Turn", list("pq"), held_out=[0, 1, 0])
    page.facts({"seed": 3})
    return page


def test_page_loads_nothing_from_outside() -> None:
    text = full_page().html()
    loads = [
        value
        for _, attributes, _ in Reader(text).elements
        for name, value in attributes.items()
        if name in {"src", "href", "srcset", "data", "action", "poster"}
    ]
    assert len(loads) == 5  # icon, two links of the contents, sprite, download
    assert all(re.match(r"data:((image/png|text/csv);base64)?,|#s\d+$", value or "") for value in loads)
    pictureless = re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|//|@import|url\(|fetch|XMLHttpRequest|WebSocket", pictureless)
    (policy,) = [a["content"] for a, _ in Reader(text).all("meta") if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_every_text_is_escaped() -> None:
    bad = "<script>alert('x')</script>&\""
    page = Page(bad, subtitle=bad)
    page.section(bad, bad)
    page.section("other")
    page.table([bad], [[bad]], bad)
    page.turntable({bad: np.zeros((1, 1, 2, 2))}, [bad], bad, [bad])
    page.facts({bad: bad})
    text = page.html()
    reader = Reader(text)
    assert "<script>alert" not in text
    assert len(reader.all("script")) == 1
    for tag in ("title", "h1", "td", "dt", "dd", "span", "figcaption"):
        assert bad in [content for _, content in reader.all(tag)], tag
    assert [a["aria-label"] for a, _ in reader.all("button") if "aria-label" in a] == [bad]
    assert turntable_data(page)["panels"] == turntable_data(page)["labels"] == [bad]


def test_sections_have_contents_and_paragraphs() -> None:
    page = Page("T")
    page.section("Alpha", "one\ntwo\n\n  three")
    assert "<nav" not in page.html()
    page.section("Beta")
    reader = Reader(page.html())
    assert [(a["href"], text) for a, text in reader.all("a")] == [("#s1", "Alpha"), ("#s2", "Beta")]
    assert [(a["id"], text) for a, text in reader.all("h2")] == [("s1", "Alpha"), ("s2", "Beta")]
    assert [" ".join(text.split()) for _, text in reader.all("p")] == ["one two", "three"]


def test_table_aligns_numbers_and_marks_one_row() -> None:
    page = Page("T")
    rows = [
        ["VAE", 0.123456, 7, "0.1 \u00b1 0.02", "12 min"],
        ["ours", float("nan"), np.int64(12), "1e-3 +- 2e-4", True],
        ["none", np.float32(2.0), None, "12 %", False],
    ]
    page.table(["model", "MSE", "n", "both", "note"], rows, "Cap", highlight_row=1)
    reader = Reader(page.html())
    cells = reader.all("td")
    assert [text for _, text in cells] == [
        *("VAE", "0.1235", "7", "0.1 \u00b1 0.02", "12 min"),
        *("ours", "\u2013", "12", "1e-3 +- 2e-4", "yes"),
        *("none", "2", "\u2013", "12 %", "no"),
    ]
    assert [a.get("class") for a, _ in cells] == [None, "num", "num", "num", None] * 3
    assert [a.get("class") for a, _ in reader.all("th")] == [None, "num", "num", "num", None]
    assert [a.get("class") for a, _ in reader.all("tr")] == [None, None, "ours", None]
    assert [text for _, text in reader.all("figcaption")] == ["Cap"]


def sprite_of(page: Page) -> np.ndarray:
    ((attributes, _),) = Reader(page.html()).all("img", kind="sprite")
    return decode(attributes["src"])


def test_turntable_packs_every_frame_into_one_sprite() -> None:
    rng = np.random.default_rng(2)
    truth, std = rng.random((3, 4, 5, 6)), rng.random((3, 4, 5, 6)) * 0.2
    page = Page("T")
    page.turntable({"truth": truth, "std": Panel(std, 0.0, 0.2)}, list("abcd"), "Cap", ["p", "q", "r"])
    sprite = sprite_of(page)
    assert sprite.shape == (3 * 2 * 5, 4 * 6)
    for o in range(3):
        for p, (frames, high) in enumerate([(truth, 1.0), (std, 0.2)]):
            for v in range(4):
                top = (2 * o + p) * 5
                part = sprite[top : top + 5, v * 6 : v * 6 + 6]
                np.testing.assert_array_equal(part, quantise(frames[o, v], 0.0, high))
    data = turntable_data(page)
    assert (data["w"], data["h"], data["panels"]) == (6, 5, ["truth", "std"])
    assert data["held"] == ["0000"] * 3
    assert data["gaps"] == ["0000"] * 6


def test_turntable_mixes_colour_grey_and_colour_maps() -> None:
    rng = np.random.default_rng(3)
    colour = rng.integers(0, 256, (2, 3, 4, 4, 3), dtype=np.uint8)
    grey = rng.integers(0, 256, (2, 3, 4, 4), dtype=np.uint8)
    page = Page("T")
    panels = {"colour": colour, "grey": grey, "heat": Panel(np.ones((2, 3, 4, 4)), colormap="gray_r")}
    page.turntable(panels, list("abc"), "Cap", ["p", "q"])
    sprite = sprite_of(page)
    assert sprite.shape == (2 * 3 * 4, 3 * 4, 3)
    np.testing.assert_array_equal(sprite[12:16, 4:8], colour[1, 1])
    np.testing.assert_array_equal(sprite[16:20, 8:12], np.stack([grey[1, 2]] * 3, axis=-1))
    assert (sprite[20:24] == 0).all()  # ones are white in grey and black in the reversed map


def test_turntable_records_gaps_and_marks() -> None:
    frames = np.full((2, 3, 2, 2), 0.5)
    frames[1, 2] = np.nan
    frames[0, 0, 0, 0] = np.nan  # one missing pixel is no gap
    page = Page("T")
    page.turntable(
        {"full": np.zeros((2, 3, 2, 2)), "gappy": frames},
        ["a", "b", "c"],
        "Cap",
        ["p", "q"],
        held_out=[[True, False, False], [False, False, True]],
    )
    data = turntable_data(page)
    assert data["held"] == ["100", "001"]
    assert data["gaps"] == ["000", "000", "000", "001"]
    reader = Reader(page.html())
    ((slider, _),) = reader.all("input")
    assert (slider["min"], slider["max"], slider["aria-label"]) == ("0", "2", "View")
    assert len(reader.all("canvas")) == 4  # two panels and two thumbnails
    assert any("held out" in text for _, text in reader.all("p", kind="hint"))


def test_turntable_opens_where_it_is_told() -> None:
    page = Page("T")
    page.turntable({"m": FRAMES}, list("abc"), "Cap", ["p", "q"], start=(1, 2))
    assert turntable_data(page)["start"] == [1, 2]
    with pytest.raises(ValueError, match=r"start must be an object and a view of 2 x 3, got \(2, 0\)"):
        page.turntable({"m": FRAMES}, list("abc"), "Cap", ["p", "q"], start=(2, 0))


def test_a_download_holds_the_file() -> None:
    ((attributes, text),) = [
        (a, text) for a, text in Reader(full_page().html()).all("a") if (a["href"] or "").startswith("data:")
    ]
    assert (attributes["download"], text) == ("numbers.csv", "numbers.csv")
    assert base64.b64decode((attributes["href"] or "").partition(",")[2]) == b"a,b\n1,2\n"


def test_sections_can_be_carried_to_another_page() -> None:
    first, second = full_page(), Page("Later")
    for heading, html in first.parts().items():
        second.carry(heading, html)
    assert second.html().split("<main>")[1] == first.html().split("<main>")[1]


def test_facts_are_listed() -> None:
    page = Page("T")
    page.facts({"seed": 3, "learning rate": 0.001, "commit": None})
    reader = Reader(page.html())
    assert [text for _, text in reader.all("dt")] == ["seed", "learning rate", "commit"]
    assert [text for _, text in reader.all("dd")] == ["3", "0.001", "\u2013"]


def test_write_replaces_the_file_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.html"
    page = full_page()
    assert page.write(path) == path
    assert path.read_text("utf-8") == page.html()
    seen: list[bytes] = []

    def refuse(source: Path, target: Path) -> None:
        assert Path(source).parent == Path(target).parent
        seen.append(Path(source).read_bytes())
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    other = Page("Other")
    with pytest.raises(OSError, match="disk full"):
        other.write(path)
    assert seen == [other.html().encode()]
    assert path.read_text("utf-8") == page.html()
    assert os.listdir(path.parent) == ["report.html"]


FRAMES = np.zeros((2, 3, 4, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.table(["a"], [[1, 2]], "c"), "row 0 must have 1 entries, got 2"),
        (lambda p: p.table(["a"], [[1]], "c", highlight_row=1), r"highlight_row must be in \[0, 1\), got 1"),
        (lambda p: p.turntable({"m": FRAMES[0]}, ["a"], "c", ["o"]), r"panel 'm' must have shape .*\(3, 4, 4\)"),
        (lambda p: p.turntable({"m": Panel(FRAMES, 1.0)}, ["a"], "c", ["o"]), "vmax must be greater than vmin"),
        (lambda p: p.turntable({}, [], "c", []), "panels must agree .* got no panel"),
        (lambda p: p.turntable({"m": FRAMES}, ["a"], "c", ["o"] * 2), "labels must have 3 entries, got 1"),
        (
            lambda p: p.turntable({"m": FRAMES}, ["a"] * 3, "c", ["o"]),
            "object_names must have 2 entries, got 1",
        ),
        (
            lambda p: p.turntable({"m": FRAMES, "n": FRAMES[:1]}, ["a"] * 3, "c", ["o"] * 2),
            r"panels must agree .*\(1, 3, 4, 4\)",
        ),
        (
            lambda p: p.turntable({"m": FRAMES}, ["a"] * 3, "c", ["o"] * 2, held_out=[True]),
            r"held_out must be \(3,\) or \(2, 3\), got \(1,\)",
        ),
        (
            lambda p: p.turntable({"m": Panel(np.zeros((1, 1, 2, 2, 3)), 0, 1, "gray")}, [], "c", []),
            "panel 'm' must be grey",
        ),
        (
            lambda p: p.turntable({"m": np.zeros((1, 1, MAX_SIDE + 1, 1))}, ["a"], "c", ["o"]),
            "show fewer objects",
        ),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Page("T"))

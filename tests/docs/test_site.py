"""The documentation builds without a warning, fetches nothing, and has every public name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gppvae

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = [
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-d",
        str(out / "trees"),
        str(DOCS),
        str(out / "html"),
    ]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_page_is_there(site: Path) -> None:
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md") if "_build" not in page.parts]
    assert len(pages) > 25
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


def test_nothing_is_fetched(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(?:https?:)?//[^\"]*|<link[^>]*(?:stylesheet|preload)[^>]*https?://[^>]*"
    )
    style = re.compile(r"@import\s+(?:url\()?[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//")
    found = {page.name: loads.findall(page.read_text("utf-8")) for page in site.rglob("*.html")}
    assert {name: links for name, links in found.items() if links} == {}
    assert [sheet.name for sheet in site.rglob("*.css") if style.search(sheet.read_text("utf-8"))] == []
    assert loads.search('<script defer src="https://cdn.example.org/x.js">') and style.search(
        "@import url(//fonts.example)"
    )


def test_formulas_are_mathml(site: Path) -> None:
    text = (site / "math.html").read_text("utf-8")
    assert text.count("<math") > 60 and not re.search(r"<script[^>]*mathjax", text, flags=re.IGNORECASE)
    assert "<mfrac>" in text and "\\frac" not in text


@pytest.mark.parametrize(
    ("tex", "wanted"),
    [
        (r"\tfrac12 x", "<mfrac><mn>1</mn><mn>2</mn></mfrac><mi>x</mi>"),
        (
            r"\bar s_n",
            '<mover accent="true"><mi>s</mi><mo stretchy="false">ˉ</mo></mover><msub><mrow></mrow><mi>n</mi></msub>',
        ),
        (r"\log p", '<mi>log</mi><mo>&ApplyFunction;</mo><mspace width="0.1667em"></mspace><mi>p</mi>'),
    ],
)
def test_formulas_mean_what_tex_means(tex: str, wanted: str) -> None:
    spec = importlib.util.spec_from_file_location("offline_math", DOCS / "_ext" / "offline_math.py")
    assert spec is not None and spec.loader is not None
    offline_math = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(offline_math)
    made = re.sub(r">\s+<", "><", offline_math.mathml(tex, display=False))
    assert made == f'<math xmlns="http://www.w3.org/1998/Math/MathML">{wanted}</math>'


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = (site / "api.html").read_text("utf-8")
    missing = [name for name in gppvae.__all__ if name != "__version__" and f'id="gppvae.{name}"' not in text]
    assert missing == []
    for method in ("fit", "predict", "add_objects", "encode", "save", "load"):
        assert f'id="gppvae.GPPVAE.{method}"' in text
    assert "Problematic" not in text and "system-message" not in text


def test_cards_lead_to_pages(site: Path) -> None:
    text = (site / "index.html").read_text("utf-8")
    cards = re.findall(r'class="card docutils container">\s*<p><a[^>]*href="([^"#]+)"', text)
    assert len(cards) >= 8 and all((site / card).is_file() for card in cards)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    from report.browser import Browser, find_browser

    executable = find_browser()
    if executable is None:
        pytest.skip("no chromium, chromium-browser, google-chrome or chrome is installed")
    started = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.mark.parametrize("name", ["index", "quickstart", "math", "peers", "api", "howto/choosing_a_kernel"])
def test_a_phone_shows_the_page_without_scrolling_sideways(site: Path, browser: Any, name: str) -> None:
    browser.open(site / f"{name}.html", width=390, height=800, scheme="dark")
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.run("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    asked = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)


def test_formulas_have_a_size(site: Path, browser: Any) -> None:
    browser.open(site / "math.html")
    assert browser.run("[...document.querySelectorAll('math')].every(m => m.getBoundingClientRect().width > 4)")

"""The report page in a real browser: it turns by slider, key, drag and button, and asks for no other file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gppvae.report.page import Page
from gppvae.report.pictures import picture_chart
from gppvae.report.svg import Plot, Series, heat_map, line_chart

websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
from report.browser import Browser, find_browser, wait_for  # noqa: E402

ANGLES = [f"{45 * i} deg" for i in range(8)]
OBJECTS = ["left", "middle", "right"]
LEVELS = np.arange(48).reshape(3, 2, 8) * 5  # object, panel, view: every frame has a grey level of its own
PIXEL = "document.querySelectorAll('.frame canvas')[{}].getContext('2d').getImageData(1, 1, 1, 1).data[0]"
PLAY_TEXT = "document.querySelector('.play').textContent"
LABEL = "document.querySelector('output').textContent"
TEN_LABELS = """new Promise(done => {
  const seen = [], output = document.querySelector('output');
  new MutationObserver((_, observer) => {
    if (output.textContent !== seen.at(-1)) seen.push(output.textContent);
    if (seen.length === 10) { observer.disconnect(); done(seen); }
  }).observe(output, {childList: true, characterData: true, subtree: true});
})"""
SLIDE = (
    "(() => { const r = document.querySelector('input'); r.value = %d; "
    "r.dispatchEvent(new Event('input', {bubbles: true})); })()"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with one turntable of flat grey frames; "right" lacks its last measured view."""
    frames = np.broadcast_to(LEVELS[..., None, None], (3, 2, 8, 4, 4)).astype(float) / 255
    measured = frames[:, 0].copy()
    measured[2, 7] = np.nan
    page = Page("Turning", subtitle="A page for the browser test")
    page.section("Objects", "Turn them.")
    held = np.arange(8) == 3
    panels = {"measured": measured, "predicted": frames[:, 1]}
    page.turntable(panels, ANGLES, "Flat frames.", OBJECTS, held_out=held, ms=30)
    page.section("Table")
    page.table(["model", "MSE"], [["VAE", 0.5], ["GPPVAE", 0.25]], "A table", highlight_row=1)
    page.section("Charts")
    wide = picture_chart(
        [(f"picture {i}", np.full((8, 8), 200, dtype=np.uint8)) for i in range(7)], "Pictures", side=88
    )
    page.plot(
        Plot([line_chart([Series([0, 1], [0, 1])], "Line", width=420), heat_map(np.eye(2), list("ab")), wide], "C")
    )
    page.download("numbers.csv", "a,b\n1,2\n", "two numbers")
    return page.write(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no chromium, chromium-browser, google-chrome or chrome is installed")
    started = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def tab(browser: Browser, report: Path) -> Browser:
    """The page, freshly opened, with the events of earlier tests forgotten."""
    browser.open(report)
    return browser


def state(tab: Browser) -> tuple[str, int, int]:
    """The label and the grey levels that both canvases really show."""
    return tab.run(LABEL), tab.run(PIXEL.format(0)), tab.run(PIXEL.format(1))


def expected(obj: int, view: int) -> tuple[str, int, int]:
    label = ANGLES[view] + (", held out" if view == 3 else "")
    return label, int(LEVELS[obj, 0, view]), int(LEVELS[obj, 1, view])


def centre(tab: Browser, selector: str) -> tuple[float, float]:
    script = f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
    x, y = tab.run(script + " return [b.x + b.width / 2, b.y + b.height / 2]; })()")
    return x, y


def click(tab: Browser, selector: str) -> None:
    x, y = centre(tab, selector)
    tab.mouse("mousePressed", x, y)
    tab.mouse("mouseReleased", x, y)


def test_slider_turns_the_object(tab: Browser) -> None:
    assert state(tab) == expected(0, 0)
    for view in (5, 3, 7):
        tab.run(SLIDE % view)
        assert state(tab) == expected(0, view)
        spoken = tab.run("document.querySelector('input').getAttribute('aria-valuetext')")
        assert spoken == expected(0, view)[0]
        assert tab.run("document.querySelector('.turntable').classList.contains('out')") is (view == 3)
    assert tab.run("[...document.querySelectorAll('.ticks i')].map(t => t.className).join()") == ",,,held,,,,"


def test_arrow_keys_turn_and_change_the_object(tab: Browser) -> None:
    tab.run("document.querySelector('input').focus()")
    tab.press("ArrowRight", 39)
    assert state(tab) == expected(0, 1)
    tab.press("ArrowLeft", 37)
    tab.press("ArrowLeft", 37)
    assert state(tab) == expected(0, 7)  # around the circle
    tab.press("ArrowDown", 40)
    assert state(tab) == expected(1, 7)
    tab.press("ArrowUp", 38)
    tab.press("ArrowUp", 38)
    tab.press("ArrowRight", 39)
    assert state(tab) == expected(2, 0)
    pressed = "[...document.querySelectorAll('.thumbs button')].map(b => b.ariaPressed).join()"
    assert tab.run(pressed) == "false,false,true"


def test_thumbnail_and_drag(tab: Browser) -> None:
    click(tab, ".thumbs button:nth-child(2)")
    assert state(tab) == expected(1, 0)
    x, y = centre(tab, ".frame")
    step = tab.run("document.querySelector('.frame').clientWidth") / 8
    tab.mouse("mousePressed", x, y)
    tab.mouse("mouseMoved", x + 2 * step, y)
    assert state(tab) == expected(1, 2)
    tab.mouse("mouseMoved", x - step, y)
    tab.mouse("mouseReleased", x - step, y)
    tab.mouse("mouseMoved", x + 3 * step, y)
    assert state(tab) == expected(1, 7)
    assert tab.run("document.activeElement === document.querySelector('input')")


def test_keys_and_slider_stop_the_play(tab: Browser) -> None:
    for act in (
        lambda: tab.press("ArrowRight", 39),
        lambda: tab.run(SLIDE % 2),
        lambda: click(tab, ".frame"),
    ):
        click(tab, ".play")
        assert tab.run(PLAY_TEXT) == "Pause"
        act()
        assert tab.run(PLAY_TEXT) == "Play"


def test_missing_frame_says_so(tab: Browser) -> None:
    gap = "[...document.querySelectorAll('.frame')].map(f => f.classList.contains('gap')).join()"
    spoken = "document.querySelector('.frame canvas').getAttribute('aria-label')"
    tab.run(SLIDE % 7)
    assert tab.run(gap) == "false,false"
    click(tab, ".thumbs button:nth-child(3)")
    assert tab.run(gap) == "true,false"
    assert tab.run(spoken) == "measured, right, 315 deg, not measured"
    tab.run(SLIDE % 3)
    assert tab.run(spoken) == "measured, right, 135 deg, held out"


def test_play_button_advances_and_stops(tab: Browser) -> None:
    click(tab, ".play")
    assert tab.run(PLAY_TEXT) == "Pause"
    seen = tab.run(TEN_LABELS)
    order = [expected(0, view)[0] for view in range(8)]
    first = order.index(seen[0])
    assert seen == [order[(first + i) % 8] for i in range(10)]
    click(tab, ".play")
    assert tab.run(PLAY_TEXT) == "Play"
    stopped = state(tab)
    assert tab.run(f"new Promise(done => setTimeout(() => done({LABEL}), 200))") == stopped[0]


def requested(tab: Browser) -> list[str]:
    """Addresses the page asked for; pictures inside the page itself (data:) are no requests."""
    sent = [e["params"]["request"]["url"] for e in tab.events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def test_no_errors_and_no_requests(tab: Browser, report: Path) -> None:
    tab.run(SLIDE % 2)
    click(tab, ".thumbs button:nth-child(2)")
    tab.run("new Promise(done => setTimeout(done, 200))")
    assert tab.complaints() == []
    assert requested(tab) == [report.as_uri()]


def test_content_policy_refuses_requests(tab: Browser, report: Path) -> None:
    assert tab.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert requested(tab) == [report.as_uri()]
    wait_for(lambda: any("Content Security Policy" in text for text in tab.complaints()), 30)


@pytest.mark.parametrize("width", [1100, 390])
def test_charts_follow_the_colour_scheme_and_are_shown_whole(browser: Browser, report: Path, width: int) -> None:
    found = {}
    for scheme in ("light", "dark"):
        browser.open(report, width=width, scheme=scheme)
        found[scheme] = browser.run(
            "['.chart .line', '.chart text'].map(s => getComputedStyle(document.querySelector(s)).color).join('; ')"
        )
        outside = (
            "[...document.querySelectorAll('.chart')].filter(c => { const b = c.getBoundingClientRect(); "
            f"return b.left < 0 || b.right > {width} || b.width === 0; }}).length"
        )
        assert browser.run(outside) == 0
    assert found == {
        "light": "rgb(0, 114, 178); rgb(27, 35, 46)",
        "dark": "rgb(86, 180, 233); rgb(229, 233, 239)",
    }
    assert browser.run("document.querySelectorAll('.chart rect title')[1].textContent") == "a, b: 0"


def test_downloads_are_saved_under_the_content_policy(tab: Browser, tmp_path: Path) -> None:
    tab.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tab.run("document.querySelector('a[download]').scrollIntoView()")
    click(tab, "a[download]")
    wait_for(lambda: (tmp_path / "numbers.csv").exists(), 20)
    assert (tmp_path / "numbers.csv").read_bytes() == b"a,b\n1,2\n"
    assert tab.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_layout_fits_and_follows_the_colour_scheme(
    browser: Browser, report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.open(report, width=width, scheme=scheme)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("(t => t.scrollWidth <= t.clientWidth)(document.querySelector('.turntable'))")
    browser.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as image:
        corner = image.convert("RGB").getpixel((2, 2))
        assert image.width in range(width - 20, width + 1)  # a scroll bar may take some
    assert (min(corner) > 240) is (scheme == "light")
    assert (max(corner) < 40) is (scheme == "dark")

"""The live page in a real browser: click, drag, drop, keys, links, saved files; on a phone and in the dark."""

import base64
import csv
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from explore.conftest import HOSTILE, Case, Served, serve
from gppvae import GPPVAE
from gppvae.training.threads import one_thread

websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
from explore.live_browser import LiveBrowser  # noqa: E402
from report.browser import find_browser, wait_for  # noqa: E402

PICTURE = """(n => { const shown = document.querySelectorAll('#stage canvas')[n], c = document.createElement('canvas');
  [c.width, c.height] = [shown.width, shown.height];
  const pen = c.getContext('2d', {willReadFrequently: true});
  pen.drawImage(shown, 0, 0);
  return [...pen.getImageData(0, 0, c.width, c.height).data].filter((_, i) => i %% 4 === 0); })(%d)"""
WHERE = "document.getElementById('sample-where').textContent"
ANGLE = "+document.querySelector('.control input[type=number]').value"
LABELS = "[...document.querySelectorAll('#stage .picture > span')].map(s => s.textContent)"
DROP = """(async files => {
  const carrier = new DataTransfer();
  for (const [name, content, type] of files) {
    const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
    carrier.items.add(new File([bytes], name, {type}));
  }
  for (const kind of ['dragenter', 'dragover', 'drop']) {
    document.body.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: carrier}));
    if (kind === 'dragenter' && document.getElementById('veil').hidden) throw new Error('no veil');
  }
})(%s)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBrowser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no chromium, chromium-browser, google-chrome or chrome is installed")
    started = LiveBrowser(executable, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def tab(browser: LiveBrowser, served: Served) -> Iterator[LiveBrowser]:
    """The page, freshly opened and drawn; every test ends without a word in the console."""
    browser.visit(served.server.address)
    yield browser
    assert browser.complaints() == []


def expected(served: Served, spot: str, angle: float) -> np.ndarray:
    """Grey levels that the prediction should have on the screen."""
    live = served.answers.live
    with live.lock:  # draws of added objects change the model while they are made
        mean = live.model.predict({"spot": [spot], "angle": [angle]}).mean[0]
    return np.clip(np.round(255 * mean), 0, 255).ravel()


def shows(tab: LiveBrowser, number: int) -> np.ndarray:
    return np.array(tab.run(PICTURE % number), dtype=float)


def cell(tab: LiveBrowser, row: int, column: int) -> tuple[float, float]:
    """Where a cell of the 4 x 8 grid is drawn."""
    wide, high = tab.run("[document.getElementById('grid').clientWidth, document.getElementById('grid').clientHeight]")
    left = 96.0  # the hostile name takes the whole margin
    return left + (column + 0.5) * min(46, (wide - left - 6) / 8), 4 + (row + 0.5) * (high - 4) / 4


def hash_of(tab: LiveBrowser) -> dict[str, str]:
    tab.run("new Promise(done => setTimeout(done, 200))")
    words = tab.run("[...new URLSearchParams(location.hash.slice(1))]")
    return dict(words)


def test_it_opens_on_a_held_out_row(tab: LiveBrowser, served: Served) -> None:
    assert "held out from training" in tab.run(WHERE) and "angle 90" in tab.run(WHERE)
    assert tab.run(LABELS)[:2] == ["measured", "predicted"] and tab.run(LABELS)[2].startswith("std up to")
    assert "measured (26)" in tab.text("#grid-legend") and "held out (5)" in tab.text("#grid-legend")
    sent = {url.split("?")[0] for url in tab.requested()}
    assert all(url.startswith(served.server.address) for url in sent)


def test_a_click_shows_what_was_measured_and_predicted(tab: LiveBrowser, served: Served) -> None:
    # Rows in natural order: the hostile name, s0, s1, s2.
    tab.click("#grid", *cell(tab, 2, 3))
    tab.until(f"{WHERE}.startsWith('spot s1, angle 135 ·')")
    table, samples = served.case.table, served.case.samples
    number = int(np.flatnonzero((table["spot"] == "s1") & (table["angle"] == 135.0))[0])
    np.testing.assert_allclose(shows(tab, 0), np.round(255 * samples[number]).ravel(), atol=1)
    np.testing.assert_allclose(shows(tab, 1), expected(served, "s1", 135.0), atol=1)
    assert "measured" in tab.run(WHERE) and "error" in tab.run(WHERE)
    tab.click("#grid", *cell(tab, 3, 4))
    tab.until(f"{WHERE}.startsWith('spot s2, angle 180 · never measured')")
    assert tab.run("document.querySelector('.frame').classList.contains('gap')")
    assert hash_of(tab)["r.spot"] == "s2"


def test_the_prediction_follows_the_slider(tab: LiveBrowser, served: Served) -> None:
    spot = tab.run("document.querySelector('.control select').value")
    box = tab.run("(b => [b.x, b.y, b.width, b.height])(document.querySelector('.dial input').getBoundingClientRect())")
    y = box[1] + box[3] / 2
    tab.mouse("mousePressed", box[0] + box[2] * 0.25, y)
    for share in (0.4, 0.55, 0.7):
        tab.mouse("mouseMoved", box[0] + box[2] * share, y)
    tab.mouse("mouseReleased", box[0] + box[2] * 0.7, y)
    angle = float(tab.run(ANGLE))
    assert 230 < angle < 275
    tab.until(f"{WHERE}.includes('angle {angle:g}')")
    np.testing.assert_allclose(shows(tab, 1), expected(served, spot, angle), atol=1)
    tab.run("document.querySelector('.dial input').focus()")
    tab.press("ArrowRight", 39)
    tab.until(f"!{WHERE}.includes('angle {angle:g} ') && {ANGLE} > {angle}")
    x, y = tab.place(".frame")
    tab.mouse("mousePressed", x, y)
    tab.mouse("mouseMoved", x + 30, y)
    tab.mouse("mouseReleased", x + 30, y)
    tab.until(f"Math.abs({ANGLE} - {angle}) > 10")


def test_keys(tab: LiveBrowser) -> None:
    tab.run("document.getElementById('grid').focus()")
    tab.press("ArrowRight", 39)
    tab.until(f"{WHERE}.includes('angle 135')")
    tab.press("ArrowDown", 40)
    tab.until(f"{WHERE}.includes('spot s0')")
    tab.press("d", 68)
    tab.until(f"{LABELS}[1].startsWith('draw ')")
    tab.press("1", 49)
    tab.until("document.querySelector('.switch').getAttribute('aria-checked') === 'false'")
    before = tab.run("+document.querySelector('.dial input').value")
    tab.press("p", 80)
    tab.until(f"+document.querySelector('.dial input').value > {before} + 5")
    tab.press("p", 80)
    assert tab.run("document.querySelector('.control button[aria-label=\"play angle\"]') !== null")
    tab.press("?", 191)
    assert tab.run("document.getElementById('help-dialog').open")
    assert hash_of(tab)["draws"] == "1" and hash_of(tab)["off"] == "0.0"


def test_a_chip_switched_off_redraws_without_its_term(tab: LiveBrowser, served: Served) -> None:
    both = shows(tab, 1)
    tab.click("[data-term='0.1']")
    tab.until("document.querySelectorAll('.chip.off').length === 1")
    start = served.answers.meta()["start"]
    without = served.answers.live.frame({name: [value] for name, value in start.items()}, off=frozenset({(0, 1)})).mean
    wanted = np.clip(np.round(255 * without[0]), 0, 255).ravel()
    wait_for(lambda: bool(np.abs(shows(tab, 1) - wanted).max() <= 1), 10)
    assert np.abs(shows(tab, 1) - both).max() > 1
    tab.click("[data-term='0.1']")
    wait_for(lambda: bool(np.abs(shows(tab, 1) - both).max() == 0), 10)


def test_a_link_shows_the_same(tab: LiveBrowser, served: Served) -> None:
    link = f"{served.server.address}#r.spot=s2&r.angle=33.5&off=0.1&colour=error&leaf=2&tint=batch&a=1&b=0&draws=1"
    tab.visit(link)
    assert tab.run(WHERE).startswith("spot s2, angle 33.5 · never measured")
    assert tab.text("#covariance-title") == "Covariance of RBF('angle')"
    chosen = "[...document.querySelectorAll('#grid-colour, #tint, #axis-a, #axis-b')].map(s => s.value)"
    assert tab.run(chosen) == ["error", "1", "0", "batch"]
    tab.until("document.getElementById('grid-legend').textContent.includes('root mean squared error')")
    words = hash_of(tab) if tab.run("document.getElementById('noise').click()") is None else {}
    assert words["noise"] == "1" and words["off"] == "0.1" and words["leaf"] == "2" and words["r.angle"] == "33.5"
    tab.visit(f"{served.server.address}#r.spot=nobody&r.angle=x&off=9.9&colour=%3Cb%3E&a=99&leaf=-1&y=no&slide=spot")
    assert "held out from training" in tab.run(WHERE)  # nonsense is passed over


def test_latents_are_linked(tab: LiveBrowser) -> None:
    chosen = "[...document.querySelectorAll('.control select, .control input')].map(c => c.value)"
    before, opened = tab.run(WHERE), tab.run(chosen)
    width, height = tab.run("(c => [c.clientWidth, c.clientHeight])(document.getElementById('scatter'))")
    for share in np.linspace(0.15, 0.95, 30):
        tab.click("#scatter", width * share, height * 0.45)
        if tab.run(chosen) != opened:  # a point of another row was hit
            break
    tab.until(f"{WHERE} !== {json.dumps(before)}")
    tab.run("(s => { s.value = 'spot'; s.dispatchEvent(new Event('change')); })(document.getElementById('tint'))")
    assert HOSTILE[:17] in tab.text("#latent-legend")


def test_dropped_pictures_become_an_object_that_turns(tab: LiveBrowser, served: Served) -> None:
    table, samples = served.case.table, served.case.samples
    files = []
    for angle in (45.0, 225.0):
        number = int(np.flatnonzero((table["spot"] == "s0") & (table["angle"] == angle))[0])
        out = io.BytesIO()
        Image.fromarray(np.round(255 * samples[number]).astype(np.uint8)).resize((40, 40), 0).save(out, format="PNG")
        files.append([f"three_{angle:g}.png", base64.b64encode(out.getvalue()).decode(), "image/png"])
    tab.run(DROP % json.dumps(files))
    tab.until("document.querySelectorAll('.file').length === 2")
    assert tab.run("[...document.querySelectorAll('.file input')].map(i => i.value)") == ["45", "225"]  # from the names
    tab.run("document.getElementById('object-name').value = 'mine'")
    tab.click("#object-learn")
    tab.until(f"{WHERE}.startsWith('spot mine, angle 45 ·')", 20)
    assert "mine" in served.answers.added and not tab.run("document.getElementById('object-dialog').open")
    np.testing.assert_allclose(shows(tab, 0), shows_of(files[0][1]), atol=1)
    tab.run("(r => { r.value = 300; r.dispatchEvent(new Event('input')); })(document.querySelector('.dial input'))")
    tab.until(f"{WHERE}.startsWith('spot mine, angle 300')")
    np.testing.assert_allclose(shows(tab, 1), expected(served, "mine", 300.0), atol=1)
    tab.run(DROP % json.dumps([["words.txt", base64.b64encode(b"no picture").decode(), "text/plain"]]))
    tab.until("document.querySelectorAll('.file').length === 1")
    tab.click("#object-learn")
    tab.until("!document.getElementById('object-trouble').hidden")
    assert "expected a picture" in tab.text("#object-trouble")
    # The browser itself notes the refused request.
    wait_for(lambda: tab.complaints() != [], 30)
    assert ["400" in words for words in tab.complaints()] == [True]
    tab.events.clear()


def shows_of(content: str) -> np.ndarray:
    small = Image.open(io.BytesIO(base64.b64decode(content))).resize((8, 8), Image.Resampling.BOX)
    return np.asarray(small, dtype=float).ravel()


def test_panels_save_numbers_and_figures(tab: LiveBrowser, served: Served, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for panel in ("table", "sample", "latent", "kernel"):
        tab.run(f"[...document.querySelectorAll('#{panel}-panel .save button')].slice(0, 2).forEach(b => b.click())")
        time.sleep(0.15)  # browsers ask when a page saves many files at once
    names = [f"spots-{name}.{kind}" for name in ("table", "sample", "latents", "kernel") for kind in ("csv", "svg")]
    wait_for(lambda: all((tmp_path / name).exists() for name in names), 10)
    rows = saved_rows(tmp_path / "spots-sample.csv")
    python = python_lines(tab, "sample")
    found: dict[str, Any] = {}
    exec(python, found)
    np.testing.assert_allclose([float(row["predicted"]) for row in rows], found["mean"].ravel(), atol=1e-6)
    np.testing.assert_allclose([float(row["std"]) for row in rows], found["std"].ravel(), rtol=1e-4, atol=1e-6)
    table = saved_rows(tmp_path / "spots-table.csv")
    assert len(table) == len(served.answers.cells.table) and table[0].keys() >= {"spot", "angle", "batch", "status"}
    assert HOSTILE in {row["spot"] for row in table}
    tab.run(
        "(s => { s.value = 'error'; s.dispatchEvent(new Event('change')); })(document.getElementById('grid-colour'))"
    )
    tab.until("!document.getElementById('grid-legend').textContent.includes('to go')")
    (tmp_path / names[0]).unlink()
    tab.run("document.querySelector('#table-panel .save button').click()")
    wait_for(lambda: (tmp_path / names[0]).exists(), 10)
    found |= {"table": served.case.table, "samples": served.case.samples}
    exec(python_lines(tab, "table"), found)
    errors = {(row["spot"], float(row["angle"])): float(row["error"]) for row in saved_rows(tmp_path / names[0])}
    here = [errors[spot, angle] for spot, angle in zip(found["table"]["spot"], found["table"]["angle"], strict=True)]
    np.testing.assert_allclose(found["error"], here, rtol=1e-4)
    assert len(found["uncertainty"]) == len(found["table"])
    for name in names[1::2]:
        text = (tmp_path / name).read_text()
        assert (
            text.startswith("<svg ") and "<img" not in text and len(re.findall(r"<(rect|path|image|ellipse)", text)) > 2
        )
    latent = python_lines(tab, "latent")
    exec(latent, found)
    assert found["mean"].shape == (61, 3)
    found["table"] = served.case.table
    exec(python_lines(tab, "kernel"), found)
    assert sum(found["shares"]) == pytest.approx(1.0) and found["found"]["matrix"].shape[0] >= 4


def saved_rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_bytes().decode(), newline="")))


def python_lines(tab: LiveBrowser, panel: str) -> str:
    tab.run(f"document.querySelector('#{panel}-panel .save button:last-child').click()")
    lines = tab.text("#python-text")
    tab.run("document.getElementById('python-dialog').close()")
    return lines


def test_a_hostile_id_is_only_text(tab: LiveBrowser) -> None:
    tab.run(
        f"(s => {{ s.value = {json.dumps(HOSTILE)}; s.dispatchEvent(new Event('change')); }})"
        "(document.querySelector('.control select'))"
    )
    tab.until(f"{WHERE}.includes('<img src=x')")
    assert tab.run("document.querySelectorAll('main img').length") == 0
    assert tab.run("document.title") == "spots · gppvae explore"


def test_the_policy_holds(browser: LiveBrowser, served: Served) -> None:
    browser.visit(served.server.address)
    for script in (
        "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')",
        "(() => { try { return eval('1') + ' ran'; } catch { return 'refused'; } })()",
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch { return 'refused'; } })()",
        "new Promise(done => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); setTimeout(() => done(window.ran ? 'ran' : 'refused'), 50); })"
        ".catch(() => 'refused')",
    ):
        answer = browser.call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        assert answer["result"].get("value", "refused") == "refused", script
    assert all(url.startswith(served.server.address) for url in browser.requested())
    wait_for(lambda: browser.complaints() != [], 30)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_layout_fits_and_follows_the_colour_scheme(
    browser: LiveBrowser, served: Served, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.visit(served.server.address, width=width, scheme=scheme)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("[...document.querySelectorAll('.panel')].every(p => p.scrollWidth <= p.clientWidth)")
    browser.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as image:
        corner = image.convert("RGB").getpixel((2, 2))
    assert (min(corner) > 240) is (scheme == "light") and (max(corner) < 40) is (scheme == "dark")
    assert browser.complaints() == []


def test_vectors_have_curves_with_names(browser: LiveBrowser, served_vectors: Served) -> None:
    browser.visit(f"{served_vectors.server.address}#draws=1")
    assert "6 values per sample" in browser.text("#about")
    x, y = browser.place("#stage canvas", 80, 120)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.until("!document.getElementById('tip').hidden")
    assert browser.text("#tip").startswith("glucose\npredicted ") and "measured" in browser.text("#tip")
    inked = (
        "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 === 3 && v).length)"
    )
    assert browser.run(f"{inked}(document.querySelector('#stage canvas'))") > 3000
    before = browser.run(WHERE)
    browser.click("#grid", 300, 60)  # subjects are strips along age: any place can be asked
    browser.until(f"{WHERE} !== {json.dumps(before)}")
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def served_strips(vectors: Case) -> Iterator[Served]:
    """The blood values at so many ages that subjects are strips, not rows of cells."""
    age = np.random.default_rng(1).uniform(20.0, 70.0, 80).round(2)
    table = pd.DataFrame({"subject": np.repeat([f"subject {n}" for n in range(5)], 16), "age": age, "sex": "f"})
    yield from serve(Case(vectors.model, vectors.folder, np.ones((80, 6), np.float32), table, np.zeros(80, bool)))


def test_arrow_keys_reach_every_row_of_a_strip(browser: LiveBrowser, served_strips: Served) -> None:
    """They went a fiftieth of the range along it, past the measured ages."""
    browser.visit(f"{served_strips.server.address}#r.subject=subject+1&r.age=0")
    table = served_strips.case.table
    ages = sorted(table["age"][table["subject"] == "subject 1"])
    browser.run("document.getElementById('grid').focus()")
    for age in ages:
        browser.press("ArrowRight", 39)
        browser.until(f"/age {age:g}\\b.* measured/.test({WHERE})")
    browser.press("ArrowDown", 40)  # to the nearest age of the next subject
    after = table["age"][table["subject"] == "subject 2"]
    nearest = after.iloc[(after - ages[-1]).abs().argmin()]
    browser.until(f"{WHERE}.includes('subject 2') && /age {nearest:g}\\b/.test({WHERE})")
    browser.press("ArrowLeft", 37)
    browser.until(f"/age {after[after < nearest].max():g}\\b/.test({WHERE})")
    browser.run("(s => { s.value = 'age'; s.dispatchEvent(new Event('change')); })(document.getElementById('grid-y'))")
    for key, code in (("ArrowUp", 38), ("ArrowDown", 40), ("ArrowRight", 39)):
        browser.press(key, code)  # on a map they go on from place to place
    assert browser.complaints() == []


@pytest.mark.parametrize("kernel", ["RBF(age)", "Learned(subject, 2)"])
def test_a_table_of_one_column_is_one_strip(browser: LiveBrowser, tmp_path: Path, kernel: str) -> None:
    """It was a diagonal of the column against itself."""
    table = pd.DataFrame({"age": np.linspace(0.0, 9.0, 40), "subject": [f"s{n % 4}" for n in range(40)]})
    samples = np.sin(table["age"].to_numpy()[:, None] + np.arange(3)).astype(np.float32)
    with one_thread():
        model = GPPVAE(kernel, 1, width=8, epochs=2, inference="global").fit(samples, table, progress=False)
        model.save(tmp_path / "run")
    for served in serve(Case(model, tmp_path / "run", samples, table, np.zeros(40, bool))):
        browser.go(served.server.address, "document.documentElement.dataset.ready === 'yes'", 1400, 1000, "light")
        assert browser.run("document.getElementById('grid').clientHeight") < 40
        before = browser.run(WHERE)
        browser.click("#grid", 100, 14)
        browser.until(f"{WHERE} !== {json.dumps(before)}")
        before = browser.run(WHERE)
        browser.press("ArrowRight", 39)
        browser.until(f"{WHERE} !== {json.dumps(before)}")
        assert browser.complaints() == []


def test_a_dropped_table_says_whose_it_is_and_when(browser: LiveBrowser, served_vectors: Served) -> None:
    browser.visit(served_vectors.server.address)
    names = ["zinc", "lipase", "uric acid", "glucose", "iron", "urea"]  # in another order than the model's
    sample = served_vectors.case.samples[0]
    by_name = dict(zip(["glucose", "urea", "iron", "zinc", "lipase", "uric acid"], sample, strict=True))
    lines = [["subject", "age", *names], ["eve, a", "33.5", *(str(by_name[name]) for name in names)]]
    text = "\r\n".join(",".join(f'"{word}"' if "," in word else word for word in line) for line in lines)
    drop = [["visits.csv", base64.b64encode(text.encode()).decode(), "text/csv"]]
    browser.run(DROP % json.dumps(drop))
    browser.until("document.querySelectorAll('.file').length === 1")
    assert browser.run("document.getElementById('object-name').value") == "eve, a"
    assert browser.run("document.querySelector('.file input').value") == "33.5"
    browser.click("#object-learn")
    browser.until(
        f"{WHERE}.startsWith('age 33.5, subject eve, a') || {WHERE}.startsWith('subject eve, a, age 33.5')", 20
    )
    cells = served_vectors.answers.cells
    kept = cells.read([len(cells.table) - 1])[0]
    np.testing.assert_allclose(kept, sample, rtol=1e-5)
    two = text.replace("33.5", "34") + "\r\nbob" + "," * 7
    browser.run(DROP % json.dumps([["two.csv", base64.b64encode(two.encode()).decode(), "text/csv"]]))
    browser.until("!document.getElementById('object-trouble').hidden")
    assert browser.text("#object-trouble") == "expected one subject in two.csv, got 2; drop a file for each"
    assert browser.complaints() == []


def test_a_wide_band_stays_in_its_axes_and_below_the_points(browser: LiveBrowser, served_vectors: Served) -> None:
    browser.visit(served_vectors.server.address, width=390)
    margin = browser.run(
        "(c => { const w = c.getContext('2d').getImageData(0, 0, 44, c.height - 40).data;"
        " return w.filter((v, i) => i % 4 === 3 && v > 0 && v < 60).length / (44 * (c.height - 40)); })"
        "(document.getElementById('scatter'))"
    )
    assert margin < 0.05  # no haze over the labels, only the edges of letters
    assert browser.complaints() == []


def test_capital_letters_are_keys_too(tab: LiveBrowser) -> None:
    tab.press("D", 68)
    tab.until(f"{LABELS}[1].startsWith('draw ')")


@pytest.fixture(scope="module")
def served_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two networks side by side, fitted to values of very different scale at places."""
    rng, n = np.random.default_rng(0), 30
    table = pd.DataFrame({"site": np.repeat(["a", "b", "c"], 10), "x": rng.uniform(size=n), "y": rng.uniform(size=n)})
    values = rng.normal(size=(n, 4)) * [1.0, 0.1, 5.0, 1.0] + [0.0, 30.0, 200.0, 7.0]
    samples = pd.DataFrame(values, columns=["pH", "iron", "depth", "oxygen"])
    model = GPPVAE("RBF(x, y) + Learned(site, 2)", latent_dim=4, members=2, width=8, inference="global", epochs=3)
    folder = tmp_path_factory.mktemp("runs") / "sites"
    with one_thread():
        model.fit(samples, table, out=folder, progress=False)
    yield from serve(Case(model, folder, samples.to_numpy(), table, np.zeros(n, dtype=bool)))


@pytest.mark.parametrize("width", [1400, 390])
def test_an_ensemble_at_places(browser: LiveBrowser, served_ensemble: Served, width: int) -> None:
    browser.visit(served_ensemble.server.address, width=width)
    assert "an ensemble of 2 networks" in browser.text("#about")
    assert "Ranges are over the 2 networks" in browser.text("#chips")
    assert browser.text("#covariance-title") == "Covariance of RBF('x', 'y') with the place marked"
    drawn = "document.getElementById('covariance').toDataURL()"
    before, first = browser.run(drawn), browser.run(WHERE)
    browser.click(".control .step button:last-child")
    browser.run(
        "(r => { r.value = +r.min; r.dispatchEvent(new Event('input')); })(document.querySelector('.dial input'))"
    )
    browser.until(f"{WHERE} !== {json.dumps(first)}")
    assert browser.run(drawn) != before  # the place that is marked follows the row
    browser.click(".chip:nth-of-type(2) .parts button")
    browser.until(
        "document.getElementById('covariance-title').textContent === \"Covariance of Learned('site', dim=2)\""
    )
    assert browser.run("document.getElementById('own').checked")
    curve = "document.querySelector('#stage canvas').toDataURL()"
    deviations = browser.run(curve)
    browser.click("#own")
    assert browser.run(curve) != deviations and hash_of(browser)["own"] == "0"
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []

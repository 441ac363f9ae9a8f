"""Pages that are programs run from top to bottom in an empty folder, and show what results/tutorials.json has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from gppvae.report.record import read_results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


run_pages = module(DOCS / "run_pages.py")
shorten = module(Path(__file__).with_name("short_fits.py")).shorten


def test_every_tutorial_is_run() -> None:
    assert {page.stem for page in (DOCS / "tutorials").glob("*.md")} - {"index"} == {
        Path(name).stem for name in run_pages.PAGES if name.startswith("tutorials/")
    }


@pytest.mark.parametrize("name", [*run_pages.PAGES, "howto/larger_than_memory.md"])
def test_the_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    page = DOCS / name
    printed = run_pages.run(page, tmp_path)
    shown = run_pages.outputs_on(page.read_text("utf-8"))
    assert [bool(said) for said in printed] == [bool(said) for said in shown]
    drawn = {picture.name for picture in tmp_path.glob("*.png")}
    assert drawn == set(re.findall(r"figures/tutorials/(\w+\.png)\)", page.read_text("utf-8")))
    assert all((run_pages.FIGURES / picture).is_file() for picture in drawn)


@pytest.mark.parametrize("name", run_pages.PAGES)
def test_the_page_shows_the_results(name: str) -> None:
    entry = read_results(run_pages.RESULTS)["pages"][name]
    assert entry["about"]["clean"] and entry["about"]["commit"], "each page has the commit that it was run at"
    printed = entry["printed"]
    shown = run_pages.outputs_on((DOCS / name).read_text("utf-8"))
    assert [said.rstrip() for said in shown] == [said.rstrip() for said in printed], f"run docs/run_pages.py {name}"


def test_output_is_put_below_its_block_and_replaced() -> None:
    text = "a\n\n```python\nprint(1)\n```\n\nb\n\n```python\nx = 1\n```\n\nc\n"
    once = run_pages.written(text, ["1\n", ""])
    assert once == "a\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nb\n\n```python\nx = 1\n```\n\nc\n"
    assert run_pages.outputs_on(once) == ["1\n", ""]
    assert run_pages.written(once, ["2\n", ""]) == once.replace("\n1\n", "\n2\n")
    assert run_pages.written(once, ["", ""]) == text

"""The README: its snippet runs as printed (in short form), its first screen has what a newcomer looks for."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text("utf-8")
FIRST_SCREEN = TEXT.split("\n## ")[0]


def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("short_fits", Path(__file__).with_name("docs") / "short_fits.py")
    assert spec is not None and spec.loader is not None
    short_fits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(short_fits)
    short_fits.shorten(monkeypatch)
    (snippet,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert "n_digits=100" in snippet
    monkeypatch.chdir(tmp_path)
    exec(snippet.replace("n_digits=100", "n_digits=20"), {})
    assert capsys.readouterr().out.splitlines() == ["(2, 28, 28) (2, 28, 28)"]


def test_the_first_screen() -> None:
    """Two sentences, the picture, the command, six lines of Python and one small table, in this order."""
    about = FIRST_SCREEN.split("\n\n")[1]
    assert len(re.findall(r"[.)](?:\s|$)", re.sub(r"\([^)]*\)+", "", about))) == 2
    (snippet,) = re.findall(r"```python\n(.*?)```", FIRST_SCREEN, re.DOTALL)
    assert len([line for line in snippet.splitlines() if line.strip()]) == 6
    (table,) = re.findall(r"<!-- table: accuracy-overview -->\n(.*?)\n<!-- end", FIRST_SCREEN, re.DOTALL)
    assert 4 <= len(table.splitlines()) - 2 <= 5
    marks = ["docs/figures/turning.gif", "gppvae demo", "```python", "<!-- table: accuracy-overview -->"]
    places = [FIRST_SCREEN.index(mark) for mark in marks]
    assert places == sorted(places)
    assert len(FIRST_SCREEN.splitlines()) < 50


def test_terms_are_explained_where_they_first_appear() -> None:
    for term in ("kernel", "latents"):
        first = re.search(rf"\W+{term}\W+", TEXT)
        assert first is not None and f"**{term}**" in first.group(), term


def test_it_says_who_should_use_it_and_who_should_not() -> None:
    part = TEXT.split("\n## Is it for you?\n")[1].split("\n## ")[0]
    assert "**Yes**" in part and "**No**" in part


def test_large_tables_are_in_the_documentation() -> None:
    assert re.findall(r"<!-- table: ([\w-]+)", TEXT) == ["accuracy-overview"]

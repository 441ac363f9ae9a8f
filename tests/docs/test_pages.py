"""Pages for contributors name files and functions that exist, and draw the layers as they are."""

import importlib
import re
from pathlib import Path

import pytest

from test_layering import TOP_TO_BOTTOM

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "gppvae"
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NAMED = re.compile(r"`([A-Za-z_][\w.]*)` in\s+`([\w/]+\.py)`")
FILE = re.compile(r"`((?:tests/|benchmarks/)?[\w/]*\w+\.py)`")
OTHERS = ("tests/", "benchmarks/")


def missing(name: str, file: str) -> bool:
    """Whether gppvae's module `file` has no attribute `name`, which may be dotted."""
    found: object = importlib.import_module("gppvae." + file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        if not hasattr(found, part):
            return True
        found = getattr(found, part)
    return False


def exists(file: str) -> bool:
    if file.startswith(OTHERS):
        return (ROOT / file).exists()
    return (PACKAGE / file).exists() or any(PACKAGE.rglob(file)) or any((ROOT / "tests").rglob(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = FILE.findall(page.read_text("utf-8"))
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert [file for file in named if not exists(file) and file not in scripts] == []


def test_the_walks_name_functions_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    named = NAMED.findall(text)
    assert len(named) > 40
    assert [pair for pair in named if missing(*pair)] == []
    for start in ("`GPPVAE.fit` in `estimator/gppvae.py`", "`GPPVAE.predict` in `estimator/gppvae.py`"):
        assert start in text
    assert missing("GPPVAE.no_such", "estimator/gppvae.py") and missing("no_such", "prior/lowrank.py")
    assert not exists("prior/no_such.py")


def test_the_house_is_drawn_from_top_to_bottom() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    drawn = re.findall(r"^(\w+)(?:/|\.py) {2,}", text.split("```text\n")[1].split("```")[0], flags=re.MULTILINE)
    there = [part for part in TOP_TO_BOTTOM if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()]
    assert drawn == there


def test_formulas_of_posterior_coding_are_where_the_code_says() -> None:
    """Docstrings name sections of the page on mathematics."""
    headings = re.findall(r"^#+ (.+)$", (DOCS / "math.md").read_text("utf-8"), flags=re.MULTILINE)
    bold = re.findall(r"\*\*(.+?)\.\*\*", (DOCS / "math.md").read_text("utf-8"))
    for path in PACKAGE.rglob("*.py"):
        for title in re.findall(r'docs/math\.md, "([^"]+)"', " ".join(path.read_text("utf-8").split())):
            assert title in headings + bold, f"{path.name} names the section {title!r}"

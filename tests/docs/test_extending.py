"""The pages that say how to extend the package run as they stand, from top to bottom, in an empty folder."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "extending").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def test_the_index_lists_every_page() -> None:
    index = next(page for page in PAGES if page.stem == "index").read_text("utf-8")
    others = {page.stem for page in PAGES} - {"index"}
    assert others == {"kernel", "likelihood", "inference", "network"}
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == others
    assert set(re.findall(r"^(\w+)$", index.split("{toctree}")[1], flags=re.MULTILINE)) == others


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text("utf-8")
    code = BLOCK.findall(text)
    assert len(code) >= 3 and "assert" in "".join(code) and "GPPVAE.load(" in "".join(code)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in code:
        # Blank lines put the block at its place in the page, so that a traceback names the right line.
        above = text[: text.index(block)].count("\n")
        exec(compile("\n" * above + block, str(page), "exec"), names)

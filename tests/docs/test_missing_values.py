"""The page on missing values runs as it stands, from top to bottom."""

import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "missing_values.md"


def test_the_page_runs() -> None:
    text = PAGE.read_text("utf-8")
    names: dict[str, Any] = {"__name__": PAGE.stem}
    blocks = BLOCK.findall(text)
    assert len(blocks) == 4
    for block in blocks:
        above = text[: text.index(block)].count("\n")
        exec(compile("\n" * above + block, str(PAGE), "exec"), names)

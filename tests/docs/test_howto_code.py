"""Python on the how-to pages about explaining and following a fit runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["explain", "callbacks"])
def test_the_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = HOWTO / f"{name}.md"
    blocks = BLOCK.findall(page.read_text("utf-8"))
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": name}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    if name == "explain":
        assert names["explained"].shares["signal"].sum() == pytest.approx(1.0)

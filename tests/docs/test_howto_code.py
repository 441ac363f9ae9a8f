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


def test_a_new_subject_is_learned_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = HOWTO / "new_objects.md"
    (code,) = [block for block in BLOCK.findall(page.read_text("utf-8")) if "Categorical" in block]
    exec(compile(code, str(page), "exec"), {"__name__": "new_objects"})
    by_prior, from_visits = (float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines())
    assert from_visits < 0.3 * by_prior

"""The README's snippet runs as printed (with fewer epochs), in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert "epochs=40" in snippet and "n_digits=100" in snippet
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(snippet.replace("epochs=40", "epochs=1").replace("n_digits=100", "n_digits=20"), namespace)
    assert capsys.readouterr().out.splitlines() == ["(2, 28, 28) (2, 28, 28)"]
    assert (tmp_path / "runs" / "threes" / "model.safetensors").exists()

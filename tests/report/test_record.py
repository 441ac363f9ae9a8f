"""Results files: whole, compact, and clear about what is wrong with them."""

import json
from pathlib import Path

import pytest

from gppvae.report.record import read_results, rounded, write_results


def test_results_file_is_whole_and_compact(tmp_path: Path) -> None:
    path = write_results(
        tmp_path / "deep" / "r.json", {"a": [1.5, 2.0, -3e-07], "b": ["x"], "c": [], "d": {"e": [None, 2]}}
    )
    text = path.read_text()
    assert '"a": [1.5, 2.0, -3e-07]' in text
    content = read_results(path)
    assert content["a"] == [1.5, 2.0, -3e-07] and content["d"] == {"e": [None, 2]} and content["b"] == ["x"]
    assert set(content["about"]) >= {"python", "versions", "commit", "machine", "written"}
    assert list(tmp_path.rglob("*.tmp")) == []
    assert rounded([0.123456789, 2]) == [0.123457, 2.0]
    path.write_text("[1")
    with pytest.raises(ValueError, match="expected JSON in"):
        read_results(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="expected a JSON object in"):
        read_results(path)

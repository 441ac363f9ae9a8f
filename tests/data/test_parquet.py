"""Parquet tables are read as CSV tables are."""

import decimal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gppvae.data.files import read_table
from gppvae.data.named import from_frame


def test_ids_and_numbers_are_those_of_the_csv(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": ["007", "b", None], "number": [3.0, 4.0, 5.0], "x": [1.5, 2.5, 3.5]})
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    ours, theirs = (read_table(tmp_path / name, ["id", "number"]) for name in ("t.parquet", "t.csv"))
    for name in ("id", "number", "x"):
        assert ours[name].dropna().tolist() == theirs[name].dropna().tolist()
    assert ours["number"].tolist() == ["3", "4", "5"] and ours["id"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing of it", b"a,b\n1,2\n"])
def test_other_content_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"expected a Parquet table in .*, got something else") as caught:
        read_table(tmp_path / "t.parquet")
    assert "\n" not in str(caught.value)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"a": []}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="expected a table with rows"):
        read_table(tmp_path / "t.parquet")


def test_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.pq").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # importing it then fails
    with pytest.raises(ValueError, match=r"needs pyarrow, .*; pip install 'gppvae\[parquet\]'"):
        read_table(tmp_path / "t.pq")


def test_decimals_are_numbers_and_ids_as_in_text(tmp_path: Path) -> None:
    """As databases export them."""
    numbers = [decimal.Decimal(text) for text in ("1.0", "12.5", "100")]
    pd.DataFrame({"id": numbers, "age": numbers, "iron": numbers}).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", ["id"])
    assert table["id"].tolist() == ["1", "12.5", "100"]
    np.testing.assert_array_equal(from_frame(table[["age", "iron"]]).values, [[1.0, 1.0], [12.5, 12.5], [100.0, 100.0]])

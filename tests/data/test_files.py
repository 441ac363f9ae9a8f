"""Tables from files: separators and encodings are recognised or named, and nothing is lost on the way."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gppvae.data.files import read_table
from gppvae.data.table import MAX_ID_LENGTH, Table


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_are_recognised(separator: str, end: str, tmp_path: Path) -> None:
    lines = [["name", "angle", "note"], ["x1", "10.5", '"a, b; c"'], ["x2", "20", "plain"]]
    table = read_table(written(tmp_path, end.join(separator.join(line) for line in lines) + end), ["name"])
    assert table.columns.tolist() == ["name", "angle", "note"]
    assert table["angle"].tolist() == [10.5, 20.0] and table["note"].tolist() == ["a, b; c", "plain"]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("angle\n1\n2\n", ["angle"]),
        ("name;value\nx;1,5\ny;2,5\n", ["name", "value"]),  # commas as decimal points do not separate
        ("name,note\nx,a;b\ny,c;d;e\n", ["name", "note"]),
        ('"a;b",c\n1,2\n', ["a;b", "c"]),
        ("\ufeffname,angle\nx,1\n", ["name", "angle"]),  # a mark that spreadsheets put before UTF-8
        ("n\u00e4me,\u89d2\nx,1\n", ["n\u00e4me", "\u89d2"]),
    ],
)
def test_headers(content: str, columns: list[str], tmp_path: Path) -> None:
    assert read_table(written(tmp_path, content)).columns.tolist() == columns


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a|b\n1|2\n", r"separated by commas, tabs or semicolons in .*a\.csv, got '\|'; save it"),
        ("a;b,c\n1;2,3\n", r"one separator in .*a\.csv, got a header line that can be split at ',' and at ';'"),
        ("a,b,a\n1,2,3\n", r"unique column names in .*a\.csv, got 'a' twice; rename one"),
        (b"a,b\n1,\0\n", r"a\.csv, got a NUL byte in line 2"),
        ("a,b\n1,2\n".encode("utf-16"), r"a\.csv, got UTF-16; save it as UTF-8"),
        ("n\u00e4me,b\n1,2\n".encode("latin-1"), r"a\.csv, got text that is not UTF-8 in line 1; save it as UTF-8"),
        ("a,b\n1,\u00e4\n".encode("latin-1"), r"a\.csv, got text that is not UTF-8 in line 2; save it as UTF-8"),
        ("\n\n", r"a CSV table with a header line in .*a\.csv, got nothing; give one row per sample below a line of"),
        ("", r"a\.csv, got nothing; give one row per sample"),
        (b"PK\x03\x04\x14\0\x06\0", r"a\.csv, got a zip file, such as an Excel workbook; save the sheet as CSV"),
        (b"\x93NUMPY\x01\0", r"a\.csv, got a NumPy array; samples are given with --data"),
        ("a,b\n1,2,3\n4,5,6\n", r"a CSV table with a header line in .*a\.csv, got"),
        ("a" * (1 << 24), r"a\.csv, got a first line of more than \d+ bytes"),
    ],
)
def test_what_is_no_table_is_explained(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(written(tmp_path, content))


def test_pipes_and_folders_are_no_tables(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"a CSV table at .*a\.csv, found a pipe"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="found a folder"):
        read_table(tmp_path)
    with pytest.raises(FileNotFoundError, match="found no such file"):
        read_table(tmp_path / "none.csv")


def test_names_beyond_ascii_work_in_the_c_locale(tmp_path: Path) -> None:
    path = tmp_path / "t\u00e4ble.csv"
    path.write_text("n\u00e4me,angle\n\u00fc,1\n", encoding="utf-8")
    code = (
        "import sys; from gppvae.data.files import read_table; from gppvae.data.table import Table;"
        "assert Table(read_table(sys.argv[1])).ids('n\\u00e4me').tolist() == ['\\u00fc']"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONWARNDEFAULTENCODING": "1"}
    environment.pop("PYTHONUTF8", None)
    command = [sys.executable, "-W", "error::EncodingWarning:gppvae", "-c", code, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_huge_field_is_no_id(tmp_path: Path) -> None:
    """Ids are kept at one width, so one long id would cost its length in every row."""
    path = written(tmp_path, "name,angle\n" + "y" * 3_000_000 + ",1\nx,2\n")
    table = Table(read_table(path, ["name"]))
    with pytest.raises(ValueError, match=rf"at most {MAX_ID_LENGTH} characters, got 3000000 .*'yyy") as caught:
        table.ids("name")
    assert len(str(caught.value)) < 300
    with pytest.raises(ValueError, match="must be numeric, got values like 'yyy") as caught:
        table.numeric(("name",))
    assert len(str(caught.value)) < 300


def test_columns_of_text_and_numbers_do_not_depend_on_the_size_of_the_file(tmp_path: Path) -> None:
    """Read in pieces, the first rows would be numbers and the last ones text."""
    n = 300_000
    path = written(tmp_path, "a\n" + "007\n" * n + "x\n")
    assert set(read_table(path)["a"].tolist()) == {"007", "x"}


def test_words_for_missing_numbers(tmp_path: Path) -> None:
    """Programs write holes as NA or NaN. A column of words keeps them, and an id may be called NA."""
    table = read_table(written(tmp_path, "id,age,gene,none,word\nNA,1,NA,NaN,NA\nb,nan,2.5,NA,x\n"), ["id"])
    assert table["id"].tolist() == ["NA", "b"] and table["word"].tolist() == ["NA", "x"]
    assert table["age"].tolist()[0] == 1.0 and table["gene"].tolist()[1] == 2.5
    assert table.dtypes[["age", "gene", "none"]].tolist() == [np.dtype(float)] * 3
    assert table[["age", "gene", "none"]].isna().to_numpy().tolist() == [[False, True, True], [True, False, True]]


def test_an_id_written_as_nan_is_missing(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "id,x\na,1\nnan,2\nNaN,3\n"), ["id"])
    with pytest.raises(ValueError, match=r"column 'id' must name an id in every row, .* in row 1 \(2 such rows\)"):
        Table(table).levels("id")

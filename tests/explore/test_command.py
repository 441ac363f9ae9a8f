"""`gppvae explore`: which data it opens, and what it says when they do not fit."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from explore.conftest import Case
from gppvae.cli import app
from gppvae.explore import serving
from gppvae.explore.sources import Source, demo_source


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been served."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(serving, "serve", lambda *args: calls.append(args))
    return calls


@pytest.fixture
def files(pictures: Case, tmp_path: Path) -> dict[str, str]:
    kept = ~pictures.held
    for name, rows in (("train", kept), ("held", ~kept)):
        pictures.table[rows].to_csv(tmp_path / f"{name}.csv", index=False)
        np.save(tmp_path / f"{name}.npy", pictures.samples[rows])
    return {path.name: str(path) for path in tmp_path.iterdir()}


def explore(*words: str) -> Any:
    return CliRunner().invoke(app, ["explore", *words])


def test_tables_and_samples_are_opened(pictures: Case, files: dict[str, str], served: list[tuple[Any, ...]]) -> None:
    words = ["--table", files["train.csv"], "--data", files["train.npy"], "--port", "8123", "--no-browser"]
    words += ["--validation-table", files["held.csv"], "--validation-data", files["held.npy"]]
    done = explore(str(pictures.folder), *words)
    assert done.exit_code == 0, done.output
    run, _, source, port, browser, _ = served[0]
    assert (run, port, browser) == (pictures.folder, 8123, False)
    assert len(source.train.table) == int((~pictures.held).sum()) == len(source.train.samples)
    assert len(source.held.table) == int(pictures.held.sum())
    assert "fitted to" in source.notes[0]  # one training row is not in this table


def test_a_fraction_makes_the_split_of_the_fit(
    pictures: Case, files: dict[str, str], served: list[tuple[Any, ...]]
) -> None:
    done = explore(str(pictures.folder), "--table", files["train.csv"], "--validation-fraction", "0.2")
    assert done.exit_code == 0, done.output
    source = served[0][2]
    assert len(source.held.table) == round(0.2 * int((~pictures.held).sum())) and source.held.samples is None


def test_a_run_alone_is_enough(pictures: Case, served: list[tuple[Any, ...]]) -> None:
    assert explore(str(pictures.folder)).exit_code == 0
    assert served[0][2] == Source()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "train.npy"], "expected --table beside --data, got none"),
        (["--validation-fraction", "0.1"], "expected --table beside --validation-fraction"),
        (["--table", "train.csv", "--data", "held.npy"], "expected one row of"),
        (["--table", "train.csv", "--validation-fraction", "0.1", "--validation-table", "held.csv"], "choose one"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    pictures: Case, files: dict[str, str], served: list[tuple[Any, ...]], words: list[str], sentence: str
) -> None:
    done = explore(str(pictures.folder), *(files.get(word, word) for word in words))
    assert done.exit_code == 2 and sentence in done.output and done.output.count("\n") == 1
    assert not served


def test_a_missing_extra_says_what_to_type(pictures: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda name: None)
    done = explore(str(pictures.folder))
    assert done.exit_code == 2 and "pip install 'gppvae[explore]'" in done.output


def test_rows_of_unknown_ids_are_left_out(pictures: Case) -> None:
    from gppvae.explore.sources import Cells, make_part

    table = pd.DataFrame({"spot": ["s0", "nobody", "s1"], "angle": [0.0, 0.0, 45.0]})
    source = Source(make_part(pictures.model, table))
    assert len(Cells(pictures.model, source).table) == 2
    assert source.notes == ["1 rows with unknown ids are left out."]
    with pytest.raises(ValueError, match="expected rows with ids that the model knows, got none"):
        Cells(pictures.model, Source(make_part(pictures.model, table.iloc[1:2])))


def test_the_demo_brings_its_digits(pictures: Case, tmp_path: Path) -> None:
    assert demo_source(pictures.folder, pictures.model) is None
    (tmp_path / "demo.json").write_text("{}")
    found = demo_source(tmp_path, pictures.model)
    assert found is not None and found.train is None and "give --table and --data" in found.notes[0]


def test_the_command_serves_until_it_is_interrupted(pictures: Case) -> None:
    words = [sys.executable, "-m", "gppvae", "explore", str(pictures.folder), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        address = line.split("live page: ")[1].split()[0]
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as page:
            assert b"<title>gppvae explore</title>" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""

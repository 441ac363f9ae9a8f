"""The command `gppvae reproduce`: loaded only when asked for, with its own help and one sentence per error."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gppvae.cli import app
from gppvae.paper.commands import reproduce_app


def test_command_says_what_is_wrong(tmp_path: Path) -> None:
    @contextlib.contextmanager
    def guard(continues: bool = False) -> Iterator[None]:
        assert continues
        yield

    app = reproduce_app(guard)
    answer = CliRunner().invoke(app, ["rotated-mnist", "--split", "mine", "--out", str(tmp_path / "x")])
    assert isinstance(answer.exception, ValueError)
    assert "split must be one of" in str(answer.exception)
    assert "rotated-mnist" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize(
    ("words", "said"), [((), "rotated-mnist"), (("faces",), "--people"), (("rotated-mnist",), "--first-seed")]
)
def test_help_is_that_of_the_paper(words: tuple[str, ...], said: str, flag: str) -> None:
    answer = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["reproduce", *words, flag])
    assert answer.exit_code == 0
    assert " ".join(["gppvae reproduce", *words]) in answer.output and said in answer.output


def test_errors_of_a_command_are_one_sentence_and_exit_code_two(tmp_path: Path) -> None:
    words = ["reproduce", "rotated-mnist", "--split", "mine", "--out", str(tmp_path / "x"), "-q"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 2
    assert answer.stderr == "gppvae: split must be one of paper, published, got 'mine'; paper is the default\n"
    for words in (["reproduce"], ["reproduce", "nothing"], ["reproduce", "faces", "--nothing"]):
        assert CliRunner().invoke(app, words).exit_code == 2


def test_other_commands_do_not_load_the_paper() -> None:
    code = "import sys, gppvae.cli, gppvae.demo; print([name for name in sys.modules if 'gppvae.paper' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"

"""The page on one's own data: its Python runs, and its commands have the options that they are written with."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gppvae.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own_data.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(kind: str) -> list[str]:
    return [code for language, code in BLOCK.findall(PAGE.read_text("utf-8")) if language == kind]


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(blocks("python")) == 2
    for code in blocks("python"):
        exec(compile(code, str(PAGE), "exec"), names)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_the_page_can_be_typed() -> None:
    lines = [line for code in blocks("sh") for line in code.splitlines()]
    assert len(lines) >= 9
    for line in lines:
        gppvae, name, *words = shlex.split(line)
        assert gppvae == "gppvae"
        COMMANDS[name].make_context(name, words).close()  # complains of unknown options and missing arguments

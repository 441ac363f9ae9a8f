"""Writes the page docs/cli.md from the commands themselves: python docs/cli_reference.py > docs/cli.md"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from gppvae.cli import app

HEAD = """\
# Commands

Every command has `--help`. Answers go to stdout, progress and errors to stderr. With `--json` stdout holds one JSON
object and nothing else. Exit codes: 0 success, 2 bad input (one sentence says what is wrong), 3 training failed, 130
stopped by Ctrl-C, 1 an internal error of gppvae.

`gppvae --install-completion` makes the shell complete commands, options and their values with the tab key, in bash,
zsh, fish and PowerShell. Open a new shell afterwards. `gppvae --show-completion` prints the script instead.

This page is written by `python docs/cli_reference.py > docs/cli.md`, and a test compares the two.
"""


def page() -> str:
    """The page as Markdown."""
    root = typer.main.get_command(app)
    parts = [HEAD]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        parts.append(f"## gppvae {name}\n\n{_text(command.help)}\n")
        for panel, rows in _panels(command).items():
            parts.append(f"| {panel} | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _text(help_text: str | None) -> str:
    paragraphs = (help_text or "").strip().split("\n\n")
    return "\n\n".join(_paragraph(" ".join(text.split())) for text in paragraphs)


def _paragraph(text: str) -> str:
    """A paragraph; a command after a colon stands by itself."""
    start, _, command = text.partition(": ")
    return f"{start}:\n\n```sh\n{command}\n```" if command.startswith(("gppvae ", "torchrun ")) else text


def _panels(command: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter.name != "help":
            argument = parameter.param_type_name == "argument"
            panel = parameter.rich_help_panel or ("Arguments" if argument else "Options")
            found.setdefault(panel, []).append("| " + " | ".join(_cells(parameter, argument)) + " |")
    return found


def _cells(parameter: Any, argument: bool) -> Iterator[str]:
    names = [parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts]
    yield ", ".join(f"`{name}`" for name in names)
    if parameter.required:
        yield "required"
    elif isinstance(parameter.show_default, str):
        yield parameter.show_default
    else:
        yield _default(parameter)
    yield (parameter.help or "").replace("|", "\\|")


def _default(parameter: Any) -> str:
    if parameter.is_flag:
        on, off = parameter.opts[0], parameter.secondary_opts[0] if parameter.secondary_opts else "off"
        return f"`{on}`" if parameter.default else (f"`{off}`" if off.startswith("-") else off)
    return "" if parameter.default is None else f"`{parameter.default}`"


if __name__ == "__main__":
    sys.stdout.write(page())

"""Output of commands: tables for people, JSON for programs, progress bars."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any

from gppvae.cli.options import Shown


def utf8(*words: str) -> list[str]:
    """Command line arguments decoded as UTF-8, even in the C locale, where Python decodes them differently."""
    return [os.fsencode(word).decode("utf-8", "replace") for word in words]


def answer(shown: Shown, result: dict[str, Any], *lines: str) -> None:
    """Print the result as JSON with --json, else the lines."""
    print(json.dumps(_plain(result), ensure_ascii=False) if shown.as_json else "\n".join(lines))


def _plain(value: Any) -> Any:
    """A value for JSON; non-finite numbers become null."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


@contextlib.contextmanager
def row_bar(what: str, shown: Shown) -> Iterator[None]:
    """A progress bar on stderr for the rows processed inside."""
    from gppvae.data.progress import watched
    from gppvae.training.progress import RowProgress

    with RowProgress(what, enabled=not shown.quiet) as bar, watched(bar.update):
        yield


def print_scores(mse: dict[str, float], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("MSE", justify="right")
    for number, (name, value) in enumerate(mse.items()):
        table.add_row(name, f"{value:.4f}", style="bold" if number == 0 else "")
    Console().print(table)


def print_pairs(title: str, pairs: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not pairs:
        return
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    console = Console()
    table.add_column(style="dim", max_width=console.width // 2)  # leaves room for the values beside long names
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(value))
    console.print(table, "")

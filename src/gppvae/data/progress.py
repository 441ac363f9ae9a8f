"""Whoever wants to show how far a pass over rows has come is told so here."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

Watcher = Callable[[int, int], None]
_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call `watcher(rows done, rows in all)` after every batch of every pass over rows made inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def rows_done(done: int, total: int) -> None:
    """Say how far a pass has come."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)

"""Progress of passes over rows, for whoever shows it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

Watcher = Callable[[int, int], None]
_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call `watcher(rows done, all rows)` after every batch of every pass over rows inside the context."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def rows_done(done: int, total: int) -> None:
    """Report how far a pass has come."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)

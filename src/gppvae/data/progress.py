"""Progress of passes over rows, for progress bars."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

Watcher = Callable[[int, int], None]
_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside the context, call `watcher(rows done, all rows)` after every batch of every pass over rows."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def rows_done(done: int, total: int) -> None:
    """Report the progress of a pass."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)

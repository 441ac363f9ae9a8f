"""Progress: one bar per phase in a terminal, a line every ten seconds in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

LOG_SECONDS = 10.0


class Progress:
    """Shows the phases of a run.

    Args:
        phases: (name, epochs, ticks per epoch) of each phase; a tick is one batch of one sweep.
        enabled: False shows nothing.
    """

    def __init__(self, phases: list[tuple[str, int, int]], enabled: bool = True) -> None:
        self.phases, self.enabled = phases, enabled
        self.live = enabled and sys.stderr.isatty()
        self._bar = RichProgress(
            TextColumn("{task.description:>12}"),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self.live,
        )
        self._tasks: list[TaskID] = []
        self._last_line = time.monotonic()
        self._current = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        for name, epochs, ticks in self.phases:
            total = max(1, epochs * max(1, ticks))
            self._tasks.append(self._bar.add_task(name, total=total, start=False, epoch=0, epochs=epochs, text=""))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def phase(self, number: int, done_epochs: int) -> None:
        """Begin (or resume) phase `number`."""
        self._current = number
        ticks = max(1, self.phases[number][2])
        self._bar.start_task(self._tasks[number])
        self._bar.update(self._tasks[number], completed=done_epochs * ticks, epoch=done_epochs)

    def tick(self) -> None:
        self._bar.advance(self._tasks[self._current])

    def epoch(self, done: int, values: dict[str, float]) -> None:
        """An epoch of the current phase is done; `values` are shown."""
        name, epochs, ticks = self.phases[self._current]
        text = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
        self._bar.update(self._tasks[self._current], completed=done * max(1, ticks), epoch=done, text=text)
        now = time.monotonic()
        if self.enabled and not self.live and (now - self._last_line > LOG_SECONDS or done == epochs):
            print(f"{name} epoch {done}/{epochs}  {text}", file=sys.stderr, flush=True)
            self._last_line = now

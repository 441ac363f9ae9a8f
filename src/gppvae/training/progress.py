"""Progress: bars in a terminal, of fixed columns that fit into 80 characters, and a line every ten seconds in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

LOG_SECONDS = 10.0
OTHER_COLUMNS = 50  # characters of a phase's line that are not values of the loss


class Progress:
    """Shows the phases of a run.

    Args:
        phases: (name, epochs, ticks per epoch) of each phase; a tick is one batch of one sweep.
        enabled: False shows nothing.
    """

    def __init__(self, phases: list[tuple[str, int, int]], enabled: bool = True) -> None:
        self.phases, self.enabled = phases, enabled
        self.live = enabled and sys.stderr.isatty()
        self._console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description:>10.10}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[epoch]:>5}/{task.fields[epochs]:<5}"),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self.live,
        )
        self._tasks: list[TaskID] = []
        self._last_line = time.monotonic()
        self._current = 0
        self._valid: float | None = None

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
        self._current, self._valid = number, None
        ticks = max(1, self.phases[number][2])
        self._bar.start_task(self._tasks[number])
        self._bar.update(self._tasks[number], completed=done_epochs * ticks, epoch=done_epochs)

    def tick(self) -> None:
        self._bar.advance(self._tasks[self._current])

    def epoch(self, done: int, values: dict[str, float], terms: dict[str, float]) -> None:
        """An epoch of the current phase is done.

        Args:
            values: the loss, and errors on validation data where it was validated.
            terms: of the loss; shown where the terminal is wide enough.
        """
        name, epochs, ticks = self.phases[self._current]
        self._valid = next((value for key, value in values.items() if key.startswith("valid")), self._valid)
        text = shown_values(values["loss"], self._valid, terms, self._console.width - OTHER_COLUMNS)
        self._bar.update(self._tasks[self._current], completed=done * max(1, ticks), epoch=done, text=text)
        now = time.monotonic()
        if self.enabled and not self.live and (now - self._last_line > LOG_SECONDS or done == epochs):
            words = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
            print(f"{name} epoch {done}/{epochs}  {words}", file=sys.stderr, flush=True)
            self._last_line = now


def shown_values(loss: float, valid: float | None, terms: dict[str, float], width: int) -> str:
    """Loss, validation and as many terms of the loss as fit, each in a place of its own whatever its value."""
    parts = [f"loss {_number(loss)}", f"valid {_number(valid)}"]
    for name, value in terms.items():
        part = f"{name} {_number(value)}"
        if len("  ".join([*parts, part])) > width:
            break
        parts.append(part)
    return "  ".join(parts)


def _number(value: float | None) -> str:
    """As many of four digits as nine characters take."""
    if value is None:
        return " " * 9
    texts = (f"{value:.{digits}g}" for digits in (4, 3, 2, 1))
    return f"{next(text for text in texts if len(text) <= 9):>9}"


class RowProgress:
    """Shows how far a pass over rows has come.

    Args:
        what: is done.  enabled: False shows nothing.
    """

    def __init__(self, what: str, enabled: bool = True) -> None:
        self.what, self.enabled = what, enabled
        self.live = enabled and sys.stderr.isatty()
        self._bar = RichProgress(
            TextColumn("{task.description:>12.12}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:>9.0f}/{task.total:<9.0f} rows"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self.live,
        )
        self._task: TaskID | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> RowProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """`done` of `total` rows are worked through; another pass starts again."""
        if self._task is None:
            self._task = self._bar.add_task(self.what, total=total)
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if self.enabled and not self.live and now - self._last_line > LOG_SECONDS:
            print(f"{self.what} {done}/{total} rows", file=sys.stderr, flush=True)
            self._last_line = now

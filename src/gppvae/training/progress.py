"""Progress bars of 80 characters in a terminal; elsewhere a line of text every ten seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

Self = TypeVar("Self", bound="_Bars")
LOG_SECONDS = 10.0
OTHER_COLUMNS = 50  # characters of a bar apart from the loss and its terms


class _Bars:
    """Bars on stderr if it is a terminal; otherwise lines, at most one every LOG_SECONDS.

    Args:
        enabled: False shows nothing.  columns: of a bar.
    """

    def __init__(self, enabled: bool, *columns: ProgressColumn) -> None:
        self.enabled, self.live = enabled, enabled and sys.stderr.isatty()
        self._console = Console(stderr=True)
        self._bar = RichProgress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console, disable=not self.live
        )
        self._last_line = time.monotonic()

    def __enter__(self: Self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def _line(self, text: str, last: bool = False) -> None:
        """Where there are no bars, print a line if one is due or this is the last."""
        now = time.monotonic()
        if self.enabled and not self.live and (last or now - self._last_line > LOG_SECONDS):
            print(text, file=sys.stderr, flush=True)
            self._last_line = now


class Progress(_Bars):
    """Shows the phases of a run.

    Args:
        phases: (name, epochs, ticks per epoch) of each phase; a tick is one batch of one sweep.
        enabled: False shows nothing.
    """

    def __init__(self, phases: list[tuple[str, int, int]], enabled: bool = True) -> None:
        super().__init__(
            enabled,
            TextColumn("{task.description:>10.10}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[epoch]:>5}/{task.fields[epochs]:<5}"),
            TextColumn("{task.fields[text]}"),
        )
        self.phases = phases
        self._tasks: list[TaskID] = []
        self._current = 0
        self._valid: float | None = None

    def __enter__(self) -> Progress:
        super().__enter__()
        for name, epochs, ticks in self.phases:
            total = max(1, epochs * max(1, ticks))
            self._tasks.append(self._bar.add_task(name, total=total, start=False, epoch=0, epochs=epochs, text=""))
        return self

    def phase(self, number: int, done_epochs: int) -> None:
        """Start or resume phase `number`."""
        self._current, self._valid = number, None
        ticks = max(1, self.phases[number][2])
        self._bar.start_task(self._tasks[number])
        self._bar.update(self._tasks[number], completed=done_epochs * ticks, epoch=done_epochs)

    def tick(self) -> None:
        self._bar.advance(self._tasks[self._current])

    def epoch(self, done: int, values: dict[str, float], terms: dict[str, float]) -> None:
        """An epoch of the current phase has ended.

        Args:
            values: the loss, and validation errors if the epoch was validated.
            terms: of the loss; shown if the terminal is wide enough.
        """
        name, epochs, ticks = self.phases[self._current]
        self._valid = next((value for key, value in values.items() if key.startswith("valid")), self._valid)
        text = shown_values(values["loss"], self._valid, terms, self._console.width - OTHER_COLUMNS)
        self._bar.update(self._tasks[self._current], completed=done * max(1, ticks), epoch=done, text=text)
        words = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
        self._line(f"{name} epoch {done}/{epochs}  {words}", last=done == epochs)


def shown_values(loss: float, valid: float | None, terms: dict[str, float], width: int) -> str:
    """Loss, validation error and as many terms of the loss as fit, in columns of fixed width."""
    parts = [f"loss {_number(loss)}", f"valid {_number(valid)}"]
    for name, value in terms.items():
        part = f"{name} {_number(value)}"
        if len("  ".join([*parts, part])) > width:
            break
        parts.append(part)
    return "  ".join(parts)


def _number(value: float | None) -> str:
    """With up to four digits, as many as fit into nine characters."""
    if value is None:
        return " " * 9
    texts = (f"{value:.{digits}g}" for digits in (4, 3, 2, 1))
    return f"{next(text for text in texts if len(text) <= 9):>9}"


class RowProgress(_Bars):
    """Shows the progress of a pass over rows.

    Args:
        what: name of the task.  enabled: False shows nothing.
    """

    def __init__(self, what: str, enabled: bool = True) -> None:
        super().__init__(
            enabled,
            TextColumn("{task.description:>12.12}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:>9.0f}/{task.total:<9.0f} rows"),
        )
        self.what = what
        self._task: TaskID | None = None

    def update(self, done: int, total: int) -> None:
        """Show `done` of `total` rows."""
        if self._task is None:
            self._task = self._bar.add_task(self.what, total=total)
        self._bar.update(self._task, completed=done, total=total)
        self._line(f"{self.what} {done}/{total} rows")

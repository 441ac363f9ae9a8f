"""Count of skipped steps in a phase, and the limits at which it stops."""

from __future__ import annotations

from typing import Any

MAX_BAD_STEPS = 10  # in a row; any phase may have this many in total
MAX_BAD_SHARE = 0.1  # of the steps of a phase, if that is more


class Steps:
    """Steps of a phase; bad ones were skipped because a term of the loss or a gradient was not finite.

    Attributes:
        total: number of steps so far.  bad: number of skipped ones.
    """

    def __init__(self) -> None:
        self.total, self.bad, self._bad_in_a_row = 0, 0, 0

    def count_good(self) -> None:
        self.total += 1
        self._bad_in_a_row = 0

    def count_bad(self, terms: list[str]) -> str | None:
        """Count a skipped step; returns the reason to stop the phase, or None to continue.

        Args:
            terms: of the loss that were not finite; empty if only a gradient was not.
        """
        self.total += 1
        self.bad += 1
        self._bad_in_a_row += 1
        what = f"{', '.join(terms) or 'the gradient'} was not finite"
        if self._bad_in_a_row >= MAX_BAD_STEPS:
            return f"{what} in {MAX_BAD_STEPS} steps in a row"
        if self.bad > max(MAX_BAD_STEPS, MAX_BAD_SHARE * self.total):
            return f"{what} in {self.bad} of {self.total} steps"
        return None

    def to_json(self) -> dict[str, int]:
        return {"steps": self.total, "bad_steps": self.bad}

    def load(self, saved: dict[str, Any]) -> None:
        """Restore the counters of a checkpoint."""
        self.total, self.bad = saved["steps"], saved["bad_steps"]

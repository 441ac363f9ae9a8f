"""Validation errors, and early stopping of a phase by them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.training.checkpoint import under, with_prefix


@dataclass(frozen=True)
class Validated:
    """Errors at validation rows.

    Attributes:
        shown: by name, for the log, in the unit of the data.
        errors: of each row, (rows,) float64, in the units of the likelihood, so that the unit of the data does not
            matter; their mean is minimised. Empty if nothing can be validated.
    """

    shown: dict[str, float]
    errors: Tensor

    @classmethod
    def by_one_number(cls, name: str, value: float) -> Validated:
        """One number that is both shown and minimised."""
        return cls({name: value}, torch.tensor([value], dtype=torch.float64))


def clearly_less(errors: Tensor, before: Tensor) -> bool:
    """Whether errors, (rows,), are significantly less than those of the same rows before.

    The mean gain must exceed its standard error: mean(gains) > std(gains) / sqrt(rows).
    """
    gains = before - errors
    return len(gains) > 1 and float(gains.mean()) > float(gains.std()) / math.sqrt(len(gains))


class BestEpoch:
    """The epoch of a phase with the least validation error, and early stopping.

    Args:
        patience: validations without improvement before the phase stops; with None no best epoch is recorded.
        tolerance: relative margin above the least error within which a validation does not count against the patience.

    Attributes:
        error: the least mean error so far.  stale: validations since then that count against the patience.
        state: tensors at the best epoch, set by the caller.
        start: errors of the rows at the start, on which the best epoch must clearly improve; None for no condition.
    """

    def __init__(self, patience: int | None = None, tolerance: float = 0.0) -> None:
        self.patience, self.tolerance = patience, tolerance
        self.error, self.stale = math.inf, 0
        self.state: dict[str, Tensor] = {}
        self.start: Tensor | None = None

    def improved_by(self, errors: Tensor) -> bool:
        """Whether the mean of these errors, (rows,), is the least so far; if not, it counts against the patience."""
        if self.patience is None or not len(errors):
            return False
        mean = float(errors.mean())
        if mean < self.error and (self.start is None or clearly_less(errors, self.start)):
            self.error, self.stale = mean, 0
            return True
        self.stale += mean > (1.0 + self.tolerance) * self.error
        return False

    @property
    def out_of_patience(self) -> bool:
        return self.patience is not None and self.stale > self.patience

    def tensors(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint, beside `to_json`."""
        return with_prefix("best", self.state) | ({} if self.start is None else {"started": self.start})

    def to_json(self) -> dict[str, Any]:
        return {"best": self.error, "stale": self.stale}

    def load(self, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
        """Restore from a checkpoint."""
        self.state, self.start = under("best", tensors), tensors.get("started")
        self.error, self.stale = float(saved["best"]), saved["stale"]

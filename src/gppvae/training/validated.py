"""Errors at rows that are not trained on, and how they decide how long a phase trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gppvae.training.checkpoint import under, with_prefix


@dataclass(frozen=True)
class Validated:
    """Errors at rows that are not trained on.

    Attributes:
        shown: by name, for the log, in the unit of the data.
        errors: (rows,) float64, of each row, such that their mean is to be minimised; values are measured in the
            likelihood's units, so that no unit decides. Empty where nothing can be validated.
    """

    shown: dict[str, float]
    errors: Tensor

    @classmethod
    def by_one_number(cls, name: str, value: float) -> Validated:
        """One number that is both shown and minimised."""
        return cls({name: value}, torch.tensor([value], dtype=torch.float64))


def clearly_less(errors: Tensor, before: Tensor) -> bool:
    """Whether errors (rows,) are less than those of the same rows before, by more than chance would make them.

    The mean gain of a row must exceed its standard error, std(gains) / sqrt(rows).
    """
    gains = before - errors
    return len(gains) > 1 and float(gains.mean()) > float(gains.std()) / math.sqrt(len(gains))


class BestEpoch:
    """The epoch of a phase with the least error, and the patience with those after it.

    Args:
        patience: validations without improvement before the phase stops; with None no epoch is the best.
        tolerance: relative margin above the least error up to which a validation does not count against the patience.

    Attributes:
        error: the least error so far, the mean over rows.  stale: validations that counted against the patience since.
        state: tensors at the best epoch, for the caller to set.
        start: errors of the rows at the start, on which the best epoch must clearly improve; None where it need not.
    """

    def __init__(self, patience: int | None = None, tolerance: float = 0.0) -> None:
        self.patience, self.tolerance = patience, tolerance
        self.error, self.stale = math.inf, 0
        self.state: dict[str, Tensor] = {}
        self.start: Tensor | None = None

    def improved_by(self, errors: Tensor) -> bool:
        """Whether errors of the rows, (rows,), are the least so far; counts them against the patience otherwise."""
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
        """What a checkpoint holds beside `to_json`."""
        return with_prefix("best", self.state) | ({} if self.start is None else {"started": self.start})

    def to_json(self) -> dict[str, Any]:
        return {"best": self.error, "stale": self.stale}

    def load(self, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        self.state, self.start = under("best", tensors), tensors.get("started")
        self.error, self.stale = float(saved["best"]), saved["stale"]

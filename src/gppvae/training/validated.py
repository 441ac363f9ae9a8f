"""What validation gives: errors for the log, and errors of rows that decide how long a phase trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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

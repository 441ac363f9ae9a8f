"""Errors and coverage of a fitted model at the rows of a question."""

from __future__ import annotations

from typing import Any

import numpy as np

from gppvae.bench.task import HIGHER, Question, error_of
from gppvae.estimator.calibration import LEVELS
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction
from gppvae.report.record import rounded

COLOUR_NDIM = 4


def measured(model: GPPVAE, question: Question, kind: str) -> dict[str, Any]:
    """All numbers of one question; objects that are new to the model are added first.

    Args:
        kind: of error, unless the question has its own.
    """
    kind = question.kind or kind
    if question.new is not None:
        model.add_objects(*question.new)
    answer = question.ask(model, question)
    error, target = error_of(kind, question.truth, answer.mean), question.target
    limit = None if target is None else target.limit(question.simple, kind)
    return {
        "kind": kind,
        "error": _short(error),
        "published": question.published,
        "asked_by": answer.how,
        "simple": {name: _short(value) for name, value in question.simple.items()},
        "ratios": {name: _short(error / value) for name, value in question.simple.items()},
        "target": None if target is None else {"value": target.value, "of": list(target.of)},
        "limit": None if limit is None else _short(limit),
        "met": None if limit is None else error >= limit if kind in HIGHER else error <= limit,
        "coverage": None if answer.spread is None else coverage(answer.spread, answer.covered),
        "score": _short(model.score(question.seen, question.table)) if question.scored else None,
    }


def coverage(spread: Prediction, covered: np.ndarray) -> dict[str, dict[str, float]]:
    """Share of values inside central intervals, per level: of all, and of the worst and best channel.

    Channels are those of colour images, and the values of vectors; a grey image is one channel.
    """
    truth = np.asarray(covered, np.float64)
    found = {}
    for level in LEVELS:
        low, high = (end.reshape(truth.shape) for end in spread.interval(level))
        inside = (low <= truth) & (truth <= high)
        parts = inside.mean(axis=_within_channel(inside))
        found[f"{level:.0%}"] = {
            "all": _short(inside.mean()), "least": _short(parts.min()), "most": _short(parts.max())
        }  # fmt: skip
    return found


def _within_channel(values: np.ndarray) -> tuple[int, ...]:
    """Axes over which one channel extends."""
    separate = 1 if values.ndim in (2, COLOUR_NDIM) else None
    return tuple(axis for axis in range(values.ndim) if axis != separate)


def _short(value: float) -> float:
    return rounded([value])[0]

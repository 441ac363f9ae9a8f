"""What a benchmark of the defaults is: training data, a kernel, and questions with known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction

MSE, MAE = "MSE", "MAE"
N_DRAWS = 64
Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """The largest error that counts as good.

    Attributes:
        value: an error, or a factor where `of` is given.
        of: names of simple answers; the factor is on the smallest of their errors.
    """

    value: float
    of: tuple[str, ...] = ()

    def limit(self, simple: Mapping[str, float]) -> float:
        """The largest error, given those of the simple answers."""
        return self.value * min((simple[name] for name in self.of), default=1.0)


@dataclass(frozen=True)
class Answer:
    """What a model says at the rows of a question.

    Attributes:
        mean: the prediction that is judged.
        spread: mean and standard deviation of new samples, for intervals.  covered: the values these should cover.
        how: which method gave it.
    """

    mean: np.ndarray
    spread: Prediction
    covered: np.ndarray
    how: str


Ask = Callable[[GPPVAE, "Question"], Answer]


def ask_predict(model: GPPVAE, question: Question) -> Answer:
    """Ask `predict`: the decoded mean is judged, draws give the intervals."""
    draws = model.predict(question.table, n_samples=N_DRAWS, include_noise=True)
    return Answer(np.asarray(model.predict(question.table).mean), draws, question.seen, "predict")


@dataclass(frozen=True)
class Question:
    """Rows to predict, with the truth.

    Attributes:
        name: row of the results' table.  table: rows asked for.  truth: what the error is measured against.
        simple: errors of answers that need no model, by name.  target: what to reach, or None.
        observed: measured samples at the rows, which intervals should cover and `score` is asked for; `truth` if None.
        new: samples and table of objects that were not trained on, given to `add_objects` first.
        ask: how the model is asked.
    """

    name: str
    table: Columns
    truth: np.ndarray
    simple: dict[str, float]
    target: Target | None = None
    observed: np.ndarray | None = None
    new: tuple[np.ndarray, Columns] | None = None
    ask: Ask = ask_predict

    @property
    def seen(self) -> np.ndarray:
        return self.truth if self.observed is None else self.observed


@dataclass(frozen=True)
class Task:
    """One fit and its questions.

    Attributes:
        name: for `--task`.  kernel: all that the fit is told.  samples, table: training data.
        questions: to the fitted model.  about: the data in one sentence.  error: MSE or MAE.
        missing: the estimator's word on NaN in the samples; it says what the data are, nothing else may.
        learned: numbers of the fitted model worth recording, by name.
    """

    name: str
    kernel: str
    samples: np.ndarray
    table: Columns
    questions: list[Question]
    about: str
    error: str = MSE
    missing: str = "error"
    learned: Callable[[GPPVAE], dict[str, Any]] = field(default=lambda model: {})

    def facts(self) -> dict[str, Any]:
        """What decides the task, for the record; a run with other facts is another run."""
        return {
            "about": self.about,
            "kernel": self.kernel,
            "missing": self.missing,
            "error": self.error,
            "rows": len(self.samples),
            "shape": list(self.samples.shape[1:]),
            "asked": {question.name: len(question.truth) for question in self.questions},
        }


def error_of(kind: str, truth: np.ndarray, answer: np.ndarray) -> float:
    """Mean squared or mean absolute error over all values."""
    apart = np.asarray(answer, np.float64).reshape(truth.shape) - truth
    return float(np.square(apart).mean() if kind == MSE else np.abs(apart).mean())


def errors_of(kind: str, truth: np.ndarray, answers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The error of every answer."""
    return {name: error_of(kind, truth, answer) for name, answer in answers.items()}

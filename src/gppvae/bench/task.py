"""What a benchmark is: training data, a kernel, and questions with known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import comb, xlogy

from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction

MSE, MAE, DEVIANCE, ARI = "MSE", "MAE", "deviance", "ARI"
HIGHER = (ARI,)  # kinds of which more is better; all others are errors
N_DRAWS = 64
LEAST_RATE = 1e-8  # of a count, so that a prediction of none has a finite deviance
Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """The largest error that counts as good, or the least of what is to be high.

    Attributes:
        value: an error, or a factor where `of` is given.
        of: names of simple answers; the factor is on the best of theirs.
    """

    value: float
    of: tuple[str, ...] = ()

    def limit(self, simple: Mapping[str, float], kind: str = MSE) -> float:
        """What is to be reached, given the simple answers."""
        best = max if kind in HIGHER else min
        return self.value * best((simple[name] for name in self.of), default=1.0)


@dataclass(frozen=True)
class Answer:
    """What a model says at the rows of a question.

    Attributes:
        mean: the prediction that is judged.
        spread: mean and standard deviation of new samples, for intervals; None where there are none to judge.
        covered: the values these should cover.
        how: which method gave it.
    """

    mean: np.ndarray
    spread: Prediction | None
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
        ask: how the model is asked.  kind: of error; the task's when None.
        scored: whether `score` is asked for as well, which needs complete samples.
        published: name of the task in `paper.peers.PEERS` whose numbers stand beside it.
    """

    name: str
    table: Columns
    truth: np.ndarray
    simple: dict[str, float]
    target: Target | None = None
    observed: np.ndarray | None = None
    new: tuple[np.ndarray, Columns] | None = None
    ask: Ask = ask_predict
    kind: str | None = None
    scored: bool = True
    published: str = ""

    @property
    def seen(self) -> np.ndarray:
        return self.truth if self.observed is None else self.observed


@dataclass(frozen=True)
class Beside:
    """What another system answered.

    Attributes:
        values: error per question.  settings: it was run with.  seconds: of its training and answers.
        not_run: why there are no values, and what to do; empty where there are.
    """

    values: dict[str, float]
    settings: dict[str, Any]
    seconds: float
    not_run: str = ""

    def to_json(self) -> dict[str, Any]:
        if self.not_run:
            return {"not_run": self.not_run}
        return {"values": self.values, "settings": self.settings, "seconds": round(self.seconds, 1)}


Peer = Callable[[int], Beside]  # of a seed


@dataclass(frozen=True)
class Task:
    """One fit and its questions.

    Attributes:
        name: for `--task`.  kernel: all that the fit is told.  samples, table: training data.
        questions: to the fitted model.  about: the data in one sentence.  error: MSE, MAE or deviance.
        missing: the estimator's word on NaN in the samples; it says what the data are.
        learned: numbers of the fitted model worth recording, by name.
        settings: what else the fit is told, plain values by name.  why: the reason for them.
        beside: other systems that are run on the same data, by name.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    beside: Mapping[str, Peer] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What decides the task, for the record; a run with other facts is another run."""
        told = {"settings": dict(self.settings), "why": self.why} if self.settings else {}
        return told | {
            "about": self.about,
            "kernel": self.kernel,
            "missing": self.missing,
            "error": self.error,
            "rows": len(self.samples),
            "shape": list(self.samples.shape[1:]),
            "asked": {question.name: len(question.truth) for question in self.questions},
        }


def error_of(kind: str, truth: np.ndarray, answer: np.ndarray) -> float:
    """Mean error over all values: squared, absolute, or the Poisson deviance; for labels their adjusted Rand index."""
    if kind == ARI:
        return adjusted_rand(truth, answer)
    found = np.asarray(answer, np.float64).reshape(truth.shape)
    if kind == DEVIANCE:
        rate = np.maximum(found, LEAST_RATE)
        return float(2 * (xlogy(truth, truth / rate) - truth + rate).mean())
    return float(np.square(found - truth).mean() if kind == MSE else np.abs(found - truth).mean())


def errors_of(kind: str, truth: np.ndarray, answers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The error of every answer."""
    return {name: error_of(kind, truth, answer) for name, answer in answers.items()}


def adjusted_rand(truth: np.ndarray, found: np.ndarray) -> float:
    """Agreement of two partitions, by pairs: 1 for the same one, 0 on average by chance (Hubert and Arabie 1985)."""
    rows, columns = (np.unique(labels, return_inverse=True)[1] for labels in (truth, found))
    both = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(both, (rows, columns), 1)
    together, within, across = (comb(n, 2).sum() for n in (both, both.sum(axis=1), both.sum(axis=0)))
    chance, most = within * across / comb(len(rows), 2), (within + across) / 2
    return float((together - chance) / (most - chance)) if most != chance else 1.0

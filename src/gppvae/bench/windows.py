"""Windows of time series with holes: values hidden at random are asked for, given all others of their window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gppvae.bench.task import MAE, Answer, Ask, Columns, Peer, Question, Target, Task, errors_of
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction


@dataclass(frozen=True)
class Windows:
    """Windows of one length.

    Attributes:
        given: (windows, steps, channels), NaN where missing or hidden.  truth: the same, NaN where missing only.
        start: hours from the beginning of the series to the first step of each window.
    """

    given: np.ndarray
    truth: np.ndarray
    start: np.ndarray

    @property
    def hidden(self) -> np.ndarray:
        """Which values are asked for."""
        return np.isnan(self.given) & ~np.isnan(self.truth)

    @property
    def used(self) -> np.ndarray:
        """Steps, one window after the other, at which something is given or asked for."""
        return ~np.isnan(self.truth).all(axis=2).ravel()

    def rows(self) -> tuple[np.ndarray, Columns]:
        """One row per step at which something is given or asked for: the steps' channels, and the table."""
        n, steps, channels = self.given.shape
        window, step = np.repeat(np.arange(n), steps), np.tile(np.arange(steps), n)
        table = {
            "window": np.array([f"test {number}" for number in window]),
            "step": step.astype(float),
            "hour": (np.repeat(self.start, steps) + step).astype(float),
        }
        rows = {name: values[self.used] for name, values in table.items()}
        return self.given.reshape(-1, channels)[self.used].astype(np.float32), rows


def hide(truth: np.ndarray, share: float, stream: np.random.Generator) -> np.ndarray:
    """Values with some of them NaN, each with this probability."""
    return np.where(stream.random(truth.shape) < share, np.nan, truth)


def standardised(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Parts by the mean and standard deviation of each channel of the first, missing values aside."""
    of = parts[0].reshape(-1, parts[0].shape[-1])
    known = ~np.isnan(of)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, of, 0.0).sum(axis=0) / count
    std = np.sqrt(np.where(known, np.square(of - mean), 0.0).sum(axis=0) / count)
    return [(part - mean) / np.where(std > 0, std, 1.0) for part in parts]


def interpolated(windows: np.ndarray) -> np.ndarray:
    """Straight lines between what is given of a channel in its window, constant before and after; 0 with nothing."""
    filled = np.zeros_like(windows)
    steps = np.arange(windows.shape[1])
    for window, channel in np.ndindex(windows.shape[0], windows.shape[2]):
        values = windows[window, :, channel]
        known = ~np.isnan(values)
        if known.any():
            filled[window, :, channel] = np.interp(steps, steps[known], values[known])
    return filled


def last_value(windows: np.ndarray) -> np.ndarray:
    """The last value given before, the first one after where there is none before; 0 with nothing."""
    filled = windows.copy()
    for step in range(1, windows.shape[1]):
        filled[:, step] = np.where(np.isnan(filled[:, step]), filled[:, step - 1], filled[:, step])
    for step in reversed(range(windows.shape[1] - 1)):
        filled[:, step] = np.where(np.isnan(filled[:, step]), filled[:, step + 1], filled[:, step])
    return np.nan_to_num(filled)


def ask_hidden(samples: np.ndarray, hidden: np.ndarray) -> Ask:
    """Ask `impute` for the hidden values of rows.

    Args:
        samples: rows with NaN where missing or hidden.  hidden: which of their values are asked for.
    """

    def ask(model: GPPVAE, question: Question) -> Answer:
        found = model.impute(samples, question.table)
        mean, std = found.mean[hidden], found.std[hidden]
        return Answer(mean, Prediction(mean, std), question.truth, "impute")

    return ask


def hidden_task(name: str, kernel: str, test: Windows, about: str, beside: dict[str, Peer], published: str) -> Task:
    """Fit what is given of the test windows and fill in what is hidden, beside a line, the last value and the mean.

    Errors are MAE, in standard deviations of the channels.

    Args:
        beside: peers by name.  published: name of the task in the list of published numbers.
    """
    samples, table = test.rows()
    hidden, truth = test.hidden, test.truth[test.hidden]
    answers = {
        "linear interpolation": interpolated(test.given)[hidden],
        "last value": last_value(test.given)[hidden],
        "mean": np.zeros(len(truth)),
    }
    in_rows = hidden.reshape(-1, hidden.shape[2])[test.used]
    question = Question(
        name, table, truth, errors_of(MAE, truth, answers), Target(1.0, ("linear interpolation",)),
        ask=ask_hidden(samples, in_rows), scored=False, published=published,
    )  # fmt: skip
    return Task(name, kernel, samples, table, [question], about, error=MAE, missing="mask", beside=beside)

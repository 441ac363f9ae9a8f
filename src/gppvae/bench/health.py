"""Health MNIST (Ramchandran et al. 2021): digits move with age and turn with a disease; later visits are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from gppvae.bench.task import MSE, Columns, Question, Target, Task, errors_of
from gppvae.bench.windows import ask_hidden
from gppvae.paper.mnist import load_mnist

KERNEL = "Learned(id) + RBF(age) + Categorical(sex) * RBF(age) + Linear(disease) * RBF(disease_age)"
TARGET = 0.0070
TRAINED, ASKED, VISITS, GIVEN = 200, 40, 20, 5
MANY, MANY_ASKED, MANY_TARGET, PIXELS_TARGET = 1000, 100, 0.0040, 0.0016
WITHIN = 2  # years
SIZE, MISSING, SEED = 36, 0.25, 0
ONSET = 9  # the age at which disease_age is 0


def health(data: Path) -> Task:
    """Subjects seen at every visit, and others seen at their first five, whose later visits are asked for."""
    study = Study.of(data, TRAINED, ASKED)
    return Task("health", KERNEL, study.samples, study.table, [study.future(TARGET)], study.about, missing="mask")


def many_subjects(data: Path, trained: int = MANY, asked: int = MANY_ASKED) -> Task:
    """As many subjects as in the paper; missing pixels of some of those with all visits are asked for as well."""
    study = Study.of(data, trained, asked)
    questions = [study.future(MANY_TARGET, published="health-mnist"), study.pixels(asked, PIXELS_TARGET)]
    return Task("health", KERNEL, study.samples, study.table, questions, study.about, missing="mask")


@dataclass(frozen=True)
class Study:
    """Visits of subjects, of which some come for a few visits only.

    Attributes:
        clean: pictures without holes.  rows: their table.  given: which of them are trained on.
        samples: those, with holes.  about: the data in one sentence.
    """

    clean: np.ndarray
    rows: dict[str, np.ndarray]
    given: np.ndarray
    samples: np.ndarray
    about: str

    @classmethod
    def of(cls, data: Path, trained: int, asked: int) -> Study:
        """So many subjects seen at every visit, and so many at their first five."""
        digits, labels = load_mnist(data / "mnist", "train")
        stream = np.random.default_rng(SEED)
        clean, rows = visits(digits, labels, trained + asked, stream)
        given = (rows["subject"] < trained) | (rows["age"] < GIVEN)
        samples = clean[given].copy()
        samples[stream.random(samples.shape) < MISSING] = np.nan
        about = (
            f"Health MNIST, {trained} subjects with {VISITS} visits and {asked} with {GIVEN}, whose later visits are "
            f"asked; {SIZE} x {SIZE}, {MISSING:.0%} of the pixels missing"
        )
        return cls(clean, rows, given, samples, about)

    @property
    def table(self) -> Columns:
        """The rows that are trained on, as the model gets them."""
        return _told(self._part(self.given))

    def future(self, target: float, published: str = "") -> Question:
        """The later visits of subjects with few."""
        rows, wanted, truth = self._part(self.given), self._part(~self.given), self.clean[~self.given]
        subjects = set(wanted["subject"])
        last = {s: np.flatnonzero((rows["subject"] == s) & (rows["age"] == GIVEN - 1))[0] for s in subjects}
        answers = {
            "last visit": _filled(self.samples)[[last[s] for s in wanted["subject"]]],
            "mean of the age": np.stack([self._mean_of_age(age) for age in range(VISITS)])[wanted["age"]],
        }
        errors = errors_of(MSE, truth, answers)
        return Question("health", _told(wanted), truth, errors, Target(target), published=published)

    def pixels(self, n: int, target: float) -> Question:
        """Missing pixels of the visits of the first n subjects."""
        rows = self._part(self.given)
        few = rows["subject"] < n
        own, samples = {name: values[few] for name, values in rows.items()}, self.samples[few]
        hidden, truth = np.isnan(samples), self.clean[self.given][few]
        answers = {
            "mean of visits within two years": _mean_of_near_visits(samples, own),
            "mean of the age": np.stack([self._mean_of_age(age) for age in range(VISITS)])[own["age"]],
        }
        errors = errors_of(MSE, truth[hidden], {name: answer[hidden] for name, answer in answers.items()})
        return Question(
            "health, missing pixels", _told(own), truth[hidden], errors, Target(target),
            ask=ask_hidden(samples, hidden), scored=False,
        )  # fmt: skip

    def _part(self, keep: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[keep] for name, values in self.rows.items()}

    def _mean_of_age(self, age: int) -> np.ndarray:
        return _mean(self.samples[self.rows["age"][self.given] == age])


def visits(
    digits: np.ndarray, labels: np.ndarray, n: int, stream: np.random.Generator
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All visits of n subjects, (n * 20, 36, 36) in [0, 1], and their table.

    Threes are of one sex, sixes of the other, half each. A visit's digit is turned, by 5 degrees if healthy and by
    45 sigmoid(disease_age) if not, both with a standard deviation of 2 degrees, and moved by age / 10 pixels each way.
    """
    pictures, rows = [], []
    border = (SIZE - digits.shape[1]) // 2
    chosen = [stream.permutation(np.flatnonzero(labels == label))[: (n + 1) // 2] for label in (3, 6)]
    for subject in range(n):
        sex = subject % 2
        digit = np.pad(digits[chosen[sex][subject // 2]], border)
        disease, location = stream.integers(2), stream.integers(2)
        for age in range(VISITS):
            since = age - ONSET
            turned = 45 / (1 + np.exp(-since)) if disease else 5.0
            picture = ndimage.rotate(digit, stream.normal(0, 2) + turned, reshape=False)
            pictures.append(ndimage.shift(picture, age / 10).astype(np.float32) / 255)
            rows.append((subject, age, sex, disease, since if disease else 0, location))
    names = ("subject", "age", "sex", "disease", "disease_age", "location")
    return np.stack(pictures), dict(zip(names, np.array(rows).T, strict=True))


def _mean_of_near_visits(samples: np.ndarray, rows: dict[str, np.ndarray]) -> np.ndarray:
    """At every row the mean of what the subject's visits within two years show; that of all where none does."""
    near = (rows["subject"][:, None] == rows["subject"]) & (np.abs(rows["age"][:, None] - rows["age"]) <= WITHIN)
    overall = _mean(samples)
    return np.stack([np.where(np.isnan(samples[own]).all(axis=0), overall, _mean(samples[own])) for own in near])


def _filled(samples: np.ndarray) -> np.ndarray:
    """Samples with the mean of all at what is missing."""
    return np.where(np.isnan(samples), _mean(samples), samples)


def _mean(samples: np.ndarray) -> np.ndarray:
    """The mean of what is known of samples, 0 where nothing is."""
    return np.nansum(samples, axis=0) / np.maximum((~np.isnan(samples)).sum(axis=0), 1)


def _told(rows: dict[str, np.ndarray]) -> Columns:
    """The table as the model gets it."""
    numbers: dict[str, Any] = {name: rows[name].astype(float) for name in ("age", "disease", "disease_age")}
    ids = {"id": [f"subject {s}" for s in rows["subject"]], "sex": [str(sex) for sex in rows["sex"]]}
    return numbers | ids

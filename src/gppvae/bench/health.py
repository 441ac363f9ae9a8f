"""Health MNIST (Ramchandran et al. 2021): digits move with age and turn with a disease; later visits are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from gppvae.bench.task import MSE, Columns, Question, Target, Task, errors_of
from gppvae.paper.mnist import load_mnist

KERNEL = "Learned(id) + RBF(age) + Categorical(sex) * RBF(age) + Linear(disease) * RBF(disease_age)"
TARGET = 0.0070
TRAINED, ASKED, VISITS, GIVEN = 200, 40, 20, 5
SIZE, MISSING, SEED = 36, 0.25, 0
ONSET = 9  # the age at which disease_age is 0


def health(data: Path) -> Task:
    """Subjects seen at every visit, and others seen at their first five, whose later visits are asked for."""
    digits, labels = load_mnist(data / "mnist", "train")
    stream = np.random.default_rng(SEED)
    clean, table = visits(digits, labels, TRAINED + ASKED, stream)
    given = (table["subject"] < TRAINED) | (table["age"] < GIVEN)
    samples = clean[given].copy()
    samples[stream.random(samples.shape) < MISSING] = np.nan
    rows, wanted = ({name: values[part] for name, values in table.items()} for part in (given, ~given))
    truth = clean[~given]
    last = {s: np.flatnonzero((rows["subject"] == s) & (rows["age"] == GIVEN - 1))[0] for s in set(wanted["subject"])}
    answers = {
        "last visit": _filled(samples)[[last[s] for s in wanted["subject"]]],
        "mean of the age": np.stack([np.nanmean(samples[rows["age"] == age], axis=0) for age in wanted["age"]]),
    }
    question = Question("health", _told(wanted), truth, errors_of(MSE, truth, answers), Target(TARGET))
    about = (
        f"Health MNIST, {TRAINED} subjects with {VISITS} visits and {ASKED} with {GIVEN}, whose later visits are "
        f"asked; {SIZE} x {SIZE}, {MISSING:.0%} of the pixels missing"
    )
    return Task("health", KERNEL, samples, _told(rows), [question], about, missing="mask")


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


def _filled(samples: np.ndarray) -> np.ndarray:
    """Samples with the mean of all at what is missing."""
    return np.where(np.isnan(samples), np.nanmean(samples, axis=0), samples)


def _told(rows: dict[str, np.ndarray]) -> Columns:
    """The table as the model gets it."""
    numbers: dict[str, Any] = {name: rows[name].astype(float) for name in ("age", "disease", "disease_age")}
    ids = {"id": [f"subject {s}" for s in rows["subject"]], "sex": [str(sex) for sex in rows["sex"]]}
    return numbers | ids

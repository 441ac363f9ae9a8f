"""Jura: metals in soil. Cadmium at the validation sites, where nickel and zinc are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from gppvae.bench.task import MAE, Answer, Question, Target, Task, errors_of
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction

KERNEL = "Matern(x, y, nu=1.5)"
METALS, PLACE = ["Cd", "Ni", "Zn"], {"x": "Xloc", "y": "Yloc"}
TARGET = 0.41


def jura(data: Path, target: float = TARGET) -> Task:
    """The three metals as logarithms, complete at the training sites; errors are in the unit of the data."""
    train, test = (pd.read_csv(data / "jura" / f"{name}.dat") for name in ("prediction", "validation"))
    samples, logs = (np.log(frame[METALS].to_numpy(np.float32)) for frame in (train, test))
    table, asked = ({name: frame[column].to_numpy() for name, column in PLACE.items()} for frame in (train, test))
    truth = test["Cd"].to_numpy(np.float64)

    def design(values: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(values)), values[:, 1:]])

    line = np.linalg.lstsq(design(samples), samples[:, 0], rcond=None)[0]
    apart = np.hypot(*(asked[name][:, None] - table[name] for name in PLACE))
    answers = {
        "mean": np.full(len(truth), train["Cd"].mean()),
        "nearest": train["Cd"].to_numpy()[apart.argmin(axis=1)],
        "linear in Ni and Zn": np.exp(design(logs) @ line),
    }
    question = Question(
        "jura", asked, truth, errors_of(MAE, truth, answers), Target(target), observed=logs, ask=ask_cadmium
    )
    about = "Jura, 259 + 100 sites, Cd given Ni and Zn; the model gets logarithms, the error is in ppm"
    return Task("jura", KERNEL, samples, table, [question], about, error=MAE)


def ask_cadmium(model: GPPVAE, question: Question) -> Answer:
    """The median of cadmium, imputed from the other two."""
    known = question.seen.copy()
    known[:, 0] = np.nan
    filled = model.impute(known, question.table)
    mean, std = filled.mean[:, 0], filled.std[:, 0]
    return Answer(np.exp(mean.astype(np.float64)), Prediction(mean, std), question.seen[:, 0], "impute")

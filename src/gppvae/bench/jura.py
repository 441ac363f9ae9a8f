"""Jura: metals in soil. Cadmium at the validation sites, where nickel and zinc are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from gppvae.bench.task import MAE, Answer, Columns, Question, Target, Task, errors_of
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction

KERNEL = "Matern(x, y, nu=1.5) + Categorical(rock) + Categorical(land)"  # chosen on folds of the training sites
METALS, PLACE, KINDS = ["Cd", "Ni", "Zn"], {"x": "Xloc", "y": "Yloc"}, {"rock": "Rock", "land": "Landuse"}
TARGET = 0.41


def jura(data: Path, target: float = TARGET) -> Task:
    """The three metals as logarithms, complete at the training sites; errors are in the unit of the data."""
    train, test = (pd.read_csv(data / "jura" / f"{name}.dat") for name in ("prediction", "validation"))
    samples, logs = (np.log(frame[METALS].to_numpy(np.float32)) for frame in (train, test))
    table, asked = (_told(frame) for frame in (train, test))
    truth = test["Cd"].to_numpy(np.float64)

    def line(kinds: list[str]) -> np.ndarray:
        """Cadmium by a linear regression on the other logarithms and these kinds."""

        def design(values: np.ndarray, rows: Columns) -> np.ndarray:
            levels = [rows[name] == level for name in kinds for level in np.unique(table[name])]
            return np.column_stack([np.ones(len(values)), values[:, 1:], *levels])

        weights = np.linalg.lstsq(design(samples, table), samples[:, 0], rcond=None)[0]
        found: np.ndarray = np.exp(design(logs, asked) @ weights)
        return found

    apart = np.hypot(*(asked[name][:, None] - table[name] for name in PLACE))
    answers = {
        "mean": np.full(len(truth), train["Cd"].mean()),
        "nearest": train["Cd"].to_numpy()[apart.argmin(axis=1)],
        "linear in Ni and Zn": line([]),
        "linear in Ni, Zn, rock and land": line(list(KINDS)),
    }
    question = Question(
        "jura", asked, truth, errors_of(MAE, truth, answers), Target(target), observed=logs, ask=ask_cadmium
    )
    about = "Jura, 259 + 100 sites, Cd given Ni, Zn, rock and land use; the model gets logarithms, the error is in ppm"
    return Task("jura", KERNEL, samples, table, [question], about, error=MAE)


def _told(frame: pd.DataFrame) -> Columns:
    """Place, kind of rock and use of the land, as the model gets them."""
    numbers = {name: frame[column].to_numpy() for name, column in PLACE.items()}
    return numbers | {name: frame[column].astype(str).to_numpy() for name, column in KINDS.items()}


def ask_cadmium(model: GPPVAE, question: Question) -> Answer:
    """The median of cadmium, imputed from the other two."""
    known = question.seen.copy()
    known[:, 0] = np.nan
    filled = model.impute(known, question.table)
    mean, std = filled.mean[:, 0], filled.std[:, 0]
    return Answer(np.exp(mean.astype(np.float64)), Prediction(mean, std), question.seen[:, 0], "impute")

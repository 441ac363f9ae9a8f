"""ETTh1: a transformer's load and temperature, hour by hour; windows of two days with a tenth of the values hidden."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from gppvae.bench.pypots import NAME, gp_vae
from gppvae.bench.task import Task
from gppvae.bench.windows import Windows, hidden_task, hide, standardised

KERNEL = "Categorical(window) + Categorical(window) * Matern(step, nu=1.5) + Periodic(hour, 24)"
STEPS, HIDDEN, SEED = 48, 0.1, 0
MONTHS = (14, 5)  # of training and of validation; the others are for the test


def load(data: Path) -> tuple[Windows, Windows, Windows]:
    """Windows of training, validation and test, standardised by the training months; all have holes."""
    frame = pd.read_csv(data / "ett" / "ETTh1.csv", parse_dates=["date"])
    month = frame["date"].dt.to_period("M")
    number = month.map({name: i for i, name in enumerate(month.unique())}).to_numpy()
    hour = np.arange(len(frame), dtype=float)
    values = frame.drop(columns="date").to_numpy(float)
    ends = (0, MONTHS[0], sum(MONTHS), number.max() + 1)
    chosen = [(number >= first) & (number < end) for first, end in pairwise(ends)]
    stream = np.random.default_rng(SEED)
    found = []
    for part, own in zip(standardised([values[own] for own in chosen]), chosen, strict=True):
        n = len(part) // STEPS
        truth = part[: n * STEPS].reshape(n, STEPS, -1)
        found.append(Windows(hide(truth, HIDDEN, stream), truth, hour[own][: n * STEPS : STEPS]))
    return found[0], found[1], found[2]


def etth1(data: Path) -> Task:
    """The hidden values of the test windows; the fit sees what is given of them, the peer the training windows too."""
    train, valid, test = load(data)
    about = (
        f"ETTh1, windows of {STEPS} hours, {MONTHS[0]} / {MONTHS[1]} / 5 months for training, validation and test, "
        f"{HIDDEN:.0%} of all values hidden; standardised"
    )
    peers = {NAME: gp_vae("etth1", train, valid, test)}
    return hidden_task("etth1", KERNEL, test, about, peers, "etth1")

"""PhysioNet 2012, set-a: two days of intensive care, 35 measurements an hour, most of them missing."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np

from gppvae.bench.pypots import NAME, gp_vae
from gppvae.bench.task import Task
from gppvae.bench.windows import Windows, hidden_task, hide, standardised

KERNEL = "Categorical(window) + Categorical(window) * Matern(step, nu=1.5)"
FILE = "set-a.tar.gz"
STEPS, HIDDEN, SEED = 48, 0.1, 0
PEER_EPOCHS = 30  # of the peer, for ten minutes on one core
TEST, VALID = 0.2, 0.2  # of all stays, and of those that are left
CHANNELS = (
    "DiasABP", "HR", "Na", "Lactate", "NIDiasABP", "PaO2", "WBC", "pH", "Albumin", "ALT", "Glucose", "SaO2", "Temp",
    "AST", "Bilirubin", "HCO3", "BUN", "RespRate", "Mg", "HCT", "SysABP", "FiO2", "K", "GCS", "Cholesterol", "NISysABP",
    "TroponinT", "MAP", "TroponinI", "PaCO2", "Platelets", "Urine", "NIMAP", "Creatinine", "ALP",
)  # fmt: skip


def stays(file: Path) -> np.ndarray:
    """Means of each hour, (stays, 48, 35), NaN where nothing was measured; stays of a single hour are left out."""
    place = {name: number for number, name in enumerate(CHANNELS)}
    found = []
    with tarfile.open(file) as archive:
        for member in sorted(archive, key=lambda member: member.name):
            stored = archive.extractfile(member) if member.name.endswith(".txt") else None
            if stored is not None and "utcome" not in member.name:
                sums, counts, hours = np.zeros((STEPS, len(CHANNELS))), np.zeros((STEPS, len(CHANNELS))), set()
                for line in stored.read().decode().splitlines()[1:]:
                    time, name, value = line.split(",")
                    hour = int(time.split(":")[0])
                    hours.add(hour)
                    if hour < STEPS and name in place:
                        sums[hour, place[name]] += float(value)
                        counts[hour, place[name]] += 1
                if len(hours) > 1:
                    found.append(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
    return np.stack(found)


def load(data: Path) -> tuple[Windows, Windows, Windows]:
    """Stays of training, validation and test, standardised by the training ones; the last two have further holes."""
    every = stays(data / "physionet2012" / FILE)
    stream = np.random.default_rng(SEED)
    order = stream.permutation(len(every))
    test = round(TEST * len(order))
    valid = round(VALID * (len(order) - test))
    parts = order[test + valid :], order[test : test + valid], order[:test]
    train, *others = standardised([every[np.sort(part)] for part in parts])
    found = [Windows(train, train, np.zeros(len(train)))]
    found += [Windows(hide(part, HIDDEN, stream), part, np.zeros(len(part))) for part in others]
    return found[0], found[1], found[2]


def physionet(data: Path) -> Task:
    """The hidden values of the test stays; the fit sees what is given of them, the peer the training stays too."""
    train, valid, test = load(data)
    about = (
        f"PhysioNet 2012 set-a, {STEPS} hours, {len(CHANNELS)} measurements, {len(test.given)} stays of which "
        f"{HIDDEN:.0%} of the measured values are hidden; standardised"
    )
    peers = {NAME: gp_vae("physionet", train, valid, test, epochs=PEER_EPOCHS)}
    return hidden_task("physionet", KERNEL, test, about, peers, "physionet2012")

"""Two tiny fitted models that all tests of the live page share: pictures of spots, and blood values of subjects."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gppvae import GPPVAE
from tiny import spots

pytest.importorskip("uvicorn", reason="the extra `explore` is not installed")
from gppvae.explore.answers import Answers
from gppvae.explore.server import LiveServer
from gppvae.explore.sources import Source, make_part
from gppvae.training.threads import one_thread

HOSTILE = "<img src=x onerror=\"document.title='broken'\">'&"
NAMES = ["glucose", "urea", "iron", "zinc", "lipase", "uric acid"]
TOKEN = "a-token-of-the-tests"


@dataclass
class Case:
    """A fitted model in its folder, and its data: `held` marks the rows that were not trained on."""

    model: GPPVAE
    folder: Path
    samples: np.ndarray
    table: pd.DataFrame
    held: np.ndarray

    def answers(self) -> Answers:
        parts = [make_part(self.model, self.table[rows], self.samples[rows]) for rows in (~self.held, self.held)]
        return Answers(self.model, Source(parts[0], parts[1]), self.folder.name, str(self.folder))


@dataclass
class Served:
    case: Case
    server: LiveServer
    answers: Answers


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Case:
    samples, table = spots(4, 8)
    table["spot"] = table["spot"].replace("s3", HOSTILE)
    table["batch"] = np.arange(len(table)) % 3
    held = ((table["angle"] == 90.0) | ((table["spot"] == "s1") & (table["angle"] == 270.0))).to_numpy()
    settings = {
        "inference": "global",
        "pixel_var": 0.01,
        "latent_dim": 3,
        "network": "mlp",
        "width": 24,
        "epochs": 25,
        "warmup_epochs": 4,
        "gp_epochs": 6,
    }
    model = GPPVAE("Learned(spot, 2) * Periodic(angle, 360) + RBF(angle)", batch_size=16, **settings)
    folder = tmp_path_factory.mktemp("runs") / "spots"
    with one_thread():
        model.fit(samples[~held], table[~held], out=folder, progress=False)
    # One cell is in no table: never measured.
    there = ~((table["spot"] == "s2") & (table["angle"] == 180.0)).to_numpy()
    return Case(model, folder, samples[there], table[there].reset_index(drop=True), held[there])


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Case:
    rng = np.random.default_rng(0)
    age = rng.uniform(20.0, 70.0, 40).round(1)
    subject = np.repeat([f"subject {n}" for n in range(5)], 8)
    values = np.sin(age[:, None] / 15 + np.arange(6)) + rng.normal(0, 0.1, (40, 6))
    samples = pd.DataFrame(values.astype(np.float32), columns=NAMES)
    table = pd.DataFrame({"subject": subject, "age": age, "sex": np.where(np.arange(40) < 20, "f", "m")})
    model = GPPVAE("Learned(subject, 2) + RBF(age)", latent_dim=3, width=16, inference="global", epochs=15)
    folder = tmp_path_factory.mktemp("runs") / "blood"
    with one_thread():
        model.fit(samples, table, out=folder, progress=False)
    return Case(model, folder, samples.to_numpy(), table, np.arange(40) % 8 == 3)


def serve(case: Case) -> Iterator[Served]:
    answers = case.answers()
    server = LiveServer(answers, token=TOKEN)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield Served(case, server, answers)
    server.stop()
    thread.join(timeout=20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def served(pictures: Case) -> Iterator[Served]:
    yield from serve(pictures)


@pytest.fixture(scope="module")
def served_vectors(vectors: Case) -> Iterator[Served]:
    yield from serve(vectors)

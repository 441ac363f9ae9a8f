"""Fits in two threads of one process are those of the same fits alone: nothing draws from a global generator."""

import re
import threading
from pathlib import Path

import numpy as np
import torch

from gppvae import GPPVAE
from tiny import KERNEL, spots

PACKAGE = Path(__file__).parents[1] / "src" / "gppvae"


def fitted(seed: int, inference: str) -> np.ndarray:
    images, table = spots(4, 6)
    settings = {"latent_dim": 2, "network": "mlp", "width": 8, "batch_size": 8, "epochs": 6}
    model = GPPVAE(KERNEL, inference=inference, seed=seed, warmup_epochs=3, gp_epochs=3, **settings)
    return model.fit(images, table, progress=False).predict(table, n_samples=3).mean


def test_fits_in_two_threads_are_those_of_one() -> None:
    asked = [(0, "global"), (1, "minibatch"), (2, "posterior")]
    alone = [fitted(*words) for words in asked]
    torch.manual_seed(99)
    together: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda n=n, words=words: together.setdefault(n, fitted(*words)))
        for n, words in enumerate(asked)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for n, expected in enumerate(alone):
        np.testing.assert_array_equal(together[n], expected)


def test_a_prediction_is_not_disturbed_by_draws_in_another_thread() -> None:
    images, table = spots(4, 6)
    settings = {"latent_dim": 2, "network": "mlp", "width": 8, "batch_size": 8, "epochs": 2, "inference": "global"}
    model = GPPVAE(KERNEL, **settings).fit(images, table, progress=False)
    model.add_objects(images[:1], {"spot": ["new"], "angle": [0.0]})
    wanted = {"spot": ["new"] * 6, "angle": np.arange(6) * 60.0}
    alone, stop = model.predict(wanted).mean, threading.Event()

    def draw() -> None:
        while not stop.is_set():
            model.predict(wanted, n_samples=8)

    other = threading.Thread(target=draw)
    other.start()
    found = [model.predict(wanted).mean for _ in range(300)]
    stop.set()
    other.join(timeout=60)
    for mean in found:
        np.testing.assert_array_equal(mean, alone)


def test_no_module_of_the_library_seeds_the_global_generators() -> None:
    seeds = re.compile(r"(?<!Generator\(\)\.)\bmanual_seed\(|np\.random\.seed\(|random\.seed\(|set_rng_state\(")
    found = {
        str(path.relative_to(PACKAGE)): [line for line in path.read_text("utf-8").splitlines() if seeds.search(line)]
        for path in PACKAGE.rglob("*.py")
        if "paper" not in path.parts
    }
    assert {name: lines for name, lines in found.items() if lines} == {}

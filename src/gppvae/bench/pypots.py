"""The GP-VAE of PyPOTS, run on the same windows; PyPOTS comes with the extra `bench`."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from gppvae.bench.task import MAE, Beside, Peer, error_of
from gppvae.bench.windows import Windows

NAME = "GP-VAE of PyPOTS"
NOT_INSTALLED = "not run: install gppvae[bench]"
# Kernel and networks as in PyPOTS' own examples for windows of this length. It keeps the best epoch on the validation
# windows, and its answer is the mean of ten draws, as in TSI-Bench.
SETTINGS: dict[str, Any] = {
    "latent_size": 37, "encoder_sizes": (128, 128), "decoder_sizes": (256, 256), "kernel": "cauchy", "beta": 0.2,
    "sigma": 1.005, "length_scale": 7.0, "kernel_scales": 1, "window_size": 24, "batch_size": 32, "epochs": 100,
    "patience": 10,
}  # fmt: skip
DRAWS = 10


def gp_vae(question: str, train: Windows, valid: Windows, test: Windows, **settings: Any) -> Peer:
    """PyPOTS' GP-VAE as a peer: fitted to the training windows, asked for the hidden values of the test windows.

    Args:
        question: whose numbers these are.  settings: other than `SETTINGS`.
    """
    return partial(_run, question, train, valid, test, SETTINGS | settings)


def _run(question: str, train: Windows, valid: Windows, test: Windows, settings: dict[str, Any], seed: int) -> Beside:
    if find_spec("pypots") is None:
        return Beside({}, {}, 0.0, NOT_INSTALLED)
    start = time.perf_counter()
    sink = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # PyPOTS asks for the encoding of what it prints to
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        found, version = _imputed(train, valid, test, settings, seed)
    error = error_of(MAE, test.truth[test.hidden], found[test.hidden])
    told = settings | {"seed": seed, "draws": DRAWS, "pypots": version}
    return Beside({question: float(f"{error:.6g}")}, told, time.perf_counter() - start)


def _imputed(
    train: Windows, valid: Windows, test: Windows, settings: dict[str, Any], seed: int
) -> tuple[np.ndarray, str]:
    import pypots
    from pypots.imputation import GPVAE
    from pypots.utils.random import set_random_seed

    logging.getLogger("PyPOTS running log").setLevel(logging.ERROR)
    set_random_seed(seed)
    _, steps, channels = train.given.shape
    model = GPVAE(steps, channels, device="cpu", verbose=False, **settings)
    single = np.float32
    model.fit({"X": train.given.astype(single)}, {"X": valid.given.astype(single), "X_ori": valid.truth.astype(single)})
    drawn = model.predict({"X": test.given.astype(single)}, n_sampling_times=DRAWS)["imputation"]
    return np.asarray(drawn, np.float64).reshape(len(test.given), -1, steps, channels).mean(axis=1), pypots.__version__

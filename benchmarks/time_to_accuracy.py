"""Time until the error at the held-out angle is the paper's, for every way to fit, and until it is 0.0100.

    python benchmarks/time_to_accuracy.py [--mnist DIR] [--cap SECONDS] [--threads K] [--quick]

Published split of rotated MNIST, 270 test images, mean-decoded. The clock runs during training only; the test
error is looked at after each epoch to read the clock, and chooses nothing: the short fits were chosen at another
angle, 247.5 degrees, that was held out for the purpose. All ways start from nothing: the warm-up of those that
have one counts.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import _common
import torch

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.rotated_digits import RotatedDigits
from gppvae.data.table import Table
from gppvae.estimator.validation import row_errors
from gppvae.inference import Inference, find_inference
from gppvae.inference.phase import Budget, Phase
from gppvae.kernels import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.predict import decode_mean
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import build_networks
from gppvae.paper.rotated_mnist.data import published_split
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.loop import Settings, Trainer
from gppvae.training.validated import Validated

TARGET, LOW_TARGET = 0.0280, 0.0100
PAPER = "Learned(digit, 8) * Periodic(angle, 360)"
FAST = "Learned(digit, 24) * Periodic(angle, 360, lengthscale=1.0, fixed=True)"
QUICK_SECONDS = 5.0


@dataclass(frozen=True)
class Candidate:
    """One way to fit: network and latent size, kernel, noise levels, phases; and the error to reach."""

    network: str
    width: int | None
    latent_dim: int
    kernel: str
    pixel_var: float
    alpha: float
    batch_size: int
    phases: list[Phase]
    target: float = TARGET


def warmed_up(inference: str, epochs: int) -> Candidate:
    """The paper's schedule with 8 channels: VAE, GP only, then jointly."""
    phases = find_inference(inference).phases(Budget(epochs=epochs, warmup_epochs=60, gp_epochs=100))
    return Candidate("conv", None, 16, PAPER, 0.01, 1.0, 128, phases)


def short(
    network: str, width: int, latent_dim: int, epochs: int, target: float, weights: float = 1e-2, decay: float = 0.0
) -> Candidate:
    """Global inference for a few epochs at high learning rates.

    Args:
        weights: learning rate of q(B).  decay: weight decay of the decoder.
    """
    rates = {"decoder": 1e-2, "prior": 1e-2, "weights": weights}
    phases = [Phase("global", "global", epochs, rates, "cosine", warmup=0.02, weight_decay=decay)]
    return Candidate(network, width, latent_dim, FAST, 0.001, 0.0009, 64, phases, target)


CANDIDATES = {
    "global, wide with 8 channels": short("wide", 8, 32, 7, TARGET, weights=2e-2),
    "global, 8 channels": short("conv", 8, 32, 9, TARGET, weights=2e-2),
    "global, image with 16 channels": short("image", 16, 48, 16, LOW_TARGET, decay=0.3),
    "minibatch, 8 channels": warmed_up("minibatch", 2000),
    "posterior, 8 channels": warmed_up("posterior", 2000),
    "exact, 8 channels": warmed_up("exact", 100_000),
}


class EnoughError(Exception):
    """The target is reached, or the time is up."""


class Clock:
    """Training time, on the clock and of the processor, and test error of one candidate."""

    def __init__(self, model: GPPriorVAE, digits: RotatedDigits, target: float, cap: float) -> None:
        self.model, self.target, self.cap = model, target, cap
        test = Samples(digits.test.images)
        self.test = Epoch(test, model.prior.code(Table(digits.test.table)), 128, None, torch.device("cpu"))
        self.seconds, self.cpu_seconds = 0.0, 0.0
        self.curve: list[list[float]] = []  # seconds, processor seconds and error after each epoch
        self._since = time.perf_counter(), time.process_time()

    @torch.no_grad()
    def __call__(self, inference: Inference, train: Epoch) -> Validated:
        self.seconds += time.perf_counter() - self._since[0]
        self.cpu_seconds += time.process_time() - self._since[1]
        mse = None
        if inference.name != "vae":
            weights = inference.weights(train)
            assert weights is not None
            mse, _ = row_errors(
                self.test, self.model.autoencoder, lambda batch: decode_mean(self.model, weights, batch.rows)
            )
            self.curve.append([round(self.seconds, 2), round(self.cpu_seconds, 2), float(f"{mse:.5g}")])
        if self.reached() or self.seconds > self.cap:
            raise EnoughError
        self._since = time.perf_counter(), time.process_time()
        return Validated({}, torch.zeros(0))

    def reached(self) -> bool:
        """Whether the last error is low enough."""
        return bool(self.curve) and self.curve[-1][-1] <= self.target


def measure(candidate: Candidate, digits: RotatedDigits, cap: float, seed: int) -> dict[str, Any]:
    """Train until the target or the cap; seconds to the target (None: not reached) and the curve."""
    torch.manual_seed(seed)
    table = Table(digits.train.table)
    prior = LatentPrior([(parse_kernel(candidate.kernel), candidate.latent_dim)], candidate.alpha)
    prior.bind(table, torch.Generator().manual_seed(derive_seed(seed, 1)))
    networks = build_networks(candidate.network, (1, 28, 28), candidate.latent_dim, candidate.width)
    model = GPPriorVAE(Autoencoder(*networks, Gaussian(candidate.pixel_var)), prior)
    rows = prior.code(table)
    prior.plan(rows, candidate.batch_size)
    samples = Samples(digits.train.images)
    samples.keep_in_memory()
    data = Epoch(samples, rows, candidate.batch_size, None, torch.device("cpu"))
    clock = Clock(model, digits, candidate.target, cap)
    trainer = Trainer(model, candidate.phases, data, Settings(seed=seed, progress=False), validate=clock)
    with contextlib.suppress(EnoughError):
        trainer.run()
    reached = clock.reached()
    return {
        "target_mse": candidate.target,
        "seconds": round(clock.seconds, 2) if reached else None,
        "cpu_seconds": round(clock.cpu_seconds, 2) if reached else None,
        "best_mse": min((mse for *_, mse in clock.curve), default=None),
        "trained_seconds": round(clock.seconds, 2),
        "trained_cpu_seconds": round(clock.cpu_seconds, 2),
        "curve": clock.curve[:: max(1, len(clock.curve) // 200)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", help="folder of the MNIST files")
    parser.add_argument("--cap", type=float, default=1500.0, help="seconds after which a candidate is given up")
    parser.add_argument("--threads", type=int, help="torch threads; its own default when absent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS:.0f} s each, to see that it runs")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    started, cap = time.perf_counter(), QUICK_SECONDS if arguments.quick else arguments.cap
    digits = published_split(arguments.mnist)
    outcome: dict[str, Any] = {}
    for name, candidate in CANDIDATES.items():
        outcome[name] = measure(candidate, digits, cap, arguments.seed)
        reached = outcome[name]["seconds"]
        text = f"{reached:.1f} s" if reached else f"not within {outcome[name]['trained_seconds']:.0f} s"
        print(f"{name:>30}  {candidate.target} {text}  (least MSE {outcome[name]['best_mse']})", flush=True)
    content = {"cap_seconds": cap, "threads": torch.get_num_threads(), "candidates": outcome}
    print(_common.save("time_to_accuracy", content, arguments.seed, started, arguments.quick))


if __name__ == "__main__":
    main()

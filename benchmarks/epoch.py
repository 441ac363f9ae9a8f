"""One epoch of each inference beside one epoch of the plain VAE: same networks, same batches, the real loop.

    python benchmarks/epoch.py [--quick] [--threads 1] [--networks conv wide]

Writes results/epoch.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gppvae  # noqa: F401  # isort: skip  # before PyTorch, so that threads wait as they do for users
import numpy as np
import torch
from _common import Timing, epochs_of, interleave, save, thread_counts

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Rows, Table
from gppvae.kernels.parse import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import build_networks
from gppvae.training.phases import Phase, plan, sums_at_once

KERNEL = "Learned(digit, 8) * Periodic(angle, 360)"
DIGITS, ANGLES, N_ROWS, SIZE, LATENTS, BATCH = 360, 15, 4050, 28, 16, 128
# Largest accepted ratio to the plain VAE epoch.
TARGETS = {"exact": 1.25, "minibatch": 1.15, "posterior": 1.15, "global": 1.0}
MODELS = 4  # of each kind, one after the other
EPOCHS = 10_000  # of a phase, so that the learning rate hardly moves while it is timed


def make_data(seed: int) -> tuple[Samples, Table]:
    """Random images in the layout of the rotated digits: 4,050 of 360 digits at 15 angles."""
    generator = np.random.default_rng(seed)
    cells = generator.permutation(DIGITS * ANGLES)[:N_ROWS]
    samples = Samples(generator.random((N_ROWS, SIZE, SIZE), dtype=np.float32))
    samples.keep_in_memory()
    return samples, Table({"digit": cells // ANGLES, "angle": cells % ANGLES * 22.5})


def make_epoch(name: str, network: str, samples: Samples, table: Table, seed: int) -> Callable[[], None]:
    """A fresh model under the training loop; each call runs the next epoch."""
    torch.manual_seed(seed)
    autoencoder = Autoencoder(*build_networks(network, samples.shape, LATENTS), Gaussian())
    model: Autoencoder | GPPriorVAE = autoencoder
    rows = Rows({}, len(samples))
    if name == "vae":
        phase = Phase("vae", "vae", EPOCHS, {"encoder": 1e-3, "decoder": 1e-3})
    else:
        phase = next(p for p in plan(inference=name, epochs=EPOCHS) if p.inference == name)
        kernel = parse_kernel(KERNEL)
        kernel.bind(table, torch.Generator().manual_seed(seed))
        rows = kernel.code(table)
        model = GPPriorVAE(autoencoder, kernel, 0.1, LATENTS)
        model.arrange(rows, *sums_at_once([phase], N_ROWS, BATCH))
    data = Epoch(samples, rows, BATCH, None, torch.device("cpu"))
    return epochs_of(model, phase, data, seed)


def measure(network: str, threads: int, rounds: int, seed: int) -> dict[str, Any]:
    """Times and ratios to the plain VAE of all inferences with one network.

    Where a model happens to lie in memory moves its time by some per cent, for as long as it lives: the rounds are
    shared out between several models of each kind.
    """
    torch.set_num_threads(threads)
    samples, table = make_data(seed)
    times = {name: Timing([], []) for name in ("vae", *TARGETS)}
    for _ in range(MODELS):
        runs = {name: make_epoch(name, network, samples, table, seed) for name in times}
        for name, found in interleave(runs, rounds, warm_up=2).items():
            times[name].extend(found)
    rows = {name: time.record() | {"ratio": time.ratio_to(times["vae"])} for name, time in times.items()}
    for name, target in TARGETS.items():
        rows[name] |= {"target": target, "met": rows[name]["ratio"] <= target}
    limit = exact_limit(network, samples, times["vae"], MODELS * rounds)
    return {"network": network, "threads": threads, "exact_limit": limit, "inferences": rows}


def exact_limit(network: str, samples: Samples, vae: Timing, rounds: int) -> float:
    """The ratio that exact inference cannot go below: one more pass through the encoder, without a graph."""
    encoder = build_networks(network, samples.shape, LATENTS)[0]
    data = Epoch(samples, Rows({}, len(samples)), BATCH, None, torch.device("cpu"))

    @torch.no_grad()
    def encode() -> None:
        for batch in data:
            encoder(batch.y)

    return 1.0 + interleave({"encode": encode}, rounds)["encode"].seconds / vae.seconds


def show(case: dict[str, Any]) -> None:
    print(f"\n{case['network']} network, {case['threads']} thread(s); limit of exact {case['exact_limit']:.2f}")
    for name, row in case["inferences"].items():
        target = f"{row['target']:.2f} {'met' if row['met'] else 'MISSED'}" if "target" in row else ""
        print(f"  {name:<10} {row['seconds']:7.3f} s   x {row['ratio']:.3f}   {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round per model instead of 6 (wide: 2)")
    parser.add_argument("--threads", type=int, help="default: torch's own number, and one")
    parser.add_argument("--networks", nargs="+", default=["conv", "wide"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    cases = []
    counts = thread_counts(args.threads)
    for network in args.networks:
        rounds = 1 if args.quick else (6 if network == "conv" else 2)
        for threads in counts:
            cases.append(measure(network, threads, rounds, args.seed))
            show(cases[-1])
    setting = {"kernel": KERNEL, "rows": N_ROWS, "image": [SIZE, SIZE], "latents": LATENTS, "batch_size": BATCH}
    print(f"\nwritten to {save('epoch', {'setting': setting, 'cases': cases}, args.seed, started)}")


if __name__ == "__main__":
    main()

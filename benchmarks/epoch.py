"""One epoch of each inference beside one epoch of the plain VAE: same networks, same batches, the real loop.

    python benchmarks/epoch.py [--quick] [--threads 1] [--networks conv wide] [--device cuda]

Writes results/epoch.json; --quick writes into build/quick only.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gppvae  # noqa: F401  # isort: skip  # before PyTorch, so that threads wait as they do for users
import numpy as np
import torch
from _common import INFERENCES, Timing, Training, compared, interleave, save, show_compared, thread_counts

from gppvae.data.arrays import Samples
from gppvae.data.table import Table
from gppvae.nets.build import build_networks

KERNEL = "Learned(digit, 8) * Periodic(angle, 360)"
DIGITS, ANGLES, N_ROWS, SIZE, LATENTS, BATCH = 360, 15, 4050, 28, 16, 128
TARGETS = {"conv": 1.3, "wide": 1.15}  # largest accepted ratio to the plain VAE epoch, of every inference
MODELS = 4  # of each kind, one after the other


def make_training(network: str, seed: int, n_rows: int = N_ROWS, device: str = "cpu") -> Training:
    """Random images in the layout of the rotated digits: 4,050 of 360 digits at 15 angles."""
    generator = np.random.default_rng(seed)
    cells = generator.permutation(DIGITS * ANGLES)[:n_rows]
    samples = Samples(generator.random((n_rows, SIZE, SIZE), dtype=np.float32))
    samples.keep_in_memory()
    table = Table({"digit": cells // ANGLES, "angle": cells % ANGLES * 22.5})
    networks = lambda: build_networks(network, samples.shape, LATENTS)  # noqa: E731
    return Training(samples, table, KERNEL, LATENTS, BATCH, networks, device)


def measure(network: str, threads: int, models: int, rounds: int, seed: int, device: str) -> dict[str, Any]:
    """Times and ratios to the plain VAE of all inferences with one network.

    Where a model happens to lie in memory moves its time by some per cent, for as long as it lives: the rounds are
    shared out between several models of each kind.
    """
    torch.set_num_threads(threads)
    training = make_training(network, seed, device=device)
    times = {name: Timing([], []) for name in ("vae", *INFERENCES, "encoder pass")}
    for _ in range(models):
        runs = {name: training.epochs(name, seed) for name in ("vae", *INFERENCES)}
        for name, found in interleave(runs | {"encoder pass": training.encoder_pass()}, rounds, warm_up=2).items():
            times[name].extend(found)
    return {"network": network, "threads": threads, **compared(times, TARGETS[network])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"one model of each kind instead of {MODELS}, one round")
    parser.add_argument("--threads", type=int, help="default: torch's own number, and one")
    parser.add_argument("--networks", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device", default="cpu", help="cpu, cuda, ...; another one writes results/epoch_<device>.json"
    )
    args = parser.parse_args()
    started = time.perf_counter()
    cases = []
    counts = thread_counts(args.threads)
    for network in args.networks:
        models, rounds = (1, 1) if args.quick else (MODELS, 6 if network == "conv" else 2)
        for threads in counts:
            cases.append(measure(network, threads, models, rounds, args.seed, args.device))
            print(f"\n{network} network, {threads} thread(s)")
            show_compared(cases[-1])
    setting = {"kernel": KERNEL, "rows": N_ROWS, "image": [SIZE, SIZE], "latents": LATENTS, "batch_size": BATCH}
    content = {"setting": setting | {"device": args.device}, "cases": cases}
    name = "epoch" if args.device == "cpu" else f"epoch_{args.device.replace(':', '')}"
    print(f"\nwritten to {save(name, content, args.seed, started, args.quick)}")


if __name__ == "__main__":
    main()

"""Cost of an epoch at the size of the paper's faces: 3,868 images of 128 x 128 x 3, L = 256, M = 64, nine poses.

    python benchmarks/faces.py [--quick] [--threads 1] [--rounds 2]

Whole epochs of every inference through the training loop, in turn with epochs of a plain VAE, on generated heads (a
memory-mapped file). The part of the Gaussian process is measured in the same way with networks that cost nothing, and
peak memory in a process of its own for each inference.

Writes results/faces_cost.json; --quick takes a twentieth of the images and writes into build/quick only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import gppvae  # noqa: F401  # isort: skip  # before PyTorch, so that threads wait as they do for users
import numpy as np
import torch
from _common import (
    INFERENCES,
    Training,
    compared,
    in_fresh_process,
    interleave,
    peak_memory,
    reset_peak,
    save,
    show_compared,
)
from torch import Tensor, nn

from gppvae.data.arrays import Samples
from gppvae.data.subset import Subset
from gppvae.data.table import Table
from gppvae.nets.build import build_networks
from gppvae.paper.faces.heads import heads_table, write_heads
from gppvae.paper.faces.recipes import KERNEL, LATENT_DIM

N_PEOPLE, N_ROWS, SIZE, BATCH = 542, 3868, 128, 32
QUICK_PEOPLE, QUICK_ROWS = 27, 192  # also for peak memory: but for 24 bytes each, it does not depend on the rows
TARGET = 1.1  # largest accepted ratio to the plain VAE epoch, of every inference
MOST_MEMORY, MOST_SHARE = 200 * 2**20, 0.02
BARE_ROUNDS = 5


def heads_file(people: int) -> Path:
    """The generated heads, rendered once into the folder for temporary files."""
    path = Path(tempfile.gettempdir()) / f"gppvae-heads-{people}-{SIZE}.npy"
    if not path.exists():
        write_heads(path, people, seed=0, size=SIZE)
    return path


def make_training(people: int, rows: int, seed: int, bare: bool) -> Training:
    """Some of the heads, read from their file batch by batch.

    Args:
        bare: with networks that cost nothing on images of 4 x 4, so that what is left is the Gaussian process.
    """
    kept = np.sort(np.random.default_rng(seed).permutation(9 * people)[:rows])
    table = Table(heads_table(people).iloc[kept].rename(columns={"person": "object"}))
    if bare:
        small = Samples(torch.rand(rows, 3, 4, 4))
        return Training(
            small, table, KERNEL, LATENT_DIM, BATCH, lambda: (NoEncoder(LATENT_DIM), NoDecoder(small.shape))
        )
    samples = Samples(Subset(np.load(heads_file(people), mmap_mode="r"), kept), channels="last")
    return Training(
        samples, table, KERNEL, LATENT_DIM, BATCH, lambda: build_networks("faces", samples.shape, LATENT_DIM)
    )


class NoEncoder(nn.Module):
    """Latents from the mean of an image: an encoder that costs nothing."""

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(latent_dim))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean = y.mean((1, 2, 3))[:, None] * self.scale
        return mean, torch.zeros_like(mean) - 3.0


class NoDecoder(nn.Module):
    """An image of one colour: a decoder that costs nothing."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.scale = shape, nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor) -> Tensor:
        return (self.scale * z.mean(1))[:, None, None, None].expand(-1, *self.shape)


def peak_of(name: str, seed: int) -> None:
    """In a process of its own: print the bytes of resident memory at the peak of an epoch."""
    next_epoch = make_training(QUICK_PEOPLE, QUICK_ROWS, seed, bare=False).epochs(name, seed)
    reset_peak()
    next_epoch()
    print(json.dumps(peak_memory()))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Time, share of the Gaussian process and peak memory of all inferences."""
    people, rows = (QUICK_PEOPLE, QUICK_ROWS) if args.quick else (N_PEOPLE, N_ROWS)
    heads_file(people), heads_file(QUICK_PEOPLE)
    names = ("vae", *INFERENCES)
    common = ["--threads", str(args.threads), "--seed", str(args.seed)]
    peaks = {name: in_fresh_process(__file__, "--memory-of", name, *common) for name in names}
    bare = make_training(people, rows, args.seed, bare=True)
    alone = interleave({name: bare.epochs(name, args.seed) for name in names}, BARE_ROUNDS)
    whole = make_training(people, rows, args.seed, bare=False)
    # The first to run reads the file from disk; the others find it in memory.
    runs = {"encoder pass": whole.encoder_pass()} | {name: whole.epochs(name, args.seed) for name in names}
    times = interleave(runs, args.rounds, warm_up=0)
    found = compared(times, TARGET)
    for name, row in found["inferences"].items():
        share = (alone[name].seconds - alone["vae"].seconds) / row["seconds"]
        more = peaks[name] - peaks["vae"]
        row |= {"gp_share": share, "peak_memory": peaks[name], "memory_beyond_vae": more}
        row |= {"share_met": share <= MOST_SHARE, "memory_met": more <= MOST_MEMORY}
    return {"rows": rows, "people": people, **found}


def show(content: dict[str, Any]) -> None:
    print(f"{content['rows']} images of {SIZE} x {SIZE} x 3")
    show_compared(content)
    for name in INFERENCES:
        row = content["inferences"][name]
        print(f"  {name:<10} GP {row['gp_share']:.1%} of the epoch, {row['memory_beyond_vae'] / 1e6:+.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} images instead of {N_ROWS}, one round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="epochs of each inference, 2 unless told otherwise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-of", choices=("vae", *INFERENCES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 2)
    torch.set_num_threads(args.threads)
    if args.memory_of:
        peak_of(args.memory_of, args.seed)
        return
    started = time.perf_counter()
    content = measure(args)
    show(content)
    setting = {"kernel": KERNEL, "latents": LATENT_DIM, "image": [SIZE, SIZE, 3], "batch_size": BATCH}
    setting |= {"threads": args.threads, "rounds": args.rounds}
    print(f"written to {save('faces_cost', {'setting': setting, **content}, args.seed, started, args.quick)}")


if __name__ == "__main__":
    main()

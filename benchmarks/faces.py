"""Cost of an epoch at the size of the paper's faces: 3,868 images of 128 x 128 x 3, L = 256, M = 64, nine poses.

    python benchmarks/faces.py [--quick] [--threads 1]

Every inference runs in a process of its own, on the same generated heads (a memory-mapped file), through the training
loop: seconds per epoch, the part of them that goes to the Gaussian process, and peak memory.

Writes results/faces_cost.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import epochs_of, in_fresh_process, peak_memory, save
from torch import Tensor, nn

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.subset import Subset
from gppvae.data.table import Rows, Table
from gppvae.kernels.parse import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.build import build_networks
from gppvae.paper.faces.heads import heads_table, write_heads
from gppvae.paper.faces.recipes import KERNEL, LATENT_DIM
from gppvae.training.phases import Phase, sums_at_once

N_PEOPLE, N_ROWS, QUICK_PEOPLE, QUICK_ROWS, SIZE, BATCH = 542, 3868, 54, 384, 128, 32
INFERENCES = ("vae", "exact", "minibatch")
MOST_MEMORY, MOST_SHARE = 200 * 2**20, 0.02
EPOCHS = 10_000  # of the phase, so that its rates hardly move


def heads_file(people: int) -> Path:
    """The generated heads, rendered once into the folder for temporary files."""
    path = Path(tempfile.gettempdir()) / f"gppvae-heads-{people}-{SIZE}.npy"
    if not path.exists():
        write_heads(path, people, seed=0, size=SIZE)
    return path


def make_run(name: str, people: int, rows: int, seed: int, bare: bool) -> Callable[[], None]:
    """A fresh model under the training loop, its data read from the file batch by batch; runs one epoch per call."""
    kept = np.sort(np.random.default_rng(seed).permutation(9 * people)[:rows])
    torch.manual_seed(seed)
    if bare:
        samples = Samples(torch.rand(rows, 3, 4, 4))
        networks: tuple[nn.Module, nn.Module] = NoEncoder(LATENT_DIM), NoDecoder(samples.shape)
    else:
        samples = Samples(Subset(np.load(heads_file(people), mmap_mode="r"), kept), channels="last")
        networks = build_networks("faces", samples.shape, LATENT_DIM)
    autoencoder = Autoencoder(*networks, Gaussian())
    rates = {"encoder": 1e-3, "decoder": 1e-3}
    model: Autoencoder | GPPriorVAE = autoencoder
    coded = Rows({}, rows)
    if name != "vae":
        table = Table(heads_table(people).iloc[kept].rename(columns={"person": "object"}))
        kernel = parse_kernel(KERNEL)
        kernel.bind(table, torch.Generator().manual_seed(seed))
        coded = kernel.code(table)
        model = GPPriorVAE(autoencoder, kernel, 0.1, LATENT_DIM)
        rates |= {"prior": 1e-3, "noise": 1e-3}
    phase = Phase("timed", name, EPOCHS, rates)
    if isinstance(model, GPPriorVAE):
        model.arrange(coded, *sums_at_once([phase], rows, BATCH))
    data = Epoch(samples, coded, BATCH, None, torch.device("cpu"))
    return epochs_of(model, phase, data, seed)


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


def child(name: str, people: int, rows: int, rounds: int, seed: int, bare: bool) -> dict[str, Any]:
    """Seconds per epoch after the first and peak memory of this process.

    Args:
        name: of the inference.  people: in the file.  rows: trained on.  rounds: epochs timed.
        bare: with networks that cost nothing on images of 4 x 4, so that what is left is the Gaussian process.
    """
    next_epoch = make_run(name, people, rows, seed, bare)
    wall, cpu = [], []
    for number in range(rounds + bare):
        start = time.perf_counter(), time.process_time()
        next_epoch()
        if number >= bare:  # the first epoch of a bare model also pays for what is set up once
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
    return {"seconds": statistics.median(wall), "cpu_seconds": statistics.median(cpu), "peak_memory": peak_memory()}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All inferences, each in two processes: whole, and with networks that cost nothing."""
    people, rows = (QUICK_PEOPLE, QUICK_ROWS) if args.quick else (N_PEOPLE, N_ROWS)
    heads_file(people)
    sizes = ["--people", str(people), "--rows", str(rows), "--threads", str(args.threads), "--seed", str(args.seed)]
    found: dict[str, Any] = {}
    for name in INFERENCES:
        rounds = str(args.rounds)
        whole = in_fresh_process(__file__, "--child", name, "--rounds", rounds, *sizes)
        bare = in_fresh_process(__file__, "--child", name, "--rounds", "5", "--bare", *sizes)
        found[name] = whole | {"bare_cpu_seconds": bare["cpu_seconds"]}
        print(f"{name:10} {whole['seconds']:8.1f} s, {whole['cpu_seconds']:8.1f} s of processor time", flush=True)
    return {"rows": rows, "people": people, "inferences": {name: compared(name, found) for name in INFERENCES}}


def compared(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one inference with what it costs beyond the plain VAE."""
    own, vae = found[name], found["vae"]
    if name == "vae":
        return own
    share = (own["bare_cpu_seconds"] - vae["bare_cpu_seconds"]) / own["cpu_seconds"]
    more = own["peak_memory"] - vae["peak_memory"]
    met = {"memory_met": more <= MOST_MEMORY, "share_met": share <= MOST_SHARE}
    ratio = own["cpu_seconds"] / vae["cpu_seconds"]
    return own | {"ratio": ratio, "gp_share": share, "memory_beyond_vae": more} | met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} images instead of {N_ROWS}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="epochs of each inference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", choices=INFERENCES, help=argparse.SUPPRESS)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--people", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        print(json.dumps(child(args.child, args.people, args.rows, args.rounds, args.seed, args.bare)))
        return
    started = time.perf_counter()
    content = measure(args)
    for name, row in content["inferences"].items():
        if name != "vae":
            more = f"{row['memory_beyond_vae'] / 2**20:.0f} MiB more"
            print(f"{name:10} x {row['ratio']:.2f} of a VAE epoch, GP {row['gp_share']:.1%} of it, {more}")
    setting = {"kernel": KERNEL, "latents": LATENT_DIM, "image": [SIZE, SIZE, 3], "batch_size": BATCH}
    name = "faces_cost_quick" if args.quick else "faces_cost"
    print(f"written to {save(name, {'setting': setting | {'threads': args.threads}, **content}, args.seed, started)}")


if __name__ == "__main__":
    main()

"""Fit, encode, score and predict from a memory map; print how many bytes more of it need than a small part."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from gppvae import GPPVAE
from gppvae.data import arrays


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def work(file: str, table: dict[str, np.ndarray], out: str) -> None:
    samples = np.load(file, mmap_mode="r")[: len(table["object"])]
    model = GPPVAE(
        "Learned(object, 2) * Periodic(angle, 360)", 2, network="mlp", width=4, inference="exact", epochs=1,
        warmup_epochs=1, gp_epochs=0, batch_size=64, device="cpu",
    )  # fmt: skip
    model.fit(samples, table, progress=False)
    model.encode(samples, out=f"{out}/encoded")
    model.predict(table, out=f"{out}/predicted")
    half = max(250, len(samples) // 2)  # latents are refined sample by sample, which takes time
    model.reconstruct(samples[:half], out=f"{out}/reconstructed")
    assert np.isfinite(model.score(samples[:half], {name: values[:half] for name, values in table.items()}))


if __name__ == "__main__":
    file, out = sys.argv[1:3]
    torch.set_num_threads(1)
    arrays.IN_MEMORY_BYTES = 1 << 20
    n = len(np.load(file, mmap_mode="r"))
    table = {"object": np.arange(n) % 7, "angle": np.arange(n) % 5 * 60.0}
    work(file, {name: values[:500] for name, values in table.items()}, f"{out}/first")  # code is loaded on the way
    # What the interpreter takes now and then, whatever the rows, is in all peaks or is not the least or greatest.
    peaks: dict[int, list[int]] = {500: [], n: []}
    for again in range(2):
        for rows, found in peaks.items():
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is held now
            work(file, {name: values[:rows] for name, values in table.items()}, f"{out}/{rows}-{again}")
            found.append(resident("VmHWM"))
    print(json.dumps(min(peaks[n]) - max(peaks[500])))

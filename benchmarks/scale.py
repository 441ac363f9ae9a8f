"""Time and memory against the number of rows, the GP term beside other implementations, one process beside two.

    python benchmarks/scale.py [--quick] [--out .]

Every measurement runs in a process of its own with one thread; data of the training runs are on disk. Writes
results/scale.json and docs/figures/scale.png under --out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from gppvae.training.checkpoint import write_json
from gppvae.training.folder import provenance

matplotlib.use("agg")
import matplotlib.pyplot as plt

WORK = Path(__file__).parent / "_scale.py"
ROOT = Path(__file__).parents[1]
SHAPES = {"digits": {"M": 8, "Q": 16, "L": 16}, "faces": {"M": 64, "Q": 9, "L": 256}}
METHODS = {"ours": "gppvae", "paper": "the paper's coefficients", "gpytorch": "GPyTorch low rank"}
DENSE_BYTES = 1_500_000_000  # the others hold V; beyond this they are not run
TARGETS = {"slope": (0.9, 1.1), "memory_growth": 300e6, "faces_speed_up": 4.0, "two_processes": 1.6}


def measure(kind: str, task: dict[str, Any], processes: int = 1) -> dict[str, Any]:
    """Run one task of _scale.py in fresh processes; the task together with what it found."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (processes > 1)
    command = [sys.executable, *launcher, str(WORK), kind, json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode != 0:
        raise RuntimeError(f"expected {kind} {task} to run, got:\n{done.stderr}")
    found = {key: value for key, value in task.items() if key != "file"} | json.loads(done.stdout.splitlines()[-1])
    print(f"{kind:8}", {k: v for k, v in found.items() if k != "value"}, flush=True)
    return found


def write_samples(path: Path, n: int, side: int) -> Path:
    """Images of noise around a gradient, made and written in parts."""
    draw = np.random.default_rng(0)
    file = path / f"{n}x{side}.npy"
    data = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(n, side, side))
    ramp = np.linspace(0, 200, side * side).reshape(side, side)
    for start in range(0, n, 10_000):
        stop = min(start + 10_000, n)
        data[start:stop] = ramp + draw.integers(0, 50, (stop - start, 1, 1))
    data.flush()
    return file


def training(folder: Path, quick: bool) -> list[dict[str, Any]]:
    sizes = (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000)
    found = []
    for n in sizes:
        file = write_samples(folder, n, 8)
        for inference in ("minibatch", "exact"):
            task = {"N": n, "inference": inference, "network": "mlp", "width": 32, "batch_size": 500, "epochs": 3}
            found.append(measure("train", task | {"file": str(file)}))
        file.unlink()
    return found


def gp_terms(quick: bool) -> list[dict[str, Any]]:
    found = []
    for name, shape in SHAPES.items():
        most = {"digits": 7, "faces": 6}[name] - 2 * quick
        for n in (10**power for power in range(3 if quick else 4, most + 1)):
            for method in METHODS:
                if method != "ours" and 8 * n * shape["M"] * shape["Q"] > DENSE_BYTES:
                    continue
                task = {"N": n, **shape, "method": method, "rounds": 3 if n <= 10**5 else 1}
                found.append({"shape": name} | measure("gp_term", task))
    return found


def strong_scaling(folder: Path, quick: bool) -> list[dict[str, Any]]:
    n = 2_000 if quick else 20_000
    file = write_samples(folder, n, 32)
    found = []
    for inference in ("minibatch", "exact"):
        for processes in (1, 2):
            task = {"N": n, "inference": inference, "network": "conv", "width": 8, "batch_size": 500, "epochs": 4}
            done = measure("train", task | {"file": str(file)}, processes)
            found.append({"processes": processes} | done)
    file.unlink()
    return found


def slope(rows: list[dict[str, Any]]) -> float:
    """Of log seconds against log N."""
    sizes, seconds = ([row[key] for row in rows] for key in ("N", "seconds"))
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def claims(train: list[dict[str, Any]], terms: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the measurements say about the targets."""
    found: dict[str, Any] = {}
    for inference in ("minibatch", "exact"):
        rows = [row for row in train if row["inference"] == inference]
        found[f"{inference}: slope"] = slope(rows)
        found[f"{inference}: memory growth in bytes"] = rows[-1]["peak_bytes"] - rows[0]["peak_bytes"]
        one, two = (row["seconds"] for row in pairs if row["inference"] == inference)
        found[f"{inference}: two processes over one"] = one / two
    for shape in SHAPES:
        mine = [row for row in terms if row["shape"] == shape and row["method"] == "ours"]
        found[f"gp term, {shape}: slope"] = slope(mine)
        for other in ("paper", "gpytorch"):
            theirs = {row["N"]: row for row in terms if row["shape"] == shape and row["method"] == other}
            shared = [(row, theirs[row["N"]]) for row in mine if row["N"] in theirs]
            found[f"gp term, {shape}: speed-up over {other}"] = {
                str(row["N"]): that["seconds"] / row["seconds"] for row, that in shared
            }
            found[f"gp term, {shape}: relative difference to {other}"] = max(
                abs(row["value"] - that["value"]) / abs(row["value"]) for row, that in shared
            )
    return found


def draw(train: list[dict[str, Any]], terms: list[dict[str, Any]], path: Path) -> None:
    """Log-log: seconds of an epoch, peak memory, and the GP term of both shapes."""
    figure, panels = plt.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    for inference in ("minibatch", "exact"):
        rows = [row for row in train if row["inference"] == inference]
        sizes = [row["N"] for row in rows]
        panels[0].loglog(sizes, [row["seconds"] for row in rows], "o-", label=inference)
        panels[1].semilogx(sizes, [row["peak_bytes"] / 2**20 for row in rows], "o-", label=inference)
    panels[0].set(title="training", xlabel="rows N", ylabel="seconds per epoch")
    panels[1].set(title="training, data on disk", xlabel="rows N", ylabel="peak resident memory, MiB", ylim=(0, None))
    for panel, (name, shape) in zip(panels[2:], SHAPES.items(), strict=True):
        for method, label in METHODS.items():
            rows = [row for row in terms if row["shape"] == name and row["method"] == method]
            panel.loglog([row["N"] for row in rows], [row["seconds"] for row in rows], "o-", label=label)
        letters = ", ".join(f"{key} {value}" for key, value in shape.items())
        panel.set(title=f"GP term with gradient ({letters})", xlabel="rows N", ylabel="seconds")
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows, to see that it runs")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder for results/ and docs/figures/")
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train = training(Path(folder), args.quick)
        pairs = strong_scaling(Path(folder), args.quick)
    terms = gp_terms(args.quick)
    found = claims(train, terms, pairs)
    for name, value in found.items():
        print(f"{name}: {value}")
    about = provenance() | {"quick": args.quick, "wall_seconds": round(time.perf_counter() - started, 1)}
    results = args.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    content = {"about": about, "targets": TARGETS, "claims": found, "training": train, "scaling": pairs, "gp": terms}
    write_json(results / "scale.json", content)
    draw(train, terms, args.out / "docs" / "figures" / "scale.png")


if __name__ == "__main__":
    main()

"""Time and memory against the number of rows, the GP term beside other implementations, one process beside two.

    python benchmarks/scale.py [training gp scaling communication] [--quick] [--again]

Every measurement runs in a process of its own with one thread; data of the training runs are on disk. Each is written
to results/scale.json as soon as it is made, and one that is there already is not made again: the script goes on where
it stopped, and parts may be run one by one. At the end docs/figures/scale.png and the tables of docs/scaling.md are
made from all there is. --quick takes a hundredth of the rows and writes into build/quick only.
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

import numpy as np
from _common import BEGAN, QUICK, ROOT
from _scale_page import INFERENCES, METHODS, SCALED, SHAPES, claims, draw, fill_page, tables

from gppvae.training.checkpoint import write_json

WORK = Path(__file__).parent / "_scale.py"
PARTS = ("training", "gp", "scaling", "communication")
KINDS = {"training": "train", "gp": "gp_term", "scaling": "together", "communication": "count"}
DENSE_BYTES = 1_500_000_000  # the others hold V; beyond this they are not run


class Measured:
    """All measurements so far, on disk after each."""

    def __init__(self, path: Path, again: bool) -> None:
        self.path, self.again = path, again
        path.parent.mkdir(parents=True, exist_ok=True)
        self.content: dict[str, Any] = {part: [] for part in PARTS}
        if path.exists():
            self.content |= json.loads(path.read_text())

    def add(self, part: str, task: dict[str, Any], file: Path | None = None, processes: int = 1) -> None:
        """Measure unless it is there."""
        rows = self.content[part]
        old = [row for row in rows if row["task"] == task]
        if old and not self.again:
            print(f"{part:8} {task}: {told(old[0])}, as measured before", flush=True)
            return
        started = time.perf_counter()
        found = measure(KINDS[part], task, file, processes)
        about = {"wall_seconds": round(time.perf_counter() - started, 1), "commit": BEGAN["commit"]}
        self.content[part] = [row for row in rows if row["task"] != task] + [{"task": task} | task | found | about]
        self.save()
        print(f"{part:8} {task}: {told(found)}", flush=True)

    def save(self) -> None:
        write_json(self.path, {part: self.content[part] for part in PARTS} | {"about": BEGAN})

    def finish(self, figure: Path, page: Path | None) -> None:
        """Claims into the file, the figure, and the tables into the page or on the screen."""
        rows = {part: self.content[part] for part in PARTS}
        self.content = rows | {"claims": claims(rows["training"], rows["gp"], rows["scaling"]), "about": BEGAN}
        write_json(self.path, self.content)
        draw(rows["training"], rows["gp"], figure)
        if page is not None:
            fill_page(page, self.content)
        print(tables(self.content))


def told(found: dict[str, Any]) -> str:
    if "messages" in found:
        return f"{found['messages']} messages, {found['bytes']} bytes"
    return f"{found['seconds']:.4g} s, peak {found['peak_bytes'] / 2**20:.0f} MiB"


def measure(kind: str, task: dict[str, Any], file: Path | None, processes: int) -> dict[str, Any]:
    """Run one task of _scale.py in fresh processes."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] * (processes > 1)
    command = [sys.executable, *launcher, str(WORK), kind, json.dumps(task | {"file": str(file)})]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode != 0:
        raise RuntimeError(f"expected {kind} {task} to run, got:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_samples(path: Path, n: int, side: int) -> Path:
    """Images of noise around a gradient, made and written in parts."""
    rng = np.random.default_rng(0)
    file = path / f"{n}x{side}.npy"
    if file.exists():
        return file
    data = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(n, side, side))
    ramp = np.linspace(0, 200, side * side).reshape(side, side)
    for start in range(0, n, 10_000):
        stop = min(start + 10_000, n)
        data[start:stop] = ramp + rng.integers(0, 50, (stop - start, 1, 1))
    data.flush()
    return file


def training(measured: Measured, folder: Path, quick: bool) -> None:
    for n in (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000):
        file = write_samples(folder, n, 8)
        for inference in INFERENCES:
            task = {"N": n, "inference": inference, "network": "mlp", "width": 32, "batch_size": 500, "epochs": 3}
            measured.add("training", task, file)


def gp(measured: Measured, folder: Path, quick: bool) -> None:
    for name, shape in SHAPES.items():
        for n in (10**power for power in ((3, 4) if quick else range(4, 8))):
            for method in METHODS:
                if method != "ours" and 8 * n * shape["M"] * shape["Q"] > DENSE_BYTES:
                    continue
                task = {"shape": name, "N": n, **shape, "method": method, "rounds": 3 if n <= 10**5 else 1}
                measured.add("gp", task)


def scaling(measured: Measured, folder: Path, quick: bool) -> None:
    n, rounds = (2_000, 1) if quick else (20_000, 3)
    file = write_samples(folder, n, 32)
    for inference in SCALED:
        task = {"N": n, "inference": inference, "network": "conv", "width": 8, "batch_size": 500, "epochs": 4}
        measured.add("scaling", task | {"rounds": rounds}, file, processes=2)


def communication(measured: Measured, folder: Path, quick: bool) -> None:
    """The same rows for 1, 2 and 4 processes, and a quarter of them for each process; nothing is timed."""
    n = 2_000 if quick else 20_000
    file = write_samples(folder, n, 32)
    for inference in SCALED:
        for quarters, processes in [(4, 1), (4, 2), (4, 4), (1, 1), (2, 2)]:
            rows, batch = n * quarters // 4, 500 * quarters // 4
            task = {"N": rows, "inference": inference, "network": "conv", "width": 8, "batch_size": batch}
            measured.add("communication", task | {"epochs": 2, "processes": processes}, file, processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="part", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows, to see that it runs")
    parser.add_argument("--again", action="store_true", help="measure these parts anew")
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        parser.error(f"parts are {', '.join(PARTS)}, got {unknown[0]}")
    out = QUICK if args.quick else ROOT
    measured = Measured(out / "results" / "scale.json", args.again)
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts:
            run = {"training": training, "gp": gp, "scaling": scaling, "communication": communication}[part]
            run(measured, Path(folder), args.quick)
    page = None if args.quick else ROOT / "docs" / "scaling.md"
    measured.finish(out / "docs" / "figures" / "scale.png", page)


if __name__ == "__main__":
    main()

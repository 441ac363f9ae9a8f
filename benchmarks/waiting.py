"""How threads wait for each other: one VAE epoch on a quiet machine, and beside a second training on the same cores.

    python benchmarks/waiting.py [--quick]

Every cell is a fresh process, since OpenMP reads its settings once. Writes results/waiting.json; --quick writes
into build/quick only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Any

from _common import ROOT, save
from epoch import make_training

import gppvae

SETTINGS: dict[str, dict[str, str]] = {
    "PyTorch's own": {},
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "gppvae's": gppvae.WAITING,
    "one thread": gppvae.WAITING | {"OMP_NUM_THREADS": "1"},
}
PATIENCE = 300.0  # seconds until a process counts as stuck


def child(epochs: int) -> None:
    """Print the median seconds of a plain VAE epoch, 8 channels."""
    run = make_training("conv", 0).epochs("vae", 0)
    times = []
    for _ in range(epochs + 1):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    print(sorted(times[1:])[epochs // 2])


def epochs_beside_each_other(setting: dict[str, str], processes: int, epochs: int) -> list[float | None]:
    """Seconds per epoch of each of several trainings at once; None for one that did not come to its end."""
    mine = {name: value for name, value in os.environ.items() if name not in {*gppvae.WAITING, "OMP_NUM_THREADS"}}
    environment = mine | {"PYTHONPATH": str(ROOT / "src")} | setting
    command = [sys.executable, "-c", f"import torch, sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); "
               f"import waiting; waiting.child({epochs})"]  # fmt: skip
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    ends = time.monotonic() + PATIENCE
    found: list[float | None] = []
    for process in running:
        try:
            found.append(float(process.communicate(timeout=max(1.0, ends - time.monotonic()))[0]))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found.append(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 epochs instead of 5")
    args = parser.parse_args()
    started, epochs = time.perf_counter(), 2 if args.quick else 5
    cases: list[dict[str, Any]] = []
    for name, setting in SETTINGS.items():
        alone = epochs_beside_each_other(setting, 1, epochs)[0]
        both = epochs_beside_each_other(setting, 2, epochs)
        slowest = None if None in both else max(value for value in both if value is not None)
        cases.append({"waiting": name, "setting": setting, "alone": alone, "beside_another": slowest})
        print({key: cases[-1][key] for key in ("waiting", "alone", "beside_another")}, flush=True)
    facts = {"network": "conv", "epochs": epochs, "patience_seconds": PATIENCE, "cases": cases}
    print(f"\nwritten to {save('waiting', facts, 0, started, args.quick)}")


if __name__ == "__main__":
    main()

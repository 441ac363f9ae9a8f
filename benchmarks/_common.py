"""What every benchmark shares: interleaved timing, peak memory in a fresh process, the result file."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gppvae.data.batches import Epoch, derive_seed
from gppvae.inference.phase import Phase
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.training.checkpoint import write_json
from gppvae.training.folder import provenance
from gppvae.training.loop import PhaseRun, Settings, Trainer
from gppvae.training.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


@dataclass(frozen=True)
class Timing:
    """Times of one candidate, one entry per round.

    Attributes:
        wall: seconds on the clock.  cpu: seconds of processor time, all threads of the process together.
    """

    wall: list[float]
    cpu: list[float]

    @property
    def seconds(self) -> float:
        """Median wall time."""
        return statistics.median(self.wall)

    def extend(self, more: Timing) -> None:
        self.wall.extend(more.wall)
        self.cpu.extend(more.cpu)

    def ratio_to(self, other: Timing) -> float:
        """Median over rounds of the ratio of wall times: what slows a round down slows both."""
        return statistics.median(a / b for a, b in zip(self.wall, other.wall, strict=True))

    def record(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "cpu_seconds": statistics.median(self.cpu),
            "fastest": min(self.wall),
            "slowest": max(self.wall),
            "rounds": len(self.wall),
        }


def interleave(candidates: dict[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Time candidates in turn, A B C A B C ...: what slows the machine down for a while slows all of them.

    Args:
        candidates: what to call, by name.  rounds: timed calls of each.  warm_up: calls before, not timed.
    """
    times: dict[str, Timing] = {name: Timing([], []) for name in candidates}
    for number in range(warm_up + rounds):
        for name, run in candidates.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number >= warm_up:
                times[name].wall.append(wall)
                times[name].cpu.append(cpu)
    return times


def thread_counts(asked: int | None) -> list[int]:
    """The thread counts to measure: the one asked for, else torch's own and one."""
    return [asked] if asked else sorted({torch.get_num_threads(), 1}, reverse=True)


def epochs_of(model: GPPriorVAE | Autoencoder, phase: Phase, data: Epoch, seed: int) -> Callable[[], None]:
    """A model under the training loop; each call runs the next epoch of the phase."""
    trainer = Trainer(model, [phase], data, Settings(seed=seed, progress=False))
    progress = Progress([(phase.name, phase.epochs, data.n_batches)], enabled=False)
    progress.__enter__()
    run = PhaseRun(trainer, 0, progress)
    run.inference.start(data, None)
    count = itertools.count()

    def next_epoch() -> None:
        done = next(count)
        run._epoch(replace(data, seed=derive_seed(seed, 0, done), tick=progress.tick), done)

    return next_epoch


def extra_memory(run: Callable[[], object]) -> float:
    """Bytes of resident memory at the peak of `run` beyond those held before; call it in a fresh process."""
    reset_peak()
    before = _memory("VmRSS")
    run()
    return max(_memory("VmHWM") - before, 0.0)


def reset_peak() -> None:
    """Start the peak again at what is held now (Linux), so that making the inputs is not counted."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """Bytes of resident memory at the peak of this process so far."""
    return _memory("VmHWM")


def _memory(field: str) -> float:
    # Not ru_maxrss: a process starts with the value of the one that started it, however large that was.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) * 1024.0
    raise RuntimeError(f"expected {field} in /proc/self/status, got none; memory is measured on Linux only")


def in_fresh_process(script: str, *arguments: str) -> Any:
    """Run a script with arguments and read the JSON it prints on its last line."""
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"expected {' '.join(arguments)} to run, got:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def save(name: str, content: dict[str, Any], seed: int, started: float) -> Path:
    """Write results/<name>.json with what is needed to judge and repeat it."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    about = provenance() | {"seed": seed, "wall_seconds": round(time.perf_counter() - started, 1)}
    write_json(path, {"about": about, **content})
    return path

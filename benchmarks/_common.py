"""What every benchmark shares: models under the training loop, interleaved timing, peak memory, the result file."""

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
from torch import nn

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.table import Table
from gppvae.inference import find_inference
from gppvae.inference.phase import Budget, Phase
from gppvae.kernels import parse_kernel
from gppvae.likelihoods import Gaussian
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.prior.latent_prior import LatentPrior
from gppvae.training.checkpoint import write_json
from gppvae.training.folder import provenance
from gppvae.training.loop import PhaseRun, Settings, Trainer
from gppvae.training.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
QUICK = ROOT / "build" / "quick"  # where runs go that are to show that a script works
INFERENCES = ("exact", "minibatch", "posterior", "global", "leave_out")
BEGAN = provenance()  # of the code that is measured, whatever is changed while it runs
MANY_EPOCHS = 10_000  # of a phase, so that the learning rate hardly moves while it is timed


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

    def cpu_ratio_to(self, other: Timing) -> float:
        """The same of processor times, which other work on the machine moves less; waiting threads count in it."""
        return statistics.median(a / b for a, b in zip(self.cpu, other.cpu, strict=True))

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


@dataclass(frozen=True)
class Training:
    """Data and kernel on which inferences are timed; "vae" is the plain VAE, whose latents have no kernel.

    Attributes:
        samples, table: the data.  kernel: its text.  n_latents: L.  batch_size: B.
        networks: makes a fresh encoder and decoder.  device: on which all is computed.
    """

    samples: Samples
    table: Table
    kernel: str
    n_latents: int
    batch_size: int
    networks: Callable[[], tuple[nn.Module, nn.Module]]
    device: str = "cpu"

    def epochs(self, inference: str, seed: int) -> Callable[[], None]:
        """A fresh model under the training loop; each call runs the next epoch."""
        torch.manual_seed(seed)
        prior = LatentPrior([(None if inference == "vae" else parse_kernel(self.kernel), self.n_latents)])
        prior.bind(self.table, torch.Generator().manual_seed(seed))
        model = GPPriorVAE(Autoencoder(*self.networks(), Gaussian()), prior).to(self.device)
        data = self._data(prior)
        prior.plan(data.rows, self.batch_size)
        phase = phase_of(inference)
        trainer = Trainer(model, [phase], data, Settings(seed=seed, progress=False))
        progress = Progress([(phase.name, phase.epochs, data.n_batches)], enabled=False)
        progress.__enter__()
        run = PhaseRun(trainer, 0, progress)
        run.inference.start(data, None)
        count = itertools.count()

        def next_epoch() -> None:
            done = next(count)
            run._epoch(replace(data, seed=derive_seed(seed, 0, done), tick=progress.tick), done)
            finish(self.device)

        return next_epoch

    def encoder_pass(self) -> Callable[[], None]:
        """All samples through an encoder, without a graph: what exact inference does beyond a plain VAE epoch."""
        encoder = self.networks()[0].to(self.device)
        data = self._data(LatentPrior([(None, self.n_latents)]).to(self.device))

        @torch.no_grad()
        def encode() -> None:
            for batch in data:
                encoder(batch.y)
            finish(self.device)

        return encode

    def _data(self, prior: LatentPrior) -> Epoch:
        return Epoch(self.samples, prior.code(self.table), self.batch_size, None, torch.device(self.device))


def finish(device: str) -> None:
    """Wait until a device has done what it was given, so that the clock stops after the work."""
    if device != "cpu":
        torch.accelerator.synchronize()


def phase_of(inference: str) -> Phase:
    """The phase in which a fit by this inference trains by it."""
    kind = find_inference(inference)
    return next(
        phase for phase in kind.phases(Budget(epochs=MANY_EPOCHS, warmup_epochs=MANY_EPOCHS)) if phase.kind is kind
    )


def compared(times: dict[str, Timing], most: float) -> dict[str, Any]:
    """Records of all inferences with their ratios to the plain VAE beside the largest that is accepted."""
    vae = times["vae"]
    rows: dict[str, Any] = {"vae": vae.record()}
    for name in INFERENCES:
        ratio, cpu_ratio = times[name].ratio_to(vae), times[name].cpu_ratio_to(vae)
        more = {"ratio": ratio, "cpu_ratio": cpu_ratio, "target": most, "met": ratio <= most}
        rows[name] = times[name].record() | more
    return {"exact_limit": 1.0 + times["encoder pass"].ratio_to(vae), "inferences": rows}


def show_compared(case: dict[str, Any]) -> None:
    """Print what `compared` found."""
    print(f"  {'vae':<10} {case['inferences']['vae']['seconds']:7.3f} s")
    for name in INFERENCES:
        row = case["inferences"][name]
        target = f"at most {row['target']:.2f}: {'met' if row['met'] else 'MISSED'}"
        ratios = f"x {row['ratio']:.3f} (processor x {row['cpu_ratio']:.3f})"
        print(f"  {name:<10} {row['seconds']:7.3f} s   {ratios}   {target}")
    print(f"  a VAE epoch and one more encoder pass, the limit of exact: x {case['exact_limit']:.3f}", flush=True)


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


def save(name: str, content: dict[str, Any], seed: int, started: float, quick: bool) -> Path:
    """Write results/<name>.json with what is needed to judge and repeat it; a quick run goes into build/quick."""
    path = (QUICK / "results" if quick else RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = BEGAN | {"seed": seed, "wall_seconds": round(time.perf_counter() - started, 1)}
    about["cpu_seconds"] = round(time.process_time(), 1)
    write_json(path, {"about": about, **content})
    return path

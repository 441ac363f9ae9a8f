"""Where the time of one training step of the default goes, and what was tried to make it shorter.

    python benchmarks/step.py [--quick] [--cases digits objects ...]

Writes results/step.json; --quick writes into build/quick only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import gppvae  # noqa: F401  # isort: skip  # before PyTorch, so that threads wait as they do for users
import numpy as np
import torch
from _common import Timing, interleave, save
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from gppvae import GPPVAE
from gppvae.data.batches import Batch, Epoch, derive_seed
from gppvae.estimator.plan import plan_fit
from gppvae.likelihoods.scaled import ScaledGaussian
from gppvae.likelihoods.values import masked_sum
from gppvae.models import predict
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.vae import Autoencoder
from gppvae.nets.conv import in_channels_last
from gppvae.nets.members import MemberDecoder
from gppvae.nets.shuffle import Residual, ShuffledConv2d
from gppvae.training.loop import PhaseRun, Settings, Trainer
from gppvae.training.progress import Progress


@dataclass(frozen=True)
class Case:
    """Images and rows that the default is fitted to.

    Attributes:
        shape: of an image.  objects, views: the table has each object at each view.
        kernel: its text, over the columns object and view.  turn: degrees from view to view; None for names of views.
        n_rows: of the table, the first ones; whole batches, so that all steps are alike.
    """

    shape: tuple[int, int, int]
    objects: int
    views: int
    kernel: str
    turn: float | None
    n_rows: int

    def table(self) -> dict[str, np.ndarray]:
        objects, views = np.divmod(np.arange(self.n_rows), self.views)
        return {"object": objects, "view": views if self.turn is None else views * self.turn}


ANGLES, POSES = "Learned(object) * Periodic(view, 360)", "Learned(object) * FreeForm(view)"
CASES = {
    "digits": Case((1, 28, 28), 270, 15, ANGLES, 24.0, 4032),
    "objects": Case((1, 64, 64), 20, 18, ANGLES, 20.0, 352),
    "faces": Case((3, 128, 128), 40, 9, POSES, None, 352),
    "many objects": Case((3, 64, 64), 100, 18, ANGLES, 20.0, 1792),
}
PARTS = ("convolutions", "other layers", "loss", "GP", "optimiser", "rest")
STEP = "part:GP"
OF_LAYERS = ("aten::convolution", "aten::convolution_backward", "aten::linear", "AddmmBackward0")
COMPILED = ("digits",)  # cases whose networks are compiled too, which takes minutes for ensembles
ROWS_AT_ONCE = (32, 64, 128, 256)  # that are decoded for a prediction
KEEP, TRIM, MMAP = 2**31 - 1, -1, -3  # mallopt of glibc: bytes free at the top that are kept, and the two settings


class Steps:
    """The training of a default fit, step by step.

    Args:
        case: what is fitted.  seed: of images, networks and order.

    Attributes:
        run: the phase.  settings: what the fit chose.
    """

    def __init__(self, case: Case, seed: int) -> None:
        estimator = GPPVAE(case.kernel, seed=seed)
        images = np.random.default_rng(seed).random((case.n_rows, *case.shape), dtype=np.float32)
        groups = estimator._checked()
        samples, table, _ = estimator._read(images, case.table(), None, groups)
        plan = plan_fit(estimator, groups, samples, table, np.zeros(0, dtype=np.int64))
        model = estimator._build(plan, samples.shape)
        rows = model.prior.code(table)
        model.prior.plan(rows, plan.batch_size)
        model.autoencoder.likelihood.measure(*samples.moments())
        self.data, self.model, self.seed = estimator._epoch(samples, rows), model, seed
        phase = plan.phases[0]
        progress = Progress([(phase.name, phase.epochs, self.data.n_batches)], enabled=False)
        progress.__enter__()
        self.run = PhaseRun(Trainer(model, [phase], self.data, Settings(seed=seed, progress=False)), 0, progress)
        self.run.inference.start(self.data, None)
        model.train()
        self.settings = {
            "inference": phase.kind.name, "batch_size": plan.batch_size, "latents": model.prior.n_latents,
            "members": plan.networks.members, "ranks": [group.rank for group in model.prior.groups],
            "parameters": sum(p.numel() for p in self.run.parameters), "rows": len(rows), "image": list(case.shape),
            "kernel": case.kernel,
        }  # fmt: skip
        self._going = self._all()

    def __call__(self) -> None:
        """One step."""
        next(self._going)

    def _all(self) -> Iterator[None]:
        for number in itertools.count():
            epoch = replace(self.data, seed=derive_seed(self.seed, number), tick=self.run.progress.tick)
            for terms in self.run.inference.steps(epoch):
                self.run._step(terms, 0.1)
                yield


# -- shares


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Inside the context the profiler sees which part of a step an operation belongs to."""
    places: list[tuple[Any, str, str]] = [
        (Autoencoder, "encode_log", "layers"),
        (Autoencoder, "training_nll", "layers"),
        (ScaledGaussian, "nll", "loss"),
        (ScaledGaussian, "encoder_input", "loss"),
        (Batch, "noise", "rest"),
        (PhaseRun, "_step", "rest"),
        (torch.optim.AdamW, "step", "optimiser"),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, part in places:
            stack.enter_context(mock.patch.object(owner, name, _recorded(getattr(owner, name), part)))
        stack.enter_context(mock.patch.object(Epoch, "__iter__", _read_apart(Epoch.__iter__)))
        yield


def _recorded(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        with record_function(f"part:{part}"):
            return function(*arguments, **options)

    return call


def _read_apart(batches: Callable[[Epoch], Iterator[Batch]]) -> Callable[[Epoch], Iterator[Batch]]:
    def read(epoch: Epoch) -> Iterator[Batch]:
        going = batches(epoch)
        while True:
            with record_function("part:rest"):
                batch = next(going, None)
            if batch is None:
                return
            yield batch

    return read


def shares(step: Callable[[], None], n: int) -> tuple[dict[str, float], float]:
    """Share of each part in the time of a step, backward pass included, and its milliseconds under the profiler.

    Every operation counts with the time spent in itself, the shortest of `n` steps, since other work on the machine can
    only lengthen it. A node of the backward pass belongs to the part of the operation that made it, which the
    profiler's sequence numbers tell; time in Python belongs to the part it is spent in.
    """
    with marked(), profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(n):
            with record_function(STEP):  # what no other part claims is the GP's
                step()
    steps: dict[int, list[Any]] = {}
    for event in sorted(found.events(), key=lambda event: (event.time_range.start, -event.time_range.end)):
        root = list(_above(event))[-1]
        if root.name == STEP:
            steps.setdefault(root.id, []).append(event)
    # The first step of an epoch has operations of its own; all others have the same in the same order.
    usual = statistics.mode(tuple(event.name for event in events) for events in steps.values())
    alike = [events for events in steps.values() if tuple(event.name for event in events) == usual]
    made_by = {}
    for event in alike[0]:
        if event.sequence_nr >= 0 and _node(event) is None:
            made_by[event.sequence_nr] = event  # the last one of a number is the one that made the node
    spent: Counter[str] = Counter()
    for same in zip(*alike, strict=True):
        spent[_part(same[0], made_by)] += min(event.self_cpu_time_total for event in same)
    total = sum(spent.values())
    return {part: spent[part] / total for part in PARTS}, total / 1e3


def _above(event: Any) -> Iterator[Any]:
    """The event and all that it happened in, from the inside."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _node(event: Any) -> Any:
    """The node of the backward pass that an event happened in, if any."""
    return next((above for above in _above(event) if above.name.startswith("autograd::engine::evaluate")), None)


def _part(event: Any, made_by: dict[int, Any]) -> str:
    node = _node(event)
    source = event if node is None else made_by.get(node.sequence_nr)
    if source is None:
        return "rest"  # adding up gradients
    part = next(above.name for above in _above(source) if above.name.startswith("part:")).removeprefix("part:")
    if part == "layers":
        names = [above.name for above in _above(event)]
        return "convolutions" if any(name.endswith(OF_LAYERS) for name in names) else "other layers"
    return str(part)


# -- candidates


def plain_shuffle(self: ShuffledConv2d, maps: Tensor) -> Tensor:
    return nn.functional.pixel_shuffle(nn.functional.conv2d(maps, self.weight, self.bias, padding=1), 2)


def plain_loss(self: ScaledGaussian, y: Tensor, out: Tensor, mask: Tensor | None = None) -> Tensor:
    error = (y - self.shift) / self.spread - self.gain * out
    constant = (2.0 * math.pi * self.var * self.spread.square()).log()
    return 0.5 * masked_sum(error.square() / self.var + constant, mask)


@contextlib.contextmanager
def former() -> Iterator[None]:
    """The step as it was: torch's pixel shuffle, and the loss written out."""
    with (
        mock.patch.object(ShuffledConv2d, "forward", plain_shuffle),
        mock.patch.object(ScaledGaussian, "nll", plain_loss),
    ):
        yield


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Freed memory stays with the process, so that the next step need not ask for it again (glibc)."""
    libc = ctypes.CDLL(None)
    libc.mallopt(MMAP, 2**25)
    libc.mallopt(TRIM, KEEP)
    yield
    libc.mallopt(TRIM, 2**26)  # what glibc has after arrays of 32 MB were freed


@contextlib.contextmanager
def channels_last_everywhere() -> Iterator[None]:
    """Images are channels-last from the batch on."""
    original = Epoch.__iter__

    def placed(epoch: Epoch) -> Iterator[Batch]:
        return (replace(batch, y=in_channels_last(batch.y)) for batch in original(epoch))

    with mock.patch.object(Epoch, "__iter__", placed):
        yield


def wrapped_layers(model: GPPriorVAE, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """A context in which the forward pass of every network of a model is wrapped."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for network, forward in forwards:
                stack.enter_context(mock.patch.object(network, "forward", forward))
            yield

    halves = (model.autoencoder.encoder, model.autoencoder.decoder)
    networks = [own for half in halves for own in getattr(half, "members", [half])]
    forwards = [(network, wrap(network.forward)) for network in networks]
    return context


def in_bfloat16(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            out = forward(*inputs)
        return tuple(part.float() for part in out) if isinstance(out, tuple) else out.float()

    return call


def grouped(self: MemberDecoder, z: Tensor) -> list[Tensor]:
    """The outputs of all members, by convolutions with a group of channels for each."""
    shares = z[:, self.order].split(self.counts, dim=1)
    members: list[Any] = list(self.members)
    dense = [own.dense(part).unflatten(1, own.grid) for own, part in zip(members, shares, strict=True)]
    maps = side_by_side([own.convolutions for own in members], in_channels_last(torch.cat(dense, dim=1)))
    height, width = members[0].shape[1:]
    return list(maps[:, :, :height, :width].chunk(len(members), dim=1))


def side_by_side(layers: list[Any], maps: Tensor) -> Tensor:
    """The same layer of all members, on maps whose channels lie side by side."""
    first = layers[0]
    if isinstance(first, Residual):
        return maps + side_by_side([own.layers for own in layers], maps)
    if isinstance(first, nn.Sequential):
        for same in zip(*layers, strict=True):
            maps = side_by_side(list(same), maps)
        return maps
    if not isinstance(first, nn.Conv2d):
        return first(maps)
    weight, bias = torch.cat([own.weight for own in layers]), torch.cat([own.bias for own in layers])
    found = nn.functional.conv2d(maps, weight, bias, padding=1, groups=len(layers))
    return nn.functional.pixel_shuffle(found, 2) if isinstance(first, ShuffledConv2d) else found


def candidates(model: GPPriorVAE, compiles: bool) -> dict[str, Callable[[], Any]]:
    """Contexts to run a step in, by name."""
    found: dict[str, Callable[[], Any]] = {
        "as it is": contextlib.nullcontext,
        "former": former,
        "plain shuffle": lambda: mock.patch.object(ShuffledConv2d, "forward", plain_shuffle),
        "plain loss": lambda: mock.patch.object(ScaledGaussian, "nll", plain_loss),
        "memory kept": memory_kept,
        "channels last everywhere": channels_last_everywhere,
        "bfloat16": wrapped_layers(model, in_bfloat16),
    }
    if isinstance(model.autoencoder.decoder, MemberDecoder):
        found["grouped convolutions"] = lambda: mock.patch.object(MemberDecoder, "each", grouped)
    if compiles:
        found["compiled"] = wrapped_layers(model, torch.compile)
    return found


def compare(steps: Steps, rounds: int, compiles: bool) -> dict[str, Timing]:
    """Processor and wall time of a step in each context, in turn; the first step in a context is not timed."""
    contexts = candidates(steps.model, compiles)
    times = {name: Timing([], []) for name in contexts}
    for number in range(rounds + 1):
        for name, context in contexts.items():
            with context():
                steps()
                wall, cpu = time.perf_counter(), time.process_time()
                steps()
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number:
                times[name].extend(Timing([wall], [cpu]))
    return times


def prediction(steps: Steps, rounds: int) -> dict[str, Timing]:
    """Predictions at some rows, of which so many are decoded at a time."""
    model, rows = steps.model.eval(), steps.data.rows[: predict.PREDICT_ROWS]
    weights = model.prior.before_data()

    def predicted(at_once: int) -> Callable[[], None]:
        @torch.no_grad()
        def run() -> None:
            with mock.patch.object(predict, "DECODE_ROWS", at_once):
                for chunk in predict.row_chunks(rows):
                    predict.decode_mean(model, weights, chunk)

        return run

    found = interleave({str(size): predicted(size) for size in ROWS_AT_ONCE}, rounds)
    model.train()
    return found


def ratios(times: dict[str, Timing], base: str) -> dict[str, dict[str, Any]]:
    """Records of all candidates with their ratios to `base`."""
    own = times[base]
    return {
        name: timing.record() | {"ratio": timing.ratio_to(own), "cpu_ratio": timing.cpu_ratio_to(own)}
        for name, timing in times.items()
    }


def measure(case: Case, seed: int, rounds: int, profiled: int, compiles: bool) -> dict[str, Any]:
    """Shares as it is and as it was, ratios of all candidates, and predictions."""
    steps = Steps(case, seed)
    tried = compare(steps, rounds, compiles)
    found: dict[str, Any] = {"settings": steps.settings, "candidates": ratios(tried, "as it is")}
    steps()
    found["shares"], found["profiled_ms"] = shares(steps, profiled)
    with former():
        steps()
        found["former_shares"], found["former_profiled_ms"] = shares(steps, profiled)
    found["prediction"] = ratios(prediction(steps, max(rounds // 2, 1)), str(predict.DECODE_ROWS))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, two profiled steps, nothing compiled")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    torch.set_num_threads(1)
    cases = {}
    for name in args.cases:
        rounds, profiled = (1, 2) if args.quick else (5, 20)
        cases[name] = found = measure(CASES[name], args.seed, rounds, profiled, name in COMPILED and not args.quick)
        print(f"\n{name}: {found['candidates']['as it is']['cpu_seconds'] * 1e3:.0f} ms of processor time per step")
        for title in ("shares", "former_shares"):
            print(f"  {title:<14} " + ", ".join(f"{part} {share:.1%}" for part, share in found[title].items()))
        for kind in ("candidates", "prediction"):
            for label, row in found[kind].items():
                print(f"  {label:<24} x {row['ratio']:.3f} (processor x {row['cpu_ratio']:.3f})", flush=True)
    content = {"setting": {"threads": 1}, "cases": cases}
    print(f"\nwritten to {save('step', content, args.seed, started, args.quick)}")


if __name__ == "__main__":
    main()

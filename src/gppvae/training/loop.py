"""THE loop: every phase of every model goes through here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.data.batches import Epoch, derive_seed
from gppvae.inference import Inference, LossTerms
from gppvae.inference.phase import Phase
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.average import RunningAverage
from gppvae.training.checkpoint import under, with_prefix
from gppvae.training.folder import RunFolder
from gppvae.training.phases import make_inference, optimizer_groups, parameter_groups
from gppvae.training.progress import Progress

MAX_BAD_STEPS = 10
Validate = Callable[[Inference, Epoch], dict[str, float]]


class TrainingError(RuntimeError):
    """Training stopped; the message says which term failed and where the last good state is."""


@dataclass(frozen=True)
class Settings:
    """How the loop runs, whatever the phases are.

    Attributes:
        seed: of order and noise.  patience: validations without improvement before a phase stops (None: never).
        validate_every: epochs between validations.  checkpoint_seconds: least time between checkpoints.
        progress: show progress.
    """

    seed: int = 0
    patience: int | None = None
    validate_every: int = 1
    checkpoint_seconds: float = 30.0
    progress: bool = True


class Trainer:
    """Runs phases in order over one data set, continuing from a checkpoint when the folder has one.

    Args:
        model: the model.  phases: what to do.  data: all training rows, in their own order.
        settings: see Settings.  folder: where to leave checkpoints and metrics, or None.
        validate: called with the current inference; the first value it returns is the one to lower.
    """

    def __init__(
        self,
        model: GPPriorVAE,
        phases: list[Phase],
        data: Epoch,
        settings: Settings,
        folder: RunFolder | None = None,
        validate: Validate | None = None,
    ) -> None:
        self.model, self.phases, self.data, self.settings = model, phases, data, settings
        self.folder, self.validate = folder, validate
        self.world = data.world
        self.history: list[dict[str, Any]] = []
        self.weights: LatentPosterior | None = None
        self.skipped_steps = 0
        self._seconds_before = 0.0
        self._started = time.monotonic()
        self._saved = time.monotonic()

    def run(self, resume: bool = False) -> None:
        """Train to the end; with `resume`, from the folder's checkpoint."""
        tensors, meta = self.folder.load_checkpoint() if resume and self.folder else ({}, {})
        first = int(meta.get("phase", 0))
        if resume and self.folder:
            self.history = self.folder.keep_metrics(int(meta["metrics"]))
            self._seconds_before, self.skipped_steps = float(meta["seconds"]), int(meta["skipped"])
            self.model.load_state_dict(under("model", tensors))
            carried = under("carried", tensors)
            self.weights = LatentPosterior.from_tensors(carried) if carried else None
        elif self.folder:
            self.folder.keep_metrics(0)
        bars = [(p.name, p.epochs, self.data.n_batches * p.kind.sweeps) for p in self.phases]
        with Progress(bars, self.settings.progress and self.world.first) as progress:
            for number in range(first, len(self.phases)):
                state = (tensors, meta) if number == first and tensors else None
                PhaseRun(self, number, progress).run(state)

    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def log(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        if self.folder:
            self.folder.add_metrics(row)

    def checkpoint(self, phase: int, epoch: int, state: dict[str, Tensor], best: float, stale: int, due: bool) -> None:
        """Save when due, or when enough time has passed."""
        waited = time.monotonic() - self._saved >= self.settings.checkpoint_seconds
        if not self.folder or not (due or waited):
            return
        tensors = with_prefix("model", self.model.state_dict()) | state
        if self.weights is not None:
            tensors |= with_prefix("carried", self.weights.tensors())
        meta = {"phase": phase, "epoch": epoch, "best": best, "stale": stale, "metrics": len(self.history)}
        self.folder.save_checkpoint(tensors, meta | {"seconds": self.seconds(), "skipped": self.skipped_steps})
        self._saved = time.monotonic()


class PhaseRun:
    """One phase under way: its inference, optimiser, average and best state."""

    def __init__(self, trainer: Trainer, number: int, progress: Progress) -> None:
        self.trainer, self.number, self.progress = trainer, number, progress
        self.phase = trainer.phases[number]
        model, seed = trainer.model, derive_seed(trainer.settings.seed, number)
        self.inference = make_inference(self.phase, model, seed).to(model.prior.device)
        groups = parameter_groups(model, self.inference)
        self.trained = {name: groups[name] for name in self.phase.lr if groups[name]}
        for name, parameters in groups.items():
            for parameter in parameters:
                parameter.requires_grad_(name in self.trained)
        self.restore_grad = [p for parameters in groups.values() for p in parameters]
        self.parameters = [p for parameters in self.trained.values() for p in parameters]
        networks = [model.autoencoder.encoder, model.autoencoder.decoder]
        options = optimizer_groups(self.phase, self.trained, networks)
        self.optimizer = torch.optim.AdamW(options, lr=1.0, fused=True)  # Adam where there is no decay
        self.average = RunningAverage(self.parameters, self.phase.average) if self.phase.average else None
        self.best, self.stale = math.inf, 0
        self.best_state: dict[str, Tensor] = {}
        self.bad_in_a_row = 0

    def run(self, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        trainer, phase = self.trainer, self.phase
        first = self._load(*saved) if saved else 0
        # All start from the same numbers even where machines draw or restore them differently.
        trainer.world.broadcast_([*trainer.model.state_dict().values(), *self.inference.state_dict().values()])
        self.progress.phase(self.number, first)
        self.inference.start(replace(trainer.data, seed=None), trainer.weights)
        done = first
        while done < phase.epochs and not self._out_of_patience():
            seed = derive_seed(trainer.settings.seed, self.number, done)
            self._epoch(replace(trainer.data, seed=seed, tick=self.progress.tick), done)
            done += 1
            trainer.checkpoint(self.number, done, self._state(), self.best, self.stale, due=False)
        self._finish()

    def _epoch(self, epoch: Epoch, done: int) -> None:
        """Step through one epoch and log its mean terms per sample."""
        sums: dict[str, Tensor] = {}
        seen = 0
        self.trainer.model.train()  # for layers such as dropout; everywhere else the model is in evaluation mode
        try:
            for terms in self.inference.steps(epoch):
                progress = (done + seen / epoch.n_rows) / self.phase.epochs
                values = self._step(terms, progress)
                seen += terms.n
                for name, value in values.items():
                    sums[name] = sums[name] + value if name in sums else value
        except torch.linalg.LinAlgError as error:
            raise TrainingError(self._stop_message(f"a Cholesky factor failed ({error})")) from None
        self.trainer.model.eval()
        row = {"phase": self.phase.name, "epoch": done + 1, "seconds": round(self.trainer.seconds(), 3)}
        logged = {name: float(value) / max(seen, 1) for name, value in sums.items()}
        logged["loss"] = sum(logged.values())
        shown = {"loss": logged["loss"]}
        if self.trainer.validate and ((done + 1) % self.trainer.settings.validate_every == 0):
            validated = self._validate()
            logged |= validated
            shown |= validated
        self.trainer.log(row | logged)
        self.progress.epoch(done + 1, shown)

    def _step(self, terms: LossTerms, progress: float) -> dict[str, Tensor]:
        """Step what does not wait; the values of the terms, of all processes."""
        rate = self.phase.rate(progress)
        for group in self.optimizer.param_groups:
            # Rates are per batch: a step of the prior that stands for several is as many times as long.
            group["lr"] = group["base"] * rate * (terms.gathered if group["prior"] else 1)
        if all(p.grad is None for p in self.parameters):
            raise TrainingError(
                f"phase {self.phase.name!r} trains {', '.join(self.trained)}, but {self.phase.kind.name} gave none of "
                "them a gradient; correct the lr of the phase, or call backward() before you yield"
            )
        waiting = [p for name in terms.waiting for p in self.trained.get(name, [])]
        held = [p.grad for p in waiting]
        for parameter in waiting:
            parameter.grad = None  # the optimiser passes over it
        values = terms.named()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.trainer.world.sum_([*gradients, *values.values()])
        # The sum of a tensor is finite only if all its entries are: one number to look at per tensor.
        sums = [gradient.sum() for gradient in gradients]
        if all(math.isfinite(float(value)) for value in (*values.values(), *sums)):
            self.optimizer.step()
            self.bad_in_a_row = 0
            if self.average:
                self.average.update()
        else:
            self._count_bad(values)
        self.optimizer.zero_grad()
        for parameter, gradient in zip(waiting, held, strict=True):
            parameter.grad = gradient
        return values

    def _count_bad(self, values: dict[str, Tensor]) -> None:
        self.trainer.skipped_steps += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= MAX_BAD_STEPS:
            bad = [name for name, value in values.items() if not torch.isfinite(value)]
            what = f"{', '.join(bad)} was not finite" if bad else "the gradient was not finite"
            raise TrainingError(self._stop_message(f"{what} in {MAX_BAD_STEPS} steps in a row"))

    def _stop_message(self, what: str) -> str:
        where = f"the last good state is in {self.trainer.folder.path}" if self.trainer.folder else "no state was saved"
        return (
            f"training stopped in phase {self.phase.name!r} because {what}; {where}; "
            "try a lower learning rate or a larger pixel_var"
        )

    def _validate(self) -> dict[str, float]:
        assert self.trainer.validate is not None
        if self.average:
            self.average.swap()
        values = self.trainer.validate(self.inference, replace(self.trainer.data, seed=None))
        criterion = next(iter(values.values()), None)
        if criterion is not None and self.trainer.settings.patience is not None:
            if criterion < self.best:
                self.best, self.stale = criterion, 0
                self.best_state = {name: tensor.clone() for name, tensor in self._learned().items()}
            else:
                self.stale += 1
        if self.average:
            self.average.swap()
        return values

    def _out_of_patience(self) -> bool:
        patience = self.trainer.settings.patience
        return patience is not None and self.stale > patience

    def _finish(self) -> None:
        """Load the averaged or best parameters, condition q(B), and save."""
        if self.average:
            self.average.swap()
        if self.best_state:
            self.trainer.model.load_state_dict(under("model", self.best_state))
            self.inference.load_state_dict(under("inference", self.best_state))
        weights = self.inference.weights(replace(self.trainer.data, seed=None))
        self.trainer.weights = weights if weights is not None else self.trainer.weights
        for parameter in self.restore_grad:
            parameter.requires_grad_(True)
        self.trainer.checkpoint(self.number + 1, 0, {}, math.inf, 0, due=True)

    def _learned(self) -> dict[str, Tensor]:
        model, inference = self.trainer.model.state_dict(), self.inference.state_dict()
        return with_prefix("model", model) | with_prefix("inference", inference)

    def _state(self) -> dict[str, Tensor]:
        state = with_prefix("inference", self.inference.state_dict())
        for number, entries in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{number}.{name}": value for name, value in entries.items()}
        if self.average:
            state |= with_prefix("average", self.average.state())
        return state | with_prefix("best", self.best_state)

    def _load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> int:
        """Put back what a checkpoint holds of this phase; the number of epochs already done."""
        if int(meta["epoch"]) == 0:
            return 0
        for name, value in under("inference", tensors).items():
            _assign(self.inference, name, value)
        entries: dict[int, dict[str, Tensor]] = {}
        for name, value in under("optimizer", tensors).items():
            number, key = name.split(".", 1)
            entries.setdefault(int(number), {})[key] = value
        self.optimizer.load_state_dict({"state": entries, "param_groups": self.optimizer.state_dict()["param_groups"]})
        for parameter, state in self.optimizer.state.items():
            for name in state.keys() - {"step"}:
                # The fused step goes through memory in order: moments must lie in it as their parameter does.
                state[name] = torch.empty_like(parameter).copy_(state[name])
        if self.average:
            self.average.load(under("average", tensors))
        self.best_state = under("best", tensors)
        self.best, self.stale = float(meta["best"]), int(meta["stale"])
        return int(meta["epoch"])


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Set a parameter's values or a buffer, whose shape may differ from the fresh one."""
    *path, last = name.split(".")
    owner = module.get_submodule(".".join(path))
    current = getattr(owner, last)
    if isinstance(current, nn.Parameter):
        with torch.no_grad():
            current.copy_(value)
    else:
        setattr(owner, last, value.to(current.device))

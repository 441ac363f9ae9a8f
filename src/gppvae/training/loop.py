"""The training loop: every phase of every model runs here."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gppvae.data.batches import Epoch, derive_seed
from gppvae.data.header import checked_content
from gppvae.inference import Inference, LossTerms
from gppvae.inference.phase import Phase
from gppvae.models.gppvae import GPPriorVAE
from gppvae.prior.posterior import LatentPosterior
from gppvae.training.average import RunningAverage
from gppvae.training.callbacks import Callback
from gppvae.training.checkpoint import check_finite, under, with_prefix
from gppvae.training.folder import CHECKPOINT, RunFolder
from gppvae.training.phases import make_inference, optimizer_groups, parameter_groups
from gppvae.training.progress import Progress
from gppvae.training.resuming import assign, check_numbers, load_optimizer, optimizer_tensors
from gppvae.training.steps import Steps
from gppvae.training.validated import BestEpoch, Validated

Validate = Callable[[Inference, Epoch], Validated]
# Predictions at a few training rows, given q(B); None where the model cannot predict yet.
Answers = Callable[[LatentPosterior | None], Iterable[Tensor] | None]
# Measures the model with this q(B) at held-out rows; JSON values.
Measure = Callable[[LatentPosterior], dict[str, Any]]

log = logging.getLogger("gppvae")


class TrainingError(RuntimeError):
    """Training failed; the message says which term failed and where the last good state is."""


@dataclass(frozen=True)
class Settings:
    """How the loop runs, whatever the phases are.

    Attributes:
        seed: of order and noise.  patience: validations without improvement before a phase stops (None: never).
        tolerance: relative margin above the best error that still counts as improvement; if it is not zero, a phase
            that runs to its end keeps its last parameters, not those of the best error.
        validate_every: epochs between validations.  checkpoint_seconds: minimum time between checkpoints.
        progress: show progress.
    """

    seed: int = 0
    patience: int | None = None
    tolerance: float = 0.0
    validate_every: int = 1
    checkpoint_seconds: float = 30.0
    progress: bool = True


class Seconds(NamedTuple):
    """Wall time, and processor time of all threads of this process."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.monotonic(), time.process_time())

    def __add__(self, other: tuple[Any, ...]) -> Seconds:
        return Seconds(self.wall + other[0], self.cpu + other[1])

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


class Trainer:
    """Runs phases in order over one data set, resuming from a checkpoint if the folder has one.

    Args:
        model: the model.  phases: to run.  data: all training rows, in their own order.
        settings: see Settings.  folder: for checkpoints and metrics, or None.
        validate: called with the current inference; see Validated.
        answers: predictions at a few training rows; a phase whose answers are not finite fails.
        callback: called after every epoch.
        kept: the training rows without those held out, for phases that leave them out.
        measure: called at the end of such a phase.

    Attributes:
        weights: q(B) of the last phase that ended with one.  history: metrics of every epoch.
        measured: what `measure` returned.
        best_epoch: of the last phase with rows held out; 0 is its start, None where no epoch was the best.
        skipped_steps: steps whose gradient was not finite.
    """

    def __init__(
        self,
        model: GPPriorVAE,
        phases: list[Phase],
        data: Epoch,
        settings: Settings,
        folder: RunFolder | None = None,
        validate: Validate | None = None,
        answers: Answers | None = None,
        callback: Callback | None = None,
        kept: Epoch | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.model, self.phases, self.settings, self.folder = model, phases, settings, folder
        self.data, self.kept, self.world = data, kept, data.world
        self.validate, self.answers, self.callback, self.measure = validate, answers, callback, measure
        self.history: list[dict[str, Any]] = []
        self.weights: LatentPosterior | None = None
        self.measured: dict[str, Any] | None = None
        self.best_epoch: int | None = None
        self.skipped_steps = 0
        self._before_stop = Seconds(0.0, 0.0)  # in earlier processes of this run
        self._started = Seconds.now()
        self._saved = time.monotonic()
        self._last: tuple[dict[str, Tensor], dict[str, Any]] | None = None  # not yet written
        self._phase: PhaseRun
        self._before: tuple[dict[str, Tensor], LatentPosterior | None]  # the phase: tensors of the model, and q(B)

    def run(self, resume: bool = False) -> None:
        """Train to the end; with `resume`, from the folder's checkpoint.

        Whatever ends the training early (Ctrl-C too), the state after the last full epoch is written first.
        """
        beginning = self._state_dict() if any(phase.restart for phase in self.phases) else {}
        tensors, meta = self._resumed() if resume and self.folder else ({}, {})
        if self.folder and not resume:
            self.folder.keep_metrics(0)
        first = int(meta.get("phase", 0))
        bars = [(p.name, p.epochs, self.rows_of(p).n_batches * p.kind.sweeps) for p in self.phases]
        with Progress(bars, self.settings.progress and self.world.first) as progress:
            for number in range(first, len(self.phases)):
                saved = (tensors, meta) if number == first and tensors else None
                in_the_middle = saved is not None and meta["epoch"] > 0
                if self.phases[number].restart and not in_the_middle:
                    self.model.load_state_dict(beginning)
                    self.weights = None
                self._before = self._state_dict(), self.weights
                self._phase = PhaseRun(self, number, progress)
                try:
                    self._phase.run(saved)
                except BaseException:
                    with contextlib.suppress(OSError):  # the error that ended the training is the useful one
                        self._write(self._last)
                    raise
        if self.skipped_steps and self.world.first:
            log.warning("%d steps were skipped because a gradient was not finite", self.skipped_steps)

    def rows_of(self, phase: Phase) -> Epoch:
        """The rows that a phase trains on, in their own order."""
        return self.kept if phase.held_out and self.kept is not None else self.data

    def _resumed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        assert self.folder is not None
        tensors, meta = self.folder.load_checkpoint()
        with checked_content(self.folder.path / CHECKPOINT):
            check_numbers(meta, len(self.phases))
            own = self.model.state_dict()
            check_finite(tensors, with_prefix("model", own) | with_prefix("best.model", own))
            self.history = self.folder.keep_metrics(meta["metrics"])
            self._before_stop, self.skipped_steps = Seconds(meta["seconds"], meta["cpu_seconds"]), meta["skipped"]
            self.model.load_state_dict(under("model", tensors))
            self.measured, self.best_epoch = meta["measured"], meta["best_epoch"]
            carried = {name: value.to(self.model.prior.device) for name, value in under("carried", tensors).items()}
            self.weights = LatentPosterior.from_tensors(carried) if carried else None
        return tensors, meta

    def seconds(self) -> float:
        """Wall time of the training so far."""
        return self.times().wall

    def times(self) -> Seconds:
        """Wall time and processor time of the training so far, interrupted runs included."""
        return self._before_stop + (Seconds.now() - self._started)

    def log(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        if self.folder:
            self.folder.add_metrics(row)
        if self.callback:
            metrics = {name: float(value) for name, value in row.items() if name not in ("phase", "epoch")}
            self.callback.on_epoch(row["phase"], len(self.history), metrics)

    def checkpoint(self, state: dict[str, Tensor], meta: dict[str, Any], due: bool) -> None:
        """Keep this state as the last good one, and write it when due or when enough time has passed.

        Args:
            state: of the phase, beside the model's.  meta: phase and epoch to resume at, and other numbers of it.
        """
        if not self.folder:
            return
        tensors = with_prefix("model", self._state_dict()) | {name: value.clone() for name, value in state.items()}
        if self.weights is not None:
            tensors |= with_prefix("carried", self.weights.tensors())
        times = self.times()
        self._last = (
            tensors,
            meta
            | {
                "metrics": len(self.history),
                "skipped": self.skipped_steps,
                "measured": self.measured,
                "best_epoch": self.best_epoch,
                "seconds": times.wall,
                "cpu_seconds": times.cpu,
            },
        )
        if due or time.monotonic() - self._saved >= self.settings.checkpoint_seconds:
            self._write(self._last)

    def _write(self, kept: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        if self.folder and kept:
            self.folder.save_checkpoint(*kept)
            self._saved, self._last = time.monotonic(), None

    def _state_dict(self) -> dict[str, Tensor]:
        """Copies of the model's current tensors; tensors that are not trained are not copied."""
        fixed = {p.data_ptr() for p in self.model.parameters() if not p.requires_grad}
        state = self.model.state_dict()
        return {name: value if value.data_ptr() in fixed else value.clone() for name, value in state.items()}

    # -- after a failure

    def answers_are_finite(self, weights: LatentPosterior | None) -> bool | None:
        """Whether the model's answers at a few training rows are finite; None when it cannot answer yet."""
        found = None if self.answers is None else self.answers(weights)
        return None if found is None else all(bool(answer.isfinite().all()) for answer in found)

    def fall_back(self) -> bool:
        """After a TrainingError: restore the last state with finite answers. False if there is none."""
        for restore in (self._phase.take_last_good, self._take_before):
            with torch.no_grad(), contextlib.suppress(torch.linalg.LinAlgError, TrainingError):
                weights = restore()
                if self.answers_are_finite(weights):
                    self.weights = weights
                    return True
        return False

    def _take_before(self) -> LatentPosterior | None:
        state, weights = self._before
        self.model.load_state_dict(state)
        return weights


class PhaseRun:
    """One running phase: its inference, optimiser, average and best state."""

    def __init__(self, trainer: Trainer, number: int, progress: Progress) -> None:
        self.trainer, self.number, self.progress = trainer, number, progress
        self.phase = trainer.phases[number]
        self.data = trainer.rows_of(self.phase)
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
        self.best = BestEpoch(trainer.settings.patience, trainer.settings.tolerance)
        self.steps = Steps()
        self.last_good: tuple[list[Tensor], dict[str, Tensor]] | None = None

    def run(self, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        try:
            self._run(saved)
        except torch.linalg.LinAlgError as error:
            raise TrainingError(self._stop_message(f"a Cholesky factor failed ({error})")) from None

    def _run(self, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        trainer = self.trainer
        first = self._load(*saved) if saved else 0
        # All processes start from the same numbers, even if machines draw or restore them differently.
        trainer.world.broadcast_([*trainer.model.state_dict().values(), *self.inference.state_dict().values()])
        self.progress.phase(self.number, first)
        self.inference.start(replace(self.data, seed=None), trainer.weights)
        if self._takes_best and first == 0:
            trainer.best_epoch = None
            self.best.start = self._validate(0).errors
        done, last = first, self._last_epoch()
        while done < last and not self.best.out_of_patience:
            seed = derive_seed(trainer.settings.seed, self.number, done)
            epoch = replace(self.data, seed=seed, tick=self.progress.tick)
            with self._with_tensors_of_others() if saved and done == first else contextlib.nullcontext():
                self._epoch(epoch, done)
            done += 1
            self._remember(done)
            meta = {"phase": self.number, "epoch": done} | self.best.to_json() | self.steps.to_json()
            trainer.checkpoint(self._state(), meta, due=False)
        self._finish()

    def _last_epoch(self) -> int:
        """How many epochs the phase runs for, if patience does not end it."""
        phase, trainer = self.phase, self.trainer
        if not phase.until_best or trainer.best_epoch is None:
            return phase.epochs
        last = min(phase.epochs, trainer.best_epoch)
        if trainer.world.first:
            log.info("phase %r runs for %d epochs, the best number on the held-out rows", phase.name, last)
        return last

    @contextlib.contextmanager
    def _with_tensors_of_others(self) -> Iterator[None]:
        """In the first epoch after a checkpoint, mismatched tensors are blamed on the checkpoint."""
        try:
            yield
        except (TrainingError, torch.linalg.LinAlgError, torch.cuda.OutOfMemoryError):
            raise
        except (RuntimeError, IndexError) as error:
            assert self.trainer.folder is not None
            with checked_content(self.trainer.folder.path / CHECKPOINT):
                raise error

    def _remember(self, done: int) -> None:
        """Keep the current parameters if they are finite; a finite gradient may still give an infinite step."""
        learned = [*self._parameter_values(), *self.parameters, *self.inference.state_dict().values()]
        if not all(bool(value.isfinite().all()) for value in learned):
            raise TrainingError(self._stop_message(f"a parameter was not finite after epoch {done}"))
        state = {name: value.clone() for name, value in self.inference.state_dict().items()}
        self.last_good = [value.clone() for value in self._parameter_values()], state

    def _parameter_values(self) -> list[Tensor]:
        return self.average.values if self.average else [parameter.detach() for parameter in self.parameters]

    def take_last_good(self) -> LatentPosterior | None:
        """Restore the parameters after the last good epoch of this phase; returns their q(B)."""
        if self.last_good is None:
            raise TrainingError("no epoch of this phase was good")
        parameters, state = self.last_good
        for name, value in state.items():
            assign(self.inference, name, value)
        for parameter, value in zip(self.parameters, parameters, strict=True):
            parameter.copy_(value)
        self._train_all_again()
        weights = self.inference.weights(replace(self.data, seed=None))
        return weights if weights is not None else self.trainer.weights

    def _epoch(self, epoch: Epoch, done: int) -> None:
        """Run one epoch and log its mean terms per sample."""
        sums: dict[str, Tensor] = {}
        seen = 0
        self.trainer.model.train()  # for layers such as dropout; the model is in evaluation mode everywhere else
        for terms in self.inference.steps(epoch):
            progress = (done + seen / epoch.n_rows) / self.phase.epochs
            values = self._step(terms, progress)
            seen += terms.n
            for name, value in values.items():
                sums[name] = sums[name] + value if name in sums else value
        self.trainer.model.eval()
        times = self.trainer.times()
        row = {"phase": self.phase.name, "epoch": done + 1}
        row |= {"seconds": round(times.wall, 3), "cpu_seconds": round(times.cpu, 3)}
        logged = {name: float(value) / max(seen, 1) for name, value in sums.items()}
        logged["loss"] = sum(logged.values())
        shown = {"loss": logged["loss"]}
        if self._judged and ((done + 1) % self.trainer.settings.validate_every == 0):
            validated = self._validate(done + 1).shown
            logged |= validated
            shown |= validated
        self.trainer.log(row | logged)
        self.progress.epoch(done + 1, shown, {name: logged[name] for name in sums})

    def _step(self, terms: LossTerms, progress: float) -> dict[str, Tensor]:
        """Step the groups that do not wait; returns the terms, summed over processes."""
        self._set_rates(progress, terms.gathered)
        if all(p.grad is None for p in self.parameters):
            raise TrainingError(
                f"phase {self.phase.name!r} trains {', '.join(self.trained)}, but {self.phase.kind.name} gave none of "
                "them a gradient; correct the lr of the phase, or call backward() before you yield"
            )
        values = terms.named()
        with _without_gradients([p for name in terms.waiting for p in self.trained.get(name, [])]):
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.trainer.world.sum_([*gradients, *values.values()])
            # The sum of a tensor is finite only if all its entries are: one number to check per tensor.
            sums = [gradient.sum() for gradient in gradients]
            if all(math.isfinite(float(value)) for value in (*values.values(), *sums)):
                self.steps.count_good()
                self.optimizer.step()
                if self.average:
                    self.average.update()
            else:
                self.trainer.skipped_steps += 1
                failure = self.steps.count_bad([name for name, value in values.items() if not torch.isfinite(value)])
                if failure:
                    raise TrainingError(self._stop_message(failure))
            self.optimizer.zero_grad()
        return values

    def _set_rates(self, progress: float, gathered: int) -> None:
        """Learning rates at `progress` in [0, 1) through the phase.

        They are per batch: a step of kernel and noise that stands for several batches is that many times larger.
        """
        rate = self.phase.rate(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base"] * rate * (gathered if group["prior"] else 1)

    def _stop_message(self, what: str) -> str:
        folder = self.trainer.folder
        kept = folder is not None and (self.last_good or (folder.path / CHECKPOINT).exists())
        where = f"the last good state is in {folder.path}" if folder and kept else "no state was saved"
        return (
            f"training stopped in phase {self.phase.name!r} because {what}; {where}; "
            "try a lower learning rate or a larger pixel_var"
        )

    def _validate(self, done: int) -> Validated:
        assert self.trainer.validate is not None
        if self.average:
            self.average.swap()
        validated = self.trainer.validate(self.inference, replace(self.data, seed=None))
        if self.best.improved_by(validated.errors):
            self.best.state = {name: tensor.clone() for name, tensor in self._learned().items()}
            self.trainer.best_epoch = done
        if self.average:
            self.average.swap()
        return validated

    @property
    def _judged(self) -> bool:
        """Whether this phase can be validated; the held-out rows are training rows in phases without hold-out."""
        return self.trainer.validate is not None and (self.phase.held_out or self.trainer.kept is None)

    @property
    def _takes_best(self) -> bool:
        """Whether the best epoch of this phase decides how long a later one goes."""
        return self._judged and self.phase.held_out and any(phase.until_best for phase in self.trainer.phases)

    def _finish(self) -> None:
        """Load the averaged or best parameters, condition q(B), and save."""
        if self.steps.bad > self.steps.total // 2:
            raise TrainingError(self._stop_message(f"{self.steps.bad} of {self.steps.total} gradients were not finite"))
        if self.average:
            self.average.swap()
        keeps_last = self.trainer.settings.tolerance > 0.0 and not self._takes_best and not self.best.out_of_patience
        if self.best.state and not keeps_last:
            self.trainer.model.load_state_dict(under("model", self.best.state))
            self.inference.load_state_dict(under("inference", self.best.state))
        weights = self.inference.weights(replace(self.data, seed=None))
        weights = weights if weights is not None else self.trainer.weights
        if self.trainer.answers_are_finite(weights) is False:
            raise TrainingError(self._stop_message("predictions at training rows were not finite at its end"))
        self.trainer.weights = None if weights is None else weights.as_stored()
        self._train_all_again()
        if self.phase.held_out and self.trainer.measure is not None and self.trainer.weights is not None:
            self.trainer.measured = self.trainer.measure(self.trainer.weights)
        meta = {"phase": self.number + 1, "epoch": 0} | BestEpoch().to_json() | Steps().to_json()
        self.trainer.checkpoint({}, meta, due=True)

    def _train_all_again(self) -> None:
        for parameter in self.restore_grad:
            parameter.requires_grad_(True)

    def _learned(self) -> dict[str, Tensor]:
        model, inference = self.trainer.model.state_dict(), self.inference.state_dict()
        return with_prefix("model", model) | with_prefix("inference", inference)

    def _state(self) -> dict[str, Tensor]:
        state = with_prefix("inference", self.inference.state_dict())
        state |= with_prefix("optimizer", optimizer_tensors(self.optimizer))
        if self.average:
            state |= with_prefix("average", self.average.state())
        return state | self.best.tensors()

    def _load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> int:
        """Restore this phase from a checkpoint; returns the number of epochs already done."""
        assert self.trainer.folder is not None
        if meta["epoch"] == 0:
            return 0
        with checked_content(self.trainer.folder.path / CHECKPOINT):
            for name, value in under("inference", tensors).items():
                assign(self.inference, name, value)
            load_optimizer(self.optimizer, self.parameters, under("optimizer", tensors))
            if self.average:
                self.average.load(under("average", tensors))
            self.best.load(tensors, meta)
            self.steps.load(meta)
        return int(meta["epoch"])


@contextlib.contextmanager
def _without_gradients(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Inside the context these parameters have no gradient, so that the optimiser skips them; theirs come back."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    yield
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient

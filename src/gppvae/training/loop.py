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
# Predictions at a few training rows, given q(B); None while the model cannot predict yet.
Probe = Callable[[LatentPosterior | None], Iterable[Tensor] | None]
# Evaluates the model with this q(B) at held-out rows; returns JSON values.
Measure = Callable[[LatentPosterior], dict[str, Any]]

log = logging.getLogger("gppvae")


class TrainingError(RuntimeError):
    """Training failed; the message says which term failed and where the last good state is."""


@dataclass(frozen=True)
class Settings:
    """Settings of the loop that all phases share.

    Attributes:
        seed: of the order of rows and of the noise.
        patience: validations without improvement before a phase stops; None never stops it.
        tolerance: relative margin above the best error that does not count against the patience; if nonzero, a phase
            that runs to its end keeps its last parameters, not the best ones.
        validate_every: epochs between validations.  checkpoint_seconds: minimum time between checkpoints.
        progress: whether to show progress bars.
    """

    seed: int = 0
    patience: int | None = None
    tolerance: float = 0.0
    validate_every: int = 1
    checkpoint_seconds: float = 30.0
    progress: bool = True


class Seconds(NamedTuple):
    """Wall time, and CPU time of all threads of this process."""

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
    """Runs the phases in order on one data set, from a checkpoint when resuming.

    Args:
        model: to train.  phases: to run.  data: all training rows, in the order of the table.
        settings: see Settings.  folder: for checkpoints and metrics, or None.
        validate: called with the current inference; see Validated.
        probe: predictions at a few training rows; a phase that ends with non-finite ones fails.
        callback: called after every epoch.
        reduced: the training rows without the held-out ones, for phases with `held_out`.
        measure: called at the end of such a phase.

    Attributes:
        weights: q(B) of the last phase that computed one.  history: metrics of every epoch.
        measured: what `measure` returned.
        best_epoch: of the last phase with held-out rows; 0 is its start, None if none was recorded.
        skipped_steps: steps skipped because a gradient or a term of the loss was not finite.
    """

    def __init__(
        self,
        model: GPPriorVAE,
        phases: list[Phase],
        data: Epoch,
        settings: Settings,
        folder: RunFolder | None = None,
        validate: Validate | None = None,
        probe: Probe | None = None,
        callback: Callback | None = None,
        reduced: Epoch | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.model, self.phases, self.settings, self.folder = model, phases, settings, folder
        self.data, self.reduced, self.world = data, reduced, data.world
        self.validate, self.probe, self.callback, self.measure = validate, probe, callback, measure
        self.history: list[dict[str, Any]] = []
        self.weights: LatentPosterior | None = None
        self.measured: dict[str, Any] | None = None
        self.best_epoch: int | None = None
        self.skipped_steps = 0
        self._earlier_times = Seconds(0.0, 0.0)  # in earlier processes of this run
        self._started = Seconds.now()
        self._written_at = time.monotonic()
        self._unwritten: tuple[dict[str, Tensor], dict[str, Any]] | None = None  # newest state
        self._phase: PhaseRun
        self._phase_start: tuple[dict[str, Tensor], LatentPosterior | None]  # tensors of the model, and q(B)

    def run(self, resume: bool = False) -> None:
        """Run all phases; with `resume`, from the checkpoint in the folder.

        If training ends early, by an error or Ctrl-C, the state after the last full epoch is written first.
        """
        initial = self._state_dict() if any(phase.restart for phase in self.phases) else {}
        tensors, meta = self._resumed() if resume and self.folder else ({}, {})
        if self.folder and not resume:
            self.folder.truncate_metrics(0)
        first = int(meta.get("phase", 0))
        bars = [(p.name, p.epochs, self.rows_of(p).n_batches * p.kind.sweeps) for p in self.phases]
        with Progress(bars, self.settings.progress and self.world.first) as progress:
            for number in range(first, len(self.phases)):
                saved = (tensors, meta) if number == first and tensors else None
                mid_phase = saved is not None and meta["epoch"] > 0
                if self.phases[number].restart and not mid_phase:
                    self.model.load_state_dict(initial)
                    self.weights = None
                self._phase_start = self._state_dict(), self.weights
                self._phase = PhaseRun(self, number, progress)
                try:
                    self._phase.run(saved)
                except BaseException:
                    with contextlib.suppress(OSError):  # the error that ended training is the useful one
                        self._write(self._unwritten)
                    raise
        if self.skipped_steps and self.world.first:
            log.warning("%d steps were skipped because a gradient was not finite", self.skipped_steps)

    def rows_of(self, phase: Phase) -> Epoch:
        """The rows that a phase trains on, in the order of the table."""
        return self.reduced if phase.held_out and self.reduced is not None else self.data

    def _resumed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        assert self.folder is not None
        tensors, meta = self.folder.load_checkpoint()
        with checked_content(self.folder.path / CHECKPOINT):
            check_numbers(meta, len(self.phases))
            own = self.model.state_dict()
            check_finite(tensors, with_prefix("model", own) | with_prefix("best.model", own))
            self.history = self.folder.truncate_metrics(meta["metrics"])
            self._earlier_times, self.skipped_steps = Seconds(meta["seconds"], meta["cpu_seconds"]), meta["skipped"]
            self.model.load_state_dict(under("model", tensors))
            self.measured, self.best_epoch = meta["measured"], meta["best_epoch"]
            carried = {name: value.to(self.model.prior.device) for name, value in under("carried", tensors).items()}
            self.weights = LatentPosterior.from_tensors(carried) if carried else None
        return tensors, meta

    def times(self) -> Seconds:
        """Wall time and CPU time of training so far, earlier interrupted runs included."""
        return self._earlier_times + (Seconds.now() - self._started)

    def log(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        if self.folder:
            self.folder.add_metrics(row)
        if self.callback:
            metrics = {name: float(value) for name, value in row.items() if name not in ("phase", "epoch")}
            self.callback.on_epoch(row["phase"], len(self.history), metrics)

    def checkpoint(self, state: dict[str, Tensor], meta: dict[str, Any], due: bool) -> None:
        """Keep this state as the newest; write it if due or if the last one was written long enough ago.

        Args:
            state: tensors of the phase; those of the model are added.  meta: phase and epoch to resume at, counters.
        """
        if not self.folder:
            return
        tensors = with_prefix("model", self._state_dict()) | {name: value.clone() for name, value in state.items()}
        if self.weights is not None:
            tensors |= with_prefix("carried", self.weights.tensors())
        times = self.times()
        meta = meta | {
            "metrics": len(self.history),
            "skipped": self.skipped_steps,
            "measured": self.measured,
            "best_epoch": self.best_epoch,
            "seconds": times.wall,
            "cpu_seconds": times.cpu,
        }
        self._unwritten = tensors, meta
        if due or time.monotonic() - self._written_at >= self.settings.checkpoint_seconds:
            self._write(self._unwritten)

    def _write(self, kept: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        if self.folder and kept:
            self.folder.save_checkpoint(*kept)
            self._written_at, self._unwritten = time.monotonic(), None

    def _state_dict(self) -> dict[str, Tensor]:
        """The model's current tensors; those that are trained are copied, since they will change."""
        fixed = {p.data_ptr() for p in self.model.parameters() if not p.requires_grad}
        state = self.model.state_dict()
        return {name: value if value.data_ptr() in fixed else value.clone() for name, value in state.items()}

    # -- after a failure

    def predictions_are_finite(self, weights: LatentPosterior | None) -> bool | None:
        """Whether predictions at a few training rows are finite; None while the model cannot predict yet."""
        found = None if self.probe is None else self.probe(weights)
        return None if found is None else all(bool(tensor.isfinite().all()) for tensor in found)

    def fall_back(self) -> bool:
        """After a TrainingError: restore the last state with finite predictions. False if there is none."""
        for restore in (self._phase.restore_last_good, self._restore_phase_start):
            with torch.no_grad(), contextlib.suppress(torch.linalg.LinAlgError, TrainingError):
                weights = restore()
                if self.predictions_are_finite(weights):
                    self.weights = weights
                    return True
        return False

    def _restore_phase_start(self) -> LatentPosterior | None:
        state, weights = self._phase_start
        self.model.load_state_dict(state)
        return weights


class PhaseRun:
    """One phase while it runs: its inference, optimiser, running average and best state."""

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
        self.all_parameters = [p for parameters in groups.values() for p in parameters]
        self.parameters = [p for parameters in self.trained.values() for p in parameters]
        networks = [model.autoencoder.encoder, model.autoencoder.decoder]
        options = optimizer_groups(self.phase, self.trained, networks)
        self.optimizer = torch.optim.AdamW(options, lr=1.0, fused=True)  # without weight decay, this is Adam
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
        # All processes start from the same values, even if machines draw or restore them differently.
        trainer.world.broadcast_([*trainer.model.state_dict().values(), *self.inference.state_dict().values()])
        self.progress.phase(self.number, first)
        self.inference.start(replace(self.data, seed=None), trainer.weights)
        if self._records_best_epoch and first == 0:
            trainer.best_epoch = None
            self.best.start = self._validate(0).errors
        done, last = first, self._last_epoch()
        while done < last and not self.best.out_of_patience:
            seed = derive_seed(trainer.settings.seed, self.number, done)
            epoch = replace(self.data, seed=seed, tick=self.progress.tick)
            with self._blame_checkpoint() if saved and done == first else contextlib.nullcontext():
                self._epoch(epoch, done)
            done += 1
            self._keep_last_good(done)
            meta = {"phase": self.number, "epoch": done} | self.best.to_json() | self.steps.to_json()
            trainer.checkpoint(self._state(), meta, due=False)
        self._finish()

    def _last_epoch(self) -> int:
        """Number of epochs of the phase, unless patience ends it earlier."""
        phase, trainer = self.phase, self.trainer
        if not phase.until_best or trainer.best_epoch is None:
            return phase.epochs
        last = min(phase.epochs, trainer.best_epoch)
        if trainer.world.first:
            log.info("phase %r runs for %d epochs, the best number on the held-out rows", phase.name, last)
        return last

    @contextlib.contextmanager
    def _blame_checkpoint(self) -> Iterator[None]:
        """In the first epoch after resuming, report tensors that do not match as a damaged checkpoint."""
        try:
            yield
        except (TrainingError, torch.linalg.LinAlgError, torch.cuda.OutOfMemoryError):
            raise
        except (RuntimeError, IndexError) as error:
            assert self.trainer.folder is not None
            with checked_content(self.trainer.folder.path / CHECKPOINT):
                raise error

    def _keep_last_good(self, done: int) -> None:
        """Keep the current parameters as the last good ones; a finite gradient may still give an infinite step."""
        learned = [*self._parameter_values(), *self.parameters, *self.inference.state_dict().values()]
        if not all(bool(value.isfinite().all()) for value in learned):
            raise TrainingError(self._stop_message(f"a parameter was not finite after epoch {done}"))
        state = {name: value.clone() for name, value in self.inference.state_dict().items()}
        self.last_good = [value.clone() for value in self._parameter_values()], state

    def _parameter_values(self) -> list[Tensor]:
        return self.average.values if self.average else [parameter.detach() for parameter in self.parameters]

    def restore_last_good(self) -> LatentPosterior | None:
        """Restore the parameters after the last good epoch of this phase; returns q(B) there."""
        if self.last_good is None:
            raise TrainingError("no epoch of this phase ended with finite parameters")
        parameters, state = self.last_good
        for name, value in state.items():
            assign(self.inference, name, value)
        for parameter, value in zip(self.parameters, parameters, strict=True):
            parameter.copy_(value)
        self._unfreeze()
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
        if self._can_validate and ((done + 1) % self.trainer.settings.validate_every == 0):
            validated = self._validate(done + 1).shown
            logged |= validated
            shown |= validated
        self.trainer.log(row | logged)
        self.progress.epoch(done + 1, shown, {name: logged[name] for name in sums})

    def _step(self, terms: LossTerms, progress: float) -> dict[str, Tensor]:
        """One optimiser step on the groups that do not wait; returns the terms, summed over processes."""
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
            # A sum is finite only if all entries are: one number to check per tensor.
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

        Rates are per batch: a step of kernel and noise for several batches has its rate multiplied by their number.
        """
        rate = self.phase.rate(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base"] * rate * (gathered if group["prior"] else 1)

    def _stop_message(self, what: str) -> str:
        folder = self.trainer.folder
        saved = folder is not None and (self.last_good or (folder.path / CHECKPOINT).exists())
        where = f"the last good state is in {folder.path}" if folder and saved else "no state was saved"
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
            tensors = with_prefix("model", self.trainer.model.state_dict())
            tensors |= with_prefix("inference", self.inference.state_dict())
            self.best.state = {name: tensor.clone() for name, tensor in tensors.items()}
            self.trainer.best_epoch = done
        if self.average:
            self.average.swap()
        return validated

    @property
    def _can_validate(self) -> bool:
        """Whether this phase can be validated: phases without `held_out` train on the held-out rows."""
        return self.trainer.validate is not None and (self.phase.held_out or self.trainer.reduced is None)

    @property
    def _records_best_epoch(self) -> bool:
        """Whether the best epoch of this phase decides the length of a later one."""
        return self._can_validate and self.phase.held_out and any(phase.until_best for phase in self.trainer.phases)

    def _finish(self) -> None:
        """Load the averaged or best parameters, compute q(B), and write a checkpoint."""
        if self.steps.bad > self.steps.total // 2:
            raise TrainingError(self._stop_message(f"{self.steps.bad} of {self.steps.total} gradients were not finite"))
        if self.average:
            self.average.swap()
        keeps_last = (
            self.trainer.settings.tolerance > 0.0 and not self._records_best_epoch and not self.best.out_of_patience
        )
        if self.best.state and not keeps_last:
            self.trainer.model.load_state_dict(under("model", self.best.state))
            self.inference.load_state_dict(under("inference", self.best.state))
        weights = self.inference.weights(replace(self.data, seed=None))
        weights = weights if weights is not None else self.trainer.weights
        if self.trainer.predictions_are_finite(weights) is False:
            raise TrainingError(self._stop_message("predictions at training rows were not finite at its end"))
        self.trainer.weights = None if weights is None else weights.as_stored()
        self._unfreeze()
        if self.phase.held_out and self.trainer.measure is not None and self.trainer.weights is not None:
            self.trainer.measured = self.trainer.measure(self.trainer.weights)
        meta = {"phase": self.number + 1, "epoch": 0} | BestEpoch().to_json() | Steps().to_json()
        self.trainer.checkpoint({}, meta, due=True)

    def _unfreeze(self) -> None:
        for parameter in self.all_parameters:
            parameter.requires_grad_(True)

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
    """Hide the gradients of these parameters, so that the optimiser skips them; they are restored afterwards."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    yield
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient

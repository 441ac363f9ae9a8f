"""Callbacks of a fit: a small interface, enough for TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Metrics = dict[str, float]


class Callback:
    """Called by `fit(callbacks=[...])` during training; override what you need. Only the first process calls it.

    An exception in a callback ends training like Ctrl-C: the state after the last full epoch is in the run folder.

    Example:
        >>> from gppvae import Callback
        >>> class Losses(Callback):
        ...     def __init__(self):
        ...         self.seen = []
        ...     def on_epoch(self, phase, step, metrics):
        ...         self.seen.append(metrics["loss"])
        >>> losses = Losses()  # then fit(..., callbacks=[losses])
        >>> losses.on_epoch("global", 1, {"loss": 2.5})
        >>> losses.seen
        [2.5]
    """

    def on_start(self, settings: dict[str, Any]) -> None:
        """Training starts.

        Args:
            settings: the settings as trained, defaults filled in (`resolved_` of the estimator).
        """

    def on_epoch(self, phase: str, step: int, metrics: Metrics) -> None:
        """An epoch has ended.

        Args:
            phase: its name.  step: number of epochs so far in all phases, from 1, also in a resumed run.
            metrics: loss, its terms, seconds, and validation errors if the epoch was validated.
        """

    def on_end(self, error: BaseException | None) -> None:
        """Training has ended; `error` is the exception that ended it early, or None."""


class LogMetrics(Callback):
    """Calls a function with the metrics of every epoch: `LogMetrics(mlflow.log_metrics)`.

    Args:
        log: called as log(metrics, step=step), with names such as "global/loss".

    Example:
        >>> from gppvae import LogMetrics
        >>> LogMetrics(lambda metrics, step: print(step, metrics)).on_epoch("global", 1, {"loss": 2.5})
        1 {'global/loss': 2.5}
    """

    def __init__(self, log: Callable[..., Any]) -> None:
        self.log = log

    def on_epoch(self, phase: str, step: int, metrics: Metrics) -> None:
        self.log({f"{phase}/{name}": value for name, value in metrics.items()}, step=step)


class CallbackList(Callback):
    """Several callbacks as one, called in order.

    Args:
        callbacks: given by the user.  active: False in all processes but the first.
    """

    def __init__(self, callbacks: Sequence[Callback], active: bool = True) -> None:
        self.members = list(callbacks) if active else []

    def on_start(self, settings: dict[str, Any]) -> None:
        for member in self.members:
            member.on_start(settings)

    def on_epoch(self, phase: str, step: int, metrics: Metrics) -> None:
        for member in self.members:
            member.on_epoch(phase, step, metrics)

    def on_end(self, error: BaseException | None) -> None:
        for member in self.members:
            member.on_end(error)


def check_callbacks(callbacks: Any) -> list[Callback]:
    """The callbacks as a list; TypeError if one of them is not a callback."""
    if not isinstance(callbacks, (list, tuple)):
        raise TypeError(f"callbacks must be a list, got {type(callbacks).__name__}; write callbacks=[...]")
    for callback in callbacks:
        missing = [name for name in ("on_start", "on_epoch", "on_end") if not callable(getattr(callback, name, None))]
        if missing or isinstance(callback, type):
            raise TypeError(
                f"a callback must be an object with on_start, on_epoch and on_end, got {callback!r:.60}; "
                "derive its class from gppvae.Callback"
            )
    return list(callbacks)

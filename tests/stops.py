"""Runs that end early, as if by Ctrl-C."""

from typing import Any

import pytest

from gppvae.training import loop


class Stop(Exception):
    """Ends a run as Ctrl-C would."""


def stop_after(patch: pytest.MonkeyPatch, epochs: int) -> None:
    """Stop at the end of an epoch, when it is logged but not yet in a checkpoint."""
    original, done = loop.Trainer.log, []

    def log_and_stop(self: loop.Trainer, row: dict[str, Any]) -> None:
        original(self, row)
        done.append(row)
        if len(done) == epochs:
            raise Stop

    patch.setattr(loop.Trainer, "log", log_and_stop)

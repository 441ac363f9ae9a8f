"""Callbacks hear of the start, of every epoch and of the end, also of an end too early."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gppvae import GPPVAE, VAE, Callback, LogMetrics
from tiny import KERNEL, spots

SMALL = {"network": "mlp", "width": 8, "batch_size": 16}


class Heard(Callback):
    def __init__(self, stop_at: int | None = None) -> None:
        self.started: list[dict[str, Any]] = []
        self.epochs: list[tuple[str, int, dict[str, float]]] = []
        self.ended: list[BaseException | None] = []
        self.stop_at = stop_at

    def on_start(self, settings: dict[str, Any]) -> None:
        self.started.append(settings)

    def on_epoch(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        self.epochs.append((phase, step, metrics))
        if step == self.stop_at:
            raise KeyboardInterrupt

    def on_end(self, error: BaseException | None) -> None:
        self.ended.append(error)


def test_every_epoch_of_every_phase_is_told() -> None:
    heard, rows = Heard(), []
    log = LogMetrics(lambda metrics, step: rows.append((step, metrics)))
    images, table = spots(3, 6)
    model = GPPVAE(KERNEL, 2, epochs=3, **SMALL)
    model.fit(images, table, validation=(images, table), progress=False, callbacks=[heard, log])
    assert heard.started == [model.resolved_]
    assert heard.ended == [None]
    assert [(phase, step) for phase, step, _ in heard.epochs] == [
        (row["phase"], number) for number, row in enumerate(model.history_, 1)
    ]
    for (phase, step, metrics), row, (logged_step, logged) in zip(heard.epochs, model.history_, rows, strict=True):
        assert metrics == {name: row[name] for name in row if name not in ("phase", "epoch")}
        assert logged_step == step and logged == {f"{phase}/{name}": value for name, value in metrics.items()}
    assert "valid_mse_prediction" in heard.epochs[0][2]


def test_a_callback_that_stops_leaves_a_run_to_continue(tmp_path: Path) -> None:
    images, _ = spots(3, 6)
    first, second = Heard(stop_at=2), Heard()
    model = VAE(2, epochs=4, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        model.fit(images, out=tmp_path / "run", progress=False, callbacks=[first], checkpoint_seconds=0.0)
    assert isinstance(first.ended[0], KeyboardInterrupt)
    model.fit(images, out=tmp_path / "run", progress=False, callbacks=[second])
    steps = [step for _, step, _ in second.epochs]
    assert steps[-1] == 4 and steps == list(range(steps[0], 5)) and steps[0] > 1
    other = VAE(2, epochs=4, **SMALL).fit(images, progress=False)
    np.testing.assert_array_equal(model.encode(images), other.encode(images))


@pytest.mark.parametrize("wrong", [[print], [Heard], ["tensorboard"]])
def test_what_is_no_callback_is_named(wrong: list[Any]) -> None:
    images, _ = spots(2, 3)
    with pytest.raises(TypeError, match="a callback must be an object with on_start, on_epoch and on_end"):
        VAE(2, epochs=1, **SMALL).fit(images, progress=False, callbacks=wrong)
    with pytest.raises(TypeError, match="callbacks must be a list"):
        VAE(2, epochs=1, **SMALL).fit(images, progress=False, callbacks=Heard())

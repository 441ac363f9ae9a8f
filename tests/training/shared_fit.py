"""A small fit of the whole estimator, in as many processes as there are; one may be told to die."""

import builtins
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gppvae import GPPVAE
from gppvae.training.distributed import current_world
from gppvae.training.loop import Trainer

N = 61  # batches of 12 leave one row over


def make_data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    table = {"object": rng.integers(0, 5, N), "angle": rng.choice([0.0, 60.0, 120.0, 200.0], N)}
    return rng.random((N, 6)).astype(np.float32), table


def fit(inference: str, out: Path, progress: bool = False) -> GPPVAE:
    samples, table = make_data()
    held_out = samples[:20], {name: values[:20] for name, values in table.items()}
    model = GPPVAE(
        "Learned(object, 2) * Periodic(angle, 360)",
        latent_dim=3,
        network="mlp",
        width=8,
        inference=inference,
        epochs=3,
        warmup_epochs=2,
        gp_epochs=2,
        batch_size=12,
        patience=5,
        device="cpu",
    )
    return model.fit(samples, table, validation=held_out, out=out, progress=progress, checkpoint_seconds=0.0)


def die_after(epochs: int) -> None:
    """Let the second process of the first start kill itself when that many epochs are done."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" or current_world().rank != 1:
        return
    log = Trainer.log

    def last_log(self: Trainer, row: dict[str, Any]) -> None:
        log(self, row)
        if len(self.history) == epochs:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer.log = last_log


def forbid_writing() -> None:
    """Let this process fail when it opens a file to write."""
    plain_open = builtins.open

    def read_only(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        assert not set(mode) & set("wax+"), f"process {current_world().rank} writes {file}"
        return plain_open(file, mode, *rest, **options)

    builtins.open = read_only


if __name__ == "__main__":
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    print("start", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    if epochs:
        die_after(epochs)
    if not current_world().first:
        forbid_writing()
    for name in sys.argv[3:]:
        fit(name, folder / name, progress=True)

"""Every number that decides how the methods of the face experiment are trained, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gppvae.experiments.comparison.setup import Setup
from gppvae.training.phases import Phase

LATENT_DIM, OBJECT_DIM = 256, 64
KERNEL = f"Learned(object, {OBJECT_DIM}) * FreeForm(pose)"
PEOPLE, SIZE = 60, 128
QUICK_PEOPLE, QUICK_SIZE = 24, 64
METHODS = (
    "joint", "exact", "dis", "global", "cvae", "cvae-opt", "livae", "livae-opt", "vae", "mean-image", "mean-view",
    "nearest-view",
)  # fmt: skip
QUICK_METHODS = ("joint", "dis", "global", "cvae", "livae", "mean-view", "nearest-view")


@dataclass(frozen=True)
class FaceSetup(Setup):
    """Shared settings with early stopping: a few hundred images are soon learned by heart.

    Attributes:
        patience: validations without improvement before a phase stops.  validate_every: epochs between them.
    """

    patience: int = 5
    validate_every: int = 2

    def exact_batch(self) -> int:
        return self.batch_size  # the maps of one batch are what fills the memory

    def selects_by_warmup(self) -> bool:
        return True  # a third of all training otherwise

    def stopping(self) -> dict[str, Any]:
        return {"patience": self.patience, "validate_every": self.validate_every}

    def threads(self) -> int | None:
        return None  # convolutions of this size gain from every core


def setup(quick: bool = False) -> FaceSetup:
    """The shared settings of a comparison; `quick` trains for less and selects nothing."""
    return FaceSetup(
        network="faces", architecture="faces", latent_dim=LATENT_DIM, kernel=KERNEL,
        select_epochs=15, warmup_epochs=6 if quick else 15, epochs=6 if quick else 25, gp_steps=100, dis_gp_steps=200,
        exact_steps=10, global_epochs=8 if quick else None, grid=(0.003, 0.01, 0.03), pixel_var=0.01, alpha=0.1,
        prior_rate=5e-3, batch_size=8, average=0.99, n_draws=16,
    )  # fmt: skip


def global_recipe(epochs: int | None = None) -> dict[str, Any]:
    """Arguments of the GPPVAE of the global row: another variational family for the same prior.

    Args:
        epochs: other than the recipe's own.
    """
    length = 20 if epochs is None else epochs
    rates = {"decoder": 1e-3, "prior": 1e-2, "weights": 1e-2}
    return {
        "kernel": KERNEL,
        "latent_dim": LATENT_DIM,
        "pixel_var": 0.01,
        "alpha": 0.1,
        "batch_size": 16,
        "phases": [
            Phase("global", "global", length, rates, "cosine", warmup=0.02, weight_decay=0.05),
            Phase("encoder", "distill", max(1, length // 5), {"encoder": 2e-3}, "cosine"),
        ],
    }

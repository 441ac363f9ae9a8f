"""Every number that decides how the methods of the face experiment are trained, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gppvae.inference.phase import Phase
from gppvae.paper.comparison.setup import Setup

LATENT_DIM, OBJECT_DIM = 256, 64
KERNEL = f"Learned(object, {OBJECT_DIM}) * FreeForm(pose)"
DEFAULT_KERNEL = "Learned(object) * FreeForm(pose)"
PEOPLE, SIZE = 60, 128
QUICK_PEOPLE, QUICK_SIZE = 24, 64
NETWORKS = {"paper": "faces", "wide": "wide"}  # names in `build_networks`
METHODS = (
    "joint", "exact", "dis", "global", "default", "mirrored", "cvae", "cvae-opt", "livae", "livae-opt",
    "vae", "mean-image", "mean-view", "nearest-view",
)  # fmt: skip
EXACT_SHARE = 0.1  # of the learning rates
QUICK_METHODS = ("joint", "dis", "global", "cvae", "livae", "mean-view", "nearest-view")


@dataclass(frozen=True)
class FaceSetup(Setup):
    """Shared settings with early stopping: a few hundred images are soon learned by heart.

    Attributes:
        patience: validations without improvement before a phase stops.  validate_every: epochs between them.
    """

    patience: int = 10
    validate_every: int = 2

    def exact_batch(self) -> int:
        return self.batch_size  # the maps of one batch are what fills the memory

    def joint(self, inference: str, epochs: int) -> Phase:
        phase = super().joint(inference, epochs)
        if inference != "exact":
            return phase
        # Ten layers bear no such steps along the gradient of all rows.
        return replace(phase, lr={name: EXACT_SHARE * rate for name, rate in phase.lr.items()})

    def selects_by_warmup(self) -> bool:
        return True  # a third of all training otherwise

    def stopping(self) -> dict[str, Any]:
        return {"patience": self.patience, "validate_every": self.validate_every}

    def threads(self) -> int | None:
        return None  # convolutions of this size gain from every core


def setup(network: str = "paper", quick: bool = False) -> FaceSetup:
    """The shared settings of a comparison; `quick` trains for less and selects nothing."""
    if network not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {network!r}; paper is the default")
    return FaceSetup(
        network=network, architecture=NETWORKS[network], latent_dim=LATENT_DIM, kernel=KERNEL,
        select_epochs=15, warmup_epochs=10 if quick else 15, epochs=20 if quick else 30, gp_steps=100,
        dis_gp_steps=200, exact_steps=10, global_epochs=40 if quick else None, grid=(0.003, 0.01, 0.03),
        most_values=7, pixel_var=0.01, alpha=0.1, prior_rate=5e-3, batch_size=8, average=0.99, n_draws=16,
        default_kernel=DEFAULT_KERNEL,
    )  # fmt: skip


def global_recipe(epochs: int | None = None, photographs: bool = False) -> dict[str, Any]:
    """Arguments of the GPPVAE of the global row: another variational family for the same prior, another decoder.

    Noise as large as this on the latents, and weight decay, are what keep a few hundred images from being learned by
    heart: on validation images generated heads are predicted the better the longer it learns, photographs, which differ
    in more than person and pose, no worse after 40 epochs than after 20, but worse after 120.

    Args:
        epochs: other than the recipe's own.  photographs: what the images are.
    """
    length = epochs or (40 if photographs else 160)
    rates = {"decoder": 2e-3, "prior": 1e-2, "weights": 1e-2}
    return {
        "kernel": KERNEL,
        "latent_dim": LATENT_DIM,
        "network": "wide",
        "pixel_var": 0.01,
        "alpha": 1.0,
        "batch_size": 16,
        "phases": [
            Phase("global", "global", length, rates, "cosine", warmup=0.02, weight_decay=1.0),
            Phase("encoder", "distill", max(1, length // 8), {"encoder": 2e-3}, "cosine"),
        ],
    }

"""Every number that decides how the methods are trained, in one place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from gppvae.training.phases import Phase

NETWORKS = ("paper", "wide")
NETWORK_RATES = {"encoder": 1e-3, "decoder": 1e-3}
GP_RATE = 1e-2


@dataclass(frozen=True)
class Setup:
    """What all methods of one comparison share.

    Attributes:
        network: "paper" (8 channels, Figure S1) or "wide".  architecture: its name in `build_networks`.
        latent_dim: L.  kernel: of joint, dis and exact.
        select_epochs: of every VAE and CVAE that is trained to choose the trade-off.
        warmup_epochs: of the VAE that joint and exact start from.  epochs: that follow, also for VAE and CVAE.
        gp_steps: GP only, before joint training.  dis_gp_steps: GP only, of dis.  exact_steps: of the exact row.
        global_epochs: of the global row; its recipe's own when None.
        grid: pixel variances tried.  pixel_var: used when nothing is selected (`--quick`).
        alpha: latent noise variance to start from.  prior_rate: of kernel and noise in the joint phase.
        batch_size: B.  average: decay of the running average of the weights that every method ends with.
        n_draws: for sample-averaged predictions.
    """

    network: str
    architecture: str
    latent_dim: int
    kernel: str
    select_epochs: int
    warmup_epochs: int
    epochs: int
    gp_steps: int
    dis_gp_steps: int
    exact_steps: int
    global_epochs: int | None
    grid: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04, 0.08)
    pixel_var: float = 0.02
    alpha: float = 1.0
    prior_rate: float = 1e-3
    batch_size: int = 16
    average: float = 0.999
    n_draws: int = 64

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self) | {"grid": list(self.grid)}

    def trade_off(self, pixel_var: float, n_pixels: int = 784) -> float:
        """lambda = 2 L sigma_y^2 / K: the paper's weight of the prior at this pixel variance."""
        return 2.0 * self.latent_dim * pixel_var / n_pixels

    def gp_only(self, steps: int) -> Phase:
        return Phase("gp_only", "fixed", steps, {"prior": GP_RATE, "noise": GP_RATE})

    def joint(self, inference: str, epochs: int) -> Phase:
        rates = NETWORK_RATES | {"prior": self.prior_rate, "noise": self.prior_rate}
        return Phase("joint", inference, epochs, rates, average=self.average if inference == "minibatch" else 0.0)


def setup(network: str, quick: bool = False) -> Setup:
    """The shared settings of a comparison; `quick` trains for less and selects nothing."""
    if network not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {network!r}; paper is the default")
    epochs = (10, 40) if quick else {"paper": (20, 140), "wide": (10, 40)}[network]
    common: dict[str, Any] = {
        "select_epochs": 20, "warmup_epochs": epochs[0], "epochs": epochs[1], "gp_steps": 100, "dis_gp_steps": 500,
        "exact_steps": 100, "global_epochs": 30 if quick else None,
    }  # fmt: skip
    if network == "paper":
        return Setup("paper", "conv", 16, "1.0 * Learned(digit, 8) * Periodic(angle, 360)", **common)
    return Setup("wide", "wide", 32, "1.0 * Learned(digit, 16) * Periodic(angle, 360)", **common)


def global_recipe(network: str, epochs: int | None = None) -> dict[str, Any]:
    """Arguments of the GPPVAE of the global row: another variational family for the same kind of prior.

    Args:
        network: "paper" or "wide".  epochs: other than the recipe's own.
    """
    sizes: dict[str, Any] = {
        "paper": {"dim": 16, "latent_dim": 16, "epochs": 200, "rate": 6e-3, "weight_decay": 0.0},
        "wide": {"dim": 24, "latent_dim": 48, "epochs": 80, "rate": 5e-3, "weight_decay": 0.5},
    }[network]
    length = sizes["epochs"] if epochs is None else epochs
    rates = {"decoder": sizes["rate"], "prior": 1e-2, "weights": 1e-2}
    decay = {"decay": "cosine", "warmup": 0.02, "weight_decay": sizes["weight_decay"]}
    return {
        "kernel": f"Learned(digit, {sizes['dim']}) * Periodic(angle, 360, lengthscale=1.0, fixed=True)",
        "latent_dim": sizes["latent_dim"],
        "pixel_var": 0.001,
        "alpha": 0.0004,
        "batch_size": 64,
        "phases": [
            Phase("global", "global", length, rates, **decay),
            Phase("encoder", "distill", max(1, length // 10), {"encoder": 2e-3}, "cosine"),
        ],
    }


def recipe_facts(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(recipe | {"phases": [asdict(phase) for phase in recipe["phases"]]}))
    return plain


def recipe_key(recipe: dict[str, Any]) -> str:
    """A short name that changes with the recipe, so that models of another one are not taken for its own."""
    return hashlib.sha256(json.dumps(recipe_facts(recipe), sort_keys=True).encode()).hexdigest()[:8]

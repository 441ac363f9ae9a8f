"""Every number that decides how the methods are trained, in one place."""

from __future__ import annotations

from typing import Any

from gppvae.inference.phase import Phase
from gppvae.paper.comparison.setup import Setup

NETWORKS = ("paper", "wide")


def setup(network: str, quick: bool = False) -> Setup:
    """The shared settings of a comparison; `quick` trains for less and selects nothing."""
    if network not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {network!r}; paper is the default")
    sizes: dict[str, Any] = {
        "paper": {
            "select_epochs": 20, "warmup_epochs": 20, "epochs": 140, "cvae_epochs": 320, "exact_steps": 100,
            "network_rate": 1e-3,
        },
        "wide": {
            "select_epochs": 8, "warmup_epochs": 5, "epochs": 20, "cvae_epochs": 50, "exact_steps": 30,
            "network_rate": 3e-3,
        },
    }[network]  # fmt: skip
    if quick:
        sizes |= {
            "cvae_epochs": None,
            "warmup_epochs": 5,
            "epochs": 25 if network == "paper" else 15,
            "network_rate": 3e-3,
        }
    common = sizes | {"gp_steps": 100, "dis_gp_steps": 500, "global_epochs": 30 if quick else None}
    if network == "paper":
        return Setup("paper", "conv", 16, "1.0 * Learned(digit, 8) * Periodic(angle, 360)", batch_size=16, **common)
    return Setup("wide", "wide", 32, "1.0 * Learned(digit, 16) * Periodic(angle, 360)", batch_size=32, **common)


def global_recipe(network: str, epochs: int | None = None, members: int = 1) -> dict[str, Any]:
    """Arguments of the GPPVAE of the global row: another variational family for the same kind of prior.

    Args:
        network: "paper" or "wide", of the comparison, or "image", the best we know.
        epochs: other than the recipe's own.
        members: of an ensemble inside the model, each with as many latents as the one network.
    """
    sizes: dict[str, Any] = {
        "paper": {"dim": 24, "latent_dim": 48, "epochs": 200, "rate": 6e-3, "weight_decay": 0.0},
        "wide": {"dim": 24, "latent_dim": 48, "epochs": 80, "rate": 5e-3, "weight_decay": 0.5},
        "image": {"dim": 24, "latent_dim": 48, "epochs": 160, "rate": 5e-3, "weight_decay": 1.0},
    }[network]
    length = sizes["epochs"] if epochs is None else epochs
    rates = {"decoder": sizes["rate"], "prior": 1e-2, "weights": 1e-2}
    decay = {"decay": "cosine", "warmup": 0.02, "weight_decay": sizes["weight_decay"]}
    ensemble = {"members": members} if members > 1 else {}
    return ensemble | {
        "kernel": f"Learned(digit, {sizes['dim']}) * Periodic(angle, 360, lengthscale=1.0, fixed=True)",
        "latent_dim": members * sizes["latent_dim"],
        "pixel_var": 0.001,
        "alpha": 0.0004,
        "batch_size": 64,
        "phases": [
            Phase("global", "global", length, rates, **decay),
            Phase("encoder", "distill", max(1, length // 10), {"encoder": 2e-3}, "cosine"),
        ],
    }

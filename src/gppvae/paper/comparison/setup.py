"""What all methods of one comparison share, and the recipe of the row that has its own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from gppvae.inference.phase import Phase

GP_RATE = 1e-2
EXACT_BATCH = 256


@dataclass(frozen=True)
class Setup:
    """What all methods of one comparison share.

    Attributes:
        network: its name on the command line.  architecture: its name in `build_networks`.
        latent_dim: L.  kernel: of joint, dis and exact.
        select_epochs: of every VAE and CVAE that is trained to choose the trade-off.
        warmup_epochs: of the VAE that joint and exact start from.  epochs: that follow, also for VAE and CVAE.
        gp_steps: GP only, before joint training.  dis_gp_steps: GP only, of dis.  exact_steps: of the exact row.
        global_epochs: of the global row; its recipe's own when None.
        grid: pixel variances tried first, in rising order; it is widened where the best lies at an edge, to at most
            `most_values`.  pixel_var: used when nothing is selected (`--quick`).
        cvae_epochs: of the CVAE; as long as GPPVAE-joint with its warm-up when None.
        alpha: latent noise variance to start from.
        network_rate: learning rate of the networks.  prior_rate: of kernel and noise in the joint phase.
        batch_size: B.  average: decay of the running average of the weights that every method ends with.
        n_draws: for sample-averaged predictions.
        default_kernel: of the rows that leave every other choice to the package.
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
    most_values: int = 14
    cvae_epochs: int | None = None
    pixel_var: float = 0.02
    alpha: float = 1.0
    network_rate: float = 1e-3
    prior_rate: float = 1e-3
    batch_size: int = 16
    average: float = 0.999
    n_draws: int = 64
    default_kernel: str | None = None

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self) | {"grid": list(self.grid)}

    def trade_off(self, pixel_var: float, n_pixels: int = 784) -> float:
        """lambda = 2 L sigma_y^2 / K: the paper's weight of the prior at this pixel variance."""
        return 2.0 * self.latent_dim * pixel_var / n_pixels

    def network_rates(self) -> dict[str, float]:
        return {"encoder": self.network_rate, "decoder": self.network_rate}

    def gp_only(self, steps: int) -> Phase:
        return Phase("gp_only", "fixed", steps, {"prior": GP_RATE, "noise": GP_RATE})

    def joint(self, inference: str, epochs: int) -> Phase:
        rates = self.network_rates() | {"prior": self.prior_rate, "noise": self.prior_rate}
        if inference == "exact":
            # Every step follows the gradient of all rows; at the full rate the first ones would undo the warm-up.
            return Phase("joint", inference, epochs, rates, warmup=0.5)
        if inference == "posterior":  # as PosteriorCoding.phases has it
            slower = rates | {"encoder": 0.5 * self.network_rate}
            return Phase("joint", inference, epochs, slower, "cosine", average=self.average)
        return Phase("joint", inference, epochs, rates, average=self.average)

    def exact_batch(self) -> int:
        """Rows per batch of exact inference: its gradient is of all rows whatever it is, and larger is quicker."""
        return EXACT_BATCH

    def selects_by_warmup(self) -> bool:
        """Whether the warm-ups themselves choose the trade-off, instead of VAEs trained only for that."""
        return False

    def stopping(self) -> dict[str, Any]:
        """Arguments of the estimators that decide when a phase ends early; none: every phase has its length."""
        return {}

    def threads(self) -> int | None:
        """Networks this small gain nothing from more than one, and the numbers do not depend on the machine's cores."""
        return 1


def recipe_facts(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(recipe | {"phases": [phase.to_json() for phase in recipe["phases"]]}))
    return plain


def recipe_key(recipe: dict[str, Any]) -> str:
    """A short name that changes with the recipe, so that models of another one are not taken for its own."""
    return hashlib.sha256(json.dumps(recipe_facts(recipe), sort_keys=True).encode()).hexdigest()[:8]

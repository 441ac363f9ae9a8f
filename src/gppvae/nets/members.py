"""An ensemble inside one model: K encoders and decoders, each with its own latents; decoders are averaged.

    z = (z_1, ..., z_K),   g(z) = 1/K sum_k g_k(z_k)

Source: docs/math.md, "Ensembles inside one model".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def latents_of_members(sizes: Sequence[int], members: int) -> list[Tensor]:
    """Positions of each member's latents, (L_k,): every group of latents is divided as evenly as possible.

    Args:
        sizes: numbers of latents of the groups.
    """
    if members > max(sizes):
        raise ValueError(
            f"expected at least one latent per member, got {members} members; give members a smaller number"
        )
    groups = torch.arange(sum(sizes), device="cpu").split(list(sizes))
    shares = zip(*(group.tensor_split(members) for group in groups), strict=True)  # by member, one share per group
    return [torch.cat(share) for share in shares]


class MemberEncoder(nn.Module):
    """y -> mean and log-variance of all latents, those of each member from its encoder.

    Args:
        encoders: one per member.  positions: of their latents, from `latents_of_members`.
    """

    def __init__(self, encoders: Sequence[nn.Module], positions: Sequence[Tensor]) -> None:
        super().__init__()
        self.members = nn.ModuleList(encoders)
        self.order: Tensor
        self.register_buffer("order", torch.argsort(torch.cat(list(positions))), persistent=False)

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        means, logvars = zip(*(member(y) for member in self.members), strict=True)
        # (B, L), from the order of members to that of the prior
        return torch.cat(means, dim=1)[:, self.order], torch.cat(logvars, dim=1)[:, self.order]


class MemberDecoder(nn.Module):
    """z -> 1/K sum_k g_k(z_k), the average of the members' decoders, each at its own latents.

    In training every member explains the whole sample by itself (`each`); see `inference.base.recon_nll`.

    Args:
        decoders: one per member.  positions: of their latents.
    """

    def __init__(self, decoders: Sequence[nn.Module], positions: Sequence[Tensor]) -> None:
        super().__init__()
        self.members = nn.ModuleList(decoders)
        self.counts = [len(own) for own in positions]
        self.order: Tensor
        self.register_buffer("order", torch.cat(list(positions)), persistent=False)

    def each(self, z: Tensor) -> list[Tensor]:
        """g_k(z_k) of every member, (B, *shape) each."""
        shares = z[:, self.order].split(self.counts, dim=1)  # (B, L_k) each
        return [member(own) for member, own in zip(self.members, shares, strict=True)]

    def forward(self, z: Tensor) -> Tensor:
        return torch.stack(self.each(z)).mean(0)

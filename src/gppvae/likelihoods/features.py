"""Features of a sample: outputs of chosen layers of a frozen network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.data.words import reason


class FrozenFeatures:
    """Outputs of named layers of a network, which is copied, set to evaluation mode and never trained.

    Not an nn.Module on purpose, so that a likelihood that holds it neither trains nor saves the network.

    Args:
        network: any module that takes a batch of samples.
        layers: names as in `network.named_modules()`; of a layer that is used twice, the first output counts.
    """

    def __init__(self, network: nn.Module, layers: Sequence[str]) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        modules = dict(self.network.named_modules())
        unknown = [name for name in layers if name not in modules or not name]
        if unknown:
            known = ", ".join(name for name in modules if name)
            raise ValueError(
                f"the network has no layer {unknown[0]!r}; choose among {known or 'none: it has no named layers'}"
            )
        self.layers = {name: modules[name] for name in layers}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """Features of a batch, one tensor (B, ...) per layer in the order they were named.

        The forward pass ends at the last chosen layer.
        """
        found: dict[str, Tensor] = {}
        handles = [layer.register_forward_hook(self._keep(name, found)) for name, layer in self.layers.items()]
        try:
            self.network(x)
        except _Enough:
            return [found[name] for name in self.layers]
        finally:
            for handle in handles:
                handle.remove()
        unused = next(name for name in self.layers if name not in found)
        raise ValueError(f"the feature network does not use its layer {unused!r} on a sample; choose another one")

    def _keep(self, name: str, found: dict[str, Tensor]) -> Callable[..., None]:
        """A hook that keeps the layer's first output and stops the forward pass after the last chosen layer."""

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                kind = type(output).__name__
                raise TypeError(
                    f"layer {name!r} of the feature network must return a tensor, got {kind}; choose another"
                )
            # A clone, because a later in-place layer would overwrite it.
            found.setdefault(name, output.clone())
            if len(found) == len(self.layers):
                raise _Enough

        return keep

    def try_on(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError when the network cannot take samples of this shape."""
        like = next(self.network.parameters(), torch.zeros(()))
        try:
            with torch.no_grad():
                self(torch.zeros(2, *shape, device=like.device, dtype=like.dtype))
        except RuntimeError as error:
            raise ValueError(
                f"the feature network cannot take samples of shape {shape} ({reason(error)}); use one made for them"
            ) from None


class _Enough(Exception):  # noqa: N818
    """Stops the forward pass: the outputs of all chosen layers are known."""

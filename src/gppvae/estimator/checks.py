"""Checks of the type and range of settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from gppvae.data.words import reason, shown

MAX_EPOCHS = 10**8
MAX_BATCH = 10**9
MAX_WIDTH = 4096  # of layers and latents; larger ones do not fit into memory
MAX_MEMBERS = 64
MAX_SEED = 2**32 - 1


def whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ValueError unless `value` is a whole number from `least` to `most`."""
    fits = not isinstance(value, bool) and isinstance(value, (int, np.integer)) and value >= least
    if not fits or (most is not None and value > most):
        limit = "" if most is None or not fits else f" and at most {most}"
        raise ValueError(f"{name} must be a whole number of at least {least}{limit}, got {shown(value)}")


def draws_for_std(n_samples: Any, include_noise: bool) -> None:
    """Raise ValueError unless a std can be computed from this number of draws, or none is asked for."""
    whole("n_samples", n_samples, 0)
    if n_samples == 1:
        raise ValueError(
            "expected 0 draws or at least 2, since one has no std, got n_samples=1; use for example n_samples=64"
        )
    if include_noise and n_samples == 0:
        raise ValueError("include_noise needs draws to give a std, got n_samples=0; use for example n_samples=64")


def number(name: str, value: Any, low: float, high: float, example: str) -> None:
    """Raise ValueError unless `value` is a number from `low` to `high`, not NaN."""
    if not (_is_real(value) and low <= value <= high):
        raise ValueError(
            f"{name} must be a number from {low:g} to {high:g}, got {shown(value)}; use for example {example}"
        )


def share(name: str, value: Any, example: str) -> None:
    """Raise ValueError unless `value` is a number above 0 and below 1."""
    if not (_is_real(value) and 0.0 < value < 1.0):
        raise ValueError(f"{name} must be a number between 0 and 1, got {shown(value)}; use for example {example}")


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of the words `known`."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, got {shown(value)}")


def find_device(name: str | torch.device | None) -> torch.device:
    """The device of this name, which must be available; without a name, the best one."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    available = "this machine has " + ", ".join(_devices())
    try:
        device = torch.device(name)
        torch.empty(1, device=device).sum().item()  # a valid name may name a missing device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError, ValueError):
        raise ValueError(f"expected a device that can compute, got {shown(name)}; {available}") from None
    return device


def _devices() -> list[str]:
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return found + (["mps"] if torch.backends.mps.is_available() else [])


@contextlib.contextmanager
def readable_algebra() -> Iterator[None]:
    """Outside of training, turn a failed Cholesky factorisation into a clear ValueError; also a decorator."""
    try:
        yield
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            f"a covariance of the fitted kernel is not positive definite at these rows ({reason(error)}); "
            "fit again with a kernel of larger jitter or with other columns"
        ) from None

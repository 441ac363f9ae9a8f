"""Fits of a few epochs, for pages that are run to see that they run."""

from __future__ import annotations

from typing import Any

import pytest

from gppvae import GPPVAE

EPOCHS = {"epochs": 2, "warmup_epochs": 1, "gp_epochs": 1}


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every fit of a GPPVAE take a few epochs, whatever the page asks for."""
    fit = GPPVAE.fit

    def short(self: GPPVAE, *data: Any, **options: Any) -> GPPVAE:
        self.set_params(**EPOCHS)
        return fit(self, *data, **options)

    monkeypatch.setattr(GPPVAE, "fit", short)

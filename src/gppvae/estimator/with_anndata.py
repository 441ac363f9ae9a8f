"""fit_anndata: from an AnnData to a fitted model, latents and predictions written back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gppvae.data.anndata_files import from_anndata


def fit_anndata(
    estimator: type[Any],
    adata: Any,
    kernel: Any,
    layer: str | None,
    spatial: str | None,
    key_added: str | None,
    options: dict[str, Any],
) -> Any:
    """See GPPVAE.fit_anndata. Options that are settings go to the constructor, the others to fit()."""
    settings = {item.name for item in fields(estimator)}
    samples, table = from_anndata(adata, layer, spatial)
    model = estimator(kernel, **{name: value for name, value in options.items() if name in settings})
    model.fit(samples, table, **{name: value for name, value in options.items() if name not in settings})
    if key_added is not None:
        adata.obsm[f"X_{key_added}"] = model.encode(samples)
        adata.layers[key_added] = model.predict(table).mean
    return model

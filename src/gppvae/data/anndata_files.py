"""AnnData and .h5ad files: the expression matrix as samples, obs as the table. Needs the extra `anndata`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from gppvae.data.named import Named
from gppvae.data.paths import plain_file
from gppvae.data.words import did_you_mean, reason, shortened

H5AD = ".h5ad"
AXES = ("x", "y", "z")


def from_anndata(adata: Any, layer: str | None = None, spatial: str | None = None) -> tuple[Named, pd.DataFrame]:
    """The expression matrix as samples named by gene, and obs as the table.

    A sparse matrix stays sparse. A dense X of a file opened with backed="r" stays on disk.

    Args:
        adata: the AnnData.  layer: name of a layer; None for X.
        spatial: key of coordinates in obsm, which become columns x, y (and z) of the table.
    """
    if not all(hasattr(adata, name) for name in ("obs", "var_names", "layers", "obsm")):
        raise TypeError(f"expected an AnnData, got {type(adata).__name__}; pass for example anndata.read_h5ad(path)")
    values = adata.X if layer is None else adata.layers[_known("layer", layer, adata.layers)]
    if values is None:
        raise ValueError(f"expected a matrix X, got none; name one of the layers: {_list(adata.layers)}")
    if hasattr(values, "to_memory"):  # a sparse matrix in a file
        values = values.to_memory()
    if scipy.sparse.issparse(values):
        values = values.tocsr()
    table = adata.obs.copy()
    if spatial is not None:
        coordinates = np.asarray(adata.obsm[_known("spatial", spatial, adata.obsm)])  # (N, 1 to 3)
        if coordinates.ndim != 2 or not 1 <= coordinates.shape[1] <= len(AXES):
            raise ValueError(
                f"expected coordinates of one to three columns in obsm[{spatial!r}], got {coordinates.shape}; "
                "name another key"
            )
        for name, column in zip(AXES, coordinates.T, strict=False):
            if name in table:
                raise ValueError(
                    f"expected obs without a column {name!r}, which the coordinates become, got one; rename it"
                )
            table[name] = column
    return Named(values, adata.var_names), table


def read_h5ad(
    path: str | os.PathLike[str], layer: str | None = None, spatial: str | None = None
) -> tuple[Named, pd.DataFrame]:
    """`from_anndata` for a file; a dense X is read batch by batch."""
    file = plain_file(path, "an .h5ad file")
    anndata = _anndata(file)
    try:
        adata = anndata.read_h5ad(file, backed="r")
    except Exception as error:  # the type depends on where the file is damaged
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"expected an AnnData in {file}, got something else ({reason(error)}); check the file"
        ) from None
    return from_anndata(adata, layer, spatial)


def write_h5ad(path: Path, layers: dict[str, np.ndarray], table: pd.DataFrame, names: list[str]) -> None:
    """Write arrays (N, D) as one AnnData: the first is X, the others are layers, and the table is obs."""
    anndata = _anndata(path)
    first, *others = layers
    # Strings as objects: some versions of anndata cannot write the string types of pandas 3.
    texts = [name for name in table if isinstance(table[name].dtype, (pd.StringDtype, pd.CategoricalDtype))]
    obs = table.astype(dict.fromkeys(texts, object)).set_index(_as_objects(table.index))
    adata = anndata.AnnData(np.asarray(layers[first]), obs=obs, var=pd.DataFrame(index=_as_objects(names)))
    for name in others:
        adata.layers[name] = np.asarray(layers[name])
    adata.write_h5ad(path)


def _as_objects(names: Any) -> pd.Index:
    return pd.Index([str(name) for name in names], dtype=object)


def _anndata(file: Path) -> Any:
    try:
        import anndata
    except ImportError:
        raise ValueError(
            f"{file.name} needs the package anndata, which is not installed; pip install 'gppvae[anndata]'"
        ) from None
    return anndata


def _known(what: str, name: str, known: Any) -> str:
    names = [str(key) for key in known]
    if name not in names:
        hint = did_you_mean(str(name), names, f"there are {_list(known)}")
        raise ValueError(
            f"expected a {what} of the AnnData, got {shortened(str(name))!r}, which it does not have; {hint}"
        )
    return name


def _list(names: Any) -> str:
    return ", ".join(repr(str(name)) for name in list(names)[:20]) or "none"

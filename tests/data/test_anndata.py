"""AnnData and .h5ad in, latents and predictions out."""

import sys
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from gppvae import GPPVAE
from gppvae.data.anndata_files import from_anndata, read_h5ad, write_h5ad

KERNEL = "Categorical(slide) * RBF(x, y)"
QUICK: dict[str, Any] = {
    "latent_dim": 2,
    "network": "mlp",
    "width": 8,
    "epochs": 2,
    "batch_size": 16,
    "progress": False,
}


def as_objects(start: str, n: int) -> pd.Index:
    """Names of a type that every version of anndata can write."""
    return pd.Index([f"{start}{number}" for number in range(n)], dtype=object)


def spots(sparse: bool = True) -> anndata.AnnData:
    """24 spots of two slides with five genes; counts in a layer, their logarithms in X."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (24, 5)).astype(np.float32)
    obs = pd.DataFrame({"slide": ["left", "right"] * 12}, index=as_objects("spot", 24))
    obs["slide"] = pd.Categorical(obs["slide"], categories=pd.Index(["left", "right"], dtype=object))
    adata = anndata.AnnData(np.log1p(counts), obs=obs, var=pd.DataFrame(index=as_objects("g", 5)))
    adata.layers["counts"] = scipy.sparse.csr_matrix(counts) if sparse else counts
    adata.obsm["spatial"] = rng.random((24, 2))
    return adata


def written(adata: anndata.AnnData, path: Path) -> Path:
    adata.write_h5ad(path)
    return path


def test_latents_and_predictions_are_written_back() -> None:
    adata = spots()
    model = GPPVAE.fit_anndata(
        adata, KERNEL, layer="counts", spatial="spatial", likelihood="negative_binomial", **QUICK
    )
    rows = {"slide": adata.obs["slide"], "x": adata.obsm["spatial"][:, 0], "y": adata.obsm["spatial"][:, 1]}
    plain = {name: np.asarray(values) for name, values in rows.items()}
    dense = adata.layers["counts"].toarray()
    settings = {name: value for name, value in QUICK.items() if name != "progress"}
    expected = GPPVAE(KERNEL, likelihood="negative_binomial", **settings).fit(dense, plain, progress=False)
    np.testing.assert_allclose(adata.layers["gppvae"], expected.predict(plain).mean, rtol=1e-5)
    np.testing.assert_allclose(adata.obsm["X_gppvae"], expected.encode(dense), rtol=1e-4, atol=1e-6)
    assert model.sample_names_ == [f"g{n}" for n in range(5)]
    assert adata.obs.columns.tolist() == ["slide"], "coordinates are columns of the table, not of the AnnData"


def test_nothing_is_written_back_unless_wanted() -> None:
    adata = spots()
    GPPVAE.fit_anndata(adata, "Categorical(slide)", key_added=None, **QUICK)
    assert list(adata.obsm) == ["spatial"] and list(adata.layers) == ["counts"]


@pytest.mark.parametrize("sparse", [True, False])
def test_a_file_gives_what_memory_gives(tmp_path: Path, sparse: bool) -> None:
    adata = spots(sparse)
    if sparse:
        adata.X = scipy.sparse.csr_matrix(adata.X)
    file = written(adata, tmp_path / "a.h5ad")
    for layer in (None, "counts"):
        (ours, table), (theirs, wanted) = read_h5ad(file, layer, "spatial"), from_anndata(adata, layer, "spatial")
        np.testing.assert_array_equal(ours[np.array([3, 5])], theirs[np.array([3, 5])])
        assert ours.names == theirs.names and scipy.sparse.issparse(ours.values) == scipy.sparse.issparse(theirs.values)
        assert table["slide"].tolist() == wanted["slide"].tolist() and np.array_equal(table["y"], wanted["y"])
    if not sparse:
        assert not isinstance(read_h5ad(file)[0].values, np.ndarray), "a dense matrix stays in its file"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"layer": "count"},
            "expected a layer of the AnnData, got 'count', which it does not have; did you mean 'counts'",
        ),
        ({"layer": "xyz"}, "got 'xyz', which it does not have; there are 'counts'"),
        ({"spatial": "places"}, "expected a spatial of the AnnData, got 'places'"),
    ],
)
def test_what_is_not_there_is_one_sentence(options: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        GPPVAE.fit_anndata(spots(), KERNEL, **options, **QUICK)
    assert "\n" not in str(caught.value)


def test_coordinates_do_not_replace_a_column() -> None:
    adata = spots()
    adata.obs["x"] = 0.0
    with pytest.raises(ValueError, match="expected obs without a column 'x', which the coordinates become"):
        from_anndata(adata, spatial="spatial")
    adata.obsm["wide"] = np.zeros((24, 7))
    with pytest.raises(ValueError, match=r"one to three columns in obsm\['wide'\], got \(24, 7\)"):
        from_anndata(adata, spatial="wide")


def test_other_things_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected an AnnData, got ndarray"):
        from_anndata(np.zeros((3, 2)))
    file = written(spots(), tmp_path / "a.h5ad")
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"expected an AnnData in .*, got something else"):
        read_h5ad(file)


def test_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.h5ad").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "anndata", None)  # importing it then fails
    with pytest.raises(ValueError, match=r"needs the package anndata, .*; pip install 'gppvae\[anndata\]'"):
        read_h5ad(tmp_path / "a.h5ad")


def test_answers_are_written_with_names(tmp_path: Path) -> None:
    mean, std = np.arange(6.0).reshape(3, 2), np.ones((3, 2))
    table = pd.DataFrame({"slide": pd.Categorical(["a", "b", "a"]), "note": ["x", "y", "z"]}, index=["s0", "s1", "s2"])
    write_h5ad(tmp_path / "p.h5ad", {"mean": mean, "std": std}, table, ["g0", "g1"])
    found = anndata.read_h5ad(tmp_path / "p.h5ad")
    np.testing.assert_array_equal(found.X, mean)
    np.testing.assert_array_equal(found.layers["std"], std)
    assert found.obs["slide"].tolist() == ["a", "b", "a"] and found.obs["note"].tolist() == ["x", "y", "z"]
    assert found.obs_names.tolist() == ["s0", "s1", "s2"] and found.var_names.tolist() == ["g0", "g1"]

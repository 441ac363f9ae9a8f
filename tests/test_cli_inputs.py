"""The commands on tables: samples as columns, CSV, TSV, Parquet and .h5ad, names in the answers, JSON."""

import json
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from typer.testing import CliRunner, Result

from gppvae import GPPVAE
from gppvae.cli import app

KERNEL = "Learned(subject, 2) * RBF(age)"
QUICK = [
    "--inference", "global", "--network", "mlp", "--width", 8, "--latent-dim", 2, "--epochs", 2,
    "--no-report", "--quiet",
]  # fmt: skip
GENES = ["gene_a", "gene_b", "gene_c"]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def succeed(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def refused(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("gppvae: ")
    return result.stderr


def visits() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [(f"{p:03d}", 10.0 * t) for p in range(4) for t in range(6)]
    table = pd.DataFrame(rows, columns=["subject", "age"]).assign(note="text")
    for n, gene in enumerate(GENES):
        table[gene] = np.sin(table["age"] / 20 + n) + 0.1 * rng.standard_normal(len(table))
    return table


def as_anndata(table: pd.DataFrame) -> anndata.AnnData:
    """The same table as an AnnData: genes in a sparse layer, ages as a coordinate."""
    obs = pd.DataFrame({"subject": pd.Categorical(table["subject"])})
    obs["subject"] = obs["subject"].astype(object)
    obs.index = pd.Index([f"v{n}" for n in range(len(table))], dtype=object)
    adata = anndata.AnnData(
        np.zeros((len(table), 3), np.float32), obs, pd.DataFrame(index=pd.Index(GENES, dtype=object))
    )
    adata.layers["raw"] = scipy.sparse.csr_matrix(table[GENES].to_numpy())
    adata.obsm["time"] = table[["age"]].to_numpy()
    return adata


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same visits in every form."""
    folder, table = tmp_path_factory.mktemp("visits"), visits()
    table.to_csv(folder / "v.csv", index=False)
    table.to_csv(folder / "v.tsv", index=False, sep="\t")
    table.to_parquet(folder / "v.parquet")
    table.drop(columns=GENES).to_csv(folder / "rows.csv", index=False)
    table[["subject", "age", *GENES]].to_csv(folder / "genes.csv", index=False)
    whole = table[["subject", "age", *GENES]].astype({"age": int})
    whole.to_csv(folder / "whole_ages.csv", index=False)
    table[GENES].to_csv(folder / "only_genes.tsv", index=False, sep="\t")
    np.save(folder / "genes.npy", table[GENES].to_numpy())
    as_anndata(table).write_h5ad(folder / "v.h5ad")
    (folder / "wanted.csv").write_text("subject,age\n001,33\n003,5\n")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    words = ["fit", folder / "v.csv", "--samples", "gene_*", "--kernel", KERNEL, "--out", folder / "run", *QUICK]
    found = json.loads(succeed(*words, "--json"))
    assert found["n_samples"] == 24 and found["shape"] == [3] and found["model"] == str(folder / "run")
    assert found["metrics"]["global"]["loss"] != 0.0 and "report" not in found
    return folder / "run"


FORMS = {
    "a list": ["v.csv", "--samples", "gene_a,gene_b", "--samples", "gene_c"],
    "tabs": ["v.tsv", "--samples", "gene_*"],
    "parquet": ["v.parquet", "--samples", "gene_*"],
    "a table of their own": ["rows.csv", "--data", "genes.csv"],
    "numbers written in another way": ["rows.csv", "--data", "whole_ages.csv"],
    "without rows": ["rows.csv", "--data", "only_genes.tsv"],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_model(form: str, folder: Path, run: Path, tmp_path: Path) -> None:
    words = [folder / word if "." in word else word for word in FORMS[form]]
    succeed("fit", *words, "--kernel", KERNEL, "--out", tmp_path / "run", *QUICK)
    ours, theirs = GPPVAE.load(tmp_path / "run"), GPPVAE.load(run)
    wanted = {"subject": ["001"], "age": [12.0]}
    assert ours.sample_names_ == theirs.sample_names_ == GENES
    np.testing.assert_array_equal(ours.predict(wanted).mean, theirs.predict(wanted).mean)


def test_fit_and_predict_from_an_h5ad_file(folder: Path, tmp_path: Path) -> None:
    kernel = ["--kernel", "Learned(subject, 2) * RBF(x)"]
    source = ["--layer", "raw", "--spatial", "time"]
    succeed("fit", folder / "v.h5ad", *source, *kernel, "--out", tmp_path / "run", *QUICK)
    model = GPPVAE.load(tmp_path / "run")
    assert model.sample_names_ == GENES
    succeed("predict", tmp_path / "run", folder / "v.h5ad", "--spatial", "time", "--out", tmp_path / "out")
    found = anndata.read_h5ad(tmp_path / "out" / "predictions.h5ad")
    rows = {"subject": visits()["subject"].to_numpy(), "x": visits()["age"].to_numpy()}
    np.testing.assert_array_equal(found.X, model.predict(rows).mean)
    assert found.var_names.tolist() == GENES and found.obs_names[0] == "v0"
    assert "expected a layer of the AnnData, got 'row'" in refused(
        "fit", folder / "v.h5ad", "--layer", "row", *kernel, "--out", tmp_path / "none", *QUICK
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rows.csv"], "expected samples, got neither --data nor --samples; name a file"),
        (["v.csv", "--samples", "gen_*"], "got 'gen_*', which matches none; did you mean 'gene_"),
        (["v.csv", "--samples", "*"], "column 'note' must be numeric to be part of a sample"),
        (["v.csv", "--samples", "age"], "got column 'age' as both"),
        (
            ["v.csv", "--data", "genes.npy", "--samples", "gene_*"],
            "expected a table of samples together with --samples",
        ),
        (["v.csv", "--samples", "gene_*", "--layer", "raw"], "expected an .h5ad file together with --layer"),
        (["v.csv", "--samples", "gene_*", "--phases", "wanted.csv"], "expected a list of phases in"),
    ],
)
def test_samples_that_are_not_there_are_one_sentence(words: list[str], told: str, folder: Path) -> None:
    words = [str(folder / word) if word.endswith((".csv", ".npy")) else word for word in words]
    assert told in refused("fit", *words, "--kernel", KERNEL, "--out", folder / "none", *QUICK)
    assert not (folder / "none").exists()


def test_rows_of_two_tables_must_be_the_same(folder: Path, tmp_path: Path) -> None:
    visits().iloc[::-1][["subject", *GENES]].to_csv(tmp_path / "other.csv", index=False)
    words = ["fit", folder / "rows.csv", "--data", tmp_path / "other.csv", "--kernel", KERNEL, "--out", tmp_path / "r"]
    assert "got '003' in column 'subject' of row 0 instead of '000'" in refused(*words, *QUICK)


# -- answers with names


def test_predictions_are_a_table_with_names(folder: Path, run: Path, tmp_path: Path) -> None:
    words = ["predict", run, folder / "wanted.csv", "--interval", 0.5, "--out", tmp_path / "out", "--json", "--quiet"]
    result, parts = json.loads(succeed(*words)), ("high", "low", "mean", "std")
    assert sorted([*(f"{name}.{kind}" for name in parts for kind in ("csv", "npy")), "rows.csv"]) == result["files"]
    assert result["count"] == 2
    for name in parts:
        found = pd.read_csv(tmp_path / "out" / f"{name}.csv", dtype={"subject": str})
        assert found.columns.tolist() == ["subject", "age", *GENES] and found["subject"].tolist() == ["001", "003"]
        np.testing.assert_allclose(found[GENES], np.load(tmp_path / "out" / f"{name}.npy"), rtol=1e-6)


def test_what_is_missing_is_filled_in(folder: Path, run: Path, tmp_path: Path) -> None:
    holes = visits()
    holes.loc[3, "gene_b"] = np.nan
    holes.to_csv(tmp_path / "holes.csv", index=False)
    succeed("impute", run, tmp_path / "holes.csv", "--out", tmp_path / "filled", "--quiet")
    filled = pd.read_csv(tmp_path / "filled" / "mean.csv", dtype={"subject": str})
    std = pd.read_csv(tmp_path / "filled" / "std.csv")
    assert filled["note"].tolist() == ["text"] * 24, "columns beside the samples are kept"
    seen = holes[GENES].notna().to_numpy()
    np.testing.assert_allclose(filled[GENES].to_numpy()[seen], holes[GENES].to_numpy()[seen], rtol=1e-6)
    assert np.isfinite(filled.loc[3, "gene_b"]) and std.loc[3, "gene_b"] > 0
    assert (std[GENES].to_numpy()[seen] == 0).all()
    frame = GPPVAE.load(run).impute(holes, holes).mean
    np.testing.assert_allclose(frame.to_numpy(), filled[GENES].to_numpy(), rtol=1e-5)
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == GENES


def test_reconstructions_and_latents_of_a_table(folder: Path, run: Path, tmp_path: Path) -> None:
    succeed("reconstruct", run, "--table", folder / "v.parquet", "--out", tmp_path / "again", "--quiet")
    found = pd.read_csv(tmp_path / "again" / "mean.csv", dtype={"subject": str})
    model = GPPVAE.load(run)
    np.testing.assert_allclose(found[GENES], model.reconstruct(visits()[GENES].to_numpy()), rtol=1e-5)
    assert (tmp_path / "again" / "rows.csv").read_text().startswith("subject,age,note")
    succeed("encode", run, "--data", folder / "only_genes.tsv", "--out", tmp_path / "latents", "--quiet")
    np.testing.assert_allclose(
        np.load(tmp_path / "latents" / "mean.npy"), model.encode(visits()[GENES].to_numpy()), rtol=1e-5, atol=1e-7
    )
    assert "expected samples, got neither --data nor --table" in refused("encode", run, "--out", tmp_path / "none")


def test_draws_are_those_of_the_model(folder: Path, run: Path, tmp_path: Path) -> None:
    words = ["--n-samples", 3, "--seed", 5, "--out", tmp_path / "out", "--quiet"]
    assert json.loads(succeed("sample", run, folder / "wanted.csv", *words, "--json"))["count"] == 3
    expected = GPPVAE.load(run).sample({"subject": ["001", "003"], "age": [33.0, 5.0]}, 3, seed=5)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "draws.npy"), expected)
    table = pd.read_csv(tmp_path / "out" / "draws.csv", dtype={"subject": str})
    assert table["draw"].tolist() == [0, 0, 1, 1, 2, 2] and table["subject"].tolist() == ["001", "003"] * 3
    np.testing.assert_allclose(table[GENES], expected.reshape(6, 3), rtol=1e-6)


def test_draws_of_missing_values_are_a_table_with_names(folder: Path, run: Path, tmp_path: Path) -> None:
    holes = visits()
    holes.loc[3, "gene_b"] = np.nan
    holes.to_csv(tmp_path / "holes.csv", index=False, na_rep="NA")
    succeed("impute", run, tmp_path / "holes.csv", "--out", tmp_path / "filled", "--n-samples", 3, "--quiet")
    draws = np.load(tmp_path / "filled" / "draws.npy")  # (rows, draws, values)
    table = pd.read_csv(tmp_path / "filled" / "draws.csv", dtype={"subject": str})
    assert draws.shape == (24, 3, 3) and table["draw"].tolist() == [0] * 24 + [1] * 24 + [2] * 24
    np.testing.assert_allclose(table[GENES], np.moveaxis(draws, 1, 0).reshape(72, 3), rtol=1e-6)
    assert table.loc[[3, 27, 51], "gene_b"].nunique() == 3


def test_rows_of_an_h5ad_file_are_drawn_at_its_places(folder: Path, tmp_path: Path) -> None:
    words = [
        "fit",
        folder / "v.h5ad",
        "--layer",
        "raw",
        "--spatial",
        "time",
        "--kernel",
        "Learned(subject, 2) * RBF(x)",
    ]
    succeed(*words, "--out", tmp_path / "run", *QUICK)
    places = ["--spatial", "time", "--out", tmp_path / "drawn", "--quiet", "--json"]
    assert json.loads(succeed("sample", tmp_path / "run", folder / "v.h5ad", *places))["count"] == 1
    assert np.load(tmp_path / "drawn" / "draws.npy").shape == (1, 24, 3)


def test_info_has_every_part_of_a_kernel_that_repeats_one(folder: Path, tmp_path: Path) -> None:
    words = ["fit", folder / "v.csv", "--samples", "gene_*", "--kernel", "RBF(age) + Categorical(subject) * RBF(age)"]
    succeed(*words, "--out", tmp_path / "run", *QUICK)
    learned = json.loads(succeed("info", tmp_path / "run", "--json"))["learned"]
    assert [name for name in learned if name.startswith("RBF")] == ["RBF('age')", "RBF('age') (2)"]


def test_score_and_explain_say_what_the_model_says(folder: Path, run: Path) -> None:
    model, table = GPPVAE.load(run), visits()
    found = json.loads(succeed("score", run, folder / "v.csv", "--json", "--quiet"))
    assert found["score"] == pytest.approx(model.score(table, table), rel=1e-6) and found["n_samples"] == 24
    assert "nats per sample" in succeed("score", run, folder / "v.csv", "--quiet")
    explained = json.loads(succeed("explain", run, folder / "v.csv", "--json", "--quiet"))
    assert [term["name"] for term in explained["terms"]] == [term.name for term in model.explain(table).terms]
    assert explained["by_channel"]["channel"] == GENES
    assert "signal" in succeed("explain", run, folder / "v.csv", "--quiet")


def test_a_subject_is_added_and_predicted(folder: Path, run: Path, tmp_path: Path) -> None:
    table = visits().iloc[:4].assign(subject="new")
    table.to_csv(tmp_path / "new.csv", index=False)
    before = (run / "model.safetensors").read_bytes()
    words = ["add-objects", run, tmp_path / "new.csv", "--out", tmp_path / "more", "--quiet"]
    assert json.loads(succeed(*words, "--json"))["added"] == ["new"]
    assert (run / "model.safetensors").read_bytes() == before
    model = GPPVAE.load(run)
    model.add_objects(table, table)
    rows = {"subject": ["new"], "age": [7.0]}
    np.testing.assert_allclose(GPPVAE.load(tmp_path / "more").predict(rows).mean, model.predict(rows).mean, rtol=1e-5)
    assert "already holds a finished run" in refused(*words)


def test_the_report_of_a_table_with_names(folder: Path, run: Path) -> None:
    words = ["report", run, "--table", folder / "v.csv", "--validation-fraction", 0.2, "--json"]
    assert json.loads(succeed(*words)) == {"report": str(run / "report.html")}

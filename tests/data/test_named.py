"""Samples with names: columns of the table, DataFrames, sparse matrices. The answers carry the names."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from gppvae import GPPVAE, VAE
from gppvae.data import arrays
from gppvae.data.arrays import Samples
from gppvae.data.named import Named, chosen_columns, from_frame
from gppvae.data.stored import SparseReader
from gppvae.data.subset import Subset
from gppvae.models.start import MAX_ROWS
from gppvae.report.run import write_report

KERNEL = "Learned(subject, 2) * RBF(age)"
QUICK = {"latent_dim": 2, "network": "mlp", "width": 8, "epochs": 2, "batch_size": 16}
GENES = ["gene_a", "gene_b", "gene_c"]


def visits() -> pd.DataFrame:
    """Subjects at ages, an index that says nothing of rows, and three genes."""
    rng = np.random.default_rng(0)
    rows = [(f"{p:03d}", 10.0 * t) for p in range(4) for t in range(5)]
    table = pd.DataFrame(rows, columns=["subject", "age"], index=[f"visit {n}" for n in range(20)])
    for n, gene in enumerate(GENES):
        table[gene] = np.sin(table["age"] / 20 + n) + 0.1 * rng.standard_normal(20)
    return table.assign(note="text")


@pytest.fixture(scope="module")
def model() -> GPPVAE:
    return GPPVAE(KERNEL, **QUICK).fit("gene_*", visits(), progress=False)


def plain() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    table = visits()
    return table[GENES].to_numpy(), {name: table[name].to_numpy() for name in ("subject", "age")}


# -- in, and out again


@pytest.mark.parametrize("given", ["pattern", "list", "frame"])
def test_columns_are_fitted_as_their_values_are(model: GPPVAE, given: str) -> None:
    values, rows = plain()
    expected = GPPVAE(KERNEL, **QUICK).fit(values, rows, progress=False).predict(rows)
    samples = {"pattern": "gene_*", "list": ["gene_a", "gene_[bc]"], "frame": visits()[GENES]}[given]
    fitted = GPPVAE(KERNEL, **QUICK).fit(samples, visits(), progress=False)
    assert fitted.sample_names_ == GENES
    np.testing.assert_array_equal(fitted.predict(visits()).mean.to_numpy(), expected.mean)


def test_predictions_carry_names_and_the_index_of_the_rows(model: GPPVAE, tmp_path: Path) -> None:
    wanted = pd.DataFrame({"subject": ["001", "003"], "age": [12.0, 44.0]}, index=["first", "second"])
    model.save(tmp_path)
    for one in (model, GPPVAE.load(tmp_path)):
        found = one.predict(wanted, n_samples=3)
        for part in (found.mean, found.std):
            assert isinstance(part, pd.DataFrame)
            assert list(part.columns) == GENES and list(part.index) == ["first", "second"]
        arrays_ = one.predict(wanted.to_dict("list"), n_samples=3)
        assert isinstance(arrays_.mean, np.ndarray)
        np.testing.assert_array_equal(found.mean.to_numpy(), arrays_.mean)


def test_reconstructions_come_back_as_the_samples_came(model: GPPVAE) -> None:
    table = visits()
    found = model.reconstruct(table[GENES[::-1]])
    assert isinstance(found, pd.DataFrame) and list(found.columns) == GENES and list(found.index) == list(table.index)
    np.testing.assert_array_equal(found.to_numpy(), model.reconstruct(table[GENES].to_numpy()))


def test_columns_that_are_numbers_stay_numbers(tmp_path: Path) -> None:
    """A DataFrame made from an array: differences to the samples would be NaN under other labels."""
    table = visits()
    frame, rows = pd.DataFrame(table[GENES].to_numpy(), index=table.index), table[["subject", "age"]]
    GPPVAE("RBF(age)", 2, epochs=1).fit(frame, rows, progress=False).save(tmp_path / "gppvae")
    model = GPPVAE.load(tmp_path / "gppvae")
    drawn = model.predict(rows, n_samples=2)
    answers = [drawn.mean, drawn.std, *drawn.interval(), model.reconstruct(frame), model.impute(frame, rows).mean]
    VAE(2, network="mlp", epochs=1).fit(frame, progress=False).save(tmp_path / "vae")
    for answer in (*answers, VAE.load(tmp_path / "vae").reconstruct(frame)):
        assert answer.columns.equals(frame.columns)
        assert np.isfinite((answer - frame).to_numpy()).all()


def test_columns_are_found_by_name_whatever_their_order(model: GPPVAE) -> None:
    table = visits()
    expected = model.encode(table[GENES].to_numpy())
    np.testing.assert_array_equal(model.encode(table), expected)  # the whole table: other columns are not looked at
    np.testing.assert_array_equal(model.encode(table[GENES[::-1]]), expected)
    assert model.score(table, table) == model.score(table[GENES].to_numpy(), table)
    with pytest.raises(ValueError, match=r"got none named 'gene_b' \(1 such\); add them"):
        model.encode(table.drop(columns="gene_b"))


def test_a_vae_takes_a_frame_too(tmp_path: Path) -> None:
    frame = visits()[GENES]
    VAE(2, network="mlp", epochs=1).fit(frame, progress=False).save(tmp_path)
    assert list(VAE.load(tmp_path).reconstruct(frame).columns) == GENES


def test_the_report_takes_frames(model: GPPVAE, tmp_path: Path) -> None:
    table = visits()
    model.save(tmp_path)
    page = write_report(tmp_path, model, train=(table[GENES], table), test=(table[GENES][::3], table[::3]))
    assert "gene_b" in page.read_text("utf-8") and str(model.predict(table)).startswith("Prediction(20 samples")


def test_validation_rows_may_be_named_columns_as_well() -> None:
    table = visits()
    model = GPPVAE(KERNEL, **QUICK).fit("gene_*", table, validation=("gene_*", table[::4]), progress=False)
    assert any("valid_mse_prediction" in row for row in model.history_)


def test_an_array_trained_model_gives_arrays() -> None:
    values, rows = plain()
    model = GPPVAE(KERNEL, **QUICK).fit(values, rows, progress=False)
    assert model.sample_names_ is None and isinstance(model.predict(pd.DataFrame(rows)).mean, np.ndarray)


# -- which columns


def test_patterns_leave_out_what_the_kernel_reads() -> None:
    columns = ["age", "a1", "b", "a2", "a[1]"]
    assert chosen_columns("a*", columns, ["age"]) == ["a1", "a2", "a[1]"]
    assert chosen_columns(["b", "a?"], columns) == ["b", "a1", "a2"]
    assert chosen_columns("a[1]", columns) == ["a[1]"], "a name is a name before it is a pattern"
    with pytest.raises(ValueError, match="got column 'age' as both; take it out of one"):
        chosen_columns(["age"], columns, ["age"])


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (["gene_a", "gene_q"], "got 'gene_q', which matches none; did you mean 'gene_"),
        ("nothing", "got 'nothing', which matches none"),
        (["gene_a", "note"], "column 'note' must be numeric to be part of a sample, got 'text' in row 0"),
        (["gene_a", "age"], "got column 'age' as both"),
    ],
)
def test_columns_that_cannot_be_samples(samples: object, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        GPPVAE(KERNEL, **QUICK).fit(samples, visits(), progress=False)
    assert "\n" not in str(caught.value)


def test_the_value_that_is_no_number_is_shown_with_its_row() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.5, "oops", None]})
    with pytest.raises(ValueError, match="'b' must be numeric to be part of a sample, got 'oops' in row 1"):
        Samples(frame)
    with pytest.raises(ValueError, match="got '1,5' in row 0; write decimal points instead of commas"):
        Samples(pd.DataFrame({"a": ["1,5", "2,5"]}))
    dates = pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    with pytest.raises(ValueError, match="'a' must be numeric to be part of a sample, got '2020-01-01"):
        Samples(dates)


def test_numbers_too_large_for_floats_are_no_samples() -> None:
    with pytest.raises(ValueError, match=r"'a' must be numeric .* got '1000\d*\.\.\.' in row 1; rescale the column"):
        Samples(pd.DataFrame({"a": [1, 10**400], "b": [1.0, 2.0]}))


def test_numbers_of_any_kind_in_one_column_are_numbers() -> None:
    frame = pd.DataFrame({"a": [1, None, 2.5], "b": [3, 4, 5]}).astype(object)
    y, mask = Samples(frame, missing="mask").read(torch.arange(3))
    assert mask is not None and not mask[1, 0]
    np.testing.assert_array_equal(y.numpy(), [[1.0, 3.0], [0.0, 4.0], [2.5, 5.0]])


def test_named_values_are_found_by_name_whatever_their_order(model: GPPVAE) -> None:
    values, rows = plain()
    mixed, names = np.column_stack([values, np.ones(len(values))])[:, [2, 3, 0, 1]], ["gene_c", "more", *GENES[:2]]
    expected = model.score(values, rows)
    for given in (mixed, scipy.sparse.csr_matrix(mixed)):
        assert model.score(Named(given, names), rows) == pytest.approx(expected, rel=1e-6)
        assert model.score(Subset(Named(given, names), np.arange(20)), rows) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"the 3 values of the training samples, got none named 'gene_b' \(1 such\)"):
        model.score(Named(values, ["gene_a", "b", "gene_c"]), rows)


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="unique names of values, got 'a' twice; rename one"):
        Samples(pd.DataFrame(np.zeros((3, 2)), columns=["a", "a"]))


def test_missing_numbers_of_any_kind_are_nan() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [0.5, 1.5, np.nan]})
    y, mask = Samples(frame, missing="mask").read(torch.arange(3))
    assert mask is not None
    np.testing.assert_array_equal(mask.numpy(), [[True, True], [False, True], [True, False]])
    np.testing.assert_array_equal(y.numpy()[mask.numpy()], [1.0, 0.5, 1.5, 3.0])


def test_whole_numbers_stay_whole() -> None:
    samples = Samples(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    samples.check()
    assert samples.integers


# -- sparse


def test_a_sparse_matrix_is_read_as_the_dense_one(rng: np.random.Generator) -> None:
    dense = np.where(rng.random((30, 7)) < 0.7, 0.0, rng.integers(1, 9, (30, 7)))
    index = np.array([3, 3, 29, 0])
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix):
        samples = Samples(kind(dense))
        np.testing.assert_array_equal(samples.read(torch.from_numpy(index))[0].numpy(), dense[index])
        assert samples.check() == (dense.min(), dense.max()) and samples.integers
        part = Samples(Subset(Named(kind(dense), "abcdefg"), np.arange(5, 20, 2)))
        assert part.names == list("abcdefg")
        np.testing.assert_array_equal(part._reader.block(0, 8), dense[5:20:2])


def test_a_sparse_matrix_never_becomes_dense_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 2 * MAX_ROWS
    rng = np.random.default_rng(0)
    rows = {"subject": [f"s{p % 6}" for p in range(n)], "age": np.arange(n) // 6 * 1.0}
    dense = rng.poisson(4.0, (n, 3)).astype(np.float32)
    largest: list[int] = []
    read = SparseReader.rows, SparseReader.block
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 8 * 3 * 4)  # so that four rows are a block
    monkeypatch.setattr(SparseReader, "rows", lambda self, index: largest.append(len(index)) or read[0](self, index))
    monkeypatch.setattr(
        SparseReader, "block", lambda self, start, stop: largest.append(stop - start) or read[1](self, start, stop)
    )
    quick = QUICK | {"batch_size": 64, "epochs": 1, "likelihood": "negative_binomial"}
    model = GPPVAE(KERNEL, **quick).fit(scipy.sparse.csr_matrix(dense), rows, progress=False)
    assert sum(largest) > n and max(largest) <= MAX_ROWS  # the start reads so many rows at once, however many there are
    monkeypatch.undo()
    expected = GPPVAE(KERNEL, **quick).fit(dense, rows, progress=False)
    np.testing.assert_allclose(model.predict(rows).mean, expected.predict(rows).mean, rtol=1e-5, atol=1e-6)


def test_columns_of_true_and_false_are_numbers_beside_others() -> None:
    frame = pd.DataFrame({"a": [0.5, 1.5], "b": [True, False]})
    assert from_frame(frame)[:].tolist() == [[0.5, 1.0], [1.5, 0.0]]

"""Counts from fit to prediction: sizes from totals or a column, deviance in the log, bad counts refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gppvae import GPPVAE, VAE
from gppvae.cli import app
from gppvae.likelihoods import NegativeBinomial, Poisson

N, K = 160, 6
PLAIN: dict[str, Any] = {"latent_dim": 2, "inference": "global", "network": "mlp"}
QUICK = PLAIN | {"width": 16, "epochs": 40, "lr": 3e-3, "seed": 0}


def cells() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Counts of six genes along a line, with depths from 20 to 2,000 that have nothing to do with the place."""
    rng = np.random.default_rng(0)
    place, depth = np.linspace(0.0, 6.0, N), np.exp(rng.uniform(np.log(20.0), np.log(2000.0), N)).round()
    log_share = np.stack([np.sin(place + phase) for phase in np.linspace(0.0, 5.0, K)], axis=1)
    share = np.exp(log_share) / np.exp(log_share).sum(1, keepdims=True)
    counts = rng.poisson(depth[:, None] * share * rng.gamma(50.0, 0.02, size=(N, K)))
    return counts, {"place": place, "depth": depth}


TRAIN, TEST = np.arange(N) % 4 != 0, np.arange(N) % 4 == 0


def rows(table: dict[str, np.ndarray], which: np.ndarray, *names: str) -> dict[str, np.ndarray]:
    return {name: table[name][which] for name in names or table}


def deviance(y: np.ndarray, mean: np.ndarray) -> float:
    total = 0.0
    for count, expected in zip(y.ravel(), mean.ravel(), strict=True):
        total += 2.0 * ((count * np.log(count / expected) if count else 0.0) - count + expected)
    return total / y.size


@pytest.fixture(scope="module")
def by_column() -> GPPVAE:
    counts, table = cells()
    model = GPPVAE("RBF(place)", likelihood=NegativeBinomial(size="depth"), **QUICK)
    held_out = counts[TEST], rows(table, TEST)
    return model.fit(counts[TRAIN], rows(table, TRAIN), validation=held_out, progress=False)


@pytest.fixture(scope="module")
def by_total() -> GPPVAE:
    counts, table = cells()
    model = GPPVAE("RBF(place)", likelihood="negative_binomial", **QUICK)
    held_out = counts[TEST], rows(table, TEST, "place")
    return model.fit(counts[TRAIN], rows(table, TRAIN, "place"), validation=held_out, progress=False)


def test_predictions_at_the_sizes_of_rows_beat_the_mean_at_the_same_sizes(by_column: GPPVAE) -> None:
    counts, table = cells()
    found = deviance(counts[TEST], by_column.predict(rows(table, TEST)).mean)
    rate = counts[TRAIN].sum(0) / table["depth"][TRAIN].sum()
    assert found < 0.5 * deviance(counts[TEST], table["depth"][TEST][:, None] * rate)
    logged = [row["valid_deviance_prediction"] for row in by_column.history_ if "valid_deviance_prediction" in row]
    assert logged[-1] == pytest.approx(found, rel=1e-4)  # the last epoch, at the sizes of the held-out samples
    assert not any(name.startswith("valid_mse") for row in by_column.history_ for name in row)


def test_totals_are_sizes_by_default(by_total: GPPVAE) -> None:
    counts, _ = cells()
    mean = counts[TRAIN].sum(0) / counts[TRAIN].sum()
    logged = [row["valid_deviance_prediction"] for row in by_total.history_ if "valid_deviance_prediction" in row]
    assert logged[-1] < 0.5 * deviance(counts[TEST], counts[TEST].sum(1, keepdims=True) * mean)


def test_intervals_of_counts_end_at_zero(by_total: GPPVAE) -> None:
    found = by_total.predict({"place": [0.1, 1.0, 7.0]}, n_samples=16, include_noise=True)
    assert found.std is not None and (found.mean - 1.6449 * found.std).min() < 0.0
    low, high = found.interval(0.9)
    assert low.min() == 0.0
    np.testing.assert_allclose(low, np.maximum(found.mean - 1.644854 * found.std, 0.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(high, found.mean + 1.644854 * found.std, rtol=1e-5)


def test_predictions_are_for_the_size_of_a_row_or_a_typical_one(by_column: GPPVAE, by_total: GPPVAE) -> None:
    counts, table = cells()
    one = by_column.predict({"place": [1.0, 1.0], "depth": [100.0, 300.0]}).mean
    np.testing.assert_allclose(one[1], 3.0 * one[0], rtol=1e-4)
    typical = by_column.predict({"place": [1.0]}).mean
    median = np.sort(table["depth"][TRAIN])[(TRAIN.sum() - 1) // 2]
    np.testing.assert_allclose(typical[0], one[0] * median / 100.0, rtol=1e-4)
    given = by_total.predict({"place": [1.0], "(size)": [777.0]}).mean
    np.testing.assert_allclose(given.sum(), 777.0, rtol=1e-4)
    totals = np.sort(counts[TRAIN].sum(1))
    np.testing.assert_allclose(
        by_total.predict({"place": [1.0, 5.0]}).mean.sum(1), totals[(len(totals) - 1) // 2], rtol=1e-4
    )


def test_draws_are_counts_and_stds_grow_with_the_mean(by_column: GPPVAE) -> None:
    table = {"place": [1.0, 1.0], "depth": [50.0, 1500.0]}
    drawn = by_column.sample(table, n_samples=8, include_noise=True)
    assert np.array_equal(drawn, drawn.round()) and drawn.min() >= 0
    std = by_column.predict(table, n_samples=32, include_noise=True).std
    assert (std[1] > 3.0 * std[0]).all()


def test_depth_does_not_reach_the_latents(by_total: GPPVAE) -> None:
    counts, _ = cells()
    np.testing.assert_allclose(by_total.encode(3 * counts), by_total.encode(counts), atol=1e-4)


def test_missing_counts_are_imputed_for_the_size_of_the_sample(by_total: GPPVAE, tmp_path: Path) -> None:
    counts, table = cells()
    gaps = counts[TEST].astype(np.float32)
    hidden = np.random.default_rng(1).random(gaps.shape) < 0.3
    truth, gaps[hidden] = gaps[hidden], np.nan
    found = by_total.impute(gaps, rows(table, TEST), n_samples=4)
    typical = by_total.predict(rows(table, TEST)).mean[hidden]
    assert deviance(truth, found.mean[hidden]) < 0.2 * deviance(truth, typical)
    assert found.draws is not None and np.array_equal(found.draws, found.draws.round())
    by_total.save(tmp_path / "run")
    np.testing.assert_array_equal(GPPVAE.load(tmp_path / "run").impute(gaps, rows(table, TEST)).mean, found.mean)


def test_zero_inflation_and_poisson_train(tmp_path: Path) -> None:
    counts, table = cells()
    counts[np.random.default_rng(2).random(counts.shape) < 0.4] = 0
    for likelihood in (NegativeBinomial(size="depth", zero_inflation=True), Poisson(zero_inflation=True)):
        model = GPPVAE("RBF(place)", likelihood=likelihood, width=8, epochs=45, lr=0.01, **PLAIN)
        kept = counts.sum(1) > 0
        model.fit(counts[kept], rows(table, kept), progress=False)
        model.save(tmp_path / likelihood.name)
        again = GPPVAE.load(tmp_path / likelihood.name)
        np.testing.assert_array_equal(again.predict(table).mean, model.predict(table).mean)
    zero = 1.0 / (1.0 + np.exp(-model.model_.autoencoder.likelihood.zero_logit.detach().numpy()))
    assert (zero > 0.15).all() and (zero < 0.6).all()  # from 0.05 towards 0.4


def test_a_plain_vae_takes_totals() -> None:
    counts, _ = cells()
    model = VAE(2, width=8, epochs=5, likelihood="poisson").fit(counts, progress=False)
    np.testing.assert_allclose(model.reconstruct(counts).sum(1), counts.sum(1), rtol=1e-4)
    with pytest.raises(ValueError, match="expected a table with the sizes in a column 'depth', got none"):
        VAE(2, width=8, epochs=1, likelihood=Poisson(size="depth")).fit(counts, progress=False)


# -- bad input, in one sentence, before training


def bad(name: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    counts, table = cells()
    counts, table = counts.astype(float), dict(table)
    if name == "negative":
        counts[3, 1] = -2.0
    elif name == "not whole":
        counts[3, 1] = 1.5
    elif name == "total of zero":
        counts[5] = 0.0
    elif name == "size of zero":
        table["depth"][7] = 0.0
    elif name == "no size":
        table["depth"][7] = np.nan
    elif name == "size as text":
        table["depth"] = np.array(["deep"] * N)
    else:
        del table["depth"]
    return counts, table


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("negative", "total", r"needs counts 0, 1, 2 ..., got values in \[-2, "),
        ("not whole", "total", "that are not whole; pass raw counts or use gaussian"),
        ("total of zero", "total", r"a total of 0 in sample 5 \(1 such samples\); remove them"),
        ("size of zero", "depth", r"column 'depth' must be above zero, got 0 in row 7 \(1 such rows\)"),
        ("no size", "depth", "column 'depth' must be finite, got nan in row 7"),
        ("size as text", "depth", "column 'depth' must be numeric, got values like 'deep'"),
        ("no column", "depth", r"expected a column 'depth', got columns \['place'\]"),
    ],
)
def test_bad_counts_and_sizes_are_refused(name: str, size: str, sentence: str, tmp_path: Path) -> None:
    counts, table = bad(name)
    model = GPPVAE("RBF(place)", likelihood=NegativeBinomial(size=size), **QUICK)
    with pytest.raises(ValueError, match=sentence):
        model.fit(counts, table, progress=False, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_a_column_of_sizes(tmp_path: Path) -> None:
    counts, table = cells()
    np.save(tmp_path / "counts.npy", counts)
    lines = ["place,depth", *(f"{p},{d}" for p, d in zip(table["place"], table["depth"], strict=True))]
    (tmp_path / "spots.csv").write_text("\n".join(lines) + "\n")
    words = ["fit", str(tmp_path / "spots.csv"), "--data", str(tmp_path / "counts.npy"), "--kernel", "RBF(place)"]
    words += ["--epochs", "1", "--latent-dim", "2", "--quiet", "--no-report", "--size", "depth"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--likelihood", "poisson"])
    assert done.exit_code == 0, done.output
    model = GPPVAE.load(tmp_path / "run")
    assert model.prior_.size_column == "depth" and model.resolved_["likelihood"]["size"] == "depth"
    refused = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "other"), "--likelihood", "gaussian"])
    assert refused.exit_code == 2 and "sizes belong to the likelihoods" in refused.stderr


def test_simple_answers_are_at_the_sizes_of_the_samples_too(by_column: GPPVAE, by_total: GPPVAE) -> None:
    counts, table = cells()
    for model, size in ((by_column, table["depth"]), (by_total, counts.sum(1).clip(1))):
        answers: dict[str, list[np.ndarray]] = {"mean": [], "nearest sample": [], "linear in place": []}
        train = np.flatnonzero(TRAIN)
        share = counts[train].mean(0) / counts[train].mean(0).sum()
        for n in np.flatnonzero(TEST):
            below = [t for t in train if table["place"][t] <= table["place"][n]]
            above = [t for t in train if table["place"][t] >= table["place"][n]]
            if below and above:
                a, b = below[-1], above[0]
                weight = (table["place"][n] - table["place"][a]) / (table["place"][b] - table["place"][a])
                line = {a: 1.0 - weight, b: weight}
            else:
                line = {(below or above)[-1 if below else 0]: 1.0}
            nearest = min(train, key=lambda t: abs(table["place"][t] - table["place"][n]))
            for name, rows in zip(answers, (dict.fromkeys(train, 1.0), {nearest: 1.0}, line), strict=True):
                total = sum(rows.values())
                found = sum(w * counts[t] for t, w in rows.items()) / total
                one_more = (found + share) * found.sum() / (found.sum() + 1.0)
                answers[name].append(one_more * size[n] / (sum(w * size[t] for t, w in rows.items()) / total))
        compared = model.comparison_
        assert compared is not None and compared.measure == "deviance" and "(deviance)" in str(compared)
        for name, found in answers.items():
            assert compared.errors[name] == pytest.approx(deviance(counts[TEST], np.stack(found)), rel=1e-4), name
        logged = [row["valid_deviance_prediction"] for row in model.history_ if "valid_deviance_prediction" in row]
        assert compared.error == pytest.approx(logged[-1], rel=1e-3)
        assert not compared.loses

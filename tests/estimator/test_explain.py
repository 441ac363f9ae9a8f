"""explain(): with a linear decoder every share and curve can be computed by hand, from the definition of the kernel."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from gppvae import GPPVAE
from gppvae.data.table import Table
from gppvae.models.terms import signal_parts
from oracles import categorical, gram, multiplied, periodic, rbf

WEIGHT = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)  # L = 3 latents, 4 values


class Flat(nn.Module):
    """An encoder that says the same of everything: the data do not matter here."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, y):
        return self.bias.expand(len(y), 3), self.bias.expand(len(y), 3) - 2.0


def line(bias: float = 0.5) -> nn.Linear:
    decoder = nn.Linear(3, 4)
    with torch.no_grad():
        decoder.weight.copy_(torch.from_numpy(WEIGHT.T))
        decoder.bias.fill_(bias)
    return decoder


def table(n: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ids = np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    return pd.DataFrame({"age": rng.integers(0, 12, n).astype(float), "subject": ids})


def fitted(
    kernel, decoder=None, samples: np.ndarray | None = None, rows: pd.DataFrame | None = None, **options
) -> GPPVAE:
    """A model whose q(B) was conditioned on latents that we know."""
    rows = table() if rows is None else rows
    y = np.zeros((len(rows), 4), dtype=np.float32) if samples is None else samples
    model = GPPVAE(
        kernel,
        encoder=Flat(),
        decoder=decoder or line(),
        warmup_epochs=0,
        gp_epochs=0,
        epochs=1,
        inference="exact",
        lr=0.0,
        prior_lr=0.0,
        device="cpu",
        **options,
    )
    model.fit(y, rows, progress=False)
    latents = np.random.default_rng(2).normal(size=(len(rows), 3)) + np.outer(np.sin(rows["age"]), [1.0, 0.5, 2.0])
    prior = model.prior_
    sums = prior.statistics(prior.code(Table(rows)), torch.from_numpy(latents))
    model.posterior_ = prior.posterior(sums)
    model.latents_used = latents
    return model


def dense_parts(model: GPPVAE, covariances, alpha: float, asked: pd.DataFrame, given: pd.DataFrame | None = None):
    """E f_t at asked rows given the latents, by the textbook: K_t(asked, rows) (K + alpha I)^-1 Z; and its variance."""
    rows, at = (table() if given is None else given).to_dict("records"), asked.to_dict("records")
    K = sum(gram(k, rows, rows) for k in covariances) + alpha * np.eye(len(rows))
    parts, variances = [], []
    for k in covariances:
        cross = gram(k, at, rows)
        parts.append(cross @ np.linalg.solve(K, model.latents_used))
        variances.append(gram(k, at, at) - cross @ np.linalg.solve(K, cross.T))
    return np.array(parts), variances


@pytest.fixture(scope="module")
def model() -> GPPVAE:
    return fitted("RBF(age, lengthscale=3.0) + Categorical(subject)", latent_dim=3, alpha=0.3)


COVARIANCES = [rbf(["age"], 3.0), categorical("subject")]


def test_shares_are_those_of_the_dense_computation(model: GPPVAE) -> None:
    found = model.explain(table())
    parts, _ = dense_parts(model, COVARIANCES, 0.3, table())
    for weight, covariance in ((np.eye(3), found.latent_covariance), (WEIGHT, found.signal_covariance)):
        expected = np.zeros((2, 2))
        for s in range(2):
            for t in range(2):
                a, b = parts[s] @ weight, parts[t] @ weight
                for j in range(weight.shape[1]):
                    expected[s, t] += np.mean((a[:, j] - a[:, j].mean()) * (b[:, j] - b[:, j].mean()))
        np.testing.assert_allclose(covariance, expected / expected.sum(), atol=2e-4)
    assert abs(found.latent_covariance[0, 1]) > 1e-3  # the terms do covary here
    np.testing.assert_allclose(found.shares["signal"].sum(), 1.0)
    np.testing.assert_allclose(found.shares["latent"], found.latent_covariance.sum(axis=1))
    np.testing.assert_allclose(found.shares["alone"], np.diag(found.signal_covariance))
    whole = sum(parts) @ WEIGHT
    for j in range(4):
        expected_share = np.cov(parts[0] @ WEIGHT[:, j], whole[:, j], bias=True)[0, 1] / whole[:, j].var()
        np.testing.assert_allclose(found["RBF(age)"].by_value[j], expected_share, atol=2e-4)
        np.testing.assert_allclose(found.by_channel["RBF(age)"][j], expected_share, atol=2e-4)


def test_curves_and_bands_are_those_of_the_dense_computation(model: GPPVAE) -> None:
    found = model.explain(table())["RBF(age)"]
    (curve,) = found.curves
    asked = pd.DataFrame({"age": curve.values, "subject": "a"})
    parts, variances = dense_parts(model, COVARIANCES, 0.3, asked)
    others, _ = dense_parts(model, COVARIANCES, 0.3, table())
    signal = 0.5 + (parts[0] + others[1].mean(axis=0)) @ WEIGHT
    np.testing.assert_allclose(curve.signal, signal, atol=1e-4)
    std = np.sqrt(np.outer(np.diag(variances[0]), np.square(WEIGHT).sum(axis=0)))
    np.testing.assert_allclose(curve.signal_std, std, atol=1e-3)
    change = (parts[0] - others[0].mean(axis=0)) @ WEIGHT
    np.testing.assert_allclose(np.linalg.norm(found.pattern), 1.0)
    np.testing.assert_allclose(curve.score, change @ found.pattern / 2.0, atol=1e-4)  # 2 is the root of 4 values
    along = np.square(WEIGHT @ found.pattern).sum() / 4.0
    np.testing.assert_allclose(curve.score_std, np.sqrt(np.diag(variances[0]) * along), atol=1e-3)
    (levels,) = model.explain(table())["Categorical(subject)"].curves
    assert levels.values.tolist() == ["a", "b", "c"]


def test_products_have_a_mean_curve_and_one_per_level() -> None:
    model = fitted("Categorical(subject) * RBF(age, lengthscale=3.0)", latent_dim=3, alpha=0.3)
    explained = model.explain(table())
    assert explained.shares["signal"].tolist() == [1.0]
    curves = explained.terms[0].curves
    assert [(curve.by, curve.level) for curve in curves] == [(None, None), *(("subject", name) for name in "abc")]
    weights = [np.mean(table()["subject"] == name) for name in "abc"]
    mean = sum(w * curve.score for w, curve in zip(weights, curves[1:], strict=True))
    np.testing.assert_allclose(curves[0].score, mean, atol=1e-5)  # all rows are averaged over, and it is linear


def test_a_product_is_shared_out_by_column() -> None:
    """What age does on average over subjects, what subjects do on average over ages, and the rest: all by loops."""
    model = fitted("Categorical(subject) * RBF(age, lengthscale=3.0)", latent_dim=3, alpha=0.3)
    both = [multiplied(categorical("subject"), rbf(["age"], 3.0))]
    rows = table()
    (whole,), _ = dense_parts(model, both, 0.3, rows)
    effects = {}
    for column in ("subject", "age"):
        effect = np.zeros_like(whole)
        for n in range(len(rows)):
            asked = rows.copy()
            asked[column] = rows[column].iloc[n]
            effect[n] = dense_parts(model, both, 0.3, asked)[0][0].mean(axis=0)
        effects[column] = effect - effect.mean(axis=0)
    centred = (whole - whole.mean(axis=0)) @ WEIGHT
    expected = {name: ((effect @ WEIGHT) * centred).sum() / (centred**2).sum() for name, effect in effects.items()}
    found = model.explain(rows).terms[0].by_column
    assert list(found) == ["subject", "age", "together"]
    for name, share in expected.items():
        np.testing.assert_allclose(found[name], share, atol=2e-4)
    np.testing.assert_allclose(sum(found.values()), 1.0)
    assert "\n  together " in repr(model.explain(rows))


def test_parts_add_up_to_what_is_predicted_whatever_the_decoder() -> None:
    torch.manual_seed(3)
    decoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    parts, centre = torch.randn(3, 5, 3), torch.randn(3)
    found, start = signal_parts(decoder, parts, centre)
    torch.testing.assert_close(found.sum(0), decoder(centre + parts.sum(0)) - start)
    # The limit of many steps is the path integral of the Jacobian, here by 300 midpoints.
    integral = torch.zeros(3, 5, 4)
    for row in range(5):
        for at in (torch.arange(300) + 0.5) / 300:
            J = torch.autograd.functional.jacobian(decoder, centre + at * parts[:, row].sum(0))
            integral[:, row] += parts[:, row] @ J.T / 300
    far = (found - integral).abs().max()
    near = (signal_parts(decoder, parts, centre, steps=64)[0] - integral).abs().max()
    assert near < 2e-3
    assert far < 0.1 * integral.abs().max()


def test_groups_of_latents_and_those_without_a_kernel() -> None:
    model = fitted([("RBF(age, lengthscale=3.0)", 1), ("Categorical(subject)", 1), (None, 1)], alpha=0.3)
    found = model.explain(table())
    assert [term.name for term in found.terms] == ["group 1: RBF(age)", "group 2: Categorical(subject)"]
    assert found.unexplained == 1
    assert "1 latents have no kernel" in repr(found)
    np.testing.assert_allclose(found.latent_covariance[0, 1], 0.0)  # latents of one's own
    np.testing.assert_allclose(found.shares["signal"].sum(), 1.0)
    assert 0.0 < found.shares["latent"].min() < found.shares["latent"].max() < 1.0


def test_latent_noise_is_not_explained() -> None:
    """A kernel that learned nothing has nothing to share, however large the latent noise is."""
    model = fitted("RBF(age, lengthscale=3.0) + Categorical(subject)", latent_dim=3, alpha=1e6)
    model.posterior_ = model.prior_.before_data()
    found = model.explain(table())
    assert found.shares[["latent", "signal", "alone", "uncertain"]].to_numpy().tolist() == [[0.0] * 4] * 2
    assert np.isnan(found.terms[0].by_value).all()


def test_terms_that_read_alike_are_told_apart() -> None:
    model = fitted("RBF(age, lengthscale=1.0) + RBF(age, lengthscale=9.0) + Constant()", latent_dim=3)
    found = model.explain(table())
    names = [term.name for term in found.terms]
    assert len(set(names)) == 3
    assert "lengthscale=9.0" in names[1]
    assert found["Constant()"].curves == []
    assert found["Constant()"].signal_share == pytest.approx(0.0, abs=1e-9)


def test_as_json_text_and_html(model: GPPVAE) -> None:
    found = model.explain(table(), n_rows=20)
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["n_rows"] == 20
    assert [term["name"] for term in again["terms"]] == ["RBF(age)", "Categorical(subject)"]
    assert len(again["terms"][0]["curves"][0]["score"]) == 25
    assert "RBF(age)" in repr(found)
    assert "<table>" in found._repr_html_()
    with pytest.raises(KeyError, match="the terms are RBF"):
        found["age"]


def test_too_few_rows_are_named(model: GPPVAE) -> None:
    with pytest.raises(ValueError, match="expected at least 2 rows to share variance over, got 1"):
        model.explain(table().iloc[:1])


# -- columns that repeat


def weeks() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return table().assign(hour=np.sort(rng.uniform(1000.0, 4000.0, 30)))


def test_a_daily_cycle_of_a_long_series_is_shown_over_one_day() -> None:
    rows = weeks()
    model = fitted("RBF(hour, lengthscale=500.0) + Periodic(hour, 24)", rows=rows, latent_dim=3, alpha=0.3)
    trend, daily = [term.curves[0] for term in model.explain(rows).terms]
    assert trend.period is None and trend.values[[0, -1]].tolist() == [rows["hour"].min(), rows["hour"].max()]
    assert (daily.period, daily.axis) == (24.0, "hour (one period of 24)")
    np.testing.assert_allclose(daily.values, np.linspace(0.0, 24.0, 49))
    both = [rbf(["hour"], 500.0), periodic("hour", 24.0, 1.0)]
    days_later = pd.DataFrame({"hour": daily.values + 24.0 * 70})
    others, (_, asked) = (dense_parts(model, both, 0.3, at, rows)[0] for at in (rows, days_later))
    np.testing.assert_allclose(daily.signal, 0.5 + (asked + others[0].mean(axis=0)) @ WEIGHT, atol=1e-3)
    assert daily.to_json()["period"] == 24.0


@pytest.mark.parametrize(
    ("kernel", "low", "high", "ends", "n"),
    [
        ("Periodic(hour, 24)", 1.0, 19.0, (0.0, 24.0), 49),  # the rest of the day too
        ("Periodic(hour, 24)", -12.0, 11.0, (-12.0, 12.0), 49),
        ("Periodic(hour, 24)", -30.0, 500.0, (0.0, 24.0), 49),
        ("Periodic(hour, 24) * Periodic(hour, 168)", 0.0, 500.0, (0.0, 168.0), 7 * 48 + 1),
        ("Periodic(hour, 24) * Periodic(hour, 100)", 0.0, 500.0, (0.0, 500.0), 25),  # never repeats as a whole
        ("Periodic(hour, 24) * RBF(hour)", 0.0, 500.0, (0.0, 500.0), 25),
    ],
)
def test_which_part_of_a_column_is_shown(kernel: str, low: float, high: float, ends: tuple, n: int) -> None:
    rows = table().assign(hour=np.linspace(low, high, 30))
    (curve,) = fitted(kernel, rows=rows, latent_dim=3).explain(rows).terms[0].curves
    np.testing.assert_allclose(curve.values[[0, -1]], ends)
    assert len(curve.values) == n


# -- columns that do not apply to some rows


def patients() -> pd.DataFrame:
    """Healthy rows have no years since onset, and no place of a lesion."""
    rng = np.random.default_rng(4)
    rows = table()
    sick = (rng.random(len(rows)) < 0.6).astype(float)
    numbers = {name: np.where(sick == 1.0, rng.uniform(0.0, 10.0, len(rows)), np.nan) for name in ("years", "x", "y")}
    return rows.assign(sick=sick, **numbers)


def switched_off(sick: str, covariance):
    """Linear(sick) times a covariance of columns that are NaN where sick is 0, in loops."""
    rms = np.sqrt(np.mean(np.square(patients()[sick])))

    def product(a, b):
        return a[sick] * b[sick] / rms**2 * covariance(a, b) if a[sick] and b[sick] else 0.0

    return product


def test_shares_of_columns_that_do_not_apply_to_all_rows() -> None:
    """Years act at sick rows only, where they are known; being sick at all is the mean over those."""
    rows = patients()
    model = fitted(
        "RBF(age, lengthscale=3.0) + Linear(sick) * RBF(years, lengthscale=2.0)", rows=rows, latent_dim=3, alpha=0.3
    )
    both = [rbf(["age"], 3.0), switched_off("sick", rbf(["years"], 2.0))]
    parts, _ = dense_parts(model, both, 0.3, rows, rows)
    found = model.explain(rows)
    centred = [(part - part.mean(axis=0)) @ WEIGHT for part in parts]
    total = np.square(sum(centred)).sum()
    expected = [(part * sum(centred)).sum() / total for part in centred]
    np.testing.assert_allclose(found.shares["signal"], expected, atol=1e-3)
    by_column = found["Linear(sick) * RBF(years)"].by_column
    assert list(by_column) == ["sick", "years", "together"]
    at_sick = rows["sick"].to_numpy() == 1.0
    mean = parts[1][at_sick].mean(axis=0)
    effects = {"sick": np.outer(at_sick, mean), "years": np.where(at_sick[:, None], parts[1] - mean, 0.0)}
    for name, effect in effects.items():
        share = ((effect - effect.mean(axis=0)) @ WEIGHT * sum(centred)).sum() / total
        np.testing.assert_allclose(by_column[name], share, atol=1e-3)
    np.testing.assert_allclose(
        by_column["together"], 0.0, atol=1e-3
    )  # sick is 0 or 1: years act alike at all sick rows
    np.testing.assert_allclose(sum(by_column.values()), found.shares["signal"].iloc[1])


def test_curves_of_columns_that_do_not_apply_to_all_rows() -> None:
    rows = patients()
    model = fitted(
        "RBF(age, lengthscale=3.0) + Linear(sick) * RBF(years, lengthscale=2.0)", rows=rows, latent_dim=3, alpha=0.3
    )
    both = [rbf(["age"], 3.0), switched_off("sick", rbf(["years"], 2.0))]
    found = model.explain(rows)
    (curve,) = found["Linear(sick) * RBF(years)"].curves  # years are known at one level of sick, so there are no others
    assert curve.values[[0, -1]].tolist() == [rows["years"].min(), rows["years"].max()]
    asked = pd.DataFrame({"age": 0.0, "sick": 1.0, "years": curve.values})
    others = dense_parts(model, both, 0.3, rows, rows)[0][0].mean(axis=0)
    parts, variances = dense_parts(model, both, 0.3, asked, rows)
    np.testing.assert_allclose(curve.signal, 0.5 + (parts[1] + others) @ WEIGHT, atol=1e-3)
    std = np.sqrt(np.outer(np.diag(variances[1]), np.square(WEIGHT).sum(axis=0)))
    np.testing.assert_allclose(curve.signal_std, std, atol=1e-2)
    assert all(np.isfinite(c.score).all() and np.isfinite(c.score_std).all() for t in found.terms for c in t.curves)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_map_has_the_places_that_apply() -> None:
    rows = patients()
    found = fitted("Linear(sick) * RBF(x, y) + Categorical(subject)", rows=rows, latent_dim=3).explain(rows)
    (places,) = found.terms[0].curves
    np.testing.assert_allclose(places.values, rows.loc[rows["sick"] == 1.0, ["x", "y"]])
    assert np.isfinite(places.score).all()
    assert list(found.terms[0].by_column) == ["sick", "x, y", "together"]
    np.testing.assert_allclose(sum(found.terms[0].by_column.values()), found.shares["signal"].iloc[0])


def test_a_term_that_applies_to_no_row_explains_nothing() -> None:
    rows = patients()
    model = fitted(
        "RBF(age, lengthscale=3.0) + Linear(sick) * RBF(years, lengthscale=2.0)", rows=rows, latent_dim=3, alpha=0.3
    )
    found = model.explain(rows[rows["sick"] == 0.0])
    np.testing.assert_allclose(found.shares["signal"], [1.0, 0.0], atol=1e-9)
    assert found.terms[1].curves == []
    assert all(np.isfinite(curve.score).all() for curve in found.terms[0].curves)


def test_being_sick_has_a_curve_where_years_are_few() -> None:
    """Few distinct values are all shown, those of a column also where the others do not apply."""
    rows = patients()
    rows["years"] = rows["years"].round(-1)
    found = fitted("Linear(sick) * RBF(years, lengthscale=2.0)", rows=rows, latent_dim=3, alpha=0.3).explain(rows)
    averages = {curve.columns: curve.values.tolist() for curve in found.terms[0].curves if curve.by is None}
    assert averages == {("sick",): [0.0, 1.0], ("years",): [0.0, 10.0]}

"""The report of a run: where it opens, what it says, and that nothing is lost without the data."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gppvae import GPPVAE
from gppvae.data.sizes import SIZE
from gppvae.estimator.calibration import NORMAL
from gppvae.estimator.comparison import Comparison
from gppvae.report.along import plot_along
from gppvae.report.checked import LEVELS, Checked, check_rows
from gppvae.report.plots import coverage_verdict, epoch_axis, plot_cases, plot_training
from gppvae.report.run import first_cell, write_report
from gppvae.report.turning import find_turn, measured
from tiny import held_out, spots

EXPLAINED = "What each term explains"


def sections(page: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page.read_text("utf-8"))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory):
    """A fitted model of four named values over age and subject, with its data."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"subject": np.repeat(list("abcd"), 10), "age": np.tile(np.arange(10.0), 4)})
    y = np.outer(np.sin(table["age"]), [1.0, 10.0, 0.1, -1.0]) + rng.normal(size=(40, 4)) * [0.1, 1.0, 0.01, 0.1]
    test = rng.random(40) < 0.25
    train_part, test_part = (y[~test].astype(np.float32), table[~test]), (y[test].astype(np.float32), table[test])
    folder = tmp_path_factory.mktemp("vectors")
    model = GPPVAE("RBF(age) + Categorical(subject)", latent_dim=2, epochs=5, pixel_var=None, batch_size=16)
    model.fit(*train_part, out=folder, progress=False)
    model.sample_names_ = ["sugar", "iron", "salt", "fat & <oil>"]
    return folder, model, train_part, test_part


def test_vectors_have_curves_names_and_downloads(vectors) -> None:
    folder, model, train, test = vectors
    page = write_report(folder, model, train=train, test=test)
    text = page.read_text("utf-8")
    for name in ("sugar", "iron", "fat &amp; &lt;oil&gt;"):
        assert name in text
    assert "<oil>" not in text
    for file in ("errors.csv", "rows.csv", "shares.csv", "curves.csv", "covariance_0.csv", "history.csv"):
        assert f'download="{file}"' in text
    assert "Measured and predicted" in sections(page)
    plot = plot_along(model, train, test)
    assert plot is not None and len(plot.charts) == 4
    assert 'class="ring' in plot.charts[0].body and 'class="dot' in plot.charts[0].body


def test_values_of_a_frame_are_found_by_their_names_and_every_sample_needs_a_row(vectors, tmp_path: Path) -> None:
    """In another order they were compared with the predictions of other values."""
    _, model, train, (samples, table) = vectors
    frame = pd.DataFrame(samples, columns=model.sample_names_)
    turned = frame[frame.columns[::-1]]
    index = np.arange(len(table))
    np.testing.assert_array_equal(check_rows(model, (turned, table), index).truth, samples)
    errors = [check_rows(model, (data, table), index).errors() for data in (samples, turned)]
    np.testing.assert_array_equal(*errors)
    few = (samples[:5], table)
    for ask in (lambda: model.plot_predictions(*few), lambda: model.report(tmp_path, train=train, test=few)):
        with pytest.raises(ValueError, match=f"got {len(table)} rows and 5 samples"):
            ask()


def test_no_section_is_lost_without_the_data(vectors) -> None:
    folder, model, train, test = vectors
    full = write_report(folder, model, train=train, test=test)
    before, text = sections(full), full.read_text("utf-8")
    again = write_report(folder)
    assert sections(again) == before
    assert EXPLAINED in before and "saved again since" not in again.read_text("utf-8")
    shares = re.search(r'download="shares.csv" href="([^"]*)"', text)
    assert shares is not None and shares[1] in again.read_text("utf-8")
    model.save(folder)  # a new file, of the same model
    (folder / "model.safetensors").touch()
    assert sections(write_report(folder)) == before


def test_a_model_saved_again_is_told_of_old_sections(vectors, tmp_path: Path) -> None:
    _, model, train, test = vectors
    model.save(tmp_path)
    write_report(tmp_path, model, train=train, test=test)
    model.fit_seconds_ += 1.0
    model.save(tmp_path)
    assert "saved again since" in write_report(tmp_path).read_text("utf-8")


def test_results_stand_beside_the_simple_answers_of_the_fit(vectors, tmp_path: Path) -> None:
    _, model, *_ = vectors
    model.save(tmp_path)
    loaded = GPPVAE.load(tmp_path)
    loaded.comparison_ = Comparison({"model": 0.5, "nearest row": 0.25, "mean": 0.75}, 9)
    text = write_report(tmp_path, loaded).read_text("utf-8")
    assert "does not beat the simple answer \u201cnearest row\u201d" in text
    assert '<td>nearest row</td><td class="num">0.25</td>' in text
    loaded.comparison_ = Comparison({"model": 0.125, "nearest row": 0.25, "mean": 0.75}, 9)
    assert "The best simple answer, \u201cnearest row\u201d, has 2 times" in write_report(tmp_path, loaded).read_text(
        "utf-8"
    )


def test_ids_that_the_model_does_not_know_are_left_out(vectors, tmp_path: Path) -> None:
    _, model, train, (y, table) = vectors
    strange = table.assign(subject=["new", *table["subject"].iloc[1:]])
    model.save(tmp_path)
    text = write_report(tmp_path, model, train=train, test=(y, strange)).read_text("utf-8")
    assert f"each value in units of its variance, at {len(table) - 1} rows" in text


def test_the_turntable_opens_on_a_held_out_or_uncertain_cell() -> None:
    uncertain = np.array([[0.1, 0.9, 0.2], [0.3, 0.4, 0.8]])
    no, some = np.zeros((2, 3), bool), np.array([[1, 0, 1], [1, 0, 0]], bool)
    assert first_cell(uncertain, some, no) == (1, 0)  # the least certain of those held out
    assert first_cell(uncertain, no, some) == (1, 0)  # of those measured
    assert first_cell(uncertain, no, no) == (0, 1)  # of all


def test_the_page_of_images_opens_where_it_was_tested(tmp_path: Path) -> None:
    images, table, wanted_images, wanted = held_out()
    model = GPPVAE("Learned(spot, 3) * Periodic(angle, 360)", 3, network="mlp", epochs=1, batch_size=16)
    model.fit(images, table, out=tmp_path, progress=False)
    text = write_report(tmp_path, model, train=(images, table), test=(wanted_images, wanted)).read_text("utf-8")
    start = re.search(r"&quot;start&quot;: \[(\d+), (\d+)\]", text)
    held = re.search(r"&quot;held&quot;: \[([^\]]*)\]", text)
    assert start is not None and held is not None
    assert re.findall("[01]+", held[1])[int(start[1])][int(start[2])] == "1"
    plain = write_report(tmp_path, model, train=(images, table)).read_text("utf-8")
    assert "least certain of those measured" in plain


@pytest.mark.parametrize(
    ("kernel", "shift"),
    [("Periodic(angle, 360)", -180.0), ("Periodic(angle, 360)", 720.0), ("Periodic(angle, 360) * RBF(angle)", -180.0)],
)
def test_every_measured_view_is_on_the_turntable(kernel: str, shift: float) -> None:
    """Angles below 0 or above one turn were shown as never measured."""
    images, table = spots(3, 8)
    table["angle"] += shift
    model = GPPVAE(f"Learned(spot, 2) * {kernel}", 2, network="mlp", epochs=1, batch_size=16)
    model.fit(images, table, progress=False)
    turn = find_turn(model)
    assert turn is not None and (min(turn.views) < 0.0) == ("RBF" in kernel)
    frames, held = measured(model, turn, (images[::2], table[::2]), (images[1::2], table[1::2]))
    assert np.isfinite(frames).all((2, 3, 4)).sum() == len(images) and held.sum() == len(images) // 2
    for n, (spot, angle) in enumerate(zip(table["spot"], table["angle"], strict=True)):
        view = turn.views.index(angle if "RBF" in kernel else angle % 360.0)
        np.testing.assert_array_equal(frames[turn.objects.index(spot), view, 0], images[n])


def checked(truth: np.ndarray, mean: np.ndarray, std: float = 1.0) -> Checked:
    return Checked(None, truth, mean, np.ones_like(mean), np.full_like(mean, std), np.ones(()), NORMAL)  # type: ignore[arg-type]


def test_cases_and_coverage_by_hand() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(400, 3)) * [1.0, 2.0, 1.0]
    found = checked(truth, np.zeros_like(truth))
    inside = np.abs(truth) <= 1.2815515655  # the 80 % interval
    at = int(np.argmin(np.abs(LEVELS - 0.8)))
    np.testing.assert_allclose(found.coverage()[at], inside.mean())
    np.testing.assert_allclose(found.coverage(1)[at], inside[:, 1].mean())
    errors = np.mean(truth**2, axis=1)
    cases = found.cases(2)
    assert [kind for kind, _ in cases] == ["worst", "worst", "typical", "typical", "best", "best"]
    order = np.argsort(errors)
    assert {row for kind, row in cases if kind == "worst"} == set(order[-2:])
    assert {row for kind, row in cases if kind == "best"} == set(order[:2])
    assert coverage_verdict({0.5: 0.5, 0.9: 0.9}, 100) == "about right"
    assert coverage_verdict({0.5: 0.5, 0.9: 0.6}, 400) == "too narrow"
    assert coverage_verdict({0.5: 0.8, 0.9: 0.93}, 400) == "too wide"  # by the 50 % intervals alone
    assert coverage_verdict({0.5: 0.8, 0.9: 0.7}, 400) == "wrong in shape"
    assert coverage_verdict({0.5: float("nan"), 0.9: 0.9}, 400) == "nothing observed"


def test_rows_of_which_nothing_was_observed_are_no_cases() -> None:
    truth = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, 1.0]])
    found = checked(truth, np.zeros_like(truth))
    np.testing.assert_allclose(found.errors(), [1.0, np.nan, 5.0])
    assert sorted(row for _, row in found.cases(4)) == [0, 2]


def test_epochs_are_counted_over_phases(vectors) -> None:
    _, model, *_ = vectors
    for second in ([1, 2], [0, 1], [4, 5]):
        rows = [{"phase": "warmup", "epoch": e} for e in (1, 2, 3)] + [{"phase": "joint", "epoch": e} for e in second]
        assert epoch_axis(rows) == [1, 2, 3, 4, 5]
    titles = [chart.label for chart in plot_training(model).charts]
    assert titles[0] == "total loss" and "reconstruction NLL" in titles


@pytest.mark.parametrize("kernel", ["RBF(age) + Linear(sick) * RBF(years)", "RBF(age) + Linear(sick) * RBF(x, y)"])
def test_columns_that_do_not_apply_to_some_rows(kernel: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sick = np.arange(40) % 2.0
    numbers = {name: np.where(sick == 1.0, rng.uniform(0.0, 9.0, 40), np.nan) for name in ("years", "x", "y")}
    table = pd.DataFrame({"age": np.arange(40.0) // 4, "sick": sick, **numbers})
    y = np.outer(np.sin(table["age"]), [1.0, 2.0, 3.0]) + rng.normal(size=(40, 3))
    part = (y.astype(np.float32), table)
    model = GPPVAE(kernel, latent_dim=2, epochs=3, pixel_var=None, batch_size=16).fit(*part, progress=False)
    plot = plot_along(model, part, part)  # along years, or on a map of x and y
    assert plot is not None and plot.charts and "nan" not in "".join(chart.body for chart in plot.charts)
    page = write_report(tmp_path, model, train=part, test=part)
    assert EXPLAINED in sections(page) and "Measured and predicted" in sections(page)


@pytest.mark.parametrize("kernel", ["Linear(sick) * RBF(years)", "Linear(sick) * RBF(x, y)"])
@pytest.mark.parametrize("held", [True, False])
def test_a_column_may_apply_to_no_row_of_a_part(kernel: str, held: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sick = (np.arange(40) >= 8) * 1.0
    numbers = {name: np.where(sick == 1.0, rng.uniform(0.0, 9.0, 40), np.nan) for name in ("years", "x", "y")}
    table, y = pd.DataFrame({"sick": sick, **numbers}), rng.normal(size=(40, 3)).astype(np.float32)
    model = GPPVAE(kernel, latent_dim=2, epochs=2, pixel_var=None, batch_size=16).fit(y, table, progress=False)
    healthy, ill = (y[:8], table[:8]), (y[8:], table[8:])
    page = write_report(tmp_path, model, train=ill if held else healthy, test=healthy if held else None)
    assert ("Measured and predicted" in sections(page)) == (held or "years" in kernel)  # a line along the switch


@pytest.mark.parametrize(
    ("kernel", "maps"),
    [("RBF(x) * RBF(y)", True), ("RBF(x, y)", True), ("RBF(x) * Periodic(y, 4)", False), ("RBF(x) + RBF(y)", False),
     ("Categorical(who) * RBF(x) * RBF(y)", False)],
)  # fmt: skip
def test_places_have_maps_also_where_the_kernel_is_a_product(kernel: str, maps: bool) -> None:
    """A curve along x would run through all y."""
    x, y = (part.ravel().astype(float) for part in np.meshgrid(np.arange(6), np.arange(6)))
    samples = np.stack([np.sin(x) + y, np.cos(y)], axis=1).astype(np.float32)
    table = pd.DataFrame({"x": x, "y": y, "who": np.where(np.arange(36) % 2, "a", "b")})
    model = GPPVAE(kernel, latent_dim=1, epochs=2, inference="global").fit(samples, table, progress=False)
    plot = plot_along(model, (samples, table), None)
    assert plot is not None and ("at 36 places" in plot.caption) == maps


def test_cases_of_counts_are_ranked_by_the_deviance_as_the_results_are(tmp_path: Path) -> None:
    """By squared error the rows with the largest counts were always the worst."""
    x, rng = np.linspace(0.0, 5.0, 40), np.random.default_rng(0)
    counts = rng.poisson(np.where(np.arange(40) % 2, 400.0, 4.0)[:, None] * np.ones(5)).astype(np.float32)
    counts[0] = [0, 0, 200, 0, 0]  # far from its neighbours for its size
    model = GPPVAE("RBF(x)", latent_dim=1, epochs=2, likelihood="poisson").fit(counts, {"x": x}, progress=False)
    found = check_rows(model, (counts, {"x": x}), np.arange(40))
    with np.errstate(divide="ignore", invalid="ignore"):
        deviance = 2 * (np.where(counts > 0, counts * np.log(counts / found.mean), 0) - counts + found.mean)
    np.testing.assert_allclose(found.errors(), deviance.mean(1), rtol=1e-4)
    assert found.cases(1)[0] == ("worst", int(deviance.mean(1).argmax())) and found.measure == "deviance"
    assert plot_cases(model, found, {}).charts[0].label.startswith("worst, deviance ")
    assert "deviance" in write_report(tmp_path, model, train=(counts, {"x": x})).read_text("utf-8")


def test_maps_of_counts_are_predicted_at_the_size_of_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a place of which little was counted looks badly predicted."""
    x, y = (part.ravel().astype(float) for part in np.meshgrid(np.arange(4), np.arange(4)))
    size = np.where(x > 1, 200, 20)
    counts = np.stack([size, size // 2], axis=1).astype(np.float32)
    model = GPPVAE("RBF(x, y)", latent_dim=1, epochs=2, likelihood="poisson")
    model.fit(counts, {"x": x, "y": y}, progress=False)
    asked = []
    monkeypatch.setattr(model, "predict", lambda table: (asked.append(table), GPPVAE.predict(model, table))[1])
    plot = plot_along(model, (counts, {"x": x, "y": y}), None)
    assert plot is not None and plot.caption.endswith("predicted, each place at its size.")
    np.testing.assert_array_equal(np.asarray(asked[0][SIZE]), counts.sum(1))


def test_a_switch_may_be_drawn_along() -> None:
    """Degrees of a disease have more values than the years, which are missing at degree 0."""
    degree = np.repeat([0.0, 0.5, 1.0, 1.5, 2.0], 8)
    table = pd.DataFrame({"degree": degree, "years": np.where(degree > 0.0, np.arange(40) % 3.0, np.nan)})
    y = np.outer(degree, [1.0, 2.0]).astype(np.float32)
    model = GPPVAE("Linear(degree) * RBF(years)", latent_dim=1, epochs=2, batch_size=16).fit(y, table, progress=False)
    plot = plot_along(model, (y, table), None)
    assert plot is not None and "along degree" in plot.caption and "nan" not in plot.charts[0].body


def test_lines_along_many_periods_are_fine_enough_to_see_them() -> None:
    """Forty days of hours: a grid over all of them would meet every day at another hour."""
    hour = np.arange(0.0, 960.0, 2.0)
    y = np.stack([np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24)], axis=1).astype(np.float32)
    table = pd.DataFrame({"hour": hour})
    asked = (hour >= 600) & (hour < 640)
    model = GPPVAE("Periodic(hour, 24)", latent_dim=2, epochs=2).fit(y[~asked], table[~asked], progress=False)
    plot = plot_along(model, (y[~asked], table[~asked]), (y[asked], table[asked]))
    assert plot is not None and "along hour, from 446 to 638 with a band" in plot.caption
    drawn = max(re.findall(r'<path[^>]* d="M([^"]*)"', plot.charts[0].body), key=len).split("L")
    heights = np.array([float(point.split()[1]) for point in drawn])
    assert np.sum(np.diff(np.sign(np.diff(heights))) < 0) == 8  # as many crests as days
    whole = plot_along(model, (y[:60], table[:60]), None)
    assert whole is not None and "along hour with a band" in whole.caption


def test_all_simple_answers_stand_beside_the_model_at_test_rows(vectors, tmp_path: Path) -> None:
    _, model, train, test = vectors
    model.save(tmp_path)
    text = write_report(tmp_path, model, train=train, test=test).read_text("utf-8")
    rows = {name: float(value) for name, value in re.findall(r'<td>([^<]*)</td><td class="num">([\d.]+)</td>', text)}
    assert {"GPPVAE", "mean", "mean of the subject", "nearest sample", "linear in age"} <= set(rows)
    unit = train[0].std(axis=0)  # population standard deviation, as the likelihood measures it
    mean = np.mean(((test[0] - train[0].mean(0)) / unit) ** 2)
    assert rows["mean"] == pytest.approx(mean, rel=1e-2)
    alone = write_report(tmp_path, model, test=test).read_text("utf-8")
    assert "GPPVAE" in alone and "mean of the subject" not in alone

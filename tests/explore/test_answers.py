"""The answers of the live page: what the model itself says, with and without a term, and a new object in a copy."""

import base64
import copy
import io
import json
import threading
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from explore.conftest import HOSTILE, NAMES, Case
from gppvae import GPPVAE
from gppvae.data.arrays import Samples
from gppvae.data.sizes import SIZE
from gppvae.data.table import Table
from gppvae.estimator.comparison import at_their_sizes
from gppvae.explore import latents
from gppvae.explore.answers import Answers
from gppvae.explore.columns import columns_of
from gppvae.explore.live import Live
from gppvae.explore.sources import Source, make_part
from gppvae.explore.wire import pack, unpack
from gppvae.kernels import parse_kernel
from gppvae.prior.latent_prior import LatentPrior
from gppvae.report.checked import value_scales
from gppvae.training.threads import one_thread

ROW = {"spot": "s1", "angle": 100.0}


def rows(row: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [value] for name, value in row.items()}


def png(picture: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(np.round(255 * picture).astype(np.uint8)).save(out, format="PNG")
    return base64.b64encode(out.getvalue()).decode()


def test_arrays_travel_unchanged() -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "none": None, "b": np.float32([np.nan, 1e30])}
    facts, found = unpack(pack({"word": "é"}, arrays))
    assert facts == {"word": "é"} and list(found) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], arrays["a"])
    np.testing.assert_array_equal(found["b"], arrays["b"])


@pytest.mark.parametrize("noise", [False, True])
def test_a_frame_is_what_predict_gives(pictures: Case, noise: bool) -> None:
    facts, found = unpack(pictures.answers().frame({"row": ROW, "draws": 32, "keep": 4, "noise": noise}))
    expected = pictures.model.predict(rows(ROW), n_samples=32, include_noise=noise)
    np.testing.assert_allclose(found["mean"][0], pictures.model.predict(rows(ROW)).mean[0], atol=1e-6)
    np.testing.assert_allclose(found["std"][0], expected.std[0], rtol=1e-4, atol=1e-6)
    assert found["draws"].shape == (4, 1, 8, 8) and "measured" not in found
    assert facts["status"] == 0 and "rmse" not in facts
    few = unpack(pictures.answers().frame({"row": ROW}))[1]
    assert set(few) == {"mean"}


def test_a_frame_knows_what_was_measured(pictures: Case) -> None:
    answers = pictures.answers()
    for status, held in ((1, False), (2, True)):
        number = int(np.flatnonzero(pictures.held == held)[0])
        row = pictures.table.iloc[number]
        facts, found = unpack(answers.frame({"row": {"spot": row["spot"], "angle": float(row["angle"])}}))
        np.testing.assert_array_equal(found["measured"][0], pictures.samples[number])
        error = np.sqrt(np.mean((found["mean"][0] - pictures.samples[number]) ** 2))
        assert (facts["status"], facts["count"]) == (status, 1)
        assert facts["rmse"] == pytest.approx(float(error), rel=1e-5)


def test_a_term_switched_off_leaves_the_others(pictures: Case) -> None:
    model, answers = pictures.model, pictures.answers()
    product = model.kernel_.left  # Learned * Periodic; the right one is RBF
    coded = product.code(Table(rows(ROW)))
    with torch.no_grad():
        f = product.features(coded) @ model.posterior_.parts[0].mean[: product.rank]
        expected = model.model_.autoencoder.likelihood.mean(model.model_.autoencoder.decode(f))
    found = unpack(answers.frame({"row": ROW, "off": [[0, 1]], "draws": 16}))[1]
    np.testing.assert_allclose(found["mean"], expected[0].numpy(), atol=1e-6)
    assert np.abs(found["mean"] - unpack(answers.frame({"row": ROW}))[1]["mean"]).max() > 1e-3
    mean, _ = answers.live.latents(rows(ROW), frozenset({(0, 1)}))
    np.testing.assert_allclose(mean, f.numpy(), atol=1e-12)


def test_noise_without_a_term_has_the_residual_of_the_others(pictures: Case) -> None:
    from gppvae.explore.terms import noise_without

    prior = pictures.model.prior_
    product, coded = pictures.model.kernel_.left, prior.code(Table(rows(ROW)))
    with torch.no_grad():
        whole = product.diag(coded) - product.features(coded).square().sum(1)
        expected = float(prior.groups[0].alpha) + float(whole.clamp_min(0))
        found = noise_without(prior, coded, frozenset({(0, 1)}))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
        np.testing.assert_allclose(noise_without(prior, coded, frozenset()), prior.noise_at(coded))


def test_shares_are_those_of_explain(pictures: Case) -> None:
    answers = pictures.answers()
    group = answers.meta()["groups"][0]
    model, mean = pictures.model, pictures.model.posterior_.parts[0].mean
    left, right = model.kernel_.left, model.kernel_.right
    both = Table({name: answers.cells.table[name] for name in ("spot", "angle")})
    with torch.no_grad():
        f = [left.features(left.code(both)) @ mean[: left.rank], right.features(right.code(both)) @ mean[left.rank :]]
    parts = [part - part.mean(0) for part in f]
    sizes = [float((part * (parts[0] + parts[1])).sum()) for part in parts]
    found = [term["share"] for term in group["terms"]]
    assert found == pytest.approx([size / sum(sizes) for size in sizes])
    assert found == pytest.approx([term.latent_share for term in model.explain(both).terms])
    assert [term["leaves"] for term in group["terms"]] == [[0, 1], [2]]


def test_colours_are_errors_and_spreads(pictures: Case) -> None:
    answers = pictures.answers()
    order = np.concatenate([np.flatnonzero(~pictures.held), np.flatnonzero(pictures.held)])[[0, 5, -1]]
    cells = [0, 5, len(pictures.table) - 1]
    frame = pictures.table.iloc[order]
    errors = unpack(answers.colour({"kind": "error", "cells": cells}))[1]["values"]
    apart = pictures.samples[order] - pictures.model.predict(frame).mean
    np.testing.assert_allclose(errors, np.sqrt((apart**2).mean((1, 2))), rtol=1e-4)
    spreads = unpack(answers.colour({"kind": "uncertainty", "cells": cells}))[1]["values"]
    for number, spread in enumerate(spreads):  # of each row as if it had been asked for alone
        std = pictures.model.predict(frame.iloc[[number]], n_samples=8).std
        assert spread == pytest.approx(np.sqrt((std**2).mean()), rel=1e-3)
    asked = [{"spot": str(s), "angle": float(a)} for s, a in zip(frame["spot"], frame["angle"], strict=True)]
    by_rows = unpack(answers.colour({"kind": "uncertainty", "rows": asked}))[1]["values"]
    np.testing.assert_allclose(by_rows, spreads, rtol=1e-5)


def test_values_of_different_scale_count_alike_in_errors_and_spreads() -> None:
    """In standard deviations, as they are drawn; over what was observed; and the same from Python."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": np.linspace(20.0, 70.0, 80)})
    waves = np.sin(table["age"].to_numpy()[:, None] / 12 + np.arange(3)) + rng.normal(0, 0.1, (80, 3))
    samples = pd.DataFrame((waves * [1.0, 100.0, 1.0] + [5.0, 900.0, 0.0]).astype(np.float32), columns=list("abc"))
    samples = samples.mask(rng.random((80, 3)) < 0.2)
    with one_thread():
        model = GPPVAE("RBF(age)", epochs=20, missing="mask").fit(samples, table, progress=False)
    answers, cells = Answers(model, Source(make_part(model, table, samples)), "t", "t"), list(range(5, 80))
    apart = ((samples - np.asarray(model.predict(table).mean)) / value_scales(model)[1]).iloc[cells]  # type: ignore[index]
    errors = unpack(answers.colour({"kind": "error", "cells": cells}))[1]["values"]
    np.testing.assert_allclose(errors, np.sqrt((apart**2).mean(axis=1)), rtol=1e-3)
    facts = unpack(answers.frame({"row": {"age": 20.0}, "draws": 8}))[0]
    np.testing.assert_allclose(answers.live.errors(samples, table)[[0, *cells]], [facts["rmse"], *errors], rtol=1e-3)
    spreads = unpack(answers.colour({"kind": "uncertainty", "cells": cells}))[1]["values"]
    np.testing.assert_allclose(answers.live.spread(table)[[0, *cells]], [facts["uncertainty"], *spreads], rtol=1e-3)


def test_counts_with_gaps_are_predicted_at_the_size_of_a_whole_sample() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 5.0, 24)
    counts = rng.poisson(np.exp(3.0 + np.sin(x[:, None] + np.arange(6)))).astype(np.float64)
    counts[:, 3:] = np.where(np.arange(24)[:, None] % 3 == 0, np.nan, counts[:, 3:])
    settings = {"latent_dim": 2, "width": 8, "epochs": 3, "warmup_epochs": 1, "gp_epochs": 1, "missing": "mask"}
    with one_thread():
        model = GPPVAE("RBF(x)", likelihood="poisson", **settings).fit(counts, {"x": x}, progress=False)
    answers = Answers(model, Source(make_part(model, {"x": x}, counts)), "t", "t")
    size = unpack(answers.frame({"row": {"x": 0.0}}))[0]["size"]
    assert size > 1.5 * np.nansum(counts[0])  # half of it was not observed
    data = Samples(counts, missing="mask")
    expected = at_their_sizes(model, data, Table({"x": x[:1]}), np.array([0]))[SIZE]
    np.testing.assert_allclose(size, expected[0], rtol=1e-6)
    errors = unpack(answers.colour({"kind": "error", "cells": [0, 1, 2]}))[1]["values"]
    np.testing.assert_allclose(answers.live.errors(counts, {"x": x})[:3], errors, rtol=1e-5)
    table = at_their_sizes(model, data, Table({"x": x[:3]}), np.arange(3))
    squares = np.square(counts[:3] - np.asarray(model.predict(table).mean))
    np.testing.assert_allclose(errors, np.sqrt(np.nanmean(squares, axis=1)), rtol=1e-4)


def test_the_path_is_in_the_coordinates_of_the_scatter(pictures: Case) -> None:
    answers = pictures.answers()
    facts, points = unpack(answers.scatter({}))
    mean, _ = pictures.model.predict_latent(answers.cells.rows(facts["cells"]))
    centred = mean - mean.mean(0)
    np.testing.assert_allclose(np.linalg.norm(points["places"], axis=1), np.linalg.norm(centred, axis=1), rtol=1e-4)
    variances = np.sort(np.linalg.eigvalsh(centred.T @ centred))[::-1]
    np.testing.assert_allclose(facts["shares"], variances / variances.sum(), atol=1e-6)
    row = {"spot": "s0", "angle": 0.0}
    way = unpack(answers.path({"row": row, "column": "angle"}))[1]
    assert way["at"][0] == -31.5 and way["at"][-1] == 346.5  # a tenth more than the angles: RBF(angle) does not repeat
    assert way["places"].shape == (latents.PATH_POINTS, 3)
    first = unpack(answers.path({"row": row | {"angle": -31.5}}))[1]
    np.testing.assert_allclose(way["places"][0], first["here"], atol=1e-5)
    number = facts["cells"].index(answers.cells.places["s0", 0.0][0])
    np.testing.assert_allclose(way["here"], points["places"][number], atol=1e-5)
    assert "at" not in unpack(answers.path({"row": row, "column": "spot"}))[1]


def test_widths_of_the_band_are_those_of_independent_latents() -> None:
    angle = 0.3
    axes = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    found = latents.Directions(np.zeros(2), axes, np.ones(2)).width(np.array([[2.0, 0.5]]))
    expected = [
        np.sqrt((2 * np.cos(angle)) ** 2 + (0.5 * np.sin(angle)) ** 2),
        np.sqrt((2 * np.sin(angle)) ** 2 + (0.5 * np.cos(angle)) ** 2),
    ]
    np.testing.assert_allclose(found[0], expected)


def test_covariances_have_labels(pictures: Case) -> None:
    facts, found = unpack(pictures.answers().covariance({"leaf": 0}))
    leaf = pictures.model.prior_.leaves()[0]
    vectors = {level: leaf.x[n].detach().numpy() for n, level in enumerate(leaf.levels)}
    assert sorted(facts["labels"]) == sorted([HOSTILE, "s0", "s1", "s2"])
    expected = [[vectors[a] @ vectors[b] for b in facts["labels"]] for a in facts["labels"]]
    np.testing.assert_allclose(found["matrix"], expected, rtol=1e-5)
    facts, found = unpack(pictures.answers().covariance({"leaf": 2}))
    assert facts["labels"][0] == "0" and found["matrix"][0, 0] == pytest.approx(1.0)


def test_an_ensemble_is_shown_as_a_whole() -> None:
    """Factors of every member, covariances that are means over them, and the place of each value."""
    table = {"id": np.repeat(["a", "b", "c"], 6), "x": np.tile(np.arange(6.0), 3), "y": np.arange(18.0) % 4}
    samples = np.random.default_rng(0).normal(size=(18, 5)).astype(np.float32)
    settings = {"latent_dim": 4, "members": 2, "width": 8, "inference": "global", "epochs": 3}
    model = GPPVAE("Learned(id, 2) + RBF(x, y)", **settings).fit(samples, table, progress=False)
    answers = Answers(model, Source(make_part(model, table, samples)), "two", "two")
    meta = answers.meta()
    assert meta["members"] == 2
    (group,) = model.prior_.written_groups
    kernels = [one.kernel for one in group]
    for place, term in enumerate(meta["groups"][0]["terms"]):
        assert term["amplitudes"] == [kernel.terms()[place].amplitude().item() for kernel in kernels]
    facts, arrays = unpack(answers.covariance({"leaf": 0}))
    vectors = [kernel.leaves()[0].vectors().detach().numpy() for kernel in kernels]
    order = [kernels[0].leaves()[0].levels.index(label) for label in facts["labels"]]
    mean = np.mean([own @ own.T for own in vectors], axis=0)
    np.testing.assert_allclose(arrays["matrix"], mean[np.ix_(order, order)], rtol=1e-5, atol=1e-6)
    assert "values" not in arrays
    facts, arrays = unpack(answers.covariance({"leaf": 1}))
    assert arrays["values"].shape == (len(facts["labels"]), 2)
    assert facts["labels"] == [f"{x:g}, {y:g}" for x, y in arrays["values"]]


def test_values_of_different_scale_each_have_their_own() -> None:
    table, rng = {"id": np.repeat(["a", "b", "c", "d"], 5), "x": np.tile(np.arange(5.0), 4)}, np.random.default_rng(0)
    values = rng.normal(size=(20, 3)).astype(np.float32)
    model = GPPVAE("Learned(id, 2) * RBF(x)", latent_dim=2, width=8, inference="global", epochs=2)
    alike = pd.DataFrame(values, columns=["p", "q", "r"])
    assert Answers(copy.deepcopy(model).fit(alike, table, progress=False), Source(), "m", "m").meta()["scales"] is None
    apart = alike * [1.0, 0.1, 3.0] + [0.0, 50.0, 7.0]
    found = Answers(copy.deepcopy(model).fit(apart, table, progress=False), Source(), "m", "m").meta()["scales"]
    np.testing.assert_allclose(found, [apart.mean(), apart.std(ddof=0)], rtol=1e-4)


def test_a_new_object_is_learned_in_a_copy(pictures: Case) -> None:
    answers = pictures.answers()
    views = [45.0, 225.0]
    shown = np.stack(
        [
            pictures.samples[int(np.flatnonzero((pictures.table["spot"] == "s0") & (pictures.table["angle"] == v))[0])]
            for v in views
        ]
    )
    asked = {"column": "spot", "id": "mine", "files": [png(s) for s in shown], "rows": [{"angle": v} for v in views]}
    before = len(answers.cells.table)
    meta = answers.add(asked)
    assert meta["added"] == ["mine"] and "mine" in meta["columns"][0]["levels"]
    assert len(meta["table"]["status"]) == before + 2
    assert "mine" not in pictures.model.prior_.leaves()[0].levels
    other = copy.deepcopy(pictures.model)
    other.add_objects(np.round(255 * shown).astype(np.uint8), {"spot": ["mine"] * 2, "angle": views})
    row = {"spot": "mine", "angle": 100.0}
    found = unpack(answers.frame({"row": row, "draws": 16}))[1]
    np.testing.assert_allclose(found["mean"][0], other.predict(rows(row)).mean[0], atol=1e-5)
    np.testing.assert_allclose(found["std"][0], other.predict(rows(row), n_samples=16).std[0], rtol=1e-3, atol=1e-5)
    facts, found = unpack(answers.frame({"row": {"spot": "mine", "angle": 45.0}}))
    assert facts["status"] == 1
    np.testing.assert_allclose(found["measured"][0], shown[0], atol=1 / 255)
    with pytest.raises(ValueError, match="expected a new name, got 'mine'"):
        answers.add(asked)


def test_draws_of_a_new_object_have_its_errors_as_those_of_sample_do(pictures: Case) -> None:
    live = Live(pictures.model)
    new = pictures.table["spot"] == "s0"
    live.add(pictures.samples[new], pictures.table[new].assign(spot="mine").to_dict("list"))
    rows = {"spot": ["mine"] * 3, "angle": [0.0, 100.0, 200.0], "batch": [0, 0, 0]}
    assert live.model.remainders_.kept
    shown = live.frame(rows, n_draws=4, keep_draws=4).draws
    assert shown is not None
    np.testing.assert_allclose(shown[:, :, 0], live.model.sample(rows, 4), rtol=1e-5, atol=1e-6)


def test_a_picture_is_made_to_fit(pictures: Case) -> None:
    from gppvae.explore.objects import picture

    wide = np.zeros((16, 32, 3), dtype=np.uint8)
    wide[:, 16:] = 200
    found = picture(base64.b64decode(png(wide / 255)), (1, 8, 8), "file 1")
    assert found.shape == (1, 8, 8) and (found[0, :, :4] == 0).all() and (found[0, :, 4:] == 200).all()
    assert picture(base64.b64decode(png(wide / 255)), (3, 4, 8), "file 1").shape == (3, 4, 8)


def test_values_of_a_new_subject_come_from_a_table(vectors: Case) -> None:
    text = ",".join(NAMES) + "\n" + "\n".join(",".join(map(str, s)) for s in vectors.samples[:2].tolist())
    asked = {"id": "new", "files": [base64.b64encode(text.encode()).decode()], "rows": [{"age": 30.0}, {"age": 40.0}]}
    answers = vectors.answers()
    answers.add(asked)
    found = unpack(answers.frame({"row": {"subject": "new", "age": 30.0}}))[1]
    np.testing.assert_allclose(found["measured"], vectors.samples[0], rtol=1e-6)
    with pytest.raises(ValueError, match="expected lines of 6 numbers in file 1, got a line of 2 entries"):
        answers.add(asked | {"id": "x", "files": [base64.b64encode(b"1,2\n").decode()]})


def test_counts_are_predicted_at_the_size_of_their_sample() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 5.0, 24)
    depth = np.where(np.arange(24) % 2, 40.0, 400.0)
    counts = rng.poisson(depth[:, None] * np.exp(np.sin(x[:, None] + np.arange(5))) / 7)
    settings = {"latent_dim": 2, "width": 8, "epochs": 3, "warmup_epochs": 1, "gp_epochs": 1}
    with one_thread():
        model = GPPVAE("RBF(x)", likelihood="negative_binomial", **settings).fit(counts, {"x": x}, progress=False)
    answers = Answers(model, Source(make_part(model, {"x": x}, counts)), "t", "t")
    assert answers.meta()["ends"] == [0.0, None]
    totals = counts.sum(1)
    means = []
    for number in (0, 1):
        facts, found = unpack(answers.frame({"row": {"x": float(x[number])}, "draws": 4}))
        assert facts["size"] == totals[number]
        means.append(found["mean"] / model.predict({"x": [x[number]]}).mean[0])
    # The prediction is proportional to the size: both are the typical one times the same factor per count.
    np.testing.assert_allclose(means[0] / means[1], totals[0] / totals[1], rtol=1e-4)
    assert unpack(answers.frame({"row": {"x": 0.123}}))[0]["size"] is None
    errors = unpack(answers.colour({"kind": "error", "cells": [1]}))[1]["values"]
    np.testing.assert_allclose(errors[0], np.sqrt(((found["mean"] - counts[1]) ** 2).mean()), rtol=1e-4)


@pytest.mark.parametrize(
    ("question", "asked", "sentence"),
    [
        ("frame", {}, "expected a row with a value for every column"),
        ("frame", {"row": {"spot": "s1"}}, "column 'angle' must be a finite number, got None"),
        ("frame", {"row": {"spot": "nobody", "angle": 0.0}}, "must hold ids known from training"),
        ("frame", {"row": ROW, "off": [[0, 7]]}, "expected terms of the kernel"),
        ("frame", {"row": ROW, "off": "all"}, "expected terms of the kernel"),
        ("frame", {"row": ROW, "draws": 10**9}, "draws must be a whole number from 0 to 64"),
        ("frame", {"row": ROW, "draws": 1}, "expected 0 draws or at least 2"),
        ("frame", {"row": {"spot": "s1", "angle": float("nan")}}, "must be a finite number"),
        ("colour", {"kind": "age"}, "expected one of error, uncertainty"),
        ("colour", {"kind": "error", "cells": [10**6]}, "expected indices of cells"),
        ("colour", {"kind": "error", "cells": list(range(300))}, "expected a list of 1 to 256 entries"),
        ("covariance", {"leaf": 9}, "leaf must be a whole number"),
        ("add", {"id": " "}, "expected a name for the new object"),
        ("add", {"id": "x", "files": []}, "expected 1 to 64 files"),
        ("add", {"id": "x", "files": ["!"], "rows": []}, "expected file 1 in base64"),
        ("add", {"id": "x", "files": ["aaaa"], "rows": []}, "expected a picture"),
        ("add", {"id": "x", "column": "angle"}, "column 'angle' cannot take new objects"),
    ],
)
def test_wrong_questions_get_one_sentence(pictures: Case, question: str, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        getattr(pictures.answers(), question)(asked)


def test_without_data_the_page_shows_what_the_model_knows(pictures: Case) -> None:
    answers = Answers(pictures.model, Source(), "t", "runs/t")
    meta = answers.meta()
    assert not meta["has_table"] and not meta["has_samples"]
    assert len(meta["table"]["status"]) == 4 * 7  # 90 degrees is at no training row
    facts, found = unpack(answers.frame({"row": meta["start"], "draws": 4}))
    assert facts["status"] == 0 and set(found) == {"mean", "std"}


def test_every_column_of_the_table_can_colour(pictures: Case) -> None:
    table = pictures.answers().meta()["table"]
    assert list(table["columns"]) == ["spot", "angle", "batch"]
    assert table["columns"]["batch"]["kind"] == "number" and table["columns"]["spot"]["kind"] == "id"
    codes = table["columns"]["spot"]
    names = [codes["levels"][code] for code in codes["codes"]]
    order = np.concatenate([np.flatnonzero(~pictures.held), np.flatnonzero(pictures.held)])
    assert names == pictures.table["spot"].iloc[order].tolist()
    assert table["status"].count(2) == int(pictures.held.sum())


@pytest.mark.parametrize(
    ("kernel", "highest", "span", "period"),
    [
        ("Periodic(angle, 360)", 315.0, (0.0, 360.0), 360.0),
        ("Periodic(angle, 360)", 3150.0, (0.0, 360.0), 360.0),
        ("Periodic(angle, 360) + Periodic(angle, 120)", 315.0, (0.0, 360.0), 360.0),
        ("Periodic(angle, 360) + RBF(angle)", 300.0, (-30.0, 330.0), None),
    ],
)
def test_a_slider_goes_around_where_all_of_the_kernel_repeats(kernel, highest, span, period) -> None:
    prior, table = LatentPrior([(parse_kernel(kernel), 2)]), Table({"angle": np.linspace(0.0, highest, 9)})
    prior.groups[0].kernel.bind(table)
    (column,) = columns_of(prior, table)
    assert column.span() == pytest.approx(span) and column.period == period


@pytest.mark.parametrize("text", [True, False])
def test_dates_are_days_as_in_the_kernel(text: bool) -> None:
    dates = pd.date_range("2020-01-01", periods=12, freq="7D")
    table = pd.DataFrame({"day": dates.strftime("%Y-%m-%d") if text else dates, "born": dates})
    samples = np.outer(np.sin(np.arange(12.0) / 3), [1.0, 2.0]).astype(np.float32)
    with one_thread():
        model = GPPVAE("RBF(day)", latent_dim=1, width=8, epochs=2).fit(samples, table, progress=False)
    answers = Answers(model, Source(make_part(model, table, samples)), "t", "t")
    meta, first = answers.meta(), 18262.0  # days from 1970 to 2020
    assert meta["columns"][0]["values"] == [first + 7 * n for n in range(12)]
    assert meta["table"]["columns"]["day"] == {"kind": "number", "values": meta["columns"][0]["values"]}
    assert meta["table"]["columns"]["born"]["kind"] == "id" and meta["start"] == {"day": first}
    facts, found = unpack(answers.frame({"row": {"day": first + 14}}))
    assert facts["status"] == 1
    np.testing.assert_allclose(found["mean"], model.predict(table.iloc[2:3]).mean[0], atol=1e-5)


def test_columns_that_do_not_apply_are_missing_in_rows_and_paths() -> None:
    rng = np.random.default_rng(0)
    sick = np.arange(24) % 2.0
    table = pd.DataFrame(
        {"age": np.arange(24.0), "sick": sick, "years": np.where(sick == 1.0, np.arange(24.0), np.nan)}
    )
    samples = rng.normal(size=(24, 3)).astype(np.float32)
    with one_thread():
        model = GPPVAE("RBF(age) + Linear(sick) * RBF(years)", latent_dim=2, width=8, epochs=2)
        model.fit(samples, table, progress=False)
    answers = Answers(model, Source(make_part(model, table, samples)), "t", "t")
    assert "NaN" not in json.dumps(answers.meta())
    healthy, ill = {"age": 2.0, "sick": 0.0, "years": None}, {"age": 3.0, "sick": 1.0, "years": 3.0}
    for row, column in ((healthy, "age"), (healthy, "years"), (ill, "years"), (ill, "sick")):
        assert np.isfinite(unpack(answers.path({"row": row, "column": column}))[1]["places"]).all()
    means = [unpack(answers.frame({"row": row}))[1]["mean"] for row in (healthy, ill)]
    np.testing.assert_allclose(means[0], model.predict(table.iloc[2:3]).mean[0], atol=1e-5)
    np.testing.assert_allclose(means[1], model.predict(table.iloc[3:4]).mean[0], atol=1e-5)
    with pytest.raises(ValueError, match=r"column 'years' must be finite.* 0 where it does not apply"):
        answers.path({"row": healthy, "column": "sick"})


def test_named_values_are_found_by_their_names() -> None:
    from gppvae.explore.objects import values

    content = b'age,"iron, total",who,zinc\r\n50,1.5,ann,2.5\r\n60,3.5,ann,4.5\r\n'
    np.testing.assert_array_equal(values(content, (2,), "file 1", ["zinc", "iron, total"]), [[2.5, 1.5], [4.5, 3.5]])
    with pytest.raises(ValueError, match="expected a column 'urea' in the first line of file 1, got none"):
        values(content, (2,), "file 1", ["zinc", "urea"])
    with pytest.raises(ValueError, match="got '' in sample 1; the model was fitted without missing values"):
        values(b"zinc,urea\n1\n", (2,), "file 1", ["zinc", "urea"])
    with pytest.raises(ValueError, match="expected lines of 2 numbers in file 1, got none"):
        values(b"zinc,urea\n", (2,), "file 1", ["zinc", "urea"])
    np.testing.assert_array_equal(values(b"1,2\n", (2,), "file 1", ["zinc", "urea"]), [[1.0, 2.0]])


def test_names_may_be_numbers() -> None:
    """As wavelengths are: the line of names was taken for a sample."""
    from gppvae.explore.objects import values

    names, content = ["400", "500.5"], b"500.5,400\n1,2\n3,4\n"
    np.testing.assert_array_equal(values(content, (2,), "file 1", names), [[2.0, 1.0], [4.0, 3.0]])
    np.testing.assert_array_equal(
        values(b"7," + content.replace(b"\n", b"\n9,", 2), (2,), "file 1", names), [[2, 1], [4, 3]]
    )
    np.testing.assert_array_equal(values(content, (2,), "file 1")[0], [500.5, 400.0])
    np.testing.assert_array_equal(values(b"400,1\n", (2,), "file 1", names), [[400.0, 1.0]])


def test_the_page_answers_while_an_object_is_learned(pictures: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, learning, go_on = pictures.answers(), threading.Event(), threading.Event()
    before = unpack(answers.frame({"row": ROW}))[1]["mean"]
    learn = GPPVAE.add_objects

    def slowly(model: GPPVAE, samples: np.ndarray, table: dict[str, list[object]]) -> list[str]:
        learning.set()
        assert go_on.wait(60)
        return learn(model, samples, table)

    monkeypatch.setattr(GPPVAE, "add_objects", slowly)
    asked = {"id": "mine", "files": [png(pictures.samples[0])], "rows": [{"angle": 45.0}]}
    thread = threading.Thread(target=answers.add, args=(asked,))
    thread.start()
    assert learning.wait(60)
    np.testing.assert_array_equal(unpack(answers.frame({"row": ROW}))[1]["mean"], before)
    go_on.set()
    thread.join(60)
    assert answers.added == ["mine"]
    assert unpack(answers.frame({"row": {"spot": "mine", "angle": 45.0}}))[0]["status"] == 1


def test_values_may_be_missing_where_the_model_knows_missing_values() -> None:
    from gppvae.explore.objects import values

    gaps = values(b"age,zinc,urea\n50,1.5,\n60,NA,4\n", (2,), "file 1", ["zinc", "urea"], gaps=True)
    np.testing.assert_array_equal(gaps, [[1.5, np.nan], [np.nan, 4.0]])
    np.testing.assert_array_equal(values(b",2\n1,nan\n", (2,), "file 1", None, gaps=True), [[np.nan, 2], [1, np.nan]])
    with pytest.raises(ValueError, match=r"expected numbers in file 1, got 'low' in sample 2$"):
        values(b"1,2\nlow,2\n", (2,), "file 1", None, gaps=True)

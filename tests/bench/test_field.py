"""`gppvae bench field`: windows with holes, stays, spots and subjects as described; peers beside, or why not."""

from __future__ import annotations

import io
import json
import math
import sys
import tarfile
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from gppvae.bench import dlpfc, etth1, health, physionet, pypots, tasks, windows
from gppvae.bench import run as bench_run
from gppvae.bench.page import NOT_RUN, filled, table, write
from gppvae.bench.scores import measured
from gppvae.bench.task import ARI, DEVIANCE, MAE, Beside, Question, Target, Task, adjusted_rand, error_of
from gppvae.bench.windows import Windows, ask_hidden, hidden_task, interpolated, last_value
from gppvae.cli import app
from gppvae.estimator.gppvae import GPPVAE
from gppvae.estimator.prediction import Prediction
from gppvae.report.record import read_results

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "field.json", ROOT / "docs" / "field.md"
NAN = float("nan")


# -- errors, targets


def test_the_deviance_is_twice_what_the_log_likelihood_lacks() -> None:
    counts, rates = np.array([[0.0, 3.0], [1.0, 2.0]]), np.array([[0.5, 2.0], [1.0, 0.0]])

    def lacking(y: float, mean: float) -> float:
        best = -y + (y * math.log(y) if y else 0.0)
        return 2 * (best - (-mean + (y * math.log(mean) if y else 0.0)))

    wanted = [lacking(y, max(m, 1e-8)) for y, m in zip(counts.ravel(), rates.ravel(), strict=True)]
    assert error_of(DEVIANCE, counts, rates) == pytest.approx(sum(wanted) / 4)


def test_the_adjusted_rand_index_counts_pairs() -> None:
    stream = np.random.default_rng(0)
    truth, found = stream.integers(3, size=25), stream.integers(4, size=25)
    found[:15] = truth[:15]
    pairs = list(combinations(range(25), 2))
    both = sum(truth[i] == truth[j] and found[i] == found[j] for i, j in pairs)
    of_truth, of_found = (sum(labels[i] == labels[j] for i, j in pairs) for labels in (truth, found))
    chance = of_truth * of_found / len(pairs)
    wanted = (both - chance) / ((of_truth + of_found) / 2 - chance)
    assert error_of(ARI, truth, found) == pytest.approx(wanted)
    names = np.array(["a", "b", "c"])[truth]
    assert adjusted_rand(names, truth + 5) == 1.0
    assert adjusted_rand(np.zeros(4), np.zeros(4)) == 1.0


def test_what_should_be_high_has_a_least_value() -> None:
    assert Target(1.0, ("a", "b")).limit({"a": 0.2, "b": 0.3}, ARI) == 0.3
    assert Target(1.0, ("a", "b")).limit({"a": 0.2, "b": 0.3}, DEVIANCE) == 0.2

    class Model:
        def predict_latent(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
            latents = np.repeat([[0.0, 0.0], [9.0, 9.0]], 6, axis=0)
            return latents + 0.01 * np.arange(24).reshape(12, 2), np.ones((12, 2))

    layers = np.repeat(["one", "two"], 6)
    question = Question(
        "layers", {}, layers, {"PCA": 0.3}, Target(1.0, ("PCA",)), ask=dlpfc.ask_layers, kind=ARI, scored=False
    )
    found = measured(Model(), question, DEVIANCE)  # type: ignore[arg-type]
    assert found["error"] == 1.0 and found["met"] and found["limit"] == 0.3 and found["kind"] == ARI
    assert found["coverage"] is None and found["score"] is None
    json.dumps(found, allow_nan=False)


# -- windows with holes


def some_windows(n: int = 3, steps: int = 6, channels: int = 2, seed: int = 0) -> Windows:
    stream = np.random.default_rng(seed)
    time = np.arange(n * steps).reshape(n, steps, 1) / 3
    truth = np.concatenate([np.sin(time + channel) for channel in range(channels)], axis=2)
    return Windows(windows.hide(truth, 0.2, stream), truth, np.arange(n) * steps)


def test_lines_and_last_values_are_those_of_pandas() -> None:
    given = some_windows(5, 12, 3).given
    given[0, :, 0] = NAN  # nothing to go by: the mean, which is 0
    given[1, :4, 1] = NAN
    lines, last = interpolated(given), last_value(given)
    for window in range(5):
        frame = pd.DataFrame(given[window])
        wanted = frame.interpolate(limit_direction="both").fillna(0.0)
        np.testing.assert_allclose(lines[window], wanted)
        np.testing.assert_allclose(last[window], frame.ffill().bfill().fillna(0.0))


def test_rows_are_the_steps_of_windows() -> None:
    found = some_windows()
    found.truth[1, 2] = found.given[1, 2] = NAN  # a step at which there is nothing
    samples, rows = found.rows()
    assert samples.shape == (17, 2)
    for sample, name, step, hour in zip(samples, rows["window"], rows["step"], rows["hour"], strict=True):
        number = int(name.removeprefix("test "))
        np.testing.assert_allclose(sample, found.given[number, int(step)], rtol=1e-6)
        assert hour == number * 6 + step


def test_hidden_values_are_asked_for_and_nothing_else() -> None:
    found = some_windows()
    found.truth[1, 2] = found.given[1, 2] = NAN
    (question,) = hidden_task("q", etth1.KERNEL, found, "", {}, "etth1").questions
    wanted = [found.truth[place] for place in zip(*np.nonzero(found.hidden), strict=True)]
    np.testing.assert_allclose(question.truth, wanted)
    lines = [interpolated(found.given)[place] for place in zip(*np.nonzero(found.hidden), strict=True)]
    assert question.simple["linear interpolation"] == pytest.approx(
        np.mean([abs(a - b) for a, b in zip(wanted, lines, strict=True)])
    )

    class Model:
        def impute(self, samples: np.ndarray, rows: Any) -> Prediction:
            np.testing.assert_array_equal(np.isnan(samples), np.isnan(found.given.reshape(-1, 2)[found.used]))
            return Prediction(found.truth.reshape(-1, 2)[found.used], np.ones_like(samples))

    answer = question.ask(Model(), question)  # type: ignore[arg-type]
    np.testing.assert_allclose(answer.mean, wanted)
    assert answer.how == "impute" and not question.scored


def test_a_fit_imputes_windows() -> None:
    found = some_windows(4, 12, 3)
    samples, table = found.rows()
    hidden = found.hidden.reshape(-1, 3)
    kernel = "Categorical(window) * RBF(step)"
    model = GPPVAE(kernel, latent_dim=2, epochs=1, missing="mask").fit(samples, table, progress=False)
    question = Question("q", table, found.truth[found.hidden], {}, ask=ask_hidden(samples, hidden), scored=False)
    answer = measured(model, question, MAE)
    means = model.impute(samples, table).mean
    apart = [abs(means[i, c] - found.truth.reshape(-1, 3)[i, c]) for i in range(48) for c in range(3) if hidden[i, c]]
    assert answer["error"] == pytest.approx(np.mean(apart), rel=1e-4) and answer["asked_by"] == "impute"


def test_ett_is_split_by_months_and_standardised_by_the_first(tmp_path: Path) -> None:
    times = pd.date_range("2016-07-01", "2018-06-26 19:00", freq="h")
    values = np.random.default_rng(0).normal(5.0, 3.0, (len(times), 7))
    frame = pd.DataFrame(values, columns=list("abcdefg"))
    frame.insert(0, "date", times)
    (tmp_path / "ett").mkdir()
    frame.to_csv(tmp_path / "ett" / "ETTh1.csv", index=False)
    train, valid, test = etth1.load(tmp_path)
    counts = [sum(1 for t in times if low <= (t.year - 2016) * 12 + t.month - 7 < high) for low, high in
              ((0, 14), (14, 19), (19, 24))]  # fmt: skip
    assert [len(part.truth) for part in (train, valid, test)] == [count // 48 for count in counts]
    first = values[: counts[0]]
    np.testing.assert_allclose(test.truth[0, 0], (values[counts[0] + counts[1]] - first.mean(0)) / first.std(0))
    assert test.start[1] == counts[0] + counts[1] + 48
    assert 0.08 < test.hidden.mean() < 0.12 and 0.08 < train.hidden.mean() < 0.12
    task = etth1.etth1(tmp_path)
    assert len(task.samples) == 48 * len(test.truth)
    assert np.isnan(task.samples[test.hidden.reshape(-1, 7)]).all(), "no fit sees what is asked for"


def stay(hours: int, seed: int) -> str:
    stream = np.random.default_rng(seed)
    lines = ["Time,Parameter,Value", "00:00,RecordID,1", "00:00,Age,54"]
    for hour in range(hours):
        lines += [f"{hour:02d}:07,HR,{80 + hour}", f"{hour:02d}:40,HR,{82 + hour}", f"{hour:02d}:15,Temp,{37 + seed}"]
        lines += [f"{hour:02d}:15,MAP,{stream.normal(80, 5):.1f}"]
    return "\n".join(lines)


def icu(folder: Path, n: int = 30) -> Path:
    (folder / "physionet2012").mkdir()
    file = folder / "physionet2012" / physionet.FILE
    with tarfile.open(file, "w:gz") as archive:
        for number in range(n):
            text = stay(1 if number == 4 else 49, number).encode()
            info = tarfile.TarInfo(f"set-a/{1000 + number}.txt")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return file


def test_stays_are_means_of_hours(tmp_path: Path) -> None:
    found = physionet.stays(icu(tmp_path))
    assert found.shape == (29, 48, 35), "a stay of one hour is no series"
    rate, temperature = (physionet.CHANNELS.index(name) for name in ("HR", "Temp"))
    np.testing.assert_allclose(found[:, :, rate], np.tile(81.0 + np.arange(48), (29, 1)))
    assert found[3, 0, temperature] == 40.0 and found[4, 0, temperature] == 42.0
    assert np.isnan(found[:, :, physionet.CHANNELS.index("pH")]).all()
    train, valid, test = physionet.load(tmp_path)
    assert [len(part.truth) for part in (train, valid, test)] == [18, 5, 6]
    assert not train.hidden.any() and 0.05 < test.hidden[:, :, rate].mean() < 0.15
    np.testing.assert_allclose(np.nanmean(train.truth[:, :, rate]), 0.0, atol=1e-9)
    task = physionet.physionet(tmp_path)
    assert len(set(task.table["window"])) == 6
    assert np.isnan(task.samples[test.hidden.reshape(-1, 35)[test.used]]).all()


# -- spots


def slide(n: int = 80, genes: int = 12) -> dlpfc.Section:
    stream = np.random.default_rng(1)
    place = stream.uniform(0, 20, (n, 2))
    rates = np.exp(np.sin(place @ stream.normal(size=(2, genes)) / 6))
    depth = stream.uniform(0.5, 3.0, n)
    layer = np.where(place[:, 0] < 10, "Layer1", "WM")
    layer[0] = dlpfc.UNKNOWN
    return dlpfc.Section(stream.poisson(3 * depth[:, None] * rates).astype(np.float32), place, layer)


def test_nearest_spots_share_their_counts_by_depth() -> None:
    section = slide()
    train, test = section.part(np.arange(60)), section.part(np.arange(60, 80))
    found = dlpfc.nearest_spots(train, test)
    mean = train.counts.sum(axis=0) / train.counts.sum()

    def by_hand(place: np.ndarray, depth: float, k: int, skip: int = -1) -> np.ndarray:
        order = [i for i in np.argsort(((train.place - place) ** 2).sum(axis=1)) if i != skip][:k]
        return depth * (sum(train.counts[i] for i in order) + mean) / (sum(train.depth[i] for i in order) + 1)

    usable = [k for k in dlpfc.NEIGHBOURS if k < 60]
    within = {
        k: error_of(
            DEVIANCE, train.counts,
            np.stack([by_hand(train.place[i], float(train.depth[i]), k, i) for i in range(60)]),
        )
        for k in usable
    }  # fmt: skip
    best = min(within, key=lambda k: within[k])
    wanted = np.stack([by_hand(p, float(d), best) for p, d in zip(test.place, test.depth, strict=True)])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_gp_per_gene_is_that_of_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpfc, "LENGTHSCALES", (5.0,))
    section = slide()
    train, test = section.part(np.arange(60)), section.part(np.arange(60, 80))
    found = dlpfc.gp_per_gene(train, test)
    weight = train.depth / np.median(train.depth)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.array([[math.exp(-sum((p - q) ** 2) / 50.0) for q in b] for p in a])

    k, cross, mean = kernel(train.place, train.place), kernel(test.place, train.place), train.counts.sum(0)
    mean = mean / train.counts.sum()
    for gene in range(3):
        y = train.counts[:, gene] / train.depth - mean[gene]

        def nll(log_r: float, y: np.ndarray = y) -> float:
            c = k + np.exp(log_r) * np.diag(1 / weight)
            return float(30 * np.log(y @ np.linalg.solve(c, y)) + 0.5 * np.linalg.slogdet(c)[1])

        ratio = np.exp(min(np.linspace(np.log(1e-2), np.log(1e6), 600), key=nll))
        rate = mean[gene] + cross @ np.linalg.solve(k + ratio * np.diag(1 / weight), y)
        wanted = test.depth * np.maximum(rate, 0.01 * mean[gene])
        np.testing.assert_allclose(found[:, gene], wanted, rtol=0.03)


def test_a_section_is_read_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpfc, "COMPONENTS", 3)
    made = slide(120)
    (tmp_path / "dlpfc").mkdir()
    with h5py.File(tmp_path / "dlpfc" / f"sample_{dlpfc.SECTION}.h5", "w") as file:
        file["X"], file["pos"] = made.counts.astype(float), made.place.astype(int)
        file["Y"] = np.array([name.encode() for name in made.layer])
    section = dlpfc.load(tmp_path)
    np.testing.assert_allclose(section.place[:, 1], made.place[:, 1].astype(int) / 2)
    assert list(section.layer) == list(made.layer)
    task = dlpfc.dlpfc(tmp_path)
    counts, layers = task.questions
    assert len(counts.truth) + len(task.samples) == 120
    assert set(counts.simple) == {"GP per gene", "nearest spots", "mean"} and dlpfc.UNKNOWN not in layers.truth
    np.testing.assert_allclose(counts.table["(size)"], counts.truth.sum(axis=1))
    assert task.settings["likelihood"] == "negative_binomial" and "counts" in task.facts()["why"]


def test_clusters_are_found() -> None:
    points = np.repeat([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], 10, axis=0)
    points += 0.1 * np.random.default_rng(0).normal(size=points.shape)
    assert adjusted_rand(np.repeat([0, 1, 2], 10), dlpfc.clusters(points, 3)) == 1.0


# -- subjects


def test_missing_pixels_and_future_visits_of_many_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = np.random.default_rng(0)
    digits = (255 * stream.random((20, 28, 28))).astype(np.uint8)
    monkeypatch.setattr(health, "load_mnist", lambda folder, part: (digits, np.tile([3, 6], 10)))
    task = health.many_subjects(tmp_path, trained=4, asked=2)
    future, pixels = task.questions
    assert len(task.samples) == 4 * 20 + 2 * 5 and len(future.truth) == 2 * 15
    assert future.published == "health-mnist" and not task.settings
    study = health.Study.of(tmp_path, 4, 2)
    own = [i for i in range(len(study.samples)) if study.rows["subject"][study.given][i] < 2]
    assert len(own) == 40 and len(pixels.table["age"]) == 40
    clean = study.clean[study.given]
    errors, values = [], []
    for i in own:
        near = [j for j in own if study.rows["subject"][j] == study.rows["subject"][i]
                and abs(study.rows["age"][j] - study.rows["age"][i]) <= 2]  # fmt: skip
        for place in zip(*np.nonzero(np.isnan(study.samples[i])), strict=True):
            seen = [study.samples[j][place] for j in near if not np.isnan(study.samples[j][place])]
            guess = np.mean(seen) if seen else np.nanmean([study.samples[j][place] for j in own])
            errors.append((guess - clean[i][place]) ** 2)
            values.append(clean[i][place])
    np.testing.assert_allclose(pixels.truth, values)
    assert pixels.simple["mean of visits within two years"] == pytest.approx(np.mean(errors), rel=1e-5)


# -- peers


def test_without_pypots_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypots, "find_spec", lambda name: None)
    found = pypots.gp_vae("q", some_windows(), some_windows(), some_windows())(0)
    assert found.to_json() == {"not_run": "not run: install gppvae[bench]"}


def test_pypots_gets_the_same_windows_and_the_mean_of_its_draws_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, valid, test = (some_windows(seed=seed) for seed in range(3))
    told: dict[str, Any] = {}

    class GPVAE:
        def __init__(self, steps: int, channels: int, **settings: Any) -> None:
            told.update(settings, size=(steps, channels))
            print("a banner that nobody asked for", sys.stdout.encoding.lower())

        def fit(self, given: Any, judged: Any) -> None:
            np.testing.assert_allclose(given["X"], train.given, rtol=1e-6)
            np.testing.assert_allclose(judged["X"], valid.given, rtol=1e-6)
            np.testing.assert_allclose(judged["X_ori"], valid.truth, rtol=1e-6)

        def predict(self, given: Any, n_sampling_times: int) -> dict[str, np.ndarray]:
            np.testing.assert_allclose(given["X"], test.given, rtol=1e-6)
            offsets = np.arange(n_sampling_times) - (n_sampling_times - 1) / 2 + 0.25
            return {"imputation": test.truth[:, None] + offsets[None, :, None, None]}

    parts = {name: ModuleType(name) for name in ("pypots", "pypots.imputation", "pypots.utils", "pypots.utils.random")}
    parts["pypots"].__version__ = "9"  # type: ignore[attr-defined]
    parts["pypots.imputation"].GPVAE = GPVAE  # type: ignore[attr-defined]
    parts["pypots.utils.random"].set_random_seed = lambda seed: told.update(seed=seed)  # type: ignore[attr-defined]
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(pypots, "find_spec", lambda name: object())
    found = pypots.gp_vae("q", train, valid, test, epochs=3)(7).to_json()
    assert found["values"] == {"q": pytest.approx(0.25)} and found["settings"]["pypots"] == "9"
    assert told["seed"] == 7 and told["epochs"] == 3 and told["size"] == (6, 2)
    json.dumps(found)
    assert "banner" not in "".join(capsys.readouterr())


def tiny(data: Path | None = None, peer: Any = None) -> Task:
    t = np.linspace(0, 3, 24)
    y = np.stack([np.sin(t), np.cos(t)], axis=1).astype(np.float32)
    even = np.arange(24) % 2 == 0
    question = Question("tiny", {"t": t[~even]}, y[~even], {"mean": 0.5}, Target(1.0, ("mean",)), published="etth1")
    return Task(
        "tiny", "RBF(t)", y[even], {"t": t[even]}, [question], "a circle", error=MAE,
        settings={"latent_dim": 2}, why="it is tiny", beside={} if peer is None else {"a peer": peer},
    )  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each estimator was told beside its kernel; it is trained for one epoch."""
    said: list[dict[str, Any]] = []

    def short(kernel: str, **settings: Any) -> GPPVAE:
        said.append(settings)
        return GPPVAE(kernel, epochs=1, **settings)

    monkeypatch.setattr(bench_run, "GPPVAE", short)
    about = {"commit": "abc", "clean": True, "machine": "M", "python": "3", "versions": {"torch": "2"}}
    monkeypatch.setattr(bench_run, "provenance", lambda: dict(about))
    return said


def test_a_peer_that_could_not_be_run_is_added_later_and_kept(
    told: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, said, asked = tmp_path / "field.json", [], []

    def absent(seed: int) -> Beside:
        return Beside({}, {}, 0.0, "not run: install it")

    def present(seed: int) -> Beside:
        asked.append(seed)
        return Beside({"tiny": 0.25}, {"epochs": 1}, 60.0)

    def go(peer: Any) -> dict[str, Any]:
        bench_run.run_suite("field", {"tiny": lambda data: tiny(peer=peer)}, [0], tmp_path, out, False, said.append)
        return read_results(out)["runs"]["tiny seed 0"]

    def broken(seed: int) -> Beside:
        raise RuntimeError("its own fault")

    with pytest.raises(RuntimeError, match="its own fault"):
        go(broken)
    assert len(told) == 1 and read_results(out)["runs"]["tiny seed 0"]["beside"] == {}, "ours is kept"
    assert go(absent)["beside"]["a peer"]["not_run"] == "not run: install it"
    assert "not run: install it" in table(read_results(out)) and said[-1].endswith("not run: install it")
    assert told == [{"seed": 0, "latent_dim": 2}]
    ours = go(present)
    assert len(told) == 1 and asked == [0], "only the peer is run"
    assert ours["beside"]["a peer"]["values"] == {"tiny": 0.25} and ours["facts"]["why"] == "it is tiny"
    go(present)
    assert asked == [0]
    monkeypatch.setattr(bench_run, "provenance", lambda: ours["about"] | {"commit": "later"})
    again = go(absent)
    assert len(told) == 2 and again["about"]["commit"] == "later", "ours is run anew at another commit"
    assert again["beside"]["a peer"]["values"] == {"tiny": 0.25} and again["beside"]["a peer"]["about"] == ours["about"]
    text = table(read_results(out))
    assert "0.25, 1.0 minutes" in text and "SAITS 0.144 ([source](https://" in text and "| 0.5 (mean) |" in text


def test_the_command_measures_and_writes_its_page(
    told: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tasks.SUITES, "field", {"tiny": tiny})
    out, page = tmp_path / "field.json", tmp_path / "page.md"
    words = ["bench", "field", "--task", "tiny", "--data", str(tmp_path), "--out", str(out), "-q"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0 and "tiny, seed 0: MAE" in answer.stderr
    page.write_text("a\n<!-- field:begin -->\nold\n<!-- field:end -->\nb\n")
    assert CliRunner().invoke(app, ["bench", "table", str(page), "--results", str(out)]).exit_code == 0
    assert "| tiny | 1 | MAE " in page.read_text() and "old" not in page.read_text()
    answer = CliRunner().invoke(app, ["bench", "field", "--task", "no"])
    assert answer.exit_code == 2 and "a task must be one of tiny, got 'no'" in answer.stderr
    (tmp_path / "other.json").write_text('{"experiment": "faces"}')
    answer = CliRunner().invoke(app, ["bench", "table", str(page), "--results", str(tmp_path / "other.json")])
    assert answer.exit_code == 2 and "expected results of `gppvae bench`" in answer.stderr


def test_the_page_shows_the_file_and_names_every_task(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    found = read_results(RESULTS) if RESULTS.is_file() else {"experiment": "field", "runs": {}}
    assert filled(text, found) == text
    assert all(run["about"]["clean"] for run in found["runs"].values())
    assert [name for name in tasks.SUITES["field"] if f"`{name}`" not in text] == []
    assert table({"experiment": "field", "runs": {}}) == NOT_RUN.format("field")
    copy = tmp_path / "page.md"
    copy.write_text(text)
    if RESULTS.is_file():
        write(copy, RESULTS)
        assert copy.read_text("utf-8") == text

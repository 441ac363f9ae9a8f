"""The experiment end to end on a small data set, and the numbers it reports against plain NumPy."""

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from gppvae.data.rotated_digits import RotatedDigits, small_split
from gppvae.estimator import VAE
from gppvae.paper.comparison import run as runner
from gppvae.paper.comparison.methods import METHODS, averaged
from gppvae.paper.comparison.run import Plan, predictions, run
from gppvae.paper.comparison.setup import Setup
from gppvae.paper.comparison.task import Task
from gppvae.paper.comparison.tradeoff import validation_bounds
from gppvae.paper.pages.comparison import mse_text, write_page
from gppvae.paper.pages.rotated_mnist import WORDS
from gppvae.paper.reproduce import DIGIT_METHODS, QUICK_DIGIT_METHODS, Request
from gppvae.paper.rotated_mnist.data import data_facts, load_split, task
from gppvae.paper.rotated_mnist.recipes import global_recipe, setup

FIGURES = (
    "figure_2a_mse", "figure_2b_means", "figure_2c_log_variances", "figure_2d_predictions", "figure_2ef_covariances",
    "figure_s3_vae_bound", "figure_s4a_cvae", "figure_s4b_livae", "figure_s4cd_mse",
)  # fmt: skip


def tiny_setup() -> Setup:
    return Setup(
        "paper", "conv", 4, "1.0 * Learned(digit, 2) * Periodic(angle, 360)", select_epochs=1, warmup_epochs=1,
        epochs=1, gp_steps=2, dis_gp_steps=3, exact_steps=1, global_epochs=1, grid=(0.01, 0.04), most_values=3,
        batch_size=32, n_draws=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> RotatedDigits:
    return small_split(20, 8, seed=1)


@pytest.fixture(scope="module")
def question(digits: RotatedDigits) -> Task:
    return task(digits)


@pytest.fixture(scope="module")
def finished(question: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("experiment")
    plan = Plan("paper", tiny_setup(), global_recipe("paper", 1), DIGIT_METHODS, (0, 1), select=True)
    return folder, plan, run(folder, plan, question, progress=False, say=lambda line: None)


def test_every_method_reports_its_images(finished: tuple[Path, Plan, dict[str, Any]], digits: RotatedDigits) -> None:
    folder, _, content = finished
    assert list(content["methods"]) == list(DIGIT_METHODS)
    for name, method in content["methods"].items():
        assert method["mean_decoded"]["seeds"] == [0, 1]
        for seed in (0, 1):
            arrays = predictions(folder, seed, name)
            difference = arrays["mean"].astype(np.float64) - digits.test.images
            expected = [float((image**2).mean()) for image in difference]
            np.testing.assert_allclose(method["per_image"]["mean_decoded"][str(seed)], expected, rtol=1e-5)
            assert method["mean_decoded"]["means"][seed] == pytest.approx(np.mean(expected), rel=1e-5)
    assert content["methods"]["mean-image"]["sample_averaged"] is None
    assert content["methods"]["joint"]["sample_averaged"] is not None


def test_methods_that_were_run_before_stay_in_the_results(finished: tuple[Path, Plan, dict[str, Any]]) -> None:
    _, _, earlier = finished
    only = {name: earlier["methods"][name] for name in ("dis", "global")}
    anew = earlier | {"methods": only, "selection": None, "tests": {}}

    both = runner.with_earlier(anew, earlier)
    assert list(both["methods"]) == list(DIGIT_METHODS)  # in the order of the table
    assert both["selection"] == earlier["selection"] and both["tests"] == earlier["tests"]

    setup = {name: value for name, value in earlier["setting"]["setup"].items() if name != "default_kernel"}
    before_the_setting = earlier | {"setting": earlier["setting"] | {"setup": setup}}  # which is None here
    assert list(runner.with_earlier(anew, before_the_setting)["methods"]) == list(DIGIT_METHODS)

    another_recipe = earlier | {"global_recipe": {"latent_dim": 5}}
    without = anew | {"methods": {"dis": only["dis"]}}
    assert "global" not in runner.with_earlier(without, another_recipe)["methods"]
    assert "joint" in runner.with_earlier(without, another_recipe)["methods"]

    for other in ("split", "network", "data", "setting"):
        assert runner.with_earlier(anew, earlier | {other: "another"}) == anew
    assert runner.with_earlier(anew, None) == anew


def test_methods_without_a_common_seed_are_not_paired(finished: tuple[Path, Plan, dict[str, Any]]) -> None:
    _, _, content = finished
    joint = content["methods"]["joint"]
    errors = {kind: {"7": own["0"]} for kind, own in joint["per_image"].items()}
    later = content | {"methods": {"joint": joint | {"per_image": errors}}, "tests": {}}
    assert list(runner.with_earlier(later, content)["tests"]) == ["posterior against dis"]


def test_methods_get_the_same_budget(finished: tuple[Path, Plan, dict[str, Any]]) -> None:
    rows = finished[2]["methods"]
    assert rows["joint"]["epochs"] == rows["posterior"]["epochs"] == {"gp_only": 2, "joint": 1, "vae": 1}
    assert rows["dis"]["epochs"] == {"gp_only": 3, "vae": 2}
    assert rows["exact"]["epochs"] == {"gp_only": 2, "joint": 1, "vae": 1}
    assert rows["cvae"]["epochs"] == {"cvae": 2}
    assert rows["livae"]["epochs"] == {"vae": 2}


def test_joint_starts_from_the_weights_of_the_warm_up(finished: tuple[Path, Plan, dict[str, Any]]) -> None:
    """GP-only training leaves the encoder alone, so dis encodes as its VAE does, and joint no longer does."""
    folder, _, _ = finished
    vae, joint = predictions(folder, 0, "vae"), predictions(folder, 0, "joint")
    assert vae["z_mean"].shape == joint["z_mean"].shape
    assert not np.allclose(vae["z_mean"], joint["z_mean"], atol=1e-4)
    assert joint["object_covariance"].shape == (18, 18)
    assert joint["view_covariance"].shape == (8, 8)
    np.testing.assert_allclose(np.diag(joint["view_covariance"]), 1.0, rtol=1e-6)


def test_trade_off_is_the_one_with_the_best_validation(finished: tuple[Path, Plan, dict[str, Any]]) -> None:
    selection = finished[2]["selection"]
    for name, pick in (("shared", np.argmax), ("cvae", np.argmin), ("livae", np.argmin)):
        curve = selection[name]
        assert curve["grid"] in ([0.01, 0.04, 0.16], [0.0025, 0.01, 0.04])  # one step beyond the edge with the best
        assert curve["lambda"] == pytest.approx([2 * 4 * value / 784 for value in curve["grid"]])
        assert curve["chosen"] == curve["grid"][int(pick(curve["values"]))]
        assert curve["inside"] == (curve["chosen"] == curve["grid"][1])


def test_finished_methods_are_not_run_again(
    finished: tuple[Path, Plan, dict[str, Any]], question: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plan, content = finished

    def fail(*args: Any) -> None:
        raise AssertionError("a finished method ran again")

    for name in DIGIT_METHODS:
        monkeypatch.setitem(METHODS, name, (METHODS[name][0], fail))
    heard: list[str] = []
    again = run(folder, plan, question, progress=False, say=heard.append)
    assert again["methods"] == content["methods"]
    assert len(heard) == 2 * len(DIGIT_METHODS)
    assert all("finished before" in line for line in heard)


def test_interrupted_run_continues_with_the_same_numbers(
    finished: tuple[Path, Plan, dict[str, Any]],
    question: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = dataclasses.replace(finished[1], methods=("joint", "dis"), seeds=(0,), select=True)
    label, method = METHODS["dis"]

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(METHODS, "dis", (label, interrupted))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, plan, question, progress=False, say=lambda line: None)
    assert not (tmp_path / runner.RESULTS).exists()
    monkeypatch.setitem(METHODS, "dis", (label, method))
    heard: list[str] = []
    content = run(tmp_path, plan, question, progress=False, say=heard.append)
    assert "finished before" in heard[0]
    for name in ("joint", "dis"):
        before = finished[2]["methods"][name]["per_image"]["mean_decoded"]["0"]
        np.testing.assert_allclose(content["methods"][name]["per_image"]["mean_decoded"]["0"], before, rtol=1e-4)


def test_other_settings_need_another_folder(finished: tuple[Path, Plan, dict[str, Any]], question: Task) -> None:
    folder, plan, _ = finished
    other = dataclasses.replace(plan, setup=dataclasses.replace(plan.setup, epochs=2))
    with pytest.raises(ValueError, match="holds an experiment with another setup; choose another --out"):
        run(folder, other, question, progress=False, say=lambda line: None)


def test_another_global_recipe_runs_only_the_global_row_again(
    finished: tuple[Path, Plan, dict[str, Any]], question: Task, tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path / "copy")
    heard: list[str] = []
    changed = global_recipe("paper", 1) | {"pixel_var": 0.5}
    plan = dataclasses.replace(finished[1], recipe=changed, methods=("dis", "global"), seeds=(0,))
    content = run(tmp_path / "copy", plan, question, progress=False, say=heard.append)
    assert "finished before" in heard[0] and "running" in heard[1]
    before, after = finished[2]["methods"], content["methods"]
    assert after["dis"] == before["dis"]
    assert after["global"]["mean_decoded"]["seeds"] == [0]
    assert after["global"]["mean_decoded"]["means"][0] != before["global"]["mean_decoded"]["means"][0]
    assert content["global_recipe"]["pixel_var"] == 0.5


def test_page_has_every_figure_of_the_paper(finished: tuple[Path, Plan, dict[str, Any]], question: Task) -> None:
    folder, _, content = finished
    page = write_page(folder, question, WORDS)
    for name in FIGURES:
        assert (folder / "figures" / f"{name}.png").stat().st_size > 1000
        assert (folder / "figures" / f"{name}.pdf").stat().st_size > 1000
    text = page.read_text("utf-8")
    assert mse_text(content["methods"]["joint"]["mean_decoded"]) in text
    assert "Figure 2d" in text and "Figure S3" in text


def test_validation_bound_against_a_loop(digits: RotatedDigits) -> None:
    images = digits.valid.images[:6]
    model = VAE(3, network="conv", pixel_var=0.01, epochs=1, seed=2).fit(digits.train.images[:32], progress=False)
    mean, std = model.encode(images, return_std=True)
    eps = np.random.default_rng(0).standard_normal(mean.shape)
    with torch.no_grad():
        out = model._autoencoder.decode(torch.tensor(mean + std * eps, dtype=torch.float32)).numpy()[:, 0]
    total, expected = 0.0, []
    for n in range(6):
        total += float(((images[n] - out[n]) ** 2).sum())
    s2 = total / (6 * 784)
    for n in range(6):
        log_likelihood = sum(stats.norm.logpdf(images[n].ravel().astype(float), out[n].ravel(), math.sqrt(s2)))
        kl = sum(0.5 * (mean[n, k] ** 2 + std[n, k] ** 2 - 1 - 2 * math.log(std[n, k])) for k in range(3))
        expected.append(log_likelihood - kl)
    np.testing.assert_allclose(validation_bounds(model, images), expected, rtol=1e-5)


def test_sample_average_is_the_mean_over_draws() -> None:
    mean, var = np.zeros((3, 2)), np.full((3, 2), 4.0)
    assert averaged(lambda z: z, mean, np.zeros((3, 2)), 5, seed=0) == pytest.approx(mean)
    squares = averaged(lambda z: z**2, mean, var, 4000, seed=0)
    np.testing.assert_allclose(squares, 4.0, rtol=0.15)


def test_validation_task_asks_for_the_held_out_angle(digits: RotatedDigits) -> None:
    question = task(digits)
    given, asked = question.given, question.asked
    assert set(asked.table["angle"]) == {digits.held_out_angle}
    assert digits.held_out_angle not in set(given.table["angle"])
    assert len(asked.table) == 2 and len(given.table) == 14
    assert data_facts(digits)["train"] == len(digits.train.table)


def test_plans_and_names() -> None:
    assert Request(quick=True).plan().methods == QUICK_DIGIT_METHODS
    assert {"mean-image", "mean-view", "nearest-view"} <= set(Request().plan().methods)
    assert Request(quick=True, seeds=3).plan().seeds == (0,)
    assert Request(seeds=2, first_seed=3).plan().seeds == (3, 4)
    assert Request(methods="dis, joint").plan().methods == ("dis", "joint")
    assert Request(split="published", network="wide").name == "rotated_mnist_published_wide"
    assert Request(source="mnist", quick=True).name == "rotated_mnist_paper_paper_mnist_quick"
    with pytest.raises(ValueError, match=r"methods must be among .* got magic"):
        Request(methods="joint,magic").plan()
    with pytest.raises(ValueError, match="network must be one of paper, wide, got 'big'"):
        Request(network="big").plan()
    with pytest.raises(ValueError, match="split must be one of paper, published, got 'mine'"):
        load_split("mine")


def test_paper_network_is_the_papers() -> None:
    shared = setup("paper")
    assert (shared.latent_dim, shared.architecture) == (16, "conv")
    assert shared.kernel == "1.0 * Learned(digit, 8) * Periodic(angle, 360)"
    assert shared.gp_only(shared.gp_steps).lr == {"prior": 0.01, "noise": 0.01}
    assert shared.gp_steps == 100
    assert shared.joint("minibatch", 3).lr["encoder"] == shared.joint("minibatch", 3).lr["decoder"] == 0.001
    assert {phase.inference for phase in global_recipe("wide", 8)["phases"]} == {"global", "distill"}

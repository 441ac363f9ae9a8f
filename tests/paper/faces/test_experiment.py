"""The face experiment end to end on a few small generated heads, and what it reports against plain NumPy."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from gppvae.cli import app
from gppvae.data.image_set import ImageSet
from gppvae.estimator import GPPVAE
from gppvae.estimator.choices import SCHEDULES
from gppvae.paper.comparison import methods as method_module
from gppvae.paper.comparison.learned import learned_arrays, learned_facts, normalised
from gppvae.paper.comparison.run import Plan, predictions, run
from gppvae.paper.comparison.task import Task
from gppvae.paper.faces.data import GIVEN_VIEWS, load_faces, task
from gppvae.paper.faces.heads import make_heads
from gppvae.paper.faces.recipes import METHODS, FaceSetup, global_recipe, setup
from gppvae.paper.pages.comparison import write_page
from gppvae.paper.pages.faces import WORDS
from gppvae.paper.reproduce import FaceRequest

PEOPLE, SIZE = 10, 16
FIGURES = (
    "figure_3a_mse", "figure_3b_predictions", "figure_3cd_covariances", "figure_s3b_vae_bound", "figure_s5a_cvae",
    "figure_s5b_livae", "figure_s5cd_mse",
)  # fmt: skip


def tiny_setup() -> FaceSetup:
    return FaceSetup(
        "faces", "faces", 6, "Learned(object, 3) * FreeForm(pose)", select_epochs=1, warmup_epochs=1, epochs=2,
        gp_steps=2, dis_gp_steps=3, exact_steps=1, global_epochs=1, grid=(0.01, 0.04), most_values=3,
        batch_size=16, n_draws=2, validate_every=1, default_kernel="Learned(object, 3) * FreeForm(pose)",
    )  # fmt: skip


def tiny_recipe() -> dict[str, Any]:
    return global_recipe(1) | {"kernel": "Learned(object, 3) * FreeForm(pose)", "latent_dim": 6}


@pytest.fixture(scope="module")
def faces() -> ImageSet:
    return load_faces((), PEOPLE, SIZE)[1]


@pytest.fixture(scope="module")
def question(faces: ImageSet) -> Task:
    return task("generated heads", faces, "images")


@pytest.fixture(scope="module")
def finished(question: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("faces")
    plan = Plan("images", tiny_setup(), tiny_recipe(), METHODS, (0,), select=True, data={"size": SIZE})
    with pytest.MonkeyPatch.context() as patch:  # defaults are trained for a few steps only
        usual = SCHEDULES["leave_out", "image"]
        patch.setitem(SCHEDULES, ("leave_out", "image"), dataclasses.replace(usual, least=4, most=4))
        return folder, plan, run(folder, plan, question, progress=False, say=lambda line: None)


def keys(part: ImageSet) -> set[tuple[str, str]]:
    return set(zip(part.table["object"], part.table["pose"], strict=True))


def test_every_method_predicts_pixels_between_zero_and_one(
    finished: tuple[Path, Plan, dict[str, Any]], question: Task
) -> None:
    folder, _, content = finished
    assert list(content["methods"]) == list(METHODS)
    truth = question.test.images.astype(np.float64) / 255.0
    assert truth.shape[1:] == (3, SIZE, SIZE)
    for name, method in content["methods"].items():
        guess = predictions(folder, 0, name)["mean"].astype(np.float64)
        expected = [float(((a - b) ** 2).mean()) for a, b in zip(truth, guess, strict=True)]
        np.testing.assert_allclose(method["per_image"]["mean_decoded"]["0"], expected, rtol=1e-4)
    assert content["epoch"] == "best on validation"
    assert content["data"]["test"] == len(truth)


def test_baselines_against_loops(finished: tuple[Path, Plan, dict[str, Any]], question: Task) -> None:
    folder = finished[0]
    train, test = question.train, question.test
    same_pose, nearest = [], []
    for row in test.table.itertuples():
        posed = [i for i, other in enumerate(train.table.itertuples()) if other.pose == row.pose]
        same_pose.append(sum(train.images[i].astype(np.float64) for i in posed) / len(posed) / 255.0)
        own = [
            (abs(other.angle - row.angle), i)
            for i, other in enumerate(train.table.itertuples())
            if other.object == row.object
        ]
        nearest.append(train.images[min(own)[1]] / 255.0)
    np.testing.assert_allclose(predictions(folder, 0, "mean-view")["mean"], same_pose, atol=1e-5)
    np.testing.assert_allclose(predictions(folder, 0, "nearest-view")["mean"], nearest, atol=1e-6)


def test_page_has_every_figure_of_the_paper(finished: tuple[Path, Plan, dict[str, Any]], question: Task) -> None:
    folder, _, content = finished
    text = write_page(folder, question, WORDS).read_text("utf-8")
    for name in FIGURES:
        assert (folder / "figures" / f"{name}.png").stat().st_size > 1000
    share = np.mean([facts["share_explained"] for facts in content["methods"]["joint"]["learned"]])
    assert f"GPPVAE-joint {share:.1%}" in text
    for number in ("Figure 3a", "Figure 3b", "Figures 3c and 3d", "Figure S5a", "0.0281"):
        assert number in text


def test_finished_methods_are_kept_and_other_sizes_refused(
    finished: tuple[Path, Plan, dict[str, Any]], question: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plan, content = finished

    def fail(*arguments: Any) -> None:
        raise AssertionError("a finished method ran again")

    for name in METHODS:
        monkeypatch.setitem(method_module.METHODS, name, (method_module.METHODS[name][0], fail))
    heard: list[str] = []
    assert run(folder, plan, question, progress=False, say=heard.append)["methods"] == content["methods"]
    assert all("finished before" in line for line in heard)
    with pytest.raises(ValueError, match="another size; choose another --out"):
        run(folder, dataclasses.replace(plan, data={"size": 8}), question, progress=False, say=heard.append)


def test_interrupted_fit_continues(
    finished: tuple[Path, Plan, dict[str, Any]], question: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(finished[1], methods=("global", "dis"), select=False)
    label, method = method_module.METHODS["dis"]

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(method_module.METHODS, "dis", (label, interrupted))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, plan, question, progress=False, say=lambda line: None)
    monkeypatch.setitem(method_module.METHODS, "dis", (label, method))
    heard: list[str] = []
    content = run(tmp_path, plan, question, progress=False, say=heard.append)
    assert "finished before" in heard[0] and "running" in heard[1]
    before = finished[2]["methods"]["global"]["per_image"]["mean_decoded"]["0"]
    np.testing.assert_allclose(content["methods"]["global"]["per_image"]["mean_decoded"]["0"], before, rtol=1e-4)


# -- the data


def test_mirror_images_are_of_the_same_people_in_mirrored_poses(question: Task) -> None:
    both, train = question.mirrored, question.train
    n = len(train.table)
    assert len(both.table) == 2 * n and both.images.dtype == train.images.dtype
    turned = {"L": "R", "R": "L", "F": "F"}
    for i, row in enumerate(train.table.itertuples()):
        image, double = both.images[n + i], both.table.iloc[n + i]
        assert double["pose"] == row.pose[:-1] + turned[row.pose[-1]] and double["angle"] == -row.angle
        assert (double["object"], double["person"], double["mirrored"]) == (row.object, row.person, "yes")
        assert row.mirrored == "no"
        for column in range(SIZE):
            np.testing.assert_array_equal(image[:, :, column], train.images[i][:, :, SIZE - 1 - column])
    np.testing.assert_array_equal(both.images[:n], train.images)


def test_another_draw_holds_other_images_out(faces: ImageSet, question: Task) -> None:
    other = FaceRequest(draw=2)
    assert other.name == "faces_heads_images_draw2" and other.plan().data["draw"] == 2
    asked = task("generated heads", faces, "images", 2).test
    assert keys(asked) != keys(question.test)


def test_a_row_of_defaults_needs_a_kernel(question: Task, tmp_path: Path) -> None:
    without = dataclasses.replace(tiny_setup(), default_kernel=None)
    plan = Plan("images", without, tiny_recipe(), ("default",), (0,), select=False)
    with pytest.raises(ValueError, match="the method default needs a kernel"):
        run(tmp_path, plan, question, progress=False, say=lambda line: None)
    plain = dataclasses.replace(question, mirrored=None)
    with pytest.raises(ValueError, match="mirrored needs views that are mirror images"):
        run(tmp_path, dataclasses.replace(plan, methods=("mirrored",)), plain, progress=False, say=lambda line: None)


def test_image_split_leaves_poses_out_that_others_show(faces: ImageSet, question: Task) -> None:
    everything = 9 * PEOPLE
    assert len(question.train.table) == round(0.8 * everything)
    parts = [keys(part) for part in (question.train, question.asked, question.test)]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    seen = {name for name, _ in parts[0]}
    assert {name for name, _ in parts[2]} <= seen
    assert question.given is not None and keys(question.given) == parts[0] == keys(question.shown)
    assert list(question.views) == ["90L", "60L", "45L", "30L", "00F", "30R", "45R", "60R", "90R"]
    assert question.stop_on is not None and keys(question.stop_on) == parts[1]


def test_images_stay_with_their_rows(faces: ImageSet, question: Task) -> None:
    images, table = make_heads(PEOPLE, 0, SIZE)
    where = {(row.person, row.pose): i for i, row in enumerate(table.itertuples())}
    for part in (question.train, question.asked, question.test):
        for image, row in zip(part.images, part.table.itertuples(), strict=True):
            np.testing.assert_array_equal(np.moveaxis(image, 0, -1), images[where[row.object, row.pose]])


def test_people_split_asks_for_the_other_views_of_new_people(faces: ImageSet) -> None:
    asked = task("generated heads", faces, "people")
    trained = set(asked.train.table["person"])
    assert asked.new_objects and len(trained) == 8
    for given, wanted in ((asked.given, asked.asked), (asked.shown, asked.test)):
        assert not set(given.table["person"]) & trained
        assert set(given.table["person"]) == set(wanted.table["person"])
        assert not keys(given) & keys(wanted)
        assert all(count == GIVEN_VIEWS for count in given.table["person"].value_counts())
        assert all(count == 9 - GIVEN_VIEWS for count in wanted.table["person"].value_counts())


def test_people_never_seen_are_predicted_by_every_kind_of_method(faces: ImageSet, tmp_path: Path) -> None:
    asked = task("generated heads", faces, "people")
    chosen = ("joint", "global", "cvae", "livae", "mean-view", "nearest-view")
    plan = Plan("people", tiny_setup(), tiny_recipe(), chosen, (0,), select=False)
    content = run(tmp_path, plan, asked, progress=False, say=lambda line: None)
    assert list(content["methods"]) == list(chosen)
    for method in content["methods"].values():
        assert len(method["per_image"]["mean_decoded"]["0"]) == len(asked.test.table)
    assert len(predictions(tmp_path, 0, "joint")["object_covariance"]) == 8


def test_photographs_come_with_the_same_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "faces" / "Multiracial"
    folder.mkdir(parents=True)
    for number, view in enumerate(("00F", "30L", "90R")):
        Image.new("RGB", (20, 20), (10 * number, 100, 200)).save(folder / f"MF0918_331{number}_{view}.jpg", quality=95)
    (folder / "MF0918_3310_90L.jpg").write_bytes(b"no picture")
    heard: list[str] = []
    name, part = load_faces([tmp_path / "faces", folder], people=3, size=8, progress=False, say=heard.append)
    assert heard[0].startswith("Multiracial 4 (00F 1, 30L 1,") and heard[0].endswith("broken MF0918_3310_90L.jpg")
    assert name == "Face-Place photographs"
    assert part.images.shape == (3, 3, 8, 8) and part.images.dtype == np.uint8
    assert list(part.table["object"]) == ["MF0918_3310", "MF0918_3311", "MF0918_3312"]
    assert set(part.table["person"]) == {"MF0918"}
    np.testing.assert_allclose(part.images[2].mean(axis=(1, 2)), (20, 100, 200), atol=4)
    np.testing.assert_allclose(part.pixels()[2].mean(axis=(1, 2)), np.array((20, 100, 200)) / 255, atol=0.02)


# -- what the kernel learned


def test_share_explained_is_that_of_the_covariances(question: Task) -> None:
    model = GPPVAE(
        "Learned(object, 3) * FreeForm(pose)", 4, network="mlp", inference="minibatch", warmup_epochs=1, gp_epochs=3,
        epochs=0, schedule="disjoint", seed=1,
    )  # fmt: skip
    model.fit(question.train.images, question.train.table, progress=False)
    arrays, facts = learned_arrays(model, question), learned_facts(model, question)
    objects = sorted(set(question.train.table["object"]))
    views = list(question.views)
    variances = [
        arrays["object_covariance"][objects.index(row.object), objects.index(row.object)]
        * arrays["view_covariance"][views.index(row.pose), views.index(row.pose)]
        for row in question.train.table.itertuples()
    ]
    assert facts["signal_variance"] == pytest.approx(float(np.mean(variances)))
    share = np.mean(variances) / (np.mean(variances) + facts["noise_variance"])
    assert facts["share_explained"] == pytest.approx(float(share))
    scaled = normalised(arrays["view_covariance"])
    assert float(np.trace(scaled)) == pytest.approx(9.0)
    ratio = arrays["view_covariance"][0, 1] / math.sqrt(arrays["view_covariance"][0, 0])
    assert scaled[0, 1] / math.sqrt(scaled[0, 0]) == pytest.approx(
        ratio / np.sqrt(np.trace(arrays["view_covariance"]) / 9)
    )


# -- plans and the command


def test_plans_and_names() -> None:
    shared = setup()
    assert (shared.latent_dim, shared.architecture, shared.kernel) == (
        256, "faces", "Learned(object, 64) * FreeForm(pose)",
    )  # fmt: skip
    assert FaceRequest().plan().data == {"size": 128, "people": 60}
    assert FaceRequest(data=(Path("x"),)).plan().data == {"size": 128}
    assert FaceRequest().plan().methods == METHODS
    assert "joint" in FaceRequest(quick=True).plan().methods
    assert FaceRequest(quick=True).plan().data["size"] < 128
    assert FaceRequest(data=(Path("x"),), split="people").name == "faces_faceplace_people"
    assert FaceRequest(quick=True).name == "faces_heads_images_quick"
    assert FaceRequest(network="wide").name == "faces_heads_images_wide"
    assert FaceRequest(network="wide").plan().setup.architecture == "wide"
    assert FaceRequest(quick=True).plan().setup.architecture == "wide"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nowhere"], "tarrlab.org"),
        (["--data", "nowhere"], "non-commercial research"),
        (["--split", "faces"], "split must be one of images, people"),
        (["--methods", "magic"], "methods must be among"),
        (["--network", "deep"], "network must be one of paper, wide"),
        (["--people", "3", "--size", "8", "--split", "people"], "use more people"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    places = ["--out", str(tmp_path / "run"), "--results", str(tmp_path / "results"), "--quiet"]
    answer = CliRunner().invoke(app, ["reproduce", "faces", *arguments, *places])
    assert answer.exit_code == 2
    assert said in answer.output.replace("\n", " ")
    assert not (tmp_path / "results").exists()


def test_photographs_are_learned_for_less_than_generated_heads() -> None:
    def epochs(**asked: Any) -> int:
        return FaceRequest(**asked).plan().recipe["phases"][0].epochs

    assert epochs() == 160 and epochs(data=(Path("photographs"),)) == 40
    assert epochs(quick=True) == epochs(quick=True, data=(Path("photographs"),)) == 40

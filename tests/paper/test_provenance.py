"""Every number carries where its model was trained, by a fit on a few spots."""

import json
from pathlib import Path

import pytest

from gppvae import GPPVAE
from gppvae.paper.provenance import FIELDS, different, fit_record, over_seeds, told, why_stale, why_unclean
from gppvae.training.checkpoint import read_tensors
from gppvae.training.folder import provenance
from tiny import KERNEL, spots


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "fit"
    settings = {"latent_dim": 2, "network": "mlp", "width": 4, "epochs": 1, "warmup_epochs": 1, "gp_epochs": 1}
    GPPVAE(KERNEL, inference="minibatch", lr=0.002, **settings).fit(*spots(3, 4), out=out, progress=False)
    return out


def test_a_fit_says_where_and_how_it_was_trained(folder: Path) -> None:
    record = fit_record(folder)
    assert record["commits"] == [provenance()["commit"]] and record["clean"] == (provenance()["clean"] is True)
    assert [phase["name"] for phase in record["settings"]["phases"]] == ["vae_warmup", "gp_only", "joint"]
    assert record["settings"]["phases"][0]["lr"] == {"encoder": 0.002, "decoder": 0.002}
    assert "spot" in str(record["settings"]["kernel"]) and "likelihood" in record["settings"]
    assert record["cpu_seconds"] > 0.0 and record["wall_seconds"] > 0.0


def test_a_fit_that_went_on_elsewhere_has_both_commits(folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "metrics.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["about"] |= {"commit": "0123", "clean": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    record = fit_record(tmp_path)
    assert record["commits"] == sorted(["0123", read_tensors(folder / "model.safetensors")[1]["about"]["commit"]])
    assert record["clean"] is False


def test_fits_of_all_seeds_are_one_record(folder: Path) -> None:
    one = fit_record(folder) | {"clean": True, "commits": ["a"]}
    both = over_seeds([[one, one], [one, one | {"commits": ["b"], "clean": False}]])
    assert both is not None and set(both) == set(FIELDS)
    assert both["commits"] == ["a", "b"] and both["clean"] is False and len(both["settings"]) == 2
    assert both["cpu_seconds"] == [round(2 * one["cpu_seconds"], 3)] * 2
    assert over_seeds([[one], None]) is None and over_seeds([]) is None


def test_what_is_stale_and_why() -> None:
    fresh = dict.fromkeys(FIELDS, 1) | {"commits": ["a"], "clean": True}
    assert why_stale(fresh, {"rate": 1, "grid": [1, 2]}, {"rate": 1, "grid": (1, 2)}) is None
    assert why_stale(fresh, {"a": {"b": 1}}, {"a": {"b": 2}}) == "the present recipe has other settings (a.b)"
    assert why_stale(fresh | {"commits": ["unknown"]}, {}, {}) == "trained with changes that are in no commit"
    assert why_stale(None, {}, {}) == "commit and settings of the training are not recorded"
    assert why_unclean({"commit": "abc", "clean": True}) is None and why_unclean({"commit": "abc"}) is None
    assert why_unclean({"commit": "abc", "clean": False}) and why_unclean({"commit": "abc-dirty"})
    assert different({"x": 1}, {"y": 1}) == ["x", "y"] and different([1], [2]) == ["all of them"]
    # A switch that did not exist when the record was written, and is off now.
    assert different({"phases": [{"lr": 1}]}, {"phases": [{"lr": 1, "new": False}]}) == []
    assert different({"phases": [{"lr": 1}]}, {"phases": [{"lr": 1, "new": True}]}) == ["phases"]
    assert different({"x": None}, {"x": 0}) == ["x"] and different([1], [1, False]) == ["all of them"]


def test_reasons_are_told_once_each() -> None:
    sentence = told({"A": "old", "B": "new", "C": "old"}, "make it")
    assert sentence == "Not shown: A, C (old); B (new). Measure anew: `make it`."
    assert told({}, "make it") == ""

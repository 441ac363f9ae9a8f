"""The study of a recipe's parts: variants differ where they say, an angle stays out of training, runs continue."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gppvae.paper.ablation as ablation
from gppvae import GPPVAE, Phase
from gppvae.data.rotated_digits import RotatedDigits, small_split

TINY = {
    "kernel": "Learned(digit, 2) * Periodic(angle, 360)",
    "network": "mlp",
    "latent_dim": 2,
    "phases": [
        Phase("vae", "vae", 1, {"encoder": 1e-3, "decoder": 1e-3}),
        Phase("gp_only", "fixed", 1, {"prior": 1e-2}),
    ],
}


@pytest.fixture
def digits() -> RotatedDigits:
    return small_split(12, 8, seed=1)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ablation.Study:
    variants: dict[str, Any] = {"as it is": {}, "no GP": {"latent_dim": 3, "phases": {"vae": {"epochs": 2}}}}
    tiny = ablation.Study("paper", 45.0, lambda: dict(TINY), variants)
    monkeypatch.setitem(ablation.STUDIES, "tiny", tiny)
    return tiny


def test_a_study_is_measured_where_it_was_not_trained(tmp_path: Path, digits: RotatedDigits, study: Any) -> None:
    seen = ablation.run("tiny", tmp_path / "runs", tmp_path, progress=False, load=lambda split, mnist: digits)
    written = json.loads((tmp_path / "ablation_tiny.json").read_text())
    assert written["variants"].keys() == seen["variants"].keys() == study.variants.keys()
    model = GPPVAE.load(tmp_path / "runs" / "tiny" / "as-it-is")
    inner = digits.train.table["angle"].to_numpy() == 45.0
    assert 0 < inner.sum() < len(inner)

    guess = model.predict(digits.train.table[inner]).mean
    expected = np.mean((guess - digits.train.images[inner]) ** 2)
    assert written["variants"]["as it is"]["inner"] == pytest.approx(expected, rel=1e-5)
    assert GPPVAE.load(tmp_path / "runs" / "tiny" / "no-GP").latent_dim == 3


def test_a_stopped_study_goes_on(tmp_path: Path, digits: RotatedDigits, study: Any) -> None:
    def go() -> dict[str, Any]:
        return ablation.run("tiny", tmp_path / "runs", tmp_path, progress=False, load=lambda split, mnist: digits)

    first = go()
    (tmp_path / "runs" / "tiny" / "no-GP" / "result.json").unlink()
    kept = (tmp_path / "runs" / "tiny" / "as-it-is" / "result.json").stat().st_mtime_ns
    again = go()
    assert (tmp_path / "runs" / "tiny" / "as-it-is" / "result.json").stat().st_mtime_ns == kept
    for name in study.variants:
        assert again["variants"][name]["inner"] == first["variants"][name]["inner"]


def test_an_unknown_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"best, joint.*got 'worst'"):
        ablation.run("worst", tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["best", "joint"])
def test_every_variant_changes_the_recipe(name: str) -> None:
    study = ablation.STUDIES[name]
    plain, *others = (ablation.variant_recipe(study, change) for change in study.variants.values())
    assert plain["phases"] == [phase for phase in study.recipe()["phases"] if phase.epochs]
    texts = {json.dumps(r | {"phases": [dataclasses.asdict(p) for p in r["phases"]]}, sort_keys=True) for r in others}
    assert len(texts) == len(study.variants) - 1 and plain not in others

"""A report of counts tells the deviance, each sample at its own size."""

from pathlib import Path

import numpy as np
import pytest

from gppvae import GPPVAE
from gppvae.report.errors import count_scores
from gppvae.report.run import write_report


def test_counts_are_reported_by_deviance(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    place, depth = np.linspace(0.0, 6.0, 60), rng.integers(20, 900, 60)
    counts = rng.poisson(depth[:, None] * np.array([0.2, 0.3, 0.5]))
    train, test = np.arange(60) % 3 > 0, np.arange(60) % 3 == 0
    parts = [(counts[which], {"place": place[which]}) for which in (train, test)]
    model = GPPVAE("RBF(place)", 2, likelihood="poisson", width=4, epochs=2)
    model.fit(*parts[0], validation=parts[1], out=tmp_path / "run", progress=False)
    page = write_report(tmp_path / "run", model, train=parts[0], test=parts[1], title="counts").read_text("utf-8")
    assert "Mean Poisson deviance, each sample at its size, at 20 rows" in page and "Mean squared error" not in page
    scores = count_scores(model, parts[1], np.arange(20), "GPPVAE")
    assert scores is not None
    rate, want = counts[train].sum(0) / counts[train].sum(), 0.0
    for sample in counts[test]:
        for count, mean in zip(sample, sample.sum() * rate, strict=True):
            want += 2.0 * ((count * np.log(count / mean) if count else 0.0) - count + mean)
    assert scores["mean of the training samples, at their sizes"] == pytest.approx(want / 60, rel=1e-4)
    logged = [row["valid_deviance_prediction"] for row in model.history_ if "valid_deviance_prediction" in row]
    assert scores["GPPVAE"] == pytest.approx(logged[-1], rel=1e-4)

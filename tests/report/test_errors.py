"""A report of counts tells the deviance, each sample at its own size."""

import re
from pathlib import Path

import numpy as np
import pytest

from gppvae import GPPVAE
from gppvae.report.along import plot_along
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
    scores = {name: float(value) for name, value in re.findall(r'<td>([^<]*)</td><td class="num">([\d.]+)</td>', page)}
    rate, want = counts[train].sum(0) / counts[train].sum(), 0.0
    for sample in counts[test]:
        for count, mean in zip(sample, sample.sum() * rate, strict=True):
            want += 2.0 * ((count * np.log(count / mean) if count else 0.0) - count + mean)
    assert scores["mean"] == pytest.approx(want / 60, rel=1e-3)
    assert page.count('<th scope="col">method</th>') == 1  # one table, with all simple answers
    assert {"GPPVAE", "mean", "nearest sample", "linear in place"} <= set(scores)
    logged = [row["valid_deviance_prediction"] for row in model.history_ if "valid_deviance_prediction" in row]
    assert scores["GPPVAE"] == pytest.approx(logged[-1], rel=1e-3)


def test_no_band_of_counts_goes_below_zero(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts, table = rng.poisson([2.0, 0.5, 0.5], (40, 3)), {"place": np.linspace(0.0, 1.0, 40)}
    counts[:, 0] += 1
    model = GPPVAE("RBF(place)", 2, likelihood="poisson", width=4, epochs=1).fit(counts, table, progress=False)
    for plot in (model.plot_predictions(counts, table), plot_along(model, (counts, table), None)):
        for chart in plot.charts:
            ticks = [
                float(t.replace("\u2212", "-"))
                for t in re.findall(r'text-anchor="end">([\u2212\d.]+)</text>', chart.body)
            ]
            assert min(ticks) >= 0.0

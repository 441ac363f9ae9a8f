"""Numbers over images and seeds, against loops and SciPy's distribution functions."""

import math

import numpy as np
import pytest
from scipy import stats

from gppvae.paper.statistics import over_seeds, paired, paired_over_seeds, standard_error


def test_statistics_against_loops() -> None:
    rng = np.random.default_rng(3)
    a = {seed: rng.gamma(2.0, 0.01, 40).tolist() for seed in (0, 4)}
    b = {seed: [value + 0.002 * rng.random() for value in a[seed]] for seed in (0, 4)}
    summary = over_seeds(a)
    means = [sum(a[seed]) / 40 for seed in (0, 4)]
    assert summary["means"] == pytest.approx(means)
    assert summary["spread"] == pytest.approx(abs(means[0] - means[1]) / math.sqrt(2.0))
    spread = math.sqrt(sum((value - means[0]) ** 2 for value in a[0]) / 39)
    assert summary["standard_errors"][0] == pytest.approx(spread / math.sqrt(40))
    assert standard_error(a[0]) == pytest.approx(spread / math.sqrt(40))
    test = paired(a[0], b[0])
    difference = np.array(a[0]) - np.array(b[0])
    t = difference.mean() / (difference.std(ddof=1) / math.sqrt(40))
    assert test["difference"] == pytest.approx(difference.mean())
    assert test["t_test_p"] == pytest.approx(2.0 * stats.t.sf(abs(t), 39))
    assert test["share_better"] == 1.0
    assert test["wilcoxon_p"] < 1e-6
    assert paired(a[0], a[0])["t_test_p"] == 1.0
    assert paired_over_seeds(a, {4: b[4]})["seeds"] == [4]
    assert over_seeds({0: a[0]})["spread"] is None

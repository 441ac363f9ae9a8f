"""Numbers that are reported of per-image errors: means over images and seeds, paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats


def standard_error(errors: Sequence[float] | np.ndarray) -> float:
    """Of the mean over images: standard deviation / sqrt(n)."""
    values = np.asarray(errors, dtype=np.float64)
    return float(values.std(ddof=1) / np.sqrt(values.size))


def over_seeds(errors: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """Mean over images of each seed with its standard error; mean and standard deviation over seeds.

    Args:
        errors: per-image errors by seed.
    """
    means = [float(np.mean(errors[seed])) for seed in sorted(errors)]
    return {
        "seeds": sorted(errors),
        "means": means,
        "standard_errors": [standard_error(errors[seed]) for seed in sorted(errors)],
        "mean": float(np.mean(means)),
        "spread": float(np.std(means, ddof=1)) if len(means) > 1 else None,
        "standard_error": standard_error(np.mean([errors[seed] for seed in errors], axis=0)),
    }


def mean_and_range(values: list[float]) -> dict[str, float]:
    """Mean, standard deviation and range of one number over seeds."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": spread, "least": float(min(values)), "most": float(max(values))}


def paired(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Is method a better than b on the same images: mean difference a - b, paired t-test, signed-rank test.

    Both tests are two-sided. A difference of zero everywhere gives p = 1.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    difference = first - second
    if not difference.any():
        return {"difference": 0.0, "t_test_p": 1.0, "wilcoxon_p": 1.0, "share_better": 0.0}
    return {
        "difference": float(difference.mean()),
        "t_test_p": float(stats.ttest_rel(first, second).pvalue),
        "wilcoxon_p": float(stats.wilcoxon(first, second).pvalue),
        "share_better": float((difference < 0).mean()),
    }


def paired_over_seeds(a: Mapping[Any, Sequence[float]], b: Mapping[Any, Sequence[float]]) -> dict[str, Any]:
    """`paired` for each seed that both methods have, and on errors averaged over these seeds; seeds may be text."""
    seeds = sorted(set(a) & set(b), key=int)
    if not seeds:
        return {}
    average = paired(*(np.mean([errors[seed] for seed in seeds], axis=0) for errors in (a, b)))
    return {
        "seeds": [int(seed) for seed in seeds],
        "per_seed": [paired(a[seed], b[seed]) for seed in seeds],
        "average": average,
    }

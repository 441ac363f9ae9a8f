"""Pictures and the order of heat maps: what is drawn is what was given."""

import numpy as np
import pytest

from gppvae.report.images import to_uint8
from gppvae.report.plots import cluster_order


def test_cluster_order_joins_correlated_rows() -> None:
    groups = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    scale = np.linspace(0.5, 3.0, 9)
    matrix = np.where(groups[:, None] == groups, 0.9, 0.0) * np.outer(scale, scale)
    matrix[np.diag_indices(9)] = scale**2
    order = cluster_order(matrix)
    assert sorted(order) == list(range(9))
    assert np.count_nonzero(np.diff(groups[order])) == 2  # three unbroken runs
    np.testing.assert_array_equal(cluster_order([[2.0]]), [0])


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"matrix must be a finite square matrix.*\(2, 3\)"):
        cluster_order(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="vmax must be greater than vmin"):
        to_uint8([0.5], vmin=1.0, vmax=1.0)

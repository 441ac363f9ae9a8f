"""Coding of columns with many rows: the same codes as sorting whole rows, at the cost of sorting numbers."""

import numpy as np
import pytest

from gppvae.data.table import Table, distinct_rows


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 200])
def test_distinct_rows_are_those_of_sorted_rows(n: int, d: int) -> None:
    values = np.random.default_rng(n + d).integers(-2, 3, (n, d)) / 4.0
    distinct, index = distinct_rows(values)
    want = sorted({tuple(row) for row in values.tolist()})
    assert [tuple(row) for row in distinct.tolist()] == want
    np.testing.assert_array_equal(distinct[index], values)
    assert index.dtype == np.int64 and index.shape == (n,)


@pytest.mark.parametrize(
    "raw", [["b", "a", "b", "10"], [3, 1, 3, 10], [3.0, 1.0, 3.5, 10.0], np.array([3, "3", 3.0, "x"], dtype=object), []]
)
def test_codes_and_levels_spell_the_ids(raw: list) -> None:
    table = Table({"id": np.asarray(raw)})
    codes, levels = table.coded_ids("id")
    wanted = [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in np.asarray(raw).tolist()]
    assert levels[codes].tolist() == wanted == table.ids("id").tolist()
    assert levels.tolist() == sorted(set(wanted)) == table.levels("id").tolist()

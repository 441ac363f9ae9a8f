"""Tables: columns in, ids and numbers out, with errors that name the column and the row."""

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from gppvae.data.table import Column, Rows, Table
from gppvae.kernels import RBF, Categorical


def test_dict_frame_and_table_are_the_same() -> None:
    columns = {"digit": [3, 1, 3], "angle": [0.0, 22.5, 45.0]}
    for table in (
        Table(columns),
        Table(pd.DataFrame(columns)),
        Table(Table(columns)),
        Table(pd.DataFrame(columns, index=[7, 8, 9])),
    ):
        assert len(table) == 3 and list(table.columns) == ["digit", "angle"]
        np.testing.assert_array_equal(table["angle"], [0.0, 22.5, 45.0])


def test_take_keeps_the_order_asked_for() -> None:
    table = Table({"a": [10, 11, 12], "b": list("xyz")}).take(np.array([2, 0, 2]))
    assert table["a"].tolist() == [12, 10, 12] and table["b"].tolist() == ["z", "x", "z"]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ([1, 2], TypeError, "DataFrame or a dict of columns, got list"),
        ({}, ValueError, "at least one column"),
        ({"a": [1, 2], "b": [1]}, ValueError, r"equal length, got \{'a': 2, 'b': 1\}"),
        ({"a": [[1, 2], [3, 4]]}, ValueError, r"'a' must be one-dimensional, got shape \(2, 2\)"),
        ({"a": 3}, ValueError, r"'a' must be one-dimensional, got shape \(\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "unique column names, got 'a' twice"),
        (pd.DataFrame([[1, 2]], columns=["1", 1]), ValueError, "unique column names, got '1' twice"),
        ({1: [0], "1": [0]}, ValueError, "unique column names, got '1' twice"),
        (pd.DataFrame(index=[0, 1]), ValueError, "at least one column"),
    ],
)
def test_what_is_no_table_is_explained(columns: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Table(columns)


def test_a_missing_column_suggests_the_nearest() -> None:
    table = Table({"angle": [1.0], "digit": [2]})
    with pytest.raises(ValueError, match=r"a column 'angel', got columns \['angle', 'digit'\]; did you mean 'angle'\?"):
        table["angel"]
    with pytest.raises(ValueError, match="add it or change the kernel"):
        table["qqqqqq"]
    with pytest.raises(ValueError, match=r"'c0', .* and 9980 more") as caught:
        Table({f"c{n}": [n] for n in range(10_000)})["q"]
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "values",
    [
        [3, 10, 3],
        [3.0, 10.0, 3.0],
        ["3", "10", "3"],
        pd.Series([3, 10, 3], dtype="Int64"),
        pd.Categorical(["3", "10", "3"]),
    ],
)
def test_ids_are_text_whatever_their_type(values: object) -> None:
    table = Table({"id": values})
    assert table.ids("id").tolist() == ["3", "10", "3"] and table.levels("id").tolist() == ["10", "3"]


def test_fractional_and_mixed_ids_keep_what_they_say() -> None:
    assert Table({"id": [0.5, 2.0]}).ids("id").tolist() == ["0.5", "2"]
    assert Table({"id": np.array([3, "a", 3.0, "3", True], dtype=object)}).ids("id").tolist() == [
        "3",
        "a",
        "3",
        "3",
        "True",
    ]
    assert Table({"id": np.array([], dtype=float)}).ids("id").tolist() == []


@pytest.mark.parametrize("values", [["a", None, "b"], [1.0, np.nan, 2.0], pd.Series([1, None, 2], dtype="Int64")])
def test_missing_ids_are_located(values: object) -> None:
    with pytest.raises(ValueError, match=r"column 'id' must name an id in every row, got a missing value in row 1"):
        Table({"id": values}).ids("id")


def test_numbers_come_as_one_vector_per_row() -> None:
    table = Table({"a": [1, 2], "b": np.array([0.5, 1.5], dtype=np.float32), "c": [True, False], "d": ["4", "5e1"]})
    numbers = table.numeric(("b", "a", "c", "d"))
    assert numbers.dtype == np.float64
    np.testing.assert_array_equal(numbers, [[0.5, 1, 1, 4], [1.5, 2, 0, 50]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_located(bad: float) -> None:
    with pytest.raises(ValueError, match=r"column 'a' must be finite, got -?(nan|inf) in row 2 \(1 such rows\)"):
        Table({"a": [0.0, 1.0, bad]}).numeric(("a",))


def test_a_missing_date_is_not_a_number() -> None:
    """NumPy turns it into -2^63, which is finite."""
    with pytest.raises(ValueError, match="column 'day'"):
        Table({"day": pd.to_datetime(["2024-01-01", None])}).numeric(("day",))


def test_text_is_shown_where_a_number_was_expected() -> None:
    with pytest.raises(ValueError, match=r"column 'a' must be numeric, got values like 'x'"):
        Table({"a": ["1", "x"]}).numeric(("a",))


def test_decimal_commas_are_named() -> None:
    with pytest.raises(ValueError, match=r"got values like '1,5'; write decimal points"):
        Table({"a": ["1,5", "2,5"]}).numeric(("a",))


def test_numbers_too_large_for_floats_are_infinite() -> None:
    with pytest.raises(ValueError, match=r"column 'a' must be finite, got -inf in row 1 \(1 such rows\)"):
        Table({"a": [1, -(10**400), 2]}).numeric(("a",))
    large = Table({"a": [2**70, None, "7"]}).numeric(("a",), may_miss=True)
    np.testing.assert_array_equal(large[:, 0], [2.0**70, np.nan, 7.0])


def test_rows_share_distinct_values_when_sliced() -> None:
    rows = Rows({"a": Column(torch.tensor([1, 0, 1, 2]), torch.tensor([[5.0], [6.0], [7.0]]))}, 4)
    for index in (slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True, False])):
        part = rows[index]
        assert len(part) == 2 and part.columns["a"].index.tolist() == [0, 1]
        assert part.columns["a"].values is rows.columns["a"].values
    assert rows.device == torch.device("cpu") and len(rows.to("cpu")) == 4


def test_rows_without_columns_still_count() -> None:
    rows = Rows({}, 5)
    assert len(rows[1:3]) == 2 and len(rows[torch.tensor([0, 4, 4])]) == 3
    assert len(rows[torch.tensor([True, False, False, True, False])]) == 2


def test_one_column_read_as_id_and_as_number() -> None:
    kernel = Categorical("day") * RBF("day")
    table = Table({"day": [3, 1, 3]})
    kernel.bind(table)
    rows = kernel.code(table)
    assert set(rows.columns) == {"day (id)", "day"}
    assert rows.columns["day"].values[:, 0].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "dates",
    [
        pd.to_datetime(["2020-01-01", "2020-01-02 12:00", None], format="ISO8601"),
        pd.to_datetime(["2020-01-01 01:00", "2020-01-02 13:00", None]).tz_localize("Europe/Berlin"),
        ["2020-01-01", "2020-01-02 12:00", None],
        ["2020/01/01", "2020/01/02 12:00", None],
        [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, 12), None],
    ],
)
def test_dates_are_days_since_1970(dates: object) -> None:
    """50 years with 12 leap days."""
    found = Table(pd.DataFrame({"t": dates})).numeric(("t",), may_miss=True)[:, 0]
    np.testing.assert_array_equal(found, [50 * 365 + 12, 50 * 365 + 13.5, np.nan])


def test_durations_are_days_and_other_texts_are_no_dates() -> None:
    table = Table({"took": pd.to_timedelta([12, 36], unit="h"), "t": ["2020-01-01", "x"], "id": ["7-1", "7-2"]})
    assert table.numeric(("took",))[:, 0].tolist() == [0.5, 1.5]
    hours = [datetime.timedelta(hours=12), None, datetime.timedelta(hours=36)]
    np.testing.assert_array_equal(Table({"took": hours}).numeric(("took",), may_miss=True)[:, 0], [0.5, np.nan, 1.5])
    with pytest.raises(ValueError, match=r"'t' must be numeric, got values like 'x'.*write dates as 2020-01-31"):
        table.numeric(("t",))
    with pytest.raises(ValueError, match="'id' must be numeric, got values like '7-1'"):
        table.numeric(("id",))


def test_named_levels_of_an_index_are_columns() -> None:
    frame = pd.DataFrame({"t": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="id"))
    assert Table(frame).ids("id").tolist() == ["a", "b"]
    assert Table(frame.assign(id=["c", "d"])).ids("id").tolist() == ["c", "d"]
    assert list(Table(frame.rename_axis(None)).columns) == ["t"]

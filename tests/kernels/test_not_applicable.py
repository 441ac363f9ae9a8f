"""NaN in a column: allowed where a product switches the term off, an error that names rows anywhere else."""

import numpy as np
import pytest
import torch

from gppvae.data.table import Table
from gppvae.kernels import parse_kernel
from gppvae.prior.latent_prior import LatentPrior

SICK = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
YEARS = np.array([-2.0, np.nan, 0.5, np.nan, 3.0, np.nan])
AGE = np.arange(6.0)
KERNEL = "RBF(age) + Linear(sick) * RBF(years)"


def table(**columns: np.ndarray) -> Table:
    return Table({"sick": SICK, "years": YEARS, "age": AGE} | columns)


def bound(text: str, rows: Table):
    kernel = parse_kernel(text)
    kernel.bind(rows)
    return kernel


def test_a_switched_off_term_is_zero_and_leaves_the_rest_alone() -> None:
    kernel = bound(KERNEL, table())
    rows = kernel.code(table())
    age, years = np.std(AGE), np.std(YEARS[SICK == 1.0])  # where length scales start
    rms = np.sqrt(np.mean(SICK**2))
    for a in range(6):
        for b in range(6):
            want = np.exp(-0.5 * ((AGE[a] - AGE[b]) / age) ** 2)
            if SICK[a] and SICK[b]:
                want += np.exp(-0.5 * ((YEARS[a] - YEARS[b]) / years) ** 2) / rms**2
            assert kernel.gram(rows, rows)[a, b].item() == pytest.approx(want, abs=1e-6)
    V = kernel.features(rows)
    torch.testing.assert_close(V @ V.T, kernel.gram(rows, rows), atol=1e-6, rtol=0)


def test_what_is_missing_does_not_change_how_the_kernel_is_bound() -> None:
    kernel, other = bound(KERNEL, table()), bound("RBF(years)", Table({"years": YEARS[SICK == 1.0]}))
    by_years = next(leaf for leaf in kernel.leaves() if leaf.columns_read == ("years",))
    torch.testing.assert_close(by_years.inducing, other.inducing)
    torch.testing.assert_close(by_years.base.lengthscale, other.base.lengthscale)


def test_rows_wanted_may_all_be_switched_off() -> None:
    kernel = bound(KERNEL, table())
    healthy = Table({"sick": [0.0, 0.0], "years": [np.nan, None], "age": [1.0, 2.0]})
    without = bound("RBF(age)", table())
    rows, plain = kernel.code(healthy), without.code(healthy)
    torch.testing.assert_close(kernel.gram(rows, rows), without.gram(plain, plain))


@pytest.mark.parametrize(
    ("text", "changed", "row"),
    [
        (KERNEL, {"sick": np.array([1.0, 0.0, 1.0, 2.0, 1.0, 1.0])}, 3),
        ("RBF(age) + RBF(years)", {}, 1),
        ("Linear(sick) * RBF(years) + RBF(years)", {}, 1),
        ("RBF(age) + Linear(sick) * RBF(years)", {"sick": np.where(AGE == 3, np.nan, SICK)}, 3),
    ],
)
def test_missing_numbers_that_matter_are_errors_that_name_the_row(text: str, changed: dict, row: int) -> None:
    with pytest.raises(ValueError, match=rf"must be finite, got nan in row {row} \("):
        bound(text, table(**changed))


def test_rows_wanted_are_told_how_to_switch_off() -> None:
    kernel = bound(KERNEL, table())
    with pytest.raises(ValueError, match=r"got nan in row 0 .* 0 where it does not apply, as in Linear\(sick\) \* RBF"):
        kernel.code(Table({"sick": [1.0], "years": [np.nan], "age": [1.0]}))


def test_infinity_is_an_error_that_names_its_row() -> None:
    with pytest.raises(ValueError, match=r"must be finite, got inf in row 4 \(1 such rows\)"):
        bound(KERNEL, table(years=np.where(AGE == 4, np.inf, YEARS)))


def test_a_group_of_latents_that_reads_it_unmasked_is_refused() -> None:
    prior = LatentPrior([(parse_kernel(KERNEL), 1), (parse_kernel("RBF(years)"), 1)])
    prior.groups[0].kernel.bind(table())
    prior.groups[1].kernel.bind(Table({"years": AGE}))
    with pytest.raises(ValueError, match="column 'years' must be finite, got nan in row 1"):
        prior.code(table())


def test_an_id_must_always_be_there() -> None:
    rows = Table({"sick": [0.0, 1.0], "who": ["ann", None]})
    with pytest.raises(ValueError, match="column 'who' must name an id in every row, got a missing value in row 1"):
        bound("Linear(sick) * Categorical(who)", rows)

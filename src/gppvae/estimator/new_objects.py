"""add_objects: learn new ids from samples. update: condition on further samples of known ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.estimator.validation import same_length
from gppvae.inference.new_objects import ObjectFit, known_vectors
from gppvae.inference.update import WeightUpdate
from gppvae.kernels import Learned
from gppvae.likelihoods import Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import IdColumn, id_columns, learned_by_column, level_of, linear_in_vectors, vector_roots
from gppvae.models.remainders import Remainders
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.new_blocks import change_levels, remove_rows
from gppvae.prior.posterior import LatentPosterior


@dataclass(frozen=True)
class NewSamples:
    """Samples of new ids, and the likelihoods to learn them with.

    Attributes:
        data, table: the samples and their rows.
        vector_likelihood: for fitting vectors, with the larger noise variance of new objects.
        weight_likelihood: for conditioning q(B).
    """

    data: Samples
    table: Table
    vector_likelihood: Likelihood
    weight_likelihood: Likelihood
    batch_size: int


def add_objects(
    fitted: tuple[GPPriorVAE, LatentPosterior], new: NewSamples, remainders: Remainders, steps: int
) -> tuple[str, list[str], LatentPosterior]:
    """Learn the new ids of a table: their vectors (Learned), then their blocks of q(B) (Categorical).

    On an error the caller restores the ids (`ids_restored_on_error`) and the remainders.

    Returns:
        Their column, the new ids, and q(B), which is unchanged without Categorical columns.
    """
    model, weights = fitted
    same_length(new.data, new.table)
    column = _column_with_new_ids(model.prior, new.table)
    ids = [str(level) for level in new.table.levels(column.name)]
    trained = sorted(set(column.trained) & set(ids))
    if trained:
        raise ValueError(
            f"expected only new ids in column {column.name!r}, got {trained[0]!r} from training; remove those rows"
        )
    if column.own:
        weights = _add_blocks(model.prior, weights, column, ids, remainders)
    _append_placeholders(column.learned, ids)
    rows = model.prior.code(new.table, new_ids=False)
    owner = rows.columns[column.leaves[0].key].by_row - (len(column.levels) - len(ids))  # number of the id, (N,)
    epoch = Epoch(new.data, rows, new.batch_size, None, next(model.autoencoder.parameters()).device)
    if column.learned:
        fit = ObjectFit(model, weights, column.learned, epoch, owner, len(ids), new.vector_likelihood)
        _set_vectors(column.learned, ids, *fit.run(steps))
    if column.own:
        weight_update = WeightUpdate(model, weights, epoch, new.weight_likelihood)
        weights = weight_update.run(steps)
        rows_of = [torch.nonzero(owner == number).squeeze(1) for number in range(len(ids))]
        conditioned = zip(ids, weight_update.conditioned_rows(weights, rows_of), strict=True)
        remainders.taken |= {(column.name, name): sites for name, sites in conditioned}
    return column.name, ids, weights


@contextlib.contextmanager
def ids_restored_on_error(prior: LatentPrior) -> Iterator[None]:
    """If the block fails, also by Ctrl-C, restore the ids of all columns and their vectors."""
    states: list[tuple[Any, tuple[str, ...]]] = []
    for column in id_columns(prior):
        states += [(leaf, ("x", "trained_root", "added_root", "levels")) for leaf in column.learned]
        states += [(leaf, ("levels", "n_added")) for leaf in column.own]
    before = [(owner, name, getattr(owner, name)) for owner, names in states for name in names]
    try:
        yield
    except BaseException:
        for owner, name, value in before:
            setattr(owner, name, value)
        raise


def _add_blocks(
    prior: LatentPrior, weights: LatentPosterior, column: IdColumn, ids: list[str], remainders: Remainders
) -> LatentPosterior:
    """q(B) with blocks of prior weights for the ids; for ids that were added before, their old blocks are removed."""
    again = [name for name in ids if name in column.levels]
    for name in again:
        weights = remove_rows(prior, weights, remainders.taken.pop((column.name, name)))
    # Sites of other ids that read these blocks (in groups whose blocks belong to another column) can no longer be
    # subtracted completely, so they stay in q(B).
    read = [key for key, parts in remainders.taken.items() if any(own and set(again) & set(own.ids) for own in parts)]
    for key in read:
        del remainders.taken[key]
    weights, moves = change_levels(prior, weights, column.own, again, ids)
    remainders.follow(prior, moves)
    return weights


def _set_vectors(leaves: list[Learned], ids: list[str], vectors: Tensor, root: Tensor) -> None:
    """Set the vectors (P, J) and covariance roots (P, J, J) of the last ids of a column."""
    dims = [leaf.dim for leaf in leaves]
    for leaf, x, own_root in zip(leaves, vectors.split(dims, 1), root.split(dims, 1), strict=True):
        leaf.drop_levels(ids)
        leaf.add_levels(ids, x, own_root)


def update(
    fitted: tuple[GPPriorVAE, LatentPosterior],
    data: Samples,
    table: Table,
    likelihood: Likelihood,
    batch_size: int,
    steps: int,
) -> LatentPosterior:
    """Condition vectors of known ids, and then q(B), on further samples.

    On an error the caller restores the vectors (`ids_restored_on_error`).

    Returns:
        The new q(B).
    """
    model, weights = fitted
    same_length(data, table)
    rows = model.prior.code(table, new_ids=False)
    epoch = Epoch(data, rows, batch_size, None, next(model.autoencoder.parameters()).device)
    for leaves in learned_by_column(model.prior).values():
        if linear_in_vectors(model.prior, leaves) and len(vector_roots(leaves)):
            _update_vectors(fitted, leaves, epoch, likelihood, steps)
    return WeightUpdate(model, weights, epoch, likelihood).run(steps)


def _update_vectors(
    fitted: tuple[GPPriorVAE, LatentPosterior], leaves: list[Learned], epoch: Epoch, likelihood: Likelihood, steps: int
) -> None:
    """Condition the vectors of a column on further samples of the ids; vectors without uncertainty stay fixed."""
    levels, owner = level_of(leaves, epoch.rows).unique(return_inverse=True)
    certain = ~vector_roots(leaves)[levels].flatten(1).any(1)  # without covariance, (P,)
    known = known_vectors(leaves, levels)
    x, root = ObjectFit(*fitted, leaves, epoch, owner, len(levels), likelihood, known).run(steps)
    levels, x, root = levels[~certain], x[~certain], root[~certain]
    trained, dims = levels < leaves[0].n_trained, [leaf.dim for leaf in leaves]
    for leaf, own_x, own_root in zip(leaves, x.split(dims, 1), root.split(dims, 1), strict=True):
        vectors = leaf.x.detach().clone()
        vectors[levels] = own_x
        leaf.x = nn.Parameter(vectors, requires_grad=leaf.x.requires_grad)
        if trained.any():
            leaf.trained_root = leaf.trained_root.index_copy(0, levels[trained], own_root[trained])
        if not trained.all():
            leaf.added_root = leaf.added_root.index_copy(0, levels[~trained] - leaf.n_trained, own_root[~trained])


def _append_placeholders(leaves: list[Learned], ids: list[str]) -> None:
    """Append the ids with zero vectors, so that their rows can be coded."""
    total = sum(leaf.dim for leaf in leaves)
    for leaf in leaves:
        leaf.drop_levels(ids)
        zeros = leaf.x.new_zeros(len(ids), leaf.dim)
        leaf.add_levels(ids, zeros.detach(), zeros.detach().unsqueeze(2).expand(-1, -1, total))  # roots (P, dim, J)


def _column_with_new_ids(prior: LatentPrior, table: Table) -> IdColumn:
    """The one column with new ids, or with ids that were added before."""
    columns = id_columns(prior)
    for column in columns:
        if set(map(str, table.levels(column.name))) - set(column.trained):
            reason = column.closed(prior)
            if reason is not None:
                raise ValueError(reason)
            return column
    if not columns:
        raise ValueError(
            "expected a kernel with a Learned or a Categorical column, got none; only these can take new ids"
        )
    names = ", ".join(repr(column.name) for column in columns)
    raise ValueError(
        f"expected new ids in a Learned or Categorical column (the kernel has {names}), got only ids from training; "
        "give further samples of those to update()"
    )

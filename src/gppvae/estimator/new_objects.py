"""add_objects: find which ids are new, fit their vectors, append them. update: further samples of known ids."""

from __future__ import annotations

from torch import nn

from gppvae.data.arrays import Samples
from gppvae.data.batches import Epoch
from gppvae.data.table import Table
from gppvae.estimator.validation import same_length
from gppvae.inference.new_objects import ObjectFit, known_vectors
from gppvae.inference.update import WeightUpdate
from gppvae.kernels import Learned
from gppvae.kernels.ids import IdLeaf
from gppvae.likelihoods import Likelihood
from gppvae.models.gppvae import GPPriorVAE
from gppvae.models.objects import learned_by_column, linear_in_vectors, vector_roots
from gppvae.prior.latent_prior import LatentPrior
from gppvae.prior.posterior import LatentPosterior


def add_objects(
    fitted: tuple[GPPriorVAE, LatentPosterior],
    data: Samples,
    table: Table,
    likelihood: Likelihood,
    batch_size: int,
    steps: int,
) -> list[str]:
    """Fit vectors of the new ids of `table` and append them to the kernel; nothing changes on an error.

    Returns:
        The new ids.
    """
    model, weights = fitted
    same_length(data, table)
    leaves = _leaves_with_new_ids(model.prior, table)
    ids = [str(level) for level in table.levels(leaves[0].column)]
    known = set(leaves[0].levels[: len(leaves[0].levels) - leaves[0].n_added])
    trained = sorted(known & set(ids))
    if trained:
        raise ValueError(
            f"expected only new ids in column {leaves[0].column!r}, got {trained[0]!r} from training; remove those rows"
        )
    before = [(leaf.x, leaf.added_root, leaf.levels) for leaf in leaves]
    try:
        _append_placeholders(leaves, ids)
        rows = model.prior.code(table, new_ids=False)
        column = rows.columns[leaves[0].key]
        owner = column.values[column.index] - (len(leaves[0].levels) - len(ids))
        device = next(model.autoencoder.parameters()).device
        epoch = Epoch(data, rows, batch_size, None, device)
        vectors, root = ObjectFit(model, weights, leaves, epoch, owner, len(ids), likelihood).run(steps)
    except BaseException:  # Ctrl-C too
        for leaf, (x, added_root, levels) in zip(leaves, before, strict=True):
            leaf.x, leaf.added_root, leaf.levels = x, added_root, levels
        raise
    start = 0
    for leaf in leaves:
        part = slice(start, start + leaf.dim)
        leaf.drop_levels(ids)
        leaf.add_levels(ids, vectors[:, part], root[:, part])
        start += leaf.dim
    return ids


def update(
    fitted: tuple[GPPriorVAE, LatentPosterior],
    data: Samples,
    table: Table,
    likelihood: Likelihood,
    batch_size: int,
    steps: int,
) -> LatentPosterior:
    """Condition vectors of known ids, and then q(B), on further samples; nothing changes on an error.

    Returns:
        The new q(B).
    """
    model, weights = fitted
    same_length(data, table)
    rows = model.prior.code(table, new_ids=False)
    epoch = Epoch(data, rows, batch_size, None, next(model.autoencoder.parameters()).device)
    before = [(leaf, leaf.x, leaf.trained_root, leaf.added_root) for leaf in _learned(model.prior)]
    try:
        for leaves in learned_by_column(model.prior).values():
            if linear_in_vectors(model.prior, leaves) and len(vector_roots(leaves)):
                _update_vectors(fitted, leaves, epoch, likelihood, steps)
        return WeightUpdate(model, weights, epoch, likelihood).run(steps)
    except BaseException:  # Ctrl-C too
        for leaf, x, trained_root, added_root in before:
            leaf.x, leaf.trained_root, leaf.added_root = x, trained_root, added_root
        raise


def _update_vectors(
    fitted: tuple[GPPriorVAE, LatentPosterior], leaves: list[Learned], epoch: Epoch, likelihood: Likelihood, steps: int
) -> None:
    """Vectors of the ids of a column given further samples of them; points stay points."""
    column = epoch.rows.columns[leaves[0].key]
    levels, owner = column.values[column.index].unique(return_inverse=True)
    certain = ~vector_roots(leaves)[levels].flatten(1).any(1)
    known = known_vectors(leaves, levels)
    x, root = ObjectFit(*fitted, leaves, epoch, owner, len(levels), likelihood, known).run(steps)
    levels, x, root = levels[~certain], x[~certain], root[~certain]
    start, trained = 0, levels < leaves[0].n_trained
    for leaf in leaves:
        part = slice(start, start + leaf.dim)
        start += leaf.dim
        vectors = leaf.x.detach().clone()
        vectors[levels] = x[:, part]
        leaf.x = nn.Parameter(vectors, requires_grad=leaf.x.requires_grad)
        if trained.any():
            leaf.trained_root = leaf.trained_root.index_copy(0, levels[trained], root[trained][:, part])
        if not trained.all():
            leaf.added_root = leaf.added_root.index_copy(0, levels[~trained] - leaf.n_trained, root[~trained][:, part])


def _learned(prior: LatentPrior) -> list[Learned]:
    return [leaf for leaves in learned_by_column(prior).values() for leaf in leaves]


def _append_placeholders(leaves: list[Learned], ids: list[str]) -> None:
    """Make the ids known, last in order, so that their rows can be coded."""
    total = sum(leaf.dim for leaf in leaves)
    for leaf in leaves:
        leaf.drop_levels(ids)
        zeros = leaf.x.new_zeros(len(ids), leaf.dim)
        leaf.add_levels(ids, zeros.detach(), zeros.detach().unsqueeze(2).expand(-1, -1, total))


def _leaves_with_new_ids(prior: LatentPrior, table: Table) -> list[Learned]:
    """The learned kernels of the one column whose ids are new (or were added before)."""
    found = learned_by_column(prior)
    for column, leaves in found.items():
        trained = leaves[0].levels[: len(leaves[0].levels) - leaves[0].n_added]
        if set(map(str, table.levels(column))) - set(trained):
            others = [leaf for leaf in prior.leaves() if isinstance(leaf, IdLeaf) and leaf.key == leaves[0].key]
            if len(others) > len(leaves):
                kind = next(type(leaf).__name__ for leaf in others if leaf not in leaves)
                raise ValueError(
                    f"{kind}({column!r}) cannot take new ids, only Learned can; fit with a kernel without it"
                )
            if any(leaf.normalize for leaf in leaves):
                raise ValueError(
                    f"Learned({column!r}, normalize=True) cannot take new ids, its vectors are not linear; "
                    "fit with normalize=False"
                )
            for term in (term for kernel in prior.kernels for term in kernel.terms()):
                if sum(leaf in leaves for leaf in term.leaves) > 1:
                    raise ValueError(f"new ids need at most one Learned({column!r}) per product; rewrite the kernel")
            return leaves
    names = ", ".join(map(repr, found)) or "none"
    raise ValueError(f"expected new ids in a Learned column (the kernel has {names}), got only ids from training")

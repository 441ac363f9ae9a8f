"""Kernels over the ids of one column: Learned, FreeForm, Categorical, and the base for one of your own."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from gppvae.data.table import Column, Rows, Table
from gppvae.kernels.arguments import check_range
from gppvae.kernels.base import Leaf

AUTO_DIM = 64  # longest learned vector where `dim` is not given
MAX_DIM = 4096  # with longer vectors an H x H matrix does not fit into memory


class IdLeaf(Leaf):
    """Base of kernels over ids: implement `rank`, `create` and `factor`.

        k(p, p') = v_p' v_p',   v_p in R^R

    Ids are of any type that prints; 3, 3.0 and "3" are the same id. `factor` gets codes, (D,) int64, which index
    `levels`, and gives v, (D, R).

    Args:
        column: p, the column with the ids.

    Attributes:
        levels: the distinct ids of the training table, sorted; ids added after training come last.
        advice_for_new_ids: the last part of the error message about an unknown id.

    Example:
        >>> import torch
        >>> from gppvae import IdLeaf
        >>> from gppvae.data.table import Table
        >>> class Same(IdLeaf):
        ...     rank = 1
        ...     def create(self, generator):
        ...         return None
        ...     def factor(self, codes):
        ...         return torch.ones(len(codes), 1, dtype=torch.float64)
        >>> kernel, table = Same("who"), Table({"who": ["ann", "bob"]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """

    advice_for_new_ids = "leave those rows out, or fit again with samples of them"

    def __init__(self, column: str) -> None:
        super().__init__()
        self.columns_read = (column,)
        self.levels: list[str] = []

    @property
    def column(self) -> str:
        return self.columns_read[0]

    @property
    def key(self) -> str:
        return f"{self.column} (id)"

    def bind_leaf(self, table: Table, generator: torch.Generator | None) -> None:
        self.levels = [str(level) for level in table.levels(self.column)]
        self.create(generator)

    @abstractmethod
    def create(self, generator: torch.Generator | None) -> None:
        """Create the parameters, one row per level."""

    def code_leaf(self, table: Table, new_ids: bool = False) -> Column:
        """The distinct ids, and which of them each row holds.

        Args:
            new_ids: give ids that were not in the training table codes after the others, instead of an error.
        """
        index, distinct = table.coded_ids(self.column)
        number = {level: code for code, level in enumerate(self.levels)}
        unknown = [level for level in distinct if level not in number]
        if new_ids:
            number |= {level: len(self.levels) + code for code, level in enumerate(unknown)}
        elif unknown:
            shown = ", ".join(repr(str(level)) for level in unknown[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            raise ValueError(
                f"column {self.column!r} must hold ids known from training ({len(self.levels)} of them), "
                f"got {shown}{more}; {self.advice_for_new_ids}"
            )
        # Codes index all levels, not only those present, so that all slices and tables share them.
        codes = torch.tensor([number[level] for level in distinct], dtype=torch.int64)
        values = torch.arange(len(number))
        return Column(codes[torch.from_numpy(index)], values)  # (N,), (P,)

    def row_factor(self, rows: Rows) -> Tensor:
        return self.factor(rows.columns[self.key].index)  # codes are their own index: nothing to look up, (N, R)

    def in_words(self, learned: dict[str, str]) -> list[str]:
        return [*self.sizes_in_words(), *super().in_words(learned)]

    def sizes_in_words(self) -> list[str]:
        """Number of ids, and other sizes."""
        return [f"{len(self.levels)} levels"]

    def extra_state(self) -> dict[str, object]:
        return {"levels": self.levels}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        levels = extra["levels"]
        if not isinstance(levels, list) or not levels or not all(isinstance(level, str) for level in levels):
            raise ValueError(f"{self.text()} must have levels that are texts, got {type(levels).__name__}")
        if len(set(levels)) < len(levels):
            raise ValueError(f"{self.text()} must have distinct levels, got one twice")
        self.check_saved(len(levels), tensors)  # before memory is allocated for them
        self.levels = list(levels)
        self.create(torch.Generator())  # for the shapes only; leaves the global random state alone
        super().restore(extra, tensors)

    def check_saved(self, n_levels: int, tensors: dict[str, Tensor]) -> None:
        """Raise ValueError unless the saved tensors fit this number of levels; by default nothing is checked."""
        return None


class Learned(IdLeaf):
    """One learned vector per id with a linear kernel.

        k(p, p') = x_p' x_p',   x_p ~ N(0, I_M)

    During training the vectors are MAP estimates; at the end of a fit they get posterior covariances. With `normalize`
    they have unit length, as in the paper's code: they have no prior and stay point estimates.
    Source: Casale et al. 2018, Sec. 3.1.

    Args:
        column: p, the ids.
        dim: M, length of the vectors; when None, the number of ids, at most 64, and fewer where rows are few.
        normalize: divide x_p by |x_p|.

    Example:
        >>> from gppvae import Learned
        >>> from gppvae.data.table import Table
        >>> kernel = Learned("who", dim=2)
        >>> kernel.bind(Table({"who": ["ann", "bob", "ann"]}))
        >>> kernel.levels, tuple(kernel.vectors().shape)
        (['ann', 'bob'], (2, 2))
    """

    advice_for_new_ids = "give samples of new ids to add_objects() (gppvae add-objects) first"

    def __init__(self, column: str, dim: int | None = None, normalize: bool = False) -> None:
        super().__init__(column)
        if dim is not None:
            check_range("Learned", "dim", dim, 1, MAX_DIM, 8)
        self.dim, self.normalize = int(dim or 0), bool(normalize)
        self.x: nn.Parameter = nn.Parameter(torch.zeros(0, self.dim, dtype=torch.float64))
        # Posterior covariances of vectors added after training, Cov = root root', (P_new, M, J).
        self.added_root: Tensor
        self.register_buffer("added_root", torch.zeros(0, self.dim, self.dim, dtype=torch.float64))
        self._covariance: Callable[[Tensor, Tensor], Tensor] | None = None  # set by `with_covariance`
        # The same for the trained vectors, (P, M, J); empty while they are point estimates.
        self.trained_root: Tensor
        self.register_buffer("trained_root", torch.zeros(0, self.dim, self.dim, dtype=torch.float64))
        self._instead: dict[int, Tensor] = {}  # by thread, the vectors that `using` substitutes for x

    @property
    def rank(self) -> int:
        return self.dim

    def learned_numbers(self) -> dict[str, Tensor]:
        return {"mean variance": self.vectors().square().sum(1).mean()}

    def sizes_in_words(self) -> list[str]:
        return [f"{len(self.levels)} ids", f"vectors of length {self.dim}"]

    @property
    def open_dim(self) -> bool:
        """Whether the length of the vectors is still to be chosen."""
        return self.dim == 0

    def choose_dim(self, dim: int) -> None:
        """Set the length of the vectors, as if it had been given as `dim`."""
        self.dim = self.arguments["dim"] = dim

    def create(self, generator: torch.Generator | None) -> None:
        if self.open_dim:
            self.choose_dim(min(len(self.levels), AUTO_DIM))
        x = 0.3 * torch.randn(len(self.levels), self.dim, generator=generator, dtype=torch.float64)  # (P, M)
        x[:, 0] = 1.0  # ids start similar and separate once the other factors are learned
        self.x = nn.Parameter(x)
        self.added_root = torch.zeros(0, self.dim, self.dim, dtype=torch.float64)
        self.trained_root = torch.zeros(0, self.dim, self.dim, dtype=torch.float64)

    def check_saved(self, n_levels: int, tensors: dict[str, Tensor]) -> None:
        x, root = tensors["x"], tensors["added_root"]
        if tuple(x.shape) != (n_levels, self.dim) or root.ndim != 3 or root.shape[1] != self.dim:
            raise ValueError(f"{self.text()} must have {n_levels} vectors, got {tuple(x.shape)}")
        if not len(root) < n_levels or (len(root) and root.shape[2] < self.dim):
            raise ValueError(f"{self.text()} must have roots of added vectors, got {tuple(root.shape)}")
        trained = tensors["trained_root"]
        fits = trained.ndim == 3 and trained.shape[1] == self.dim and trained.shape[2] >= self.dim
        if not fits or len(trained) not in (0, n_levels - len(root)):
            raise ValueError(f"{self.text()} must have roots of trained vectors, got {tuple(trained.shape)}")

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        roots = {name: tensors[name] for name in ("added_root", "trained_root")}
        super().restore(extra, tensors | {name: getattr(self, name) for name in roots})
        for name, root in roots.items():
            setattr(self, name, torch.zeros_like(root, dtype=torch.float64))

    def vectors(self) -> Tensor:
        """X, (P, M), in the order of `levels`; ids added after training come last."""
        x = self._instead.get(threading.get_ident(), self.x)
        return nn.functional.normalize(x, dim=1) if self.normalize else x

    def factor(self, values: Tensor) -> Tensor:
        rows = self._instead.get(threading.get_ident(), self.x).index_select(0, values)  # (D, M)
        return nn.functional.normalize(rows, dim=1) if self.normalize else rows

    @contextlib.contextmanager
    def using(self, vectors: Tensor) -> Iterator[None]:
        """Inside the context, `vectors` (P, M) replace X, in this thread only."""
        own = threading.get_ident()
        before = self._instead.get(own)
        self._instead[own] = vectors
        try:
            yield
        finally:
            if before is None:
                del self._instead[own]
            else:
                self._instead[own] = before

    @contextlib.contextmanager
    def with_covariance(self, covariance: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
        """Inside the context, another covariance between ids replaces x_p'x_p', for `gram` only."""
        self._covariance = covariance
        try:
            yield
        finally:
            self._covariance = None

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        return super().covariance(a, b) if self._covariance is None else self._covariance(a, b)

    @property
    def n_trained(self) -> int:
        """Number of ids from training; they come first."""
        return len(self.levels) - self.n_added

    @property
    def n_added(self) -> int:
        """Number of ids added after training."""
        return self.added_root.shape[0]

    def add_levels(self, levels: list[str], vectors: Tensor, root: Tensor) -> None:
        """Append ids with their vectors (P_new, M) and the roots of their posterior covariances.

        Args:
            levels: new ids.  root: (P_new, M, J), covariance root root'. J is the total length of the vectors of all
                learned kernels of the column: their joint covariance has one root, and draws share its J normals.
        """
        if self.n_added and root.shape[2] != self.added_root.shape[2]:
            raise ValueError("the covariance of added vectors must keep its size")
        self.added_root = root if not self.n_added else torch.cat([self.added_root, root])
        self.x = nn.Parameter(torch.cat([self.x.detach(), vectors]), requires_grad=self.x.requires_grad)
        self.levels = [*self.levels, *levels]

    def drop_levels(self, levels: list[str]) -> None:
        """Remove ids that were added after training."""
        first = self.n_trained
        kept = [n for n, level in enumerate(self.levels) if n < first or level not in levels]
        self.x = nn.Parameter(self.x.detach()[kept], requires_grad=self.x.requires_grad)
        self.added_root = self.added_root[[n - first for n in kept if n >= first]]
        self.levels = [self.levels[n] for n in kept]

    def neg_log_prior_leaf(self) -> Tensor | None:
        return None if self.normalize else 0.5 * self.x.square().sum()


class FreeForm(IdLeaf):
    """A full-rank covariance over the Q levels of one column.

        k(q, q') = (W W')_qq',   W lower triangular with a positive diagonal

    For views whose covariance is unknown (poses, conditions). It cannot predict a level that was not in training; a
    numeric kernel can. Cost: Q (Q + 1) / 2 parameters. Source: Casale et al. 2018, Sec. 4.3.

    Args:
        column: q, the ids.

    Example:
        >>> from gppvae import FreeForm
        >>> from gppvae.data.table import Table
        >>> kernel, table = FreeForm("who"), Table({"who": ["ann", "bob", "ann"]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 0.5, 1.0], [0.5, 1.0, 0.5], [1.0, 0.5, 1.0]]
    """

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.raw: nn.Parameter = nn.Parameter(torch.zeros(0, 0, dtype=torch.float64))

    @property
    def rank(self) -> int:
        return len(self.levels)

    def create(self, generator: torch.Generator | None) -> None:
        q = len(self.levels)
        # Initial variance 1, and correlation 1/2 between any two levels.
        start = 0.5 * torch.ones(q, q, dtype=torch.float64) + 0.5 * torch.eye(q, dtype=torch.float64)
        W = torch.linalg.cholesky(start)
        self.raw = nn.Parameter(W.tril(-1) + torch.diag_embed(W.diagonal().log()))

    def check_saved(self, n_levels: int, tensors: dict[str, Tensor]) -> None:
        if tuple(tensors["raw"].shape) != (n_levels, n_levels):
            raise ValueError(f"{self.text()} must have a covariance of {n_levels} levels, got another size")

    def factor(self, values: Tensor) -> Tensor:
        W = self.raw.tril(-1) + torch.diag_embed(self.raw.diagonal().exp())  # the log of the diagonal is stored, (Q, Q)
        return W.index_select(0, values)  # (D, Q)


class Categorical(IdLeaf):
    """An independent effect per id.

        k(p, p') = 1 if p = p' else 0

    The features of `Categorical(id) * k` are those of k in the block of the row's id and zero elsewhere, so time and
    memory are linear in the number of ids (docs/math.md, "Terms of many ids"). An id that was not in the training set
    has its prior until `add_objects` conditions it on samples.

    Args:
        column: p, the ids.

    Example:
        >>> from gppvae import Categorical
        >>> from gppvae.data.table import Table
        >>> kernel, table = Categorical("who"), Table({"who": ["ann", "bob", "ann"]})
        >>> kernel.bind(table)
        >>> kernel.gram(kernel.code(table), kernel.code(table)).detach().numpy().round(2).tolist()
        [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """

    independent = True
    advice_for_new_ids = "leave those rows out, or give samples of new ids to add_objects() (gppvae add-objects) first"

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.n_added = 0  # number of ids added after training; they come last

    @property
    def rank(self) -> int:
        return len(self.levels)

    @property
    def n_trained(self) -> int:
        """Number of ids from training; they come first."""
        return len(self.levels) - self.n_added

    def create(self, generator: torch.Generator | None) -> None:
        self.n_added = 0

    def add_levels(self, levels: list[str]) -> None:
        """Append ids; q(B) then needs weights for them (prior/new_blocks.py)."""
        self.levels, self.n_added = [*self.levels, *levels], self.n_added + len(levels)

    def drop_levels(self, levels: list[str]) -> None:
        """Remove ids that were added after training."""
        first, dropped = self.n_trained, set(levels)
        added = [level for level in self.levels[first:] if level not in dropped]
        self.levels, self.n_added = [*self.levels[:first], *added], len(added)

    def extra_state(self) -> dict[str, object]:
        return super().extra_state() | {"added": self.n_added}

    def restore(self, extra: dict[str, object], tensors: dict[str, Tensor]) -> None:
        super().restore(extra, tensors)
        added = extra.get("added", 0)
        if isinstance(added, bool) or not isinstance(added, int) or not 0 <= added < len(self.levels):
            raise ValueError(f"{self.text()} must have 0 to {len(self.levels) - 1} added levels, got {added!r:.80}")
        self.n_added = added

    def variance(self, values: Tensor) -> Tensor:
        return torch.ones(len(values), dtype=torch.float64, device=values.device)

    def row_carried(self, rows: Rows) -> Tensor:
        return self.row_variance(rows)

    def factor(self, values: Tensor) -> Tensor:
        # One-hot, (D, P); all zeros for ids that were not in the training set, whose codes are P and above.
        return (values.unsqueeze(1) == torch.arange(len(self.levels), device=values.device)).to(torch.float64)

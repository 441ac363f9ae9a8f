"""Results of `explain`: shares and curves of the kernel's terms, as numbers, JSON and a table for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import pandas as pd

DIGITS = 6  # of numbers in JSON


@dataclass(frozen=True)
class Curve:
    """Effect of a term along one or more columns, with all other terms at their means.

    Attributes:
        columns: names of the columns; two or more make a map.
        values: (M,) numbers or ids, or (M, d) places.
        by, level: a second column and the value of it that this curve is for; None for the average over rows.
        score: (M,) size of the change along `TermExplanation.pattern`, its root mean square over a sample, in the
            unit of the values (in their standard deviations where the likelihood standardises).
        score_std: (M,) its posterior standard deviation, to first order through the decoder.
        signal, signal_std: (M, ...) the decoded samples and their standard deviations; None for curves of one level
            and for maps.
        period: of a periodic curve; `values` then cover one period. None otherwise.
    """

    columns: tuple[str, ...]
    values: np.ndarray
    by: str | None
    level: str | None
    score: np.ndarray
    score_std: np.ndarray
    signal: np.ndarray | None = None
    signal_std: np.ndarray | None = None
    period: float | None = None

    @property
    def axis(self) -> str:
        """Label of the axis: the name of the column, and the period if there is one."""
        return self.columns[0] + ("" if self.period is None else f" (one period of {self.period:g})")

    def to_json(self) -> dict[str, Any]:
        """Without the decoded samples."""
        return {
            "columns": list(self.columns),
            "values": _plain(self.values),
            "period": self.period,
            "by": self.by,
            "level": self.level,
            "score": _plain(self.score),
            "score_std": _plain(self.score_std),
        }


@dataclass(frozen=True)
class TermExplanation:
    """One term of the kernel.

    Attributes:
        name: as in `Explanation.shares`.  columns: that it reads.  group: number of its group of latents.
        latent_share, signal_share: of the variance over rows; they add up to 1 over terms. A share is negative if the
            term counteracts the others.
        alone: variance of the term alone, relative to that of the predicted signal; differs from `signal_share` by the
            covariance with other terms.
        by_column: for a product, signal shares of the main effect of each column and of their interaction, "together";
            they add up to `signal_share`. Empty for a term over one column.
        uncertain: mean posterior variance of the term's latents, relative to the variance of all latents over rows.
        by_value: (...) signal share of each pixel or channel, NaN where the prediction does not vary.
        pattern: (...) first principal direction of the term's effect on the samples, of length 1.
        curves: the effect of the term along its columns.
    """

    name: str
    columns: list[str]
    group: int
    latent_share: float
    signal_share: float
    alone: float
    by_column: dict[str, float]
    uncertain: float
    by_value: np.ndarray
    pattern: np.ndarray
    curves: list[Curve] = field(repr=False)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Shares of variance and curves of the terms of the kernel, over the rows of a table.

    Shares are of the variance of the predicted function over rows; they contain no latent noise and no noise of the
    samples. Definitions: docs/math.md, "What each term explains".

    Attributes:
        terms: one entry per term, in the order of the kernel.
        latent_covariance, signal_covariance: (T, T), covariance over rows between contributions of the terms, relative
            to the total variance. A row sums to the share of the term, all entries to 1.
        by_channel: signal shares of each channel of images, or value of vectors; columns are terms.
        n_rows: number of rows used.  unexplained: number of latents without a kernel.

    Example:
        >>> import numpy as np
        >>> from gppvae import GPPVAE
        >>> age = np.linspace(0.0, 6.0, 30)
        >>> samples = np.stack([np.sin(age), np.cos(age), age], axis=1).astype(np.float32)
        >>> table = {"age": age, "who": ["ann", "bob", "cy"] * 10}
        >>> model = GPPVAE("RBF(age) + Learned(who, 2)", 2, inference="global", epochs=2)
        >>> found = model.fit(samples, table, progress=False).explain(table)
        >>> len(found.terms), round(float(found.shares["latent"].sum()), 3)
        (2, 1.0)
    """

    terms: list[TermExplanation]
    latent_covariance: np.ndarray
    signal_covariance: np.ndarray
    by_channel: pd.DataFrame
    n_rows: int
    unexplained: int

    @property
    def shares(self) -> pd.DataFrame:
        """Shares by name of the term: latent, signal, signal of the term alone, and uncertain."""
        columns = {"latent": "latent_share", "signal": "signal_share", "alone": "alone", "uncertain": "uncertain"}
        data = {name: [getattr(term, source) for term in self.terms] for name, source in columns.items()}
        return pd.DataFrame(data, index=pd.Index([term.name for term in self.terms], name="term"))

    def __getitem__(self, name: str) -> TermExplanation:
        found = [term for term in self.terms if term.name == name]
        if not found:
            names = ", ".join(term.name for term in self.terms)
            raise KeyError(f"expected the name of a term, got {name!r}; the terms are {names}")
        return found[0]

    def to_json(self) -> dict[str, Any]:
        """Everything but decoded samples, as JSON values."""
        terms = [
            {
                "name": term.name,
                "columns": term.columns,
                "group": term.group,
                "latent_share": _plain(term.latent_share),
                "signal_share": _plain(term.signal_share),
                "alone": _plain(term.alone),
                "by_column": {name: _plain(share) for name, share in term.by_column.items()},
                "uncertain": _plain(term.uncertain),
                "by_value": _plain(term.by_value),
                "pattern": _plain(term.pattern),
                "curves": [curve.to_json() for curve in term.curves],
            }
            for term in self.terms
        ]
        return {
            "n_rows": self.n_rows,
            "unexplained_latents": self.unexplained,
            "terms": terms,
            "latent_covariance": _plain(self.latent_covariance),
            "signal_covariance": _plain(self.signal_covariance),
            "by_channel": {
                "channel": [str(name) for name in self.by_channel.index],
                "shares": {str(name): _plain(self.by_channel[name].to_numpy()) for name in self.by_channel},
            },
        }

    @property
    def note(self) -> str:
        """Definition of the shares, in a sentence or two."""
        text = f"Shares of the variance of the predicted function over {self.n_rows} rows; noise is in none of them."
        if self.unexplained:
            text += f" {self.unexplained} latents have no kernel: no column explains them."
        return text

    def __repr__(self) -> str:
        parts = [f"  {name}" for term in self.terms for name in term.by_column]
        width = max([len(name) for name in (*(term.name for term in self.terms), *parts, "term")])
        lines = [f"{'term':<{width}}  latent  signal   alone"]
        for term in self.terms:
            shares = (term.latent_share, term.signal_share, term.alone)
            lines.append("  ".join([f"{term.name:<{width}}", *map(_percent, shares)]))
            lines += [f"{f'  {name}':<{width}}          {_percent(x)}" for name, x in term.by_column.items()]
        return "\n".join([*lines, self.note])

    def _repr_html_(self) -> str:
        bar = (
            '<div style="background:#0072b2;opacity:.75;height:.7em;width:{:.0f}%;min-width:1px;border-radius:2px">'
            "</div>"
        )
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(term.name)}</td><td>{_percent(term.latent_share)}</td>"
            f"<td>{_percent(term.signal_share)}</td><td>{_percent(term.alone)}</td>"
            f"<td style='width:12em'>{bar.format(100 * min(max(term.signal_share, 0.0), 1.0))}</td></tr>"
            + "".join(
                f"<tr style='opacity:.75'><td style='text-align:left;padding-left:2em'>{escape(name)}</td><td></td>"
                f"<td>{_percent(share)}</td><td></td><td></td></tr>"
                for name, share in term.by_column.items()
            )
            for term in self.terms
        )
        head = "".join(f"<th>{name}</th>" for name in ("term", "latent", "signal", "alone", ""))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{escape(self.note)}</p>"


def _percent(share: float) -> str:
    return f"{100 * share:5.1f}%" if np.isfinite(share) else "    - "


def _plain(value: Any) -> Any:
    """Numbers with six digits, as JSON values; None for NaN."""
    array = np.asarray(value)
    if array.ndim:
        return [_plain(entry) for entry in array]
    if array.dtype.kind not in "fiu":
        return str(array)
    number = float(array)
    return float(f"{number:.{DIGITS}g}") if np.isfinite(number) else None

"""Commands that add data to a fitted model: add-objects, update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gppvae.cli.asking import Table
from gppvae.cli.errors import one_line_errors
from gppvae.cli.inputs import Inputs
from gppvae.cli.options import OUTPUT, Run, SampleOptions, Shown, option_in, with_options
from gppvae.cli.output import answer, row_bar

if TYPE_CHECKING:
    import pandas as pd

    from gppvae.estimator import GPPVAE

Learn = Callable[["GPPVAE", Any, "pd.DataFrame"], tuple[dict[str, Any], str]]
NewRun = Annotated[Path, option_in(OUTPUT, help="Folder for the new model; the old model is unchanged.")]


@with_options
def add_objects(
    *,
    run: Run,
    table: Table,
    out: NewRun,
    source: SampleOptions,
    shown: Shown,
) -> None:
    """Learn ids that were not in the training set from a few samples each; the new model can predict them.

    Example: gppvae add-objects runs/threes new.csv --data new.npy --out runs/more_threes
    """

    def learn(model: GPPVAE, samples: Any, frame: pd.DataFrame) -> tuple[dict[str, Any], str]:
        added = model.add_objects(samples, frame)
        words = f"{len(added)} new objects ({', '.join(added[:4])}{', ...' if len(added) > 4 else ''})"
        return {"added": added}, words

    _change("add objects", learn, run, table, out, source, shown)


@with_options
def update(
    *,
    run: Run,
    table: Table,
    out: NewRun,
    source: SampleOptions,
    shown: Shown,
) -> None:
    """Condition a model on further samples of known ids without training.

    Example: gppvae update runs/threes later.csv --data later.npy --out runs/threes_later
    """

    def learn(model: GPPVAE, samples: Any, frame: pd.DataFrame) -> tuple[dict[str, Any], str]:
        model.update(samples, frame)
        return {"samples": len(frame)}, f"conditioned on {len(frame)} further samples"

    _change("update", learn, run, table, out, source, shown)


def _change(name: str, learn: Learn, run: Path, table: Path, out: Path, source: SampleOptions, shown: Shown) -> None:
    """Load a model, call `learn` and save it in a new folder; `learn` returns results for --json and a line of text."""
    with one_line_errors():
        from gppvae.estimator import GPPVAE
        from gppvae.training.folder import RunFolder

        folder = RunFolder(out)
        folder.check_writable()
        folder.check_unfinished()
        model = GPPVAE.load(run)
        samples, frame = Inputs.of_model(source, model).pair(table)
        with row_bar(name, shown):
            facts, words = learn(model, samples, frame)
        model.save(out)
        answer(shown, {"model": out} | facts, words, f"model: {out}")

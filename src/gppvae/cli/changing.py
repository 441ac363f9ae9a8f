"""Commands that give a fitted model more to know: add-objects, update."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gppvae.cli.asking import Table
from gppvae.cli.errors import one_sentence
from gppvae.cli.inputs import Inputs
from gppvae.cli.options import OUTPUT, Run, SampleOptions, Shown, option_in, with_options
from gppvae.cli.show import answer, row_bar

NewRun = Annotated[Path, option_in(OUTPUT, help="Folder for the new model; the old one stays as it is.")]


@with_options
def add_objects(
    *,
    run: Run,
    table: Table,
    out: NewRun,
    source: SampleOptions,
    shown: Shown,
) -> None:
    """Learn ids that the model never saw from a few samples of each; the new model then predicts them.

    Example: gppvae add-objects runs/threes new.csv --data new.npy --out runs/more_threes
    """
    with one_sentence():
        from gppvae.estimator import GPPVAE
        from gppvae.training.folder import RunFolder

        folder = RunFolder(out)
        folder.check_writable()
        folder.check_unfinished()
        model = GPPVAE.load(run)
        samples, frame = Inputs.of_model(source, model).pair(table)
        with row_bar("add objects", shown):
            added = model.add_objects(samples, frame)
        model.save(out)
        words = f"{len(added)} new objects ({', '.join(added[:4])}{', ...' if len(added) > 4 else ''})"
        answer(shown, {"model": out, "added": added}, words, f"model: {out}")


@with_options
def update(
    *,
    run: Run,
    table: Table,
    out: NewRun,
    source: SampleOptions,
    shown: Shown,
) -> None:
    """Take in further samples of known ids, at any rows, without training again.

    Example: gppvae update runs/threes later.csv --data later.npy --out runs/threes_later
    """
    with one_sentence():
        from gppvae.estimator import GPPVAE
        from gppvae.training.folder import RunFolder

        folder = RunFolder(out)
        folder.check_writable()
        folder.check_unfinished()
        model = GPPVAE.load(run)
        samples, frame = Inputs.of_model(source, model).pair(table)
        with row_bar("update", shown):
            model.update(samples, frame)
        model.save(out)
        answer(shown, {"model": out, "samples": len(frame)}, f"{len(frame)} samples taken in", f"model: {out}")

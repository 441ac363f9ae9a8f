"""The command line: parse, call, print. Heavy imports are inside the commands, so that --help is fast."""

from __future__ import annotations

import sys

import typer

from gppvae.cli import asking, changing, errors, fitting, looking

app = typer.Typer(
    name="gppvae",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the command `gppvae` and of `python -m gppvae`."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":  # file names may have characters that cannot be encoded
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="gppvae")


def _show_version(wanted: bool) -> None:
    if wanted:
        from gppvae import __version__

        print(f"gppvae {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; goes before the command."),
) -> None:
    """Gaussian process prior VAEs: the latents covary according to a kernel over the columns of your table.

    [bold]gppvae demo[/bold] trains on the digits in the package and writes a report page.

    [bold]gppvae fit[/bold] table.csv --data images.npy --kernel "Learned(person, 64) * FreeForm(pose)" --out runs/faces

    [bold]gppvae predict[/bold] runs/faces wanted.csv --out predicted

    [bold]gppvae explore[/bold] runs/faces --table table.csv --data images.npy
    """
    errors.debug.set(debug)


def reproduce(context: typer.Context) -> None:
    """Repeat an experiment of the paper: its numbers and its figures."""
    from gppvae.paper.commands import reproduce_app

    reproduce_app(errors.one_line_errors)(context.args, prog_name=context.command_path)


def bench(context: typer.Context) -> None:
    """Measure the package on public data."""
    from gppvae.bench.commands import bench_app

    bench_app(errors.one_line_errors)(context.args, prog_name=context.command_path)


# The commands in the order of --help. Groups that are loaded on demand receive their arguments unparsed.
UNPARSED = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
FIT, USE, INSPECT = "Fit", "Use a fitted model", "Inspect"

app.command(rich_help_panel=FIT)(fitting.demo)
app.command(rich_help_panel=FIT)(fitting.fit)
app.command(rich_help_panel=USE)(asking.predict)
app.command(rich_help_panel=USE)(asking.impute)
app.command(rich_help_panel=USE)(asking.reconstruct)
app.command(rich_help_panel=USE)(asking.encode)
app.command(rich_help_panel=USE)(asking.sample)
app.command(rich_help_panel=USE)(asking.score)
app.command(rich_help_panel=USE)(asking.explain)
app.command("add-objects", rich_help_panel=FIT)(changing.add_objects)
app.command(rich_help_panel=FIT)(changing.update)
app.command(rich_help_panel=INSPECT)(looking.info)
app.command(rich_help_panel=INSPECT)(looking.explore)
app.command(rich_help_panel=INSPECT)(looking.report)
app.command(rich_help_panel=INSPECT)(looking.kernels)
app.command(rich_help_panel=INSPECT, add_help_option=False, context_settings=UNPARSED)(reproduce)
app.command(rich_help_panel=INSPECT, add_help_option=False, context_settings=UNPARSED)(bench)

"""Errors of commands: one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import sys
import traceback
from collections.abc import Iterator

import typer

FAULT, BAD_INPUT, TRAINING_FAILED, INTERRUPTED = 1, 2, 3, 130

debug = contextvars.ContextVar("debug", default=False)


@contextlib.contextmanager
def one_line_errors(resumable: bool = False) -> Iterator[None]:
    """Turn any exception inside into one line on stderr and an exit code; `--debug` also shows the traceback.

    Args:
        resumable: whether running the same command again continues an interrupted run.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        _stop("stopped" + ("; run the same command again to continue" if resumable else ""), INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the other end of the pipe was closed
        if debug.get():
            traceback.print_exc()
        _stop(_sentence(error), _exit_code(error))


def _stop(sentence: str, code: int) -> None:
    print(f"gppvae: {sentence}", file=sys.stderr)
    raise typer.Exit(code) from None


def _exit_code(error: Exception) -> int:
    loop = sys.modules.get("gppvae.training.loop")  # only this module raises TrainingError
    if loop is not None and isinstance(error, loop.TrainingError):
        return TRAINING_FAILED
    return BAD_INPUT if isinstance(error, (ValueError, TypeError, OSError)) else FAULT


def _sentence(error: Exception) -> str:
    from gppvae.data.atomic import NO_SPACE
    from gppvae.data.words import one_line

    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
        advice = "; earlier files are unchanged: free some space and run the same command again"
        return text + (advice if error.errno in NO_SPACE else "")
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        return "not enough memory; use a smaller --batch-size, smaller images or a narrower network"
    if _exit_code(error) == FAULT:
        return (
            f"an internal error of gppvae ({type(error).__name__}: {text[:200]}); please report it with the output of "
            "the same command after `gppvae --debug`"
        )
    return text

"""The command line: `python -m app COMMAND`; every failure is one line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from app.bench_cli import bench_app
from app.card_cli import card
from app.cli_common import real_engine
from app.compare_cli import compare
from app.contracts import MakeEngine
from app.doctor_cli import doctor
from app.drafters_cli import drafters
from app.generate_cli import INTERRUPTED, generate
from app.runs_cli import runs_app
from app.serve_cli import serve
from app.sweep_cli import sweep
from engine.errors import DraftboardError, UserError

DONE, FAILED, BAD_USAGE = 0, 1, 2

cli = typer.Typer(
    name="python -m app",
    help="Draftboard: a playground and dashboard for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.command("serve")(serve)
cli.command("generate")(generate)
cli.command("compare")(compare)
cli.command("sweep")(sweep)
cli.command("drafters")(drafters)
cli.command("card")(card)
cli.command("doctor")(doctor)
cli.add_typer(runs_app, name="runs")
cli.add_typer(bench_app, name="bench")


def main(arguments: Sequence[str] | None = None, make_engine: MakeEngine = real_engine) -> int:
    """Runs a command and returns its exit code: 0 done, 2 bad usage, 1 failure, 130 stopped by Ctrl-C.

    Args:
        arguments: of the command line; None takes the process's own.
        make_engine: builds the engine of the commands that need one.
    """
    command = get_command(cli)
    try:
        code = command.main(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="python -m app",
            standalone_mode=False,
            obj=make_engine,
        )
    except UserError as error:
        return _fail(str(error), BAD_USAGE)
    except TyperException as error:
        message = error.format_message()
        return _fail(message, BAD_USAGE) if message else DONE  # a group without a command has shown its help
    except (KeyboardInterrupt, typer.Abort):
        return _fail("Stopped.", INTERRUPTED)
    except DraftboardError as error:  # a sentence of our own: the name of its type adds nothing
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone (`… | head`): nothing is left to say, and nobody to say it to
        return DONE
    except Exception as error:  # noqa: BLE001 - the last stop: a person gets a line, not a traceback
        return _fail(f"{type(error).__name__}: {error}", FAILED)
    return code if isinstance(code, int) else DONE


def _fail(message: str, code: int) -> int:
    """Says what went wrong, in one line whatever the message holds."""
    typer.echo(f"Error: {' '.join(message.splitlines())}", err=True)
    return code

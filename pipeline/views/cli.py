"""The `dask-rl` command."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from pydantic import ValidationError

import dask_rl
from dask_rl.pipeline.runs.logs import current_records, records_on_stderr
from dask_rl.storage.errors import ConfigError, DaskRLError, RunStateError, explain

from .cli_command import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, LOG_FORMAT_HELP, LogFormat
from .cli_data import data
from .cli_jobs import jobs
from .cli_run import add_commands

app = typer.Typer(
    name="dask-rl",
    help="Offline reinforcement learning on Dask: Zarr datasets in, trained policies out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_commands(app)
app.add_typer(data, name="data")
app.add_typer(jobs, name="jobs")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dask-rl {dask_rl.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help=LOG_FORMAT_HELP)] = LogFormat.TEXT,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in workers; read when torch is loaded
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code: 0 done, 1 failed, 2 bad usage or config, 3 interrupted.

    Errors that are meant for the user become one line each on stderr; with --debug they keep their traceback.
    """
    debug = "--debug" in arguments
    with records_on_stderr() if _wants_records(arguments) else contextlib.nullcontext() as records:
        try:
            return _invoke(arguments)
        except Exception as error:  # the boundary to the user: no traceback unless it was asked for
            if debug and records is None:
                raise
            return _fail(*_explain(error), traceback.format_exc() if debug else None)


def _wants_records(arguments: Sequence[str]) -> bool:
    """Whether stderr is to be JSON; asked before the command line is parsed, which may fail."""
    text = "\0".join(arguments)
    return "--log-format\0json" in text or "--log-format=json" in arguments


def _explain(error: Exception) -> tuple[list[str], int]:
    """Return the lines that tell the user of an error, and the exit code."""
    if isinstance(error, ConfigError | RunStateError):
        return str(error).splitlines(), EXIT_USAGE
    if isinstance(error, DaskRLError):
        return str(error).splitlines()[:1], EXIT_FAILED
    if isinstance(error, ValidationError):
        return [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors()], EXIT_USAGE
    if isinstance(error, OSError):
        got = " ".join((error.strerror or str(error)).split())
        fix = "mend that, then run the same command again"
        return [explain(str(error.filename or "file system"), got=got, fix=fix)], EXIT_FAILED
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return [f"{what}. Run it again with --debug to see where, and report it."], EXIT_FAILED


def _invoke(arguments: Sequence[str]) -> int:
    try:
        code = app(args=list(arguments), prog_name="dask-rl", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(_usage_lines(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(["interrupted; the same command again goes on."], EXIT_INTERRUPTED)
    if code == 130:  # typer's for a KeyboardInterrupt
        return _fail(["interrupted; the same command again goes on."], EXIT_INTERRUPTED)
    return EXIT_DONE if code is None else int(code)


def _usage_lines(error: typer.TyperException) -> list[str]:
    """Return what was wrong with the command line, and which help tells more; nothing where help was shown."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = "dask-rl" if context is None else context.command_path
    return [f"{message}. See `{command} --help`."] if message else []


def _fail(lines: Iterable[str], exit_code: int, trace: str | None = None) -> int:
    records = current_records()
    for line in lines:
        if records is None:
            sys.stderr.write(f"error: {line}\n")
        else:
            traced = {} if trace is None else {"traceback": trace}
            records.write("error", "error", message=line, exit_code=exit_code, **traced)
    return exit_code

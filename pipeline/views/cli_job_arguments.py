"""What commands on jobs share: their arguments, the home, tables of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_command import load

Name = Annotated[str, typer.Argument(help="Name of a job.", show_default=False)]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job.", show_default=False)]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Where schedule and history are; default: $DASK_RL_HOME, else ~/.dask-rl."),
]
Time = Annotated[
    str | None, typer.Option("--time", help="When the run was due, as the history shows it; default: the last.")
]
EndedTime = Annotated[
    str | None,
    typer.Option(
        "--time",
        help="A run that did not end well, by its time in the history, to go on with; default: a new run, now.",
    ),
]
_MAX_MESSAGE = 80
_HASH_LETTERS = 8


def open_home(path: Path | None) -> Any:
    """Return the home, made where it is missing."""
    return load("pipeline.jobs.home").JobsHome(path).create()


def open_schedule(home: Path | None) -> Any:
    """Return the schedule of a home, to be opened by `with`."""
    with load("pipeline.jobs.extra").needs_extra():
        return load("pipeline.jobs.schedule").open_schedule(open_home(home))


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of text."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in [head, *rows])


def cell(row: dict[str, Any], column: str) -> str:
    """Return a value of a run as it stands in a table."""
    if column == "dataset":
        return " ".join(content_hash[:_HASH_LETTERS] for content_hash in row["datasets"].values())
    value = (row["evaluation"] or {}).get("return_mean") if column == "return" else row[column]
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


def one_line(row: dict[str, Any]) -> str:
    """Return a run in one line."""
    return ", ".join(filter(None, (cell(row, column) for column in ("time", "status", "return", "message"))))

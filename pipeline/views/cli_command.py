"""What all commands share: --json, --debug, --log-format, output on stdout, modules loaded when they are needed."""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import typer

from dask_rl.pipeline.runs.run_directory import json_value

_MAX_ITEMS = 6

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 3


@dataclass(frozen=True)
class Output:
    """What a command has to say."""

    values: Mapping[str, Any]
    """Printed as one JSON object under --json."""
    text: str
    """Printed otherwise."""
    exit_code: int = EXIT_DONE


@dataclass(frozen=True)
class Option:
    """One option that a command receives among its keyword arguments."""

    name: str
    kind: Any
    default: Any
    help: str


class LogFormat(StrEnum):
    """How a command writes on stderr."""

    TEXT = "text"
    JSON = "json"


LOG_FORMAT_HELP = "How stderr is written: text, or json for one object a line with time, level, event and fields."

_COMMON = (
    Option("json", bool, False, "Print one JSON object to stdout; everything else goes to stderr."),
    Option("debug", bool, False, "Show tracebacks."),
    Option("log_format", LogFormat, LogFormat.TEXT, LOG_FORMAT_HELP),
)


def command(
    app: typer.Typer, name: str, options: Sequence[Option] = ()
) -> Callable[[Callable[..., Output]], Callable[..., Output]]:
    """Make a function a command of `app`; it also gets `options`, as keyword arguments, and the common ones.

    Args:
        app: the group.
        name: what the user types.
        options: those of a settings class, which the function takes as `**settings`.
    """

    def register(function: Callable[..., Output]) -> Callable[..., Output]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]
        for option in (*options, *_COMMON):
            default = typer.Option(option.default, f"--{option.name.replace('_', '-')}", help=option.help)
            parameters.append(
                inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option.kind)
            )

        def run(**values: Any) -> int:
            as_json = values.pop("json")
            for name in ("debug", "log_format"):  # read by cli.run(), which must know them even where parsing fails
                values.pop(name)
            output = function(**values)
            text = json.dumps(json_value(output.values), allow_nan=False) if as_json else output.text
            typer.echo(text)
            return output.exit_code

        run.__doc__ = function.__doc__
        run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        app.command(name)(run)
        return function

    return register


def load(module: str) -> Any:
    """Import a module of the project by its name when a command runs: torch and distributed take seconds."""
    return importlib.import_module(f"dask_rl.{module}")


def table(rows: Mapping[str, Any]) -> str:
    """Return names and values as aligned lines."""
    width = max((len(name) for name in rows), default=0)
    return "\n".join(f"{name:<{width}}  {as_text(value)}" for name, value in rows.items())


def as_text(value: Any) -> str:
    """Return a value as people read it: floats with six digits, none, the head of a long list."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {as_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(map(as_text, value[:_MAX_ITEMS])) or "none"
        return shown if len(value) <= _MAX_ITEMS else f"{shown}, … ({len(value)} values)"
    return "none" if value is None else str(value)

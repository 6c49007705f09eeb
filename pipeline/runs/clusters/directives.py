"""Options of sbatch as lines of a script, `#SBATCH --name=value`."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from dask_rl.storage.errors import ConfigError, explain

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+^~-]+")


def _is_one_line(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("printable characters in one line")
    return value


def _is_option(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError('an option of sbatch, as in "--qos=high"')
    return _is_one_line(value)


OneLine = Annotated[str, AfterValidator(_is_one_line)]
"""A value that can stand in a line of a script."""
SbatchOption = Annotated[str, AfterValidator(_is_option)]
"""An option of sbatch as its manual writes it."""


def quote_directive(value: str) -> str:
    """Return a value as sbatch reads it back from a line of a script.

    sbatch is no shell: it knows both quotes and the backslash, the latter inside quotes too, and takes # outside
    them for a comment.

    Raises:
        ConfigError: it has more than one line, of which the second would be a line of the script.
    """
    if not all(letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in value):
        allowed, fix = "for SLURM: printable characters in one line", "move or rename what it names"
        raise ConfigError(explain("option of sbatch", got=repr(value), allowed=allowed, fix=fix))
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escape_file_pattern(path: str) -> str:
    """Return a path for --output and --error, in which % begins a placeholder and a backslash ends them all."""
    return path.replace("%", "%%")


def directives(options: Mapping[str, object]) -> list[str]:
    """Return options without the `#SBATCH` before them; None leaves one out, True has no value."""
    lines = []
    for name, value in options.items():
        if value is True:
            lines.append(f"--{name}")
        elif value is not None:
            lines.append(f"--{name}={quote_directive(str(value))}")
    return lines

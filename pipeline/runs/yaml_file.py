"""YAML that a user wrote: read safely, with errors of one line."""

import os
from pathlib import Path
from typing import Any

import yaml

from dask_rl.storage.errors import ConfigError, explain


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a job file.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise ConfigError(explain("job file", got=f"{path}: {reason}", fix="give the path of a YAML file")) from None


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """Return the keys and values of YAML text; `source` names it in errors.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    values = parse_yaml(text, source)
    if not isinstance(values, dict):
        got, fix = f"YAML of type {type(values).__name__}", "write `key: value` lines"
        raise ConfigError(explain(source, got=got, allowed="a mapping", fix=fix))
    return values


def parse_yaml(text: str, source: str) -> Any:
    """Return a value of YAML text.

    Raises:
        ConfigError: it is no YAML.
    """
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(explain(source, got="YAML nested too deeply", allowed="a job", fix="correct it")) from None
    except yaml.YAMLError as error:
        raise ConfigError(explain(source, got=" ".join(str(error).split()), allowed="YAML", fix="correct it")) from None

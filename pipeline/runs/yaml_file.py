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


def override_value(values: dict[str, Any], override: str) -> None:
    """Set one value of a job, as in `a.b=c`; c is read as YAML.

    Raises:
        ConfigError: it is not of that form, or a is no mapping.
    """
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(explain("--set", got=repr(override), allowed="key=value or a.b=value", fix="write it so"))
    for depth, part in enumerate(parts[:-1], 1):
        inner = values.get(part)
        if inner is None:
            inner = values[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(
                explain(
                    f"--set {override}",
                    got=f"{'.'.join(parts[:depth])}={inner!r}, which is no mapping",
                    allowed="a key inside a mapping",
                    fix="correct the key",
                )
            )
        values = inner
    values[parts[-1]] = parse_yaml(text, f"--set {key}")

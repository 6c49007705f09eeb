"""Names of jobs: they stand in commands, file names and the units of other schedulers."""

import os
import re
from pathlib import Path

from dask_rl.storage.errors import ConfigError, explain

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ALLOWED = "letters, digits, dots, dashes and underscores, at most 63, the first a letter or digit"


def check_job_name(name: str) -> str:
    """Return the name; raise ConfigError where it is none."""
    if not _NAME.fullmatch(name):
        proposal = _proposal(name)
        fix = f"take --name {proposal}" if proposal else "choose another one with --name"
        raise ConfigError(explain("job name", got=repr(name), allowed=_ALLOWED, fix=fix))
    return name


def default_name(job_file: str | os.PathLike[str]) -> str:
    """Return the name of a job that was given none: its file's, without the ending."""
    return check_job_name(Path(job_file).stem)


def _proposal(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:63]

"""The user's own modules: imported where he names them himself, on a command line or in the job that he starts."""

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from dask_rl.storage.errors import ConfigError, explain

ImportName = Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]
"""A module's name, with the packages that it is in."""


class Imports(BaseModel):
    """The part of a job that has to be read before the others."""

    imports: tuple[ImportName, ...] = ()


def import_modules(names: Iterable[str]) -> None:
    """Import modules from the working directory or the Python path; workers that are spawned here find them too.

    Raises:
        ConfigError: there is no such module, or it cannot be imported.
    """
    names, here = list(names), os.getcwd()
    if names and here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except ConfigError as error:
            raise ConfigError(f"imports: {name}: {error}") from error
        except Exception as error:  # it is the user's code: whatever goes wrong there, it is told
            got = " ".join(f"{name}, {type(error).__name__}: {error}".split())
            fix = "correct the module or its name; it is sought in the working directory and on PYTHONPATH"
            raise ConfigError(explain("imports", got=got, fix=fix)) from error

"""The user's own modules: imported where he names them himself, on a command line or in the job that he starts."""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dask_rl.storage.errors import ConfigError, explain

ImportName = Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]
"""A module's name, with the packages that it is in."""
_ID_WITH_MODULE = re.compile(r"\s*([^\W\d][\w.]*):(?!//)")


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


def modules_named(environment: Any, environment_kwargs: Any) -> set[str]:
    """Return the modules that Gymnasium imports to make an environment of such an id, as in my_module:MyEnvironment-v0.

    Ids among the arguments count too: there are environments that wrap another one.
    """
    names = {text.partition(":")[0] for text in _texts(environment) if ":" in text}
    return names | {found[1] for text in _texts(environment_kwargs) if (found := _ID_WITH_MODULE.match(text))}


def refuse_modules(environment: str | None, environment_kwargs: Mapping[str, Any], run: str | os.PathLike[str]) -> None:
    """Refuse an environment of a run's directory that would import what is not imported yet: it may be a stranger's.

    Args:
        environment: its id; None: the user has named one himself.
        environment_kwargs: its arguments.
        run: the directory.

    Raises:
        ConfigError: it names such a module.
    """
    for name in sorted(modules_named(environment, environment_kwargs) - sys.modules.keys()):
        raise ConfigError(
            explain(
                f"evaluation of {run}",
                got=f"an environment that imports {name!r}",
                allowed="one of a module that is imported already: a run's directory imports nothing",
                fix=f"if you know it, `dask-rl eval --import {name}`, in Python `import {name}` first; or name the "
                "environment yourself: `--environment module:Id`, evaluate(environment=…)",
            )
        )


def _texts(value: Any) -> Iterator[str]:
    """Yield all text in a setting."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)

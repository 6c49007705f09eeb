"""The algorithms by name."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from dask_rl.learners.algorithm import Algorithm, AlgorithmConfig
from dask_rl.storage.errors import ConfigError, explain

from .bc import BC
from .iql import IQL

_ALGORITHMS: dict[str, type[Algorithm[Any]]] = {}


_OWN = (BC, IQL)


def register_algorithm(cls: type[Algorithm[Any]]) -> type[Algorithm[Any]]:
    """Make an algorithm known by its name; usable as a decorator on your own class, again after a change of it.

    Raises:
        ConfigError: its Config has another name, or the name is that of an algorithm of this package.
    """
    named = cls.Config.model_fields["name"].default
    if named != cls.name:
        fix = f'write `name: Literal["{cls.name}"] = "{cls.name}"` there'
        raise ConfigError(explain(f"{cls.Config.__name__}.name", got=named, allowed=repr(cls.name), fix=fix))
    if cls.name in (own.name for own in _OWN) and cls not in _OWN:
        raise ConfigError(explain(f"{cls.__name__}.name", got=f"{cls.name!r}, which is taken", fix="choose another"))
    _ALGORITHMS[cls.name] = cls
    return cls


for _cls in _OWN:
    register_algorithm(_cls)


def algorithm_names() -> list[str]:
    """Return the known names, sorted."""
    return sorted(_ALGORITHMS)


def get_algorithm(name: str) -> type[Algorithm[Any]]:
    """Return an algorithm's class; an unknown name raises ConfigError with the nearest known one."""
    if isinstance(name, str) and name in _ALGORITHMS:
        return _ALGORITHMS[name]
    near = difflib.get_close_matches(str(name), _ALGORITHMS, n=1)
    own = "import the module that registers your own (--import MODULE, imports: [MODULE] in a job)"
    fix = f"did you mean {near[0]!r}?" if near else f"use one of these, or {own}"
    raise ConfigError(explain("algorithm.name", got=repr(name), allowed=", ".join(algorithm_names()), fix=fix))


def parse_algorithm(settings: Mapping[str, Any]) -> AlgorithmConfig:
    """Build an algorithm's config from a mapping with its name; problems raise ConfigError, a line each."""
    if "name" not in settings:
        raise ConfigError(
            explain("algorithm", got=dict(settings), allowed=", ".join(algorithm_names()), fix="add a name: {name: bc}")
        )
    config_class = get_algorithm(settings["name"]).Config
    try:
        return config_class.model_validate(dict(settings))
    except ValidationError as error:
        lines = [
            explain(
                ".".join(["algorithm", *map(str, problem["loc"])]),
                got=repr(problem.get("input")),
                allowed=_keys_at(config_class, problem["loc"])
                if problem["type"] == "extra_forbidden"
                else problem["msg"],
                fix="correct the key" if problem["type"] == "extra_forbidden" else "correct the value",
            )
            for problem in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None


def build_algorithm(config: AlgorithmConfig) -> Algorithm[Any]:
    """Return the algorithm of a config."""
    return get_algorithm(config.name)(config)


def _keys_at(config_class: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Return the keys that are known where one was found that is not."""
    for key in place[:-1]:
        inner = config_class.model_fields[str(key)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        config_class = inner
    return sorted(config_class.model_fields)

"""Checks of arguments that users give: what they are, before anything is begun with them. Knows no batch."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dask_rl.storage.errors import ConfigError, explain

_ONE_PASS = ("builtins", "itertools")
"""Where Python's own iterators, generators among them, come from: none of them can begin again."""


def check_count(name: str, value: Any) -> int:
    """Return an integer, of any type of them."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(explain(name, got=repr(value), allowed="an integer", fix=f"correct {name}")) from None


def check_names(name: str, value: Any, allowed: str) -> None:
    """Raise ConfigError unless it is a mapping whose keys are strings."""
    if not isinstance(value, Mapping):
        raise ConfigError(explain(name, got=type(value).__name__, allowed=allowed, fix=f"correct {name}"))
    wrong = [key for key in value if not isinstance(key, str)]
    if wrong:
        got, fix = f"the key {wrong[0]!r}", "use names as keys"
        raise ConfigError(explain(name, got=got, allowed=allowed, fix=fix))


def check_list(name: str, value: Any, allowed: str) -> None:
    """Raise ConfigError unless it is a list or tuple, or the like."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ConfigError(explain(name, got=type(value).__name__, allowed=allowed, fix=f"correct {name}"))


def check_iterables(given: Mapping[int, Any]) -> None:
    """Raise ConfigError where what is to give a learner its batches cannot be begun again, or not at all; by rank."""
    for rank, one in given.items():
        subject, allowed = f"iterators: that of learner {rank}", "a list or another iterable that can begin again"
        if isinstance(one, Iterator) and type(one).__module__ in _ONE_PASS:
            got = f"a {type(one).__name__}, which cannot begin again, nor be sent to a worker"
            raise ConfigError(explain(subject, got=got, allowed=allowed, fix="wrap it in a class with __iter__"))
        if not isinstance(one, Iterable) or isinstance(one, str | bytes):
            raise ConfigError(explain(subject, got=type(one).__name__, allowed=allowed, fix="give it batches"))


def check_ranks(name: str, given: Iterable[Any] | None, num_learners: int) -> list[int]:
    """Return numbers of learners, None being all; raise ConfigError where there is no such learner."""
    if given is None:
        return list(range(num_learners))
    if not isinstance(given, Iterable):
        raise ConfigError(explain(name, got=repr(given), allowed="a list of numbers", fix=f"correct {name}"))
    ranks = [check_count(name, rank) for rank in given]
    if unknown := [rank for rank in ranks if not 0 <= rank < num_learners]:
        allowed = f"0 to {num_learners - 1}"
        raise ConfigError(explain(name, got=f"no learners {unknown}", allowed=allowed, fix="use these"))
    return ranks

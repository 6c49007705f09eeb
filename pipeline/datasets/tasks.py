"""Runs the tasks of a dataset on a Dask cluster: retried, in order, with a bounded number under way."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from distributed import Client

from dask_rl.pipeline.rollouts.tasks import map_in_order
from dask_rl.pipeline.runs.clusters.opened import open_workers
from dask_rl.storage.building.parallel_build import TaskRunner
from dask_rl.storage.errors import ConfigError, InvalidDataError, SourceFormatError, explain

TASK_TIMEOUT_SECONDS = 3600.0
"""In which a task comes to its end: one that reads a whole source may take long."""

# What would fail again: no reason to run the task again, nor for a worker to log it.
_HOPELESS = (InvalidDataError, SourceFormatError, ConfigError)


@contextmanager
def open_runner(client: Client | None, num_workers: int) -> Iterator[TaskRunner]:
    """Give what runs tasks on the workers of a client or, without one, on so many that are started here.

    Raises:
        ConfigError: both were given.
    """
    if client is not None and num_workers:
        raise ConfigError(
            explain("num_workers", got=f"{num_workers} and a client", allowed="one of both", fix="leave one out")
        )
    with open_workers(num_workers) if client is None else nullcontext(client) as workers:
        yield make_runner(workers)


def make_runner(client: Client | None, timeout_seconds: float = TASK_TIMEOUT_SECONDS) -> TaskRunner:
    """Return what runs tasks on the workers of a client; None: in this process.

    A task runs again where its worker died or the machine failed; an error in the data is raised at once.
    """

    def run(function: Callable[[Any], Any], items: Iterable[Any], name: str) -> Iterator[Any]:
        attempt = functools.partial(_attempt, function)
        for result, error in map_in_order(attempt, items, client=client, name=name, timeout_seconds=timeout_seconds):
            if error is not None:
                raise error
            yield result

    return run


def _attempt(function: Callable[[Any], Any], item: Any) -> tuple[Any, Exception | None]:
    try:
        return function(item), None
    except _HOPELESS as error:
        return None, error

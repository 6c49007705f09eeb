"""Independent pieces of work as Dask tasks, their results in order; a plain loop without a cluster."""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import dask
from distributed import CancelledError, Client, KilledWorker

from dask_rl.learners.workers import workers_of
from dask_rl.storage.errors import DaskRLError, WaitTimeoutError, explain

RETRIES = 3
_TASKS_AHEAD_PER_WORKER = 2

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    client: Client | None,
    name: str,
    timeout_seconds: float,
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in the order of the items.

    At most two tasks per worker are ahead of the consumer, so that results do not pile up.

    Args:
        function: picklable, without side effects: a task whose worker died, or that raised, runs again.
        items: picklable arguments.
        client: where to run; None: here, one after the other.
        name: of the tasks, on the dashboard.
        timeout_seconds: bound on the wait for any one result; without a client `function` has to see to it.

    Raises:
        WaitTimeoutError: a result did not come in time.
        DaskRLError: workers died again and again on one task.
    """
    if client is None:
        yield from map(function, items)
        return
    remaining = iter(items)
    ahead = max(1, _TASKS_AHEAD_PER_WORKER * len(workers_of(client)))

    def submit(item: Item) -> Any:
        # An argument stays with the scheduler and outlives any worker, as scattered data would not.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
            return client.submit(function, item, key=f"{name}-{uuid.uuid4()}", retries=RETRIES, pure=False)

    pending = deque(submit(item) for item in islice(remaining, ahead))
    try:
        while pending:
            yield _result(pending[0], name, timeout_seconds)
            pending.popleft()
            pending.extend(submit(item) for item in islice(remaining, 1))
    finally:
        if pending:
            client.cancel(list(pending))


def _result(future: Any, name: str, timeout_seconds: float) -> Any:
    try:
        return future.result(timeout=timeout_seconds)
    except TimeoutError:
        if future.status == "error":  # the task's own: of what it plays in, or reads
            raise
        raise WaitTimeoutError(
            explain(
                f"{name} task",
                got=f"no result within {timeout_seconds:g} s",
                fix="raise timeout_seconds or start more workers",
            )
        ) from None
    except (KilledWorker, CancelledError) as error:
        raise DaskRLError(
            explain(f"{name} task", got=" ".join(str(error).split()), fix="give the workers more memory")
        ) from None

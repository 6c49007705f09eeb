"""Update calls leave no memory behind: neither here nor in the workers, however many there are."""

import gc
import itertools
import os
import statistics
from collections.abc import Callable

import psutil
import pytest
from faults import pid_of
from group_cases import SPEC, group_config, rows_of

from dask_rl.learners.group import LearnerGroup

pytestmark = pytest.mark.storm

NUM_WARM_UP = 2_500
"""Until then pools and caches of Python, Dask and torch fill."""
NUM_CALLS = int(os.environ.get("DASK_RL_MEMORY_CALLS", "1500"))
"""10,000 by DASK_RL_MEMORY_CALLS=10000, which take some minutes."""
NUM_PARTS = 10
LIMIT = 0.02


def update(group: LearnerGroup, num_calls: int) -> None:
    batch = rows_of(8)
    for _ in range(num_calls):
        group.update_from_batch(batch)


def update_async(group: LearnerGroup, num_calls: int) -> None:
    batch = rows_of(8)
    results = 0
    for _ in range(num_calls):
        while not group.dispatcher.has_room:
            group.dispatcher.advance(0.1)
        results += len(group.update_from_batch(batch, async_update=True))
    results += len(group.collect_async_results(60))
    assert results == num_calls


@pytest.mark.parametrize(
    ("num_learners", "go_on"), [(0, update), (2, update), (2, update_async)], ids=["local", "two learners", "async"]
)
def test_memory_stays_as_it_is(cluster_client, num_learners: int, go_on: Callable[[LearnerGroup, int], None]):
    with LearnerGroup(group_config(num_learners), module_spec=SPEC, client=cluster_client) as group:
        pids = [os.getpid(), *(pid_of(group, rank) for rank in range(num_learners))]

        def resident() -> list[int]:
            gc.collect()
            cluster_client.run(gc.collect)
            return [psutil.Process(pid).memory_info().rss for pid in pids]

        go_on(group, NUM_WARM_UP)
        sizes = [resident()]
        for _ in range(NUM_PARTS):
            go_on(group, NUM_CALLS // NUM_PARTS)
            sizes.append(resident())
    # Of few calls the median of the parts tells what each leaves: what comes once is no leak.
    steady = [
        statistics.median(after - before for before, after in itertools.pairwise(of_one)) * NUM_PARTS / NUM_CALLS
        for of_one in zip(*sizes, strict=True)
    ]
    growth = [10_000 * each / first for each, first in zip(steady, sizes[0], strict=True)]
    print("growth over 10,000 calls:", ", ".join(f"{each:.2%}" for each in growth))
    assert max(growth) < LIMIT
    in_all = [last / first - 1 for first, last in zip(sizes[0], sizes[-1], strict=True)]
    print(f"in all, over {NUM_CALLS} calls:", ", ".join(f"{each:.2%}" for each in in_all))
    assert max(in_all) < LIMIT

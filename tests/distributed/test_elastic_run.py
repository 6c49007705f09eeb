"""A group whose learners come and go during one run learns what one learner learns."""

import os
import signal

import numpy as np
import pytest
from faults import flat_weights, make_group, pid_of

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster

pytestmark = pytest.mark.storm

SETTINGS = {
    "num_learners": 4,
    "elastic": True,
    "precision": "fp64",
    "workers_timeout_seconds": 1,
    "replacement_timeout_seconds": 1,
}
NUM_STEPS = 50_000
"""Planned, for the schedules; how many it takes depends on how soon workers come."""
MAX_STEPS = 40_000


def test_one_two_four_three_two_learners_in_one_run(continuous_dataset):
    with open_cluster(ClusterConfig(), num_workers=1) as client:
        group, data = make_group(continuous_dataset, client, num_steps=NUM_STEPS, **SETTINGS)
        with group:
            sizes = [len(group)]
            steps = advance(group, data, 0)
            for size in (2, 4, 3, 2):
                resize(client, group, size)
                steps = advance(group, data, steps, until=size)
                sizes.append(len(group))
            elastic = flat_weights(group)
            names = [event.name for event in group.events]
        alone, data = make_group(continuous_dataset, client, num_steps=NUM_STEPS, num_learners=1, precision="fp64")
        with alone:
            alone.update_from_iterators(data.data, num_iters=steps)
            reference = flat_weights(alone)
    assert sizes == [1, 2, 4, 3, 2]
    assert names.count("learner_lost") == 2
    assert np.linalg.norm(elastic - reference) / np.linalg.norm(reference) <= 1e-9


def advance(group, data, steps: int, until: int | None = None) -> int:
    """Take steps until the group has a size, and some more."""
    while until is not None and len(group) != until:
        assert steps < MAX_STEPS
        group.update_from_iterators(data.data, num_iters=20)
        steps += 20
    group.update_from_iterators(data.data, num_iters=100)
    return steps + 100


def resize(client, group, num_workers: int) -> None:
    """Add workers; or kill the one that the cluster gives up first, so that its nanny brings none in its place."""
    cluster = client.cluster
    if num_workers < len(cluster.workers):
        address = list(cluster.workers.values())[-1].worker_address
        [rank] = [rank for rank, handle in enumerate(group.manager.handles) if handle.where == address]
        os.kill(pid_of(group, rank), signal.SIGKILL)
    cluster.scale(num_workers)

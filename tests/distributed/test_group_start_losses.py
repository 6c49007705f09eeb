"""Workers that leave while an actor of theirs starts: others take over, and the weights are those without it."""

import os
import signal
import time

import numpy as np
import pytest
from faults import pid_of
from group_cases import SPEC, Sharded, assert_learners_agree, flat, group_config

from dask_rl.learners.dask_handle import DaskHandle
from dask_rl.learners.group import LearnerGroup
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster

pytestmark = pytest.mark.storm


@pytest.fixture(scope="module")
def workers():
    with open_cluster(ClusterConfig(log_level="critical"), num_workers=3) as client:
        yield client


@pytest.fixture
def leaving(workers, monkeypatch):
    """Returns what arms it: the next worker to construct an actor ends, as of SIGTERM, before anybody hears of it."""
    workers.wait_for_workers(3, timeout=60)
    armed, left, start = [], [], DaskHandle.start

    def starting(handle, timeout):
        if armed:
            armed.clear()
            wait_until(lambda: handle.is_constructed)
            os.kill(workers.run(os.getpid, workers=[handle.where])[handle.where], signal.SIGTERM)
            wait_until(lambda: handle.where not in workers.scheduler_info(n_workers=-1)["workers"])
            left.append(handle.where)
        start(handle, timeout)

    monkeypatch.setattr(DaskHandle, "start", starting)
    yield lambda: armed.append(True)
    assert len(left) == 1


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def make(client, size):
    return LearnerGroup(group_config(size), module_spec=SPEC, client=client)


def trained(group):
    for _ in range(2):
        group.update_from_iterators(Sharded(), num_iters=3)
    assert_learners_agree(group)
    return flat(group.get_weights())


@pytest.mark.parametrize("size", [1, 2])
def test_while_a_group_starts(workers, leaving, size):
    with make(workers, size) as group:
        undisturbed = trained(group)
    leaving()
    with make(workers, size) as group:
        np.testing.assert_array_equal(trained(group), undisturbed)


def test_while_a_replacement_starts(workers, leaving):
    with make(workers, 2) as group:
        undisturbed = trained(group)
    with make(workers, 2) as group:
        group.update_from_iterators(Sharded(), num_iters=3)
        leaving()
        os.kill(pid_of(group, 1), signal.SIGKILL)
        group.update_from_iterators(Sharded(), num_iters=3)
        assert_learners_agree(group)
        np.testing.assert_array_equal(flat(group.get_weights()), undisturbed)
        assert group.get_stats()["num_restarts"] == 2

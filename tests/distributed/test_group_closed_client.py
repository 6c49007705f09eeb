"""Clients and clusters that are closed under a group: one line that says so, and a shutdown without a word."""

import os
import threading

import pytest
from distributed import Client, LocalCluster
from group_cases import SPEC, Sharded, group_config, rows_of

from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.own_cluster import keeping_places
from dask_rl.storage.errors import LearnerLostError

pytestmark = pytest.mark.service
MANY = 10_000


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with keeping_places(LocalCluster)(**options) as cluster:
        yield cluster


def make(client, size):
    return LearnerGroup(group_config(size, {"name": "bc"}), module_spec=SPEC, client=client)


def assert_all_is_refused(group, match):
    calls = {
        "update": lambda: group.update_from_batch(rows_of(8)),
        "weights": group.get_weights,
        "restart": group.restart,
        "shares": lambda: group.update_from_iterators(Sharded(), num_iters=2),
    }
    for call in calls.values():
        with pytest.raises(LearnerLostError, match=match):
            call()
    assert group.get_stats()["num_healthy_learners"] == 0
    group.shutdown()
    group.shutdown()


@pytest.mark.parametrize("size", [1, 2])
def test_a_client_that_is_closed_between_two_updates(cluster, size):
    client = Client(cluster)
    group = make(client, size)
    group.update_from_batch(rows_of(8))
    client.close()
    assert_all_is_refused(group, "^Dask client: got a closed one; allowed: one that stays open until the group is")


def test_a_cluster_that_is_closed_in_the_midst_of_an_update():
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    cluster = keeping_places(LocalCluster)(**options)
    client = Client(cluster)
    group = make(client, 1)
    closing = threading.Timer(0.5, cluster.close)
    closing.start()
    try:
        with pytest.raises(LearnerLostError, match=r"Dask cluster \(its scheduler\)|Dask client|Dask scheduler|nobody"):
            group.update_from_iterators(Sharded(), num_iters=MANY)
        closing.join()
        assert_all_is_refused(group, r"^Dask cluster \(its scheduler\): got a closed one")
    finally:
        client.close()
        cluster.close()


def test_a_group_that_is_let_go_of_after_its_client(cluster):
    client = Client(cluster)
    group = make(client, 1)
    client.close()
    del group  # an exception there would be a warning, and so an error


def test_processes_of_learners_go_on(cluster):
    """Nobody is killed where a client is closed: others may use the same workers."""
    with Client(cluster, set_as_default=False) as watching:
        before = watching.run(os.getpid)
        client = Client(cluster)
        group = make(client, 2)
        client.close()
        group.shutdown()
        assert watching.run(os.getpid) == before


def test_a_client_that_is_closed_in_the_midst_of_an_update(cluster):
    client = Client(cluster)
    closing = threading.Timer(0.5, client.close)
    with make(client, 2) as group:
        closing.start()
        with pytest.raises(LearnerLostError, match=r"^(Dask client: got a closed one|.*the Dask client was closed)"):
            group.update_from_iterators(Sharded(), num_iters=MANY)
        closing.join()

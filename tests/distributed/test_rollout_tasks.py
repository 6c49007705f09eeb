"""Rollouts as Dask tasks: the same numbers for any number of workers, and after workers die."""

import os
import signal
import threading

import numpy as np
import pytest

from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.rollouts.controllers import PendulumSwingUp
from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig, evaluate
from dask_rl.pipeline.rollouts.tasks import map_in_order
from dask_rl.pipeline.runs.clusters.opened import open_workers
from dask_rl.storage.errors import ConfigError, DaskRLError, WaitTimeoutError

PENDULUM = EvaluationConfig(environment="Pendulum-v1", num_episodes=23, episodes_per_task=4)


def run_in_order(function, items, client, timeout_seconds=30.0):
    return list(map_in_order(function, items, client=client, name="test", timeout_seconds=timeout_seconds))


def test_evaluation_does_not_depend_on_the_workers(cluster_client):
    seen = []
    there = evaluate(PendulumSwingUp(), PENDULUM, client=cluster_client, progress=lambda *done: seen.append(done))
    assert there == evaluate(PendulumSwingUp(), PENDULUM)
    assert seen[-1] == (23, 23)


def test_collected_data_does_not_depend_on_the_workers(cluster_client, tmp_path):
    config = CollectConfig(
        environment="Pendulum-v1", policy="pendulum-swing-up", action_noise=0.3, num_episodes=9, episodes_per_task=2
    )
    here = collect(config, tmp_path / "here.zarr")
    there = collect(config, tmp_path / "there.zarr", client=cluster_client)
    assert here.content_hash == there.content_hash
    assert there.episode_ids.tolist() == list(range(9))


def test_results_come_in_order_though_tasks_end_out_of_order(cluster_client):
    def wait(item):
        event = threading.Event()
        event.wait(0.2 if item % 2 == 0 else 0)
        return item

    assert run_in_order(wait, range(9), cluster_client) == list(range(9))


def test_a_task_that_fails_twice_is_run_again(cluster_client, tmp_path):
    def flaky(item):
        attempt = len(list(tmp_path.iterdir()))
        (tmp_path / str(attempt)).touch()
        if attempt < 2:
            raise RuntimeError("not yet")
        return attempt

    assert run_in_order(flaky, [0], cluster_client) == [2]


def test_a_worker_that_dies_in_mid_task_is_replaced_and_its_task_run_again(tmp_path):
    def deadly(item):
        marker = tmp_path / "died"
        if item == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid()

    with open_workers(1) as client:
        (first,) = client.run(os.getpid).values()
        results = run_in_order(deadly, range(3), client)
    assert [item for item, _ in results] == [0, 1, 2]
    assert results[1][1] != first


@pytest.mark.service
def test_a_task_that_kills_every_worker_is_an_error_that_says_so():
    def deadly(item):
        os.kill(os.getpid(), signal.SIGKILL)

    with open_workers(1) as client, pytest.raises(DaskRLError, match="test task: got"):
        run_in_order(deadly, [0], client)


def test_a_task_that_never_ends_is_a_timeout(cluster_client):
    def hang(item):
        threading.Event().wait(2)

    with pytest.raises(WaitTimeoutError, match=r"test task: got no result within 0\.3 s"):
        run_in_order(hang, [0], cluster_client, timeout_seconds=0.3)


def test_an_error_of_the_environment_on_a_worker_reaches_the_caller(cluster_client):
    def refuse(item):
        raise ConfigError(f"item {item}: refused")

    with pytest.raises(ConfigError, match="item 7: refused"):
        run_in_order(refuse, [7], cluster_client)


def test_a_timeout_of_the_environments_own_is_not_taken_for_a_slow_task(cluster_client):
    def time_out(item):
        raise TimeoutError("the simulator does not answer")

    with pytest.raises(TimeoutError, match="the simulator does not answer"):
        run_in_order(time_out, [0], cluster_client)


def test_without_a_cluster_it_is_a_plain_loop():
    assert run_in_order(np.square, [1, 2, 3], None) == [1, 4, 9]

"""Learners that are lost or hang are replaced, and the outcome does not change by a bit."""

import os
import signal
import socket
import time

import numpy as np
import psutil
import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster
from faults import (
    Disturbance,
    SlowData,
    cut_sockets,
    devour_memory_once,
    fail_once,
    flat_weights,
    hang_once,
    leave,
    make_group,
    pid_of,
    send_signal,
)

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.storage.errors import (
    GroupLostError,
    LearnerError,
    LearnerLostError,
    RestartLimitError,
    WorkersMissingError,
)

pytestmark = pytest.mark.storm

NUM_STEPS = 600
QUICK = {"health_timeout_seconds": 3, "collective_timeout_seconds": 5}
"""Shorter than a user would set it."""


@pytest.fixture(scope="module")
def three_workers():
    """One more than there are learners: a spare."""
    with open_cluster(ClusterConfig(num_workers=3), num_workers=3) as client:
        client.wait_for_workers(3, timeout=60)
        yield client


@pytest.fixture(scope="module")
def undisturbed(continuous_dataset, three_workers):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        return flat_weights(group)


def names(group) -> list[str]:
    return [event.name for event in group.events]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_learner_that_is_killed_is_replaced(continuous_dataset, three_workers, undisturbed, rank):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        pid = pid_of(group, rank)
        with Disturbance(group, 150, send_signal(pid, signal.SIGKILL)) as kill:
            results = group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        assert kill.happened.is_set()
        assert pid_of(group, rank) != pid
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["learner_lost", "rejoined"]
        assert group.get_stats()["num_restarts"] == 1
        assert max(result["all_modules"]["num_steps"] for result in results) == NUM_STEPS


def test_a_learner_that_is_stopped_is_given_up_after_the_health_timeout(continuous_dataset, three_workers, undisturbed):
    group, data = make_group(continuous_dataset, three_workers, **QUICK)
    with group:
        with Disturbance(group, 150, send_signal(pid_of(group, 1), signal.SIGSTOP)) as stop:
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        assert stop.happened.is_set()
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group)[:2] == ["learner_lost", "rejoined"]
        assert "no answer in" in group.events[0].details["cause"]


def test_a_loss_that_hangs_is_given_up_and_its_process_replaced(
    continuous_dataset, three_workers, undisturbed, tmp_path
):
    group, data = make_group(continuous_dataset, three_workers, **QUICK)
    with group:
        group.foreach_learner(hang_once, remote_actor_ids=[1], mark=str(tmp_path / "mark"), step=150)
        group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["learner_lost", "rejoined"]
        assert "updating for" in group.events[0].details["cause"]
        assert "at step 150" in group.events[0].details["cause"]


def test_sockets_that_are_cut_between_learners_cost_a_meeting_and_no_process(
    continuous_dataset, three_workers, undisturbed
):
    group, data = make_group(continuous_dataset, three_workers, **QUICK)
    with group:
        pids = [pid_of(group, rank) for rank in range(2)]
        handle = group.manager.handles[1]
        with Disturbance(group, 150, lambda: three_workers.run(cut_sockets, workers=[handle.where])) as cut:
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        assert cut.happened.is_set()
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["rejoined"]
        assert [pid_of(group, rank) for rank in range(2)] == pids


def test_data_that_come_later_than_peers_wait_cost_a_meeting_and_no_process(
    continuous_dataset, three_workers, undisturbed, tmp_path
):
    group, data = make_group(continuous_dataset, three_workers, collective_timeout_seconds=1)
    late = SlowData(data.data, step=150, seconds=4, mark=str(tmp_path / "mark"))
    with group:
        group.update_from_iterators(late, num_iters=NUM_STEPS)
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["rejoined"]
        assert (tmp_path / "mark").exists()


def test_a_learner_that_takes_too_much_memory_is_killed_and_replaced(continuous_dataset, undisturbed, tmp_path):
    with open_cluster(ClusterConfig(memory_per_worker="1GB"), num_workers=2) as client:
        group, data = make_group(continuous_dataset, client)
        with group:
            mark = str(tmp_path / "mark")
            group.foreach_learner(devour_memory_once, remote_actor_ids=[0], mark=mark, step=150)
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
            np.testing.assert_array_equal(flat_weights(group), undisturbed)
            assert names(group) == ["learner_lost", "rejoined"]


def test_a_worker_that_leaves_gracefully_is_replaced(continuous_dataset, three_workers, undisturbed):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        address = group.manager.handles[1].where
        with Disturbance(group, 150, lambda: three_workers.run(leave, workers=[address], wait=False)) as left:
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        assert left.happened.is_set()
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["learner_lost", "rejoined"]


def test_adaptive_scaling_takes_the_spare_worker_and_no_learner(continuous_dataset, three_workers, undisturbed):
    cluster = three_workers.cluster
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        adaptive = cluster.adapt(minimum=0, maximum=3, interval="100ms", wait_count=1)
        try:
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
            wait_until(lambda: len(three_workers.scheduler_info(n_workers=-1)["workers"]) == 2)
        finally:
            adaptive.stop()
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == []
    cluster.scale(3)
    three_workers.wait_for_workers(3, timeout=60)


def test_when_nobody_is_left_it_says_so_and_begins_anew_from_a_saved_state(
    continuous_dataset, three_workers, undisturbed
):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        group.update_from_iterators(data.data, num_iters=200)
        state = group.get_state()
        three_workers.restart()
        with pytest.raises(GroupLostError, match=r"nobody left \(learner 0: .*; learner 1: "):
            group.update_from_iterators(data.data, num_iters=200)
        group.restart()
        group.set_state(state)
        group.update_from_iterators(data.data, num_iters=NUM_STEPS - 200)
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["learner_lost", "learner_lost", "restarted"]


def test_without_a_worker_in_time_the_others_keep_the_state(continuous_dataset, undisturbed):
    with open_cluster(ClusterConfig(), num_workers=2) as client:
        group, data = make_group(continuous_dataset, client, replacement_timeout_seconds=1)
        with group:
            group.update_from_iterators(data.data, num_iters=200)
            client.run(leave, workers=[group.manager.handles[0].where], wait=False)
            with pytest.raises(WorkersMissingError, match="got 0 free workers of 1 in 1 s"):
                update_for_ever(group, data)
            state = group.get_state()
            step = state["learner"]["counters"]["step"]
            assert step >= 200
        other, data = make_group(continuous_dataset, client, num_learners=1)
        with other:  # a state of two learners goes on with one
            other.set_state(state)
            other.update_from_iterators(data.data, num_iters=NUM_STEPS - step)
            np.testing.assert_allclose(flat_weights(other), undisturbed, rtol=0.1, atol=1e-2)


def test_a_worker_at_the_address_of_a_lost_one_takes_its_place_again_and_again(continuous_dataset, undisturbed):
    """As with `dask worker --worker-port`."""
    workers = {k: {"cls": Nanny, "options": {"nthreads": 1, "worker_port": port}} for k, port in enumerate(two_ports())}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0"}}
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as client:
        group, data = make_group(continuous_dataset, client)
        with group:
            addresses = {handle.where for handle in group.manager.handles}
            for step in (100, 400):
                with Disturbance(group, step, send_signal(pid_of(group, 1), signal.SIGKILL)) as kill:
                    group.update_from_iterators(data.data, num_iters=NUM_STEPS // 2)
                assert kill.happened.is_set()
            assert {handle.where for handle in group.manager.handles} == addresses
            np.testing.assert_array_equal(flat_weights(group), undisturbed)
            assert names(group) == ["learner_lost", "rejoined"] * 2
            assert group.get_stats()["num_restarts"] == 2


def two_ports() -> list[int]:
    """Ports that nobody uses."""
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in (one, other)]


def test_a_spare_worker_that_hangs_is_passed_over_and_replaced(continuous_dataset, three_workers, undisturbed):
    wait_until(lambda: len(three_workers.run(os.getpid)) == 3)
    settings = {**QUICK, "startup_timeout_seconds": 10, "replacement_timeout_seconds": 30, "max_restarts": 3}
    alone, _ = make_group(continuous_dataset, three_workers, num_learners=1)
    with alone:  # on the worker that is looked at first
        group, data = make_group(continuous_dataset, three_workers, **settings)
        spare = pid_of(alone, 0)
    assert spare not in [pid_of(group, rank) for rank in range(2)]
    with group:
        wait_until(lambda: not three_workers.run_on_scheduler(actors_of, pid=spare))
        os.kill(spare, signal.SIGSTOP)
        with Disturbance(group, 150, send_signal(pid_of(group, 1), signal.SIGKILL)) as kill:
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        assert kill.happened.is_set()
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert names(group) == ["learner_lost", "rejoined"]
        assert group.get_stats()["num_restarts"] == 2, "the learner, and the start that hung"
    wait_until(lambda: not psutil.pid_exists(spare))
    three_workers.wait_for_workers(3, timeout=60)


def test_losses_again_and_again_end_the_run_and_name_the_cause(continuous_dataset, three_workers):
    group, data = make_group(continuous_dataset, three_workers, max_restarts=1)
    with group:
        with Disturbance(group, 100, send_signal(pid_of(group, 1), signal.SIGKILL)):
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)
        with (
            Disturbance(group, NUM_STEPS + 100, send_signal(pid_of(group, 1), signal.SIGKILL)),
            pytest.raises(RestartLimitError, match="got 2 lost learners in 600 s, the last one: learner 1: "),
        ):
            group.update_from_iterators(data.data, num_iters=NUM_STEPS)


def test_an_error_of_the_application_is_raised_with_its_traceback_and_the_group_stays_usable(
    continuous_dataset, three_workers, undisturbed
):
    group, data = make_group(continuous_dataset, three_workers)
    with group:
        group.update_from_iterators(data.data, num_iters=100)
        group.foreach_learner(fail_once, remote_actor_ids=[1], step=150)
        with pytest.raises(LearnerError, match="ZeroDivisionError") as caught:
            group.update_from_iterators(data.data, num_iters=100)
        assert not isinstance(caught.value, LearnerLostError)
        assert "failing" in "".join(caught.value.__notes__)
        step = group.get_state("learner/counters")["learner"]["counters"]["step"]
        assert step == 150
        group.update_from_iterators(data.data, num_iters=NUM_STEPS - step)
        np.testing.assert_array_equal(flat_weights(group), undisturbed)
        assert group.get_stats()["num_restarts"] == 0


def actors_of(dask_scheduler, pid: int) -> list[str]:
    [worker] = [worker for worker in dask_scheduler.workers.values() if worker.pid == pid]
    return [str(actor.key) for actor in worker.actors]


def update_for_ever(group, data) -> None:
    while True:
        group.update_from_iterators(data.data, num_iters=1)


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)

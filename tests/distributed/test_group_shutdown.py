"""After shutdown nothing of a learner group is left, whatever befell it: here, and in workers that go on."""

import _thread
import contextlib
import gc
import logging
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from failing_learners import (
    DiesWhileItBuilds,
    FailingBatches,
    FailsToBuild,
    FailsToJoin,
    HangsWhileItBuilds,
    step_of_learner,
)
from faults import pid_of
from group_cases import SPEC, Sharded, TellingLearner, group_config, make_episode, rows_of
from leftovers import Leftovers
from worker_code import open_files

from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.learner import Learner
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.storage.errors import ConfigError, GroupLostError, LearnerError, PeersLostError, WaitTimeoutError

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.storm]
SUPPORT = Path(__file__).parent.parent / "support"
KILL_SECONDS = 15.0
"""The time that learners are given to end, and that which killing them takes."""
MANY = 1_000_000


class OnlyHere(Learner):
    """In a module that workers do not have."""


@pytest.fixture(autouse=True)
def nothing_in_the_logs(caplog):
    """An exception that nobody took is logged by asyncio."""
    caplog.set_level(logging.ERROR)  # Dask's clusters set the level of pytest's handlers too
    yield
    ours = [record for record in caplog.records if record.name.split(".")[0] != "distributed"]
    assert [record.getMessage() for record in ours] == []


@pytest.fixture(scope="module")
def workers():
    """One more than there are learners; what may happen to them is of no concern to other tests."""
    with open_cluster(ClusterConfig(num_workers=3), num_workers=3) as client:
        client.wait_for_workers(3, timeout=60)
        with LearnerGroup(group_config(3), module_spec=SPEC, client=client) as group:
            group.update_from_batch(rows_of(9))  # Dask's and torch's pools of threads are there from now on
        yield client


@pytest.fixture
def left(workers):
    """What is left, compared with before the test; three workers are there again before it ends."""
    workers.wait_for_workers(3, timeout=60)
    left = Leftovers(workers)
    yield left
    workers.wait_for_workers(3, timeout=60)
    left.assert_none()


def make(client, size: int = 2, learner_class: type[Learner] = Learner, **settings) -> LearnerGroup:
    return LearnerGroup(group_config(size, **settings), module_spec=SPEC, client=client, learner_class=learner_class)


def shut_down(group: LearnerGroup, seconds: float = KILL_SECONDS) -> None:
    began = time.monotonic()
    group.shutdown()
    assert time.monotonic() - began < seconds
    group.shutdown()


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def step_of(group: LearnerGroup, rank: int = 0) -> int:
    return group.manager.handles[rank].ask_health().result(20).step


def test_what_a_group_has_is_noticed(workers, left):
    """The comparison itself: it sees all that is to be gone later."""
    with make(workers) as group:
        group.update_from_iterators(Sharded(), num_iters=2)
        found = left.now()
        for rank, address in enumerate(handle.where for handle in group.manager.handles):
            pid = pid_of(group, rank)
            assert {"gloo_tcp_loop", "pt_gloo_runloop"} <= set(found[f"threads of {pid}"])
            assert found[f"sockets of {pid}"]
            assert "Learner" in " ".join(found[f"learners of {address}"])
            assert found[f"actors of {address}"]
        assert len(found["actors"]) == len(found["tasks"]) == len(found["futures"]) == 2


@pytest.mark.parametrize("size", [1, 2])
def test_an_idle_group(workers, left, size):
    group = make(workers, size)
    group.update_from_batch(rows_of(8), num_epochs=2)
    group.update_from_iterators([[rows_of(4, k)] for k in range(size)], num_iters=2)
    group.update_from_episodes([make_episode(9, 1), make_episode(9, 2)])
    group.update_from_batch(workers.scatter([rows_of(4, k) for k in range(size)], direct=True))
    group.get_stats()
    shut_down(group, 5)


def test_a_group_that_did_nothing(workers, left):
    shut_down(make(workers), 5)


def test_a_local_group(left):
    group = make(None, 0)
    group.update_from_iterators(Sharded(), num_iters=2)
    shut_down(group, 1)


def test_a_local_group_whose_learner_cannot_be_built(left):
    with pytest.raises(LearnerError, match="no build"):
        make(None, 0, FailsToBuild)


def test_updates_in_flight_end_at_their_next_step(workers, left):
    group = make(workers)
    for _ in range(3):
        group.update_from_iterators(Sharded(), num_iters=MANY, async_update=True)
    wait_until(lambda: step_of(group) > 5)
    shut_down(group, 5)


def test_calls_in_flight_that_wait_and_drops_that_are_still_counted(workers, left):
    group = make(workers, max_requests_in_flight_per_learner=1)
    group.update_from_iterators(Sharded(), num_iters=MANY, async_update=True)
    for _ in range(3):
        rows = [workers.submit(rows_of, 4, k, pure=False) for k in range(2)]
        group.update_from_batch(rows, async_update=True)
    started = group.foreach_learner(step_of_learner, return_futures=True)
    shut_down(group, 5)
    del rows, started


def test_an_update_that_waits_for_a_task_which_never_ends(workers, left):
    group = make(workers, data_timeout_seconds=2)
    never = workers.submit(time.sleep, 3, pure=False, workers=[spare(workers, group)])
    group.update_from_batch([never, never], async_update=True)
    shut_down(group)
    never.cancel(force=True)


def spare(client, group) -> str:
    addresses = client.scheduler_info(n_workers=-1)["workers"]
    return next(a for a in addresses if a not in [handle.where for handle in group.manager.handles])


def test_a_hook_that_hangs_costs_its_process(workers, left, tmp_path):
    group = make(workers, learner_class=TellingLearner)
    pids = [pid_of(group, rank) for rank in range(2)]
    group.update_from_batch(rows_of(8), async_update=True, gate=str(tmp_path / "gate"))
    wait_until(lambda: all(group.manager.handles[k].ask_health().result(9).state == "updating" for k in range(2)))
    shut_down(group)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_learner_that_was_killed_and_not_replaced(workers, left, rank):
    group = make(workers)
    group.update_from_batch(rows_of(8))
    os.kill(pid_of(group, rank), signal.SIGKILL)
    shut_down(group)


def test_a_kill_that_dask_has_noticed(workers, left):
    group = make(workers)
    os.kill(pid_of(group, 1), signal.SIGKILL)
    wait_until(lambda: group.manager.lost)
    shut_down(group)


def test_a_kill_while_an_update_is_under_way(workers, left):
    group = make(workers)
    group.update_from_iterators(Sharded(), num_iters=MANY, async_update=True)
    wait_until(lambda: step_of(group) > 5)
    os.kill(pid_of(group, 0), signal.SIGKILL)
    shut_down(group)


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_learner_that_is_stopped_loses_its_process(workers, left, is_busy):
    group = make(workers)
    pid = pid_of(group, 1)
    if is_busy:
        group.update_from_iterators(Sharded(), num_iters=MANY, async_update=True)
        wait_until(lambda: step_of(group) > 5)
    os.kill(pid, signal.SIGSTOP)
    shut_down(group)
    wait_until(lambda: not psutil.pid_exists(pid))


def test_all_learners_stopped(workers, left):
    group = make(workers)
    pids = [pid_of(group, rank) for rank in range(2)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    shut_down(group)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


@pytest.mark.parametrize(
    ("learner_class", "settings", "error"),
    [
        (FailsToBuild, {}, LearnerError),
        (FailsToJoin, {}, LearnerError),
        (HangsWhileItBuilds, {"startup_timeout_seconds": 2}, WaitTimeoutError),
        (Learner, {"size": 4, "workers_timeout_seconds": 0.2}, ConfigError),
    ],
)
def test_a_group_that_never_came_about(workers, left, learner_class, settings, error):
    began = time.monotonic()
    with pytest.raises(error) as caught:
        make(workers, learner_class=learner_class, **settings)
    assert not isinstance(caught.value, PeersLostError)
    assert time.monotonic() - began < KILL_SECONDS + 5
    del caught


def test_a_worker_that_dies_while_a_group_comes_about(workers, left):
    with pytest.raises(LearnerError):
        make(workers, learner_class=DiesWhileItBuilds)


def test_a_class_that_workers_cannot_import_costs_no_worker(workers, left):
    pids = sorted(workers.run(os.getpid).values())
    with pytest.raises(LearnerError, match=r"ModuleNotFoundError.*install the same packages on the workers"):
        make(workers, learner_class=OnlyHere)
    assert sorted(workers.run(os.getpid).values()) == pids


def test_a_group_that_is_lost(workers, left):
    group = make(workers)
    group.update_from_batch(rows_of(8))
    workers.restart()
    with pytest.raises(GroupLostError):
        group.update_from_batch(rows_of(8))
    shut_down(group)


def test_a_group_that_began_anew(workers, left):
    group = make(workers)
    workers.restart()
    with pytest.raises(GroupLostError):
        group.update_from_batch(rows_of(8))
    group.restart()
    group.update_from_batch(rows_of(8))
    shut_down(group, 5)


def test_a_group_in_which_a_learner_was_replaced(workers, left):
    group = make(workers)
    os.kill(pid_of(group, 0), signal.SIGKILL)
    group.update_from_batch(rows_of(8))
    shut_down(group, 5)


def test_an_error_of_the_application(workers, left):
    group = make(workers)
    with pytest.raises(LearnerError, match="on purpose"):
        group.update_from_iterators([FailingBatches()] * 2, num_iters=3)
    shut_down(group, 5)


@pytest.mark.parametrize("size", [0, 2])
def test_an_interrupt_while_it_updates(workers, left, size):
    group = make(workers, size)
    with group:
        interrupter = threading.Thread(target=interrupt_at_step, args=(group, 20))
        interrupter.start()
        with contextlib.suppress(KeyboardInterrupt):
            group.update_from_iterators(Sharded(), num_iters=MANY)
        interrupter.join()
    shut_down(group)


def interrupt_at_step(group: LearnerGroup, step: int) -> None:
    wait_until(lambda: step_of(group) > step)
    _thread.interrupt_main()


@pytest.mark.parametrize("state", ["idle", "in flight", "killed"])
def test_a_group_that_is_let_go_of(workers, left, state):
    group = make(workers)
    if state == "in flight":
        group.update_from_iterators(Sharded(), num_iters=MANY, async_update=True)
    if state == "killed":
        os.kill(pid_of(group, 0), signal.SIGKILL)
    del group
    gc.collect()


def test_recruits_that_have_not_joined(workers, left):
    """A group with fewer learners than it may have takes in workers; they are let go with the others."""
    group = make(workers, 3, elastic=True)
    os.kill(pid_of(group, 2), signal.SIGKILL)
    group.update_from_batch(rows_of(9))
    shut_down(group)


def test_one_group_after_the_other_leaves_not_one_file_open(workers, left):
    counts = []
    for _ in range(4):
        with make(workers) as group:
            group.update_from_iterators(Sharded(), num_iters=2)
        left.assert_none()
        counts.append([psutil.Process().num_fds(), *sorted(workers.run(open_files).values())])
    assert counts[-1] == counts[1]

"""Updates that are not waited for: sent to all learners or to none, counted, reported as they were."""

import time

import numpy as np
import pytest
import torch
from group_cases import TellingLearner, ask, assert_learners_agree, flat, rows_of

from dask_rl.learners.metrics import STATE_KEY
from dask_rl.storage.errors import ConfigError, LearnerError, WaitTimeoutError

TIMEOUT = 60.0


@pytest.fixture
def gate(tmp_path):
    """A file; calls that are given it are held up until it exists."""
    return tmp_path / "gate"


def steps(group):
    return ask(group, lambda learner: learner.step)


def requests(group):
    return ask(group, lambda learner: learner.requests)


def test_a_local_group_refuses_asynchronous_calls(open_group):
    group = open_group(0)
    with pytest.raises(ValueError, match=r"async_update: got a local learner"):
        group.update_from_batch(rows_of(8), async_update=True)
    assert group.get_stats()["num_update_calls"] == 0


def test_a_call_goes_to_all_learners_or_to_none_and_returns_what_is_ready(open_group, gate):
    group = open_group(2, learner_class=TellingLearner, max_requests_in_flight_per_learner=2)
    held = {"async_update": True, "gate": str(gate)}
    assert [group.update_from_batch(rows_of(8, seed), **held) for seed in range(4)] == [[]] * 4
    stats = group.get_stats()
    assert (stats["num_requests_in_flight"], stats["num_update_calls"]) == (2, 2)
    assert (stats["num_dropped_requests"], stats["num_dropped_rows"]) == (2, 16)
    gate.touch()
    ready = group.collect_async_results(TIMEOUT)
    assert [[result["all_modules"]["step"] for result in call] for call in ready] == [[1, 1], [2, 2]]
    assert group.collect_async_results() == []
    assert group.get_stats()["num_requests_in_flight"] == 0
    assert steps(group) == [2, 2]
    # the next synchronous call is not dropped, and collects nothing of others
    assert group.update_from_batch(rows_of(8))[0]["all_modules"]["step"] == 3


def test_a_slow_learner_alone_decides_whether_there_is_room(open_group, gate):
    """Learner 1 has answered and learner 0 has not: what only one of them has room for is sent to neither."""
    group = open_group(2, learner_class=TellingLearner, max_requests_in_flight_per_learner=1)
    group.update_from_batch(rows_of(8), async_update=True, gate_of_0=str(gate))
    deadline = time.monotonic() + TIMEOUT
    while group.manager.in_flight() != {0: 1}:
        assert time.monotonic() < deadline
        assert group.collect_async_results() == []
    for seed in range(3):
        assert group.update_from_batch(rows_of(8, seed), async_update=True) == []
    assert group.get_stats()["num_dropped_requests"] == 3
    assert group.manager.in_flight() == {0: 1}
    gate.touch()
    assert len(group.collect_async_results(TIMEOUT)) == 1
    assert requests(group) == [[1], [1]]


def test_iterators_that_were_dropped_go_on_where_they_were(open_group, gate):
    """The rows of a dropped call are those that the next one trains on, of batches of different sizes."""
    group = open_group(2, learner_class=TellingLearner, max_requests_in_flight_per_learner=1)
    batches = [[rows_of(rows, 10 * rows) for rows in (2, 3, 5, 7)] for _ in range(2)]
    group.update_from_iterators(batches, num_iters=1)
    group.update_from_iterators(batches, num_iters=1, async_update=True, gate=str(gate))
    group.update_from_iterators(batches, num_iters=1, async_update=True)
    assert group.get_stats()["num_dropped_rows"] == 2 * 5, "the batch behind the two that were taken"
    gate.touch()
    [[first, _]] = group.collect_async_results(TIMEOUT)
    assert first["default_module"]["batch_size"] == 3
    results = group.update_from_iterators(batches, num_iters=1)
    assert [result["default_module"]["batch_size"] for result in results] == [5, 5]


def test_a_hundred_calls_with_a_slow_learner(open_group):
    """Never a partial admission, drops counted exactly, the reported state the true one, no slower than waiting."""
    slow, work_seconds = {1: 0.04}, 0.03
    group = open_group(2, learner_class=TellingLearner, max_requests_in_flight_per_learner=2)
    batches = [rows_of(4 + number % 5, number) for number in range(100)]
    admitted, reported, dropped_rows = [], [], 0
    began = time.monotonic()
    for number, batch in enumerate(batches):
        dropped = group._num_dropped_requests
        reported += group.update_from_batch(batch, async_update=True, return_state=True, slow=slow)
        if group._num_dropped_requests == dropped:
            admitted.append(number)
        else:
            dropped_rows += len(batch["rewards"])
        time.sleep(work_seconds)  # the driver has work of its own
    reported += group.collect_async_results(TIMEOUT)
    seconds_per_update = (time.monotonic() - began) / len(admitted)

    assert requests(group) == [list(range(1, len(admitted) + 1))] * 2, "all learners the same calls, in their order"
    stats = group.get_stats()
    assert stats["num_dropped_requests"] == 100 - len(admitted)
    assert stats["num_dropped_rows"] == dropped_rows
    assert set(stats["steps"].values()) == {len(admitted)} == {len(reported)}
    assert len(admitted) > 20
    assert_learners_agree(group)

    waiting = open_group(2, learner_class=TellingLearner)
    began = time.monotonic()
    for number, [one, other] in zip(admitted, reported, strict=True):
        [wanted, _] = waiting.update_from_batch(batches[number], return_state=True, slow=slow)
        assert one["all_modules"]["step"] == other["all_modules"]["step"] == wanted["all_modules"]["step"]
        assert STATE_KEY not in other
        mine, true = one[STATE_KEY]["rl_module"], wanted[STATE_KEY]["rl_module"]
        np.testing.assert_array_equal(flat(mine), flat(true))
        time.sleep(work_seconds)
    assert seconds_per_update <= (time.monotonic() - began) / len(admitted)
    np.testing.assert_array_equal(flat(group.get_weights()), flat(waiting.get_weights()))


def test_an_error_of_an_asynchronous_call_is_raised_by_the_next_one_that_collects(open_group, gate):
    group = open_group(2, learner_class=TellingLearner)
    broken = rows_of(8) | {"breaks": torch.ones(8)}
    held = {"async_update": True, "gate": str(gate)}
    assert group.update_from_batch(rows_of(8, 0), **held) == []
    assert group.update_from_batch(broken, **held) == []
    assert group.update_from_batch(rows_of(8, 2), **held) == []
    gate.touch()
    with pytest.raises(LearnerError, match="RuntimeError") as caught:
        group.collect_async_results(TIMEOUT)
    assert "losses" in "".join(caught.value.__notes__), "the remote traceback"
    ready = group.collect_async_results(TIMEOUT)
    assert [call[0]["all_modules"]["step"] for call in ready] == [1, 2], "the calls around it are not lost"
    assert steps(group) == [2, 2]
    assert_learners_agree(group)
    trained, alone = flat(group.get_weights()), open_group(2)
    for seed in (0, 2):
        alone.update_from_batch(rows_of(8, seed))
    np.testing.assert_array_equal(trained, flat(alone.get_weights()))


def test_a_synchronous_call_leaves_the_error_to_the_next_asynchronous_one(open_group, gate):
    group = open_group(2, learner_class=TellingLearner)
    broken = rows_of(8) | {"breaks": torch.ones(8)}
    gate.touch()
    group.update_from_batch(broken, async_update=True)
    group.update_from_batch(rows_of(8))
    with pytest.raises(LearnerError, match="RuntimeError"):
        group.update_from_batch(rows_of(8), async_update=True)
    group.collect_async_results(TIMEOUT)
    assert steps(group) == [1, 1], "the call that raised an earlier one's error was not sent"


def test_collecting_has_a_time_limit_that_names_the_learners(open_group, gate):
    group = open_group(2, learner_class=TellingLearner)
    group.update_from_batch(rows_of(8), async_update=True, gate=str(gate))
    with pytest.raises(WaitTimeoutError, match=r"update 1: got no result in 2.5 s \(learner 0: updating"):
        group.collect_async_results(2.5)
    gate.touch()
    assert len(group.collect_async_results(TIMEOUT)) == 1


def test_futures_are_held_until_their_call_has_ended(open_group, gate, cluster_client):
    group = open_group(2, learner_class=TellingLearner)
    group.update_from_batch(rows_of(4), async_update=True, gate=str(gate))
    futures = cluster_client.scatter([rows_of(3, 1), rows_of(3, 2)], hash=False)
    keys = [future.key for future in futures]
    group.update_from_batch(futures, async_update=True)
    del futures
    gate.touch()
    assert len(group.collect_async_results(TIMEOUT)) == 2
    deadline = time.monotonic() + TIMEOUT
    while any(key in cluster_client.futures for key in keys):  # and no longer
        assert time.monotonic() < deadline
        group.collect_async_results()


def test_mistakes_are_told_at_once_and_not_counted_as_dropped(open_group):
    group = open_group(2)
    with pytest.raises(ConfigError, match="no rows"):
        group.update_from_batch({"default_module": {}}, async_update=True)
    stats = group.get_stats()
    assert (stats["num_update_calls"], stats["num_dropped_requests"]) == (0, 0)

"""Calls of a function on learners, and the manager of their actors underneath."""

import time

import pytest
from group_cases import ask, assert_learners_agree, hold, rows_of

from dask_rl.storage.errors import ConfigError, LearnerError, LearnerLostError, WaitTimeoutError

TIMEOUT = 60.0


@pytest.fixture
def group(open_group, num_learners):
    return open_group(num_learners, {"name": "bc"})


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline


# -- foreach_learner -------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_asked_for_with_arguments_and_their_ids(group):
    group.update_from_batch(rows_of(8))
    ids = list(reversed(range(len(group))))
    results = group.foreach_learner(lambda learner, plus: learner.step + plus, remote_actor_ids=ids, plus=10)
    assert [(result.actor_id, result.get()) for result in results] == [(actor_id, 11) for actor_id in ids]
    assert ask(group, lambda learner: learner.collective.rank) == list(range(len(group)))
    assert group.foreach_learner(lambda learner: 1 // 0, remote_actor_ids=[]) == []


def test_an_error_is_told_beside_the_values_of_the_others_and_the_group_goes_on(group):
    results = group.foreach_learner(lambda learner: 1 // learner.collective.rank)
    assert [result.ok for result in results] == [False, True][: len(group)]
    with pytest.raises(LearnerError, match="ZeroDivisionError"):
        results[0].get()
    assert group.get_stats()["num_healthy_learners"] == len(group)
    group.update_from_batch(rows_of(8))
    assert_learners_agree(group)


def test_a_time_out_is_no_ill_health(open_group, tmp_path):
    group = open_group(2, {"name": "bc"})
    gate = str(tmp_path / "gate")
    results = group.foreach_learner(hold, timeout_seconds=0.3, gate=gate)
    assert [type(result.error) for result in results] == [WaitTimeoutError] * 2
    assert "learner 1, running a function: got no answer in 0.3 s" in str(results[1].error)
    (tmp_path / "gate").touch()
    assert group.get_stats()["num_healthy_learners"] == 2
    assert ask(group, lambda learner: learner.step) == [0, 0], "and what is asked later is not answered by it"
    group.update_from_batch(rows_of(8))


def test_a_limit_of_0_is_fire_and_forget(group, tmp_path):
    marks = [tmp_path / str(rank) for rank in range(len(group))]
    touch = lambda learner, folder: (folder / str(learner.collective.rank)).touch()  # noqa: E731
    assert group.foreach_learner(touch, timeout_seconds=0.0, folder=tmp_path) == []
    wait_until(lambda: all(mark.exists() for mark in marks))
    assert not group.manager.in_flight()


def test_return_futures(group, tmp_path):
    gate = tmp_path / "gate"
    if group.is_local:
        gate.touch()  # it would wait for itself
    results = group.foreach_learner(hold, return_futures=True, gate=str(gate))
    assert [result.actor_id for result in results] == list(range(len(group)))
    if group.is_remote:
        assert not any(result.value.done() for result in results)
        with pytest.raises(TimeoutError):
            results[0].value.result(0.1)
    gate.touch()
    assert [result.value.result(TIMEOUT) for result in results] == [0] * len(group)
    failing = group.foreach_learner(lambda learner: 1 // 0, return_futures=True)
    with pytest.raises(LearnerError, match="ZeroDivisionError"):
        failing[0].value.result(TIMEOUT)


def test_lost_learners_are_left_out_or_asked_and_restored(open_group, tmp_path):
    group = open_group(2, {"name": "bc"})
    step = lambda learner: learner.step  # noqa: E731
    group.manager.lose(1, "given up")
    assert [result.actor_id for result in group.foreach_learner(step)] == [0]
    results = group.foreach_learner(step, healthy_only=False)
    assert [(result.actor_id, result.ok) for result in results] == [(0, True), (1, True)], "it lives after all"
    assert group.manager.healthy_actor_ids == [0]
    late = group.foreach_learner(
        hold, healthy_only=False, mark_healthy=True, remote_actor_ids=[1], timeout_seconds=0.2, gate=str(tmp_path / "x")
    )
    assert isinstance(late[0].error, WaitTimeoutError)
    assert group.manager.healthy_actor_ids == [0], "one that does not answer is not healthy"
    (tmp_path / "x").touch()
    group.foreach_learner(step, healthy_only=False, mark_healthy=True)
    assert group.manager.healthy_actor_ids == [0, 1]
    group.update_from_batch(rows_of(8))
    assert group.get_stats()["num_restarts"] == 0
    assert_learners_agree(group)


# -- the manager -----------------------------------------------------------------------------------------------------


def test_the_same_or_other_arguments_for_each_actor(group):
    manager = group.manager
    every = [(lambda learner, k: k, {"k": 10 + actor_id}) for actor_id in range(len(group))]
    results = manager.call("apply", every, timeout=TIMEOUT, stage="asking")
    assert [result.get() for result in results] == [10, 11][: len(group)]
    with pytest.raises(ValueError, match="zip"):
        manager.call("apply", every * 2, timeout=TIMEOUT, stage="asking")
    assert not manager.in_flight()


def test_tags_caps_and_collection(open_group, tmp_path):
    group, gate = open_group(2, {"name": "bc"}), tmp_path / "gate"
    manager, held = group.manager, (hold, {"gate": str(gate)})

    def submit(tag, actor_ids=None, **limits):
        count = 2 if actor_ids is None else len(actor_ids)
        return manager.submit("apply", [held] * count, tag=tag, stage="holding", actor_ids=actor_ids, **limits)

    assert submit("red", max_in_flight=2)
    assert submit("blue", [1], max_in_flight=2)
    assert not submit("blue", max_in_flight=2), "learner 1 has no room, so learner 0 gets nothing either"
    assert submit("blue", [0], max_in_flight=2)
    assert not submit("red", [0], max_in_flight_of_tag=1)
    assert submit("green", [0], max_in_flight_of_tag=1), "the limit is the tag's own"
    assert manager.in_flight() == {0: 3, 1: 2}
    assert manager.in_flight(["blue"]) == {0: 1, 1: 1}
    began = time.monotonic()
    assert manager.ready() == []
    assert time.monotonic() - began < 0.5, "without waiting"
    gate.touch()
    collected = []
    wait_until(lambda: collected.extend(manager.ready(["blue"], timeout=1)) or len(collected) == 2)
    assert sorted((result.tag, result.actor_id, result.get()) for result in collected) == [
        ("blue", 0, 0),
        ("blue", 1, 0),
    ]
    others = []
    wait_until(lambda: others.extend(manager.ready(timeout=1)) or len(others) == 3)
    assert sorted((result.tag, result.actor_id) for result in others) == [("green", 0), ("red", 0), ("red", 1)]
    assert not manager.in_flight()
    assert all(not handle.open_calls and not handle._answers for handle in manager.handles), "nothing is kept"


def test_forgotten_calls_leave_nothing_behind(open_group):
    group = open_group(2, {"name": "bc"})
    for number in range(20):
        group.manager.submit("apply", [(lambda learner: bytes(1000), {})] * 2, tag=number, stage="asking")
    group.manager.forget()
    ask(group, lambda learner: None)  # all calls before it have been answered
    assert not group.manager.in_flight()
    assert [len(handle.open_calls) for handle in group.manager.handles] == [0, 0]
    assert [len(handle._answers) for handle in group.manager.handles] == [0, 0]


def test_probing_restores_those_that_answer(open_group):
    group = open_group(2, {"name": "bc"})
    manager = group.manager
    manager.lose(0, "thought dead")
    manager.lose(1, "thought dead")
    assert manager.healthy_actor_ids == []
    assert manager.probe(TIMEOUT) == [0, 1]
    assert manager.healthy_actor_ids == [0, 1]
    manager.handles[1].release()  # as a process that is gone
    assert list(manager.lost) == [1]
    assert manager.probe(TIMEOUT) == []
    [first, second] = manager.call("apply", [(lambda learner: 1, {})] * 2, timeout=TIMEOUT, stage="asking")
    assert first.get() == 1
    assert isinstance(second.error, LearnerLostError), "told apart from an error of the function"


# -- resources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {},
            r"num_learners: got 3, and 2 usable workers of 2; allowed: one worker process a learner; start more",
        ),
        ({"num_gpus_per_learner": 1}, r"got 3, and 0 usable workers of 2; allowed: one worker .* with 1 GPU each"),
    ],
)
def test_not_enough_workers_or_gpus_is_one_clear_error_in_time(open_group, settings, words):
    began = time.monotonic()
    with pytest.raises(ConfigError, match=words) as caught:
        open_group(3, workers_timeout_seconds=0.3, **settings)
    assert time.monotonic() - began < 10
    assert len(str(caught.value).splitlines()) == 1

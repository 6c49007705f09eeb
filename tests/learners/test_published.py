"""What learners tell of themselves: counters that add up, in rows that are gone with their actor."""

import gc
import json
from types import SimpleNamespace

import pytest
from learner_cases import ShardedSource, make_batch, make_learner

from dask_rl.learners.activity import COMPUTING, IDLE, WAITING_FOR_DATA, Activity
from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.calls import Membership
from dask_rl.learners.learner import Learner
from dask_rl.learners.published import METRIC, GroupIdentity, PublishedLearners, publish
from dask_rl.learners.request import UpdateRequest


def make_actor(identity=None):
    template = make_learner({"name": "bc"}, num_threads_per_learner=1)
    return LearnerActor(template.config, template.module_spec, Learner, identity=identity)


def make_worker(**metrics):
    return SimpleNamespace(metrics=metrics)


def request(number, num_iters=4):
    return UpdateRequest(number, source=ShardedSource("continuous", (0, 2)), num_iters=num_iters)


def test_an_actor_is_told_of_from_its_construction_to_its_release():
    worker, actor = make_worker(other=lambda worker: 1), make_actor(GroupIdentity("abc", "a run"))
    before = worker.metrics
    publish(actor, worker)
    assert METRIC not in before  # a heartbeat may be reading it
    assert set(worker.metrics) == {"other", METRIC}
    [row] = worker.metrics[METRIC](worker)
    assert row["state"] == "starting"
    assert (row["group_id"], row["name"], row["rank"], row["generation"]) == ("abc", "a run", -1, 0)
    actor.build()
    actor.join(Membership(0, 1))
    outcome = actor.run(request(1))
    assert outcome.error is None
    [row] = worker.metrics[METRIC](worker)
    num_rows = outcome.value["default_module"]["num_rows"]
    assert (row["state"], row["rank"], row["step"], row["num_rows"]) == ("ready", 0, 4, num_rows)
    assert row["compute_seconds"] > 0
    assert row["data_wait_seconds"] > 0
    assert row["collective_seconds"] == 0
    assert json.loads(json.dumps(row)) == row
    del actor, outcome
    gc.collect()
    assert worker.metrics[METRIC](worker) == []


def test_actors_of_one_worker_share_its_metric():
    worker, actors = make_worker(), [make_actor(), make_actor()]
    for actor in actors:
        publish(actor, worker)
        publish(make_actor(), worker)  # gone at once
    assert len(worker.metrics[METRIC](worker)) == 2
    publish(actors[0], worker)
    assert len(worker.metrics[METRIC]._entries) == 3  # none of those that are gone


def test_the_last_error_is_one_line_of_bounded_length():
    worker, actor = make_worker(), make_actor()
    publish(actor, worker)
    actor.build()
    actor.apply(fail_at_length, {})
    [row] = worker.metrics[METRIC](worker)
    assert row["last_error"].startswith("RuntimeError: one two x")
    assert len(row["last_error"]) == 500


def fail_at_length(learner):
    raise RuntimeError("one\ntwo " + "x" * 10_000)


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1e9 + self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("activity", "published"):
        monkeypatch.setattr(f"dask_rl.learners.{module}.time", clock)
    return clock


class Reporting:
    """An actor whose steps the test makes."""

    identity, rank, generation = GroupIdentity(), 3, 2

    def __init__(self):
        self.activity = Activity()

    def get_health(self):
        return SimpleNamespace(state="updating", seconds_in_state=0.5, step=7, last_error=None)


def test_the_rate_is_that_of_the_last_seconds(clock):
    actor, published = Reporting(), PublishedLearners()
    published.add(actor)
    rates = []
    for steps in (0, 10, 10, 10, 10, 10, 10, 30, 30):
        for _ in range(steps):
            actor.activity.count_step(5)
        [row] = published()
        rates.append(row["steps_per_second"])
        clock.now += 1.0
    assert rates == [0, 10, 10, 10, 10, 10, 10, 14, 18]
    assert row["num_rows"] == 5 * 120


def test_a_rate_begins_anew_with_another_learner(clock):
    actor, published = Reporting(), PublishedLearners()
    published.add(actor)
    actor.activity.count_step(1)
    published()
    clock.now += 1
    actor.activity = Activity()
    assert published()[0]["steps_per_second"] == 0


def test_seconds_add_up_with_those_of_what_goes_on(clock):
    activity = Activity()
    for name, seconds in ((WAITING_FOR_DATA, 2.0), (COMPUTING, 3.0), (WAITING_FOR_DATA, 4.0), (IDLE, 5.0)):
        activity.enter(name)
        clock.now += seconds
    assert activity.seconds() == {WAITING_FOR_DATA: 6.0, COMPUTING: 3.0, IDLE: 5.0}
    assert (activity.name, activity.since) == (IDLE, 109.0)


def test_a_batch_of_several_steps_counts_each(clock):
    learner = make_learner({"name": "bc"})
    rows = make_batch("continuous", 20)
    learner.run(UpdateRequest(1, batch={"default_module": rows}, num_minibatches=5, minibatch_size=4))
    assert (learner.activity.num_steps, learner.activity.num_rows) == (5, 20)

"""The actor as the plain class that it is, without a cluster."""

import asyncio
import os
import threading

import numpy as np
import pytest
import torch
from learner_cases import ShardedSource, make_batch, make_learner, weights
from learner_peers import HOST

from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.calls import Membership, Outcome, pack, unpack
from dask_rl.learners.collective import RendezvousStore, SingleProcess
from dask_rl.learners.health import HealthReport, HealthState
from dask_rl.learners.learner import Learner
from dask_rl.learners.request import Position, UpdateRequest
from dask_rl.storage.errors import ConfigError, LearnerError, LearnerLostError, LearnerStoppedError, PeersLostError


def make_actor(seed=0, learner_class=Learner, **learners):
    template = make_learner({"name": "iql"}, seed=seed, **{"num_threads_per_learner": 1, **learners})
    return LearnerActor(template.config, template.module_spec, learner_class)


def request(batch, number=1):
    return UpdateRequest(number, batch={"default_module": batch})


def health(actor):
    return asyncio.run(actor.health())


def test_a_life():
    actor = make_actor()
    assert health(actor).state == "starting"
    built = actor.build()
    assert built.error is None
    assert built.value == {"pid": os.getpid(), "device": "cpu", "threads": 1}
    assert actor.join(Membership(0, 1)).error is None
    outcome = actor.run(request(make_batch("continuous", 6)))
    assert outcome.value["all_modules"]["step"] == 1
    assert actor.apply(lambda learner, factor: learner.step * factor, {"factor": 5}) == Outcome(value=5)
    assert health(actor) == HealthReport(HealthState.READY, 0.0, step=1, is_warm=True)
    assert actor.close().error is None


def break_in_two_lines(learner):
    raise RuntimeError("one\ntwo")


def test_errors_are_outcomes_and_leave_the_actor_usable():
    actor = make_actor()
    early = actor.run(request(make_batch("continuous", 6)))
    assert "used before it is built" in str(early.error)
    actor.build()
    wrong = actor.run(UpdateRequest(1, batch={"x": make_batch("continuous", 6)}))
    assert isinstance(wrong.error, ConfigError)
    assert "unknown modules" in wrong.traceback
    assert health(actor).last_error.startswith("ConfigError: batch")
    failing = actor.apply(lambda learner: 1 / 0, {})
    assert isinstance(failing.error, LearnerError)
    assert "ZeroDivisionError" in str(failing.error)
    wordy = actor.apply(break_in_two_lines, {})
    assert len(str(wordy.error).splitlines()) == 1
    assert actor.run(request(make_batch("continuous", 6))).value["all_modules"]["step"] == 1
    assert health(actor).state == "ready"


class Waiting(Learner):
    started, go_on = threading.Event(), threading.Event()

    def before_gradient_based_update(self, timesteps):
        self.started.set()
        assert self.go_on.wait(20)


def test_health_answers_during_an_update():
    actor = make_actor(learner_class=Waiting)
    actor.build()
    thread = threading.Thread(target=actor.run, args=(request(make_batch("continuous", 6)),))
    thread.start()
    assert Waiting.started.wait(20)
    during = health(actor)
    Waiting.go_on.set()
    thread.join(20)
    assert during.state == "updating"
    assert during.seconds_in_state > 0
    assert health(actor).step == 1


def make_pair(learner_class=Learner):
    actors = [make_actor(seed=rank, learner_class=learner_class, transport="gloo") for rank in range(2)]
    for actor in actors:
        actor.build()
    return actors


def on_both(actors, method, arguments):
    outcomes = [None, None]

    def work(rank):
        outcomes[rank] = getattr(actors[rank], method)(*arguments[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def meet(actors, generation):
    store = RendezvousStore(HOST, generation, 20)
    positions = [outcome.value or Position() for outcome in on_both(actors, "leave", [()] * 2)]
    actors[0]._store = store
    source = max(range(2), key=lambda rank: (positions[rank].step, -rank))
    places = [(Membership(rank, 2, store.rendezvous, source, positions[source]),) for rank in range(2)]
    for outcome in on_both(actors, "join", places):
        assert outcome.error is None, outcome.traceback


class Breaking(Learner):
    """Breaks in the step before which it is told to; counts the calls of its hook."""

    break_at, hooks = -1, 0

    def before_gradient_based_update(self, timesteps, **kwargs):
        self.hooks += 1

    def compute_gradients(self, phases, batches, noise):
        if self.step == self.break_at:
            raise ZeroDivisionError
        return super().compute_gradients(phases, batches, noise)


def run_queue(actors, numbers, num_iters=8):
    """All of these, one after the other whatever becomes of those before, as requests that are queued."""
    outcomes = [[], []]

    def work(rank):
        source = ShardedSource("continuous", (rank, rank + 2))
        for number in numbers:
            outcomes[rank].append(actors[rank].run(UpdateRequest(number, source=source, num_iters=num_iters)))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def test_requests_queued_behind_one_whose_group_is_over_do_not_begin():
    undisturbed, actors = make_pair(Breaking), make_pair(Breaking)
    meet(undisturbed, 1)
    run_queue(undisturbed, (1, 2, 3))
    meet(actors, 1)
    actors[1].learner.break_at = 8 + 3
    (first, *others), _ = run_queue(actors, (1, 2, 3))
    assert first.error is None
    assert [type(outcome.error) for outcome in others] == [PeersLostError] * 2
    assert "a group that was left" in str(others[1].error)
    survivor = actors[0].learner
    assert (survivor.step, survivor.open_request, survivor.open_first_step, survivor.hooks) == (8 + 3, 2, 8, 2)
    actors[1] = make_pair(Breaking)[1]
    meet(actors, 2)
    for outcomes in run_queue(actors, (2, 3)):
        assert [outcome.error for outcome in outcomes] == [None, None]
    assert [actor.learner.hooks for actor in actors] == [3, 2]
    for actor, other in zip(actors, undisturbed, strict=True):
        assert actor.learner.position() == other.learner.position()
        assert torch.equal(actor.learner.flat.data, other.learner.flat.data)


def test_a_request_that_cannot_begin_does_not_wait_for_its_data(monkeypatch):
    actor = make_actor()
    actor.build()
    monkeypatch.setattr("dask_rl.learners.actor.fetch", lambda *args: pytest.fail("waited for data"))
    actor.learner.stop_requested = True
    refused = actor.run(UpdateRequest(2, future_keys=("x",)))
    assert isinstance(refused.error, LearnerStoppedError)
    assert actor.learner.open_request is None


def test_a_failing_learner_frees_its_peer_and_the_next_generation_trains():
    actors = make_pair()
    meet(actors, 1)
    batches = [make_batch("continuous", 6, seed) for seed in range(2)]
    for outcome in on_both(actors, "run", [(request(batch),) for batch in batches]):
        assert outcome.value["all_modules"]["step"] == 1
    bad = [(request(batches[0], 2),), (UpdateRequest(2, batch={"x": batches[1]}),)]
    freed, failed = on_both(actors, "run", bad)
    assert isinstance(failed.error, ConfigError)
    assert isinstance(freed.error, LearnerLostError)
    meet(actors, 2)
    for outcome in on_both(actors, "run", [(request(batch, 3),) for batch in batches]):
        assert outcome.value["all_modules"]["step"] == 2
    one, other = (weights(actor.learner) for actor in actors)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    for actor in actors:
        assert actor.close().error is None


def test_a_learner_that_fails_in_the_very_first_step_can_join_again():
    actors = make_pair()
    meet(actors, 1)
    batches = [make_batch("continuous", 6, seed) for seed in range(2)]
    # rank 0 gets through its step, rank 1 breaks between exchange and optimizer: only rank 0 has optimizer state
    learner = actors[1].learner
    learner.apply_gradients = lambda keys: 1 / 0
    done, failed = on_both(actors, "run", [(request(batch),) for batch in batches])
    assert done.error is None
    assert "ZeroDivisionError" in str(failed.error)
    del learner.apply_gradients
    meet(actors, 2)
    for outcome in on_both(actors, "run", [(request(batch, 2),) for batch in batches]):
        assert outcome.value["all_modules"]["step"] == 2
    assert torch.equal(actors[0].learner.flat.data, actors[1].learner.flat.data)


@pytest.mark.parametrize("value", [lambda: threading.Lock(), lambda: make_batch])
def test_calls_from_another_process_always_get_an_answer(value):
    actor = make_actor()
    assert call(actor, 0, "build").value["threads"] == 1
    outcome = call(actor, 1, "apply", lambda learner: value(), {})
    assert (outcome.error is None) == (value() is make_batch)
    [(number, garbled)] = actor.call(2, "build", b"garbage")
    assert number == 2
    assert isinstance(unpack(garbled).error, Exception)


def call(actor, number, method, *args):
    [(answered, packed)] = actor.call(number, method, pack(args))
    assert answered == number
    return unpack(packed)


def test_calls_that_overtake_others_wait_for_their_turn():
    actor = make_actor()
    order = []
    learner_calls = [pack((lambda learner, k: k, {"k": k})) for k in range(4)]
    assert actor.call(2, "apply", learner_calls[1]) == []
    assert actor.call(1, "apply", learner_calls[0]) == []
    for number, packed in actor.call(0, "build", pack(())):
        order.append((number, unpack(packed).value))
    assert [number for number, _ in order] == [0, 1, 2]
    assert [value for _, value in order[1:]] == [0, 1]
    assert call(actor, 3, "apply", lambda learner: "next", {}).value == "next"


def test_leaving_a_group():
    actor = make_actor()
    actor.build()
    assert actor.join(Membership(0, 1)).error is None
    assert isinstance(actor.learner.collective, SingleProcess)

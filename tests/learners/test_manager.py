"""The manager, on handles that need no cluster."""

import pytest
from crew_cases import wait_in_process
from learner_cases import make_learner

from dask_rl.learners import manager as manager_module
from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.calls import Outcome, pack
from dask_rl.learners.manager import ActorManager, CallResult, values
from dask_rl.storage.errors import LearnerError, LearnerLostError, PeersLostError, WaitTimeoutError


class Handle:
    """Answers with what it was given, and remembers that it was called."""

    def __init__(self):
        self.called = False

    def prepare(self, method, args):
        packed = pack(args)

        def start():
            self.called = True
            return self

        self.outcome = Outcome(value=(method, packed))
        return start

    loss = None

    def done(self):
        return True

    def result(self, timeout):
        return self.outcome

    def release(self):
        pass


def test_nobody_begins_where_one_call_cannot_be_packed():
    handles = [Handle(), Handle()]
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        ActorManager(handles).call("run", [(1,), ((i for i in "x"),)], timeout=1, stage="updating")
    assert not any(handle.called for handle in handles)


APPLICATION = LearnerError("learner 0, updating: got ZeroDivisionError: division by zero; mend it.")
LOST = LearnerLostError("learner 0: got a lost worker process (Unable to contact Actor's worker); look.")
NO_DATA = WaitTimeoutError("dataset x.zarr, block 3 of shard 0: got no data after 120 seconds; look.")
PEER_LOST = PeersLostError("learner 1 of 2, exchanging gradients: got a lost connection (reset); look.")
PEER_SILENT = PeersLostError("learner 1 of 2, exchanging gradients: got no answer from its peers in 30 s; look.")


@pytest.mark.parametrize("cause", [APPLICATION, LOST, NO_DATA])
@pytest.mark.parametrize("consequence", [PEER_LOST, PEER_SILENT])
def test_the_cause_is_raised_and_not_what_its_peers_saw(cause, consequence):
    for errors in ([cause, consequence], [consequence, cause]):
        with pytest.raises(type(cause)) as caught:
            values([CallResult(rank, error=error) for rank, error in enumerate(errors)])
        assert caught.value is cause


class Controlled:
    """A call of a real actor that is done when it is told to."""

    def __init__(self, handle, method, args):
        self.handle, self.method, self.args = handle, method, args

    def done(self):
        return self.handle.is_open or self.handle.loss is not None

    def result(self, timeout):
        if self.handle.loss is not None:
            raise OSError(self.handle.loss)
        if not self.handle.is_open:
            raise TimeoutError
        return getattr(self.handle.actor, self.method)(*self.args)


class ControlledHandle:
    def __init__(self):
        learner = make_learner({"name": "bc"})
        self.actor = LearnerActor(learner.config, learner.module_spec)
        self.actor.build()
        self.loss, self.is_open = None, True

    def prepare(self, method, args):
        return lambda: Controlled(self, method, args)

    def ask_health(self):
        if self.loss is not None:
            raise OSError(self.loss)
        return Controlled(self, "get_health", ())


@pytest.fixture
def trio(monkeypatch):
    monkeypatch.setattr(manager_module, "wait_any", wait_in_process)
    handles = [ControlledHandle() for _ in range(3)]
    return ActorManager(handles), handles


def ask(manager, tag, ids=(0, 1, 2), **options):
    arguments = [(lambda learner, k: k, {"k": actor_id}) for actor_id in ids]
    return manager.submit("apply", arguments, tag=tag, stage="asking", actor_ids=list(ids), **options)


def test_all_or_none_have_room(trio):
    manager, handles = trio
    handles[1].is_open = handles[2].is_open = False
    assert ask(manager, "a", max_in_flight=2)
    assert ask(manager, "b", [1], max_in_flight=2)
    assert not ask(manager, "c", max_in_flight=2), "actor 1 is full"
    assert manager.in_flight() == {0: 1, 1: 2, 2: 1}
    assert ask(manager, "c", [0, 2], max_in_flight=2)
    assert manager.in_flight(["c"]) == {0: 1, 2: 1}


def test_room_is_also_counted_by_tag(trio):
    manager, handles = trio
    for handle in handles:
        handle.is_open = False
    assert ask(manager, "a", max_in_flight_of_tag=1)
    assert not ask(manager, "a", [2], max_in_flight_of_tag=1)
    assert ask(manager, "b", [2], max_in_flight_of_tag=1)
    assert manager.in_flight(["a", "b"])[2] == 2


def test_ready_gives_what_is_done_by_tag_and_leaves_nothing_behind(trio):
    manager, handles = trio
    handles[2].is_open = False
    ask(manager, "a")
    ask(manager, "b", [0])
    ready = manager.ready(["a"])
    assert [(result.actor_id, result.get(), result.tag) for result in ready] == [(0, 0, "a"), (1, 1, "a")]
    assert manager.ready(["a"], timeout=0.02) == []
    assert [result.tag for result in manager.ready()] == ["b"]
    assert manager.in_flight() == {2: 1}
    manager.forget(["a"])
    handles[2].is_open = True
    assert manager.ready() == []
    ask(manager, "c")
    manager.forget()
    assert manager._in_flight == []


def test_a_call_gives_results_in_the_order_of_the_ids_asked_for(trio):
    manager, _ = trio
    arguments = [(lambda learner, k: k, {"k": k}) for k in "xy"]
    results = manager.call("apply", arguments, timeout=5, stage="asking", actor_ids=[2, 0])
    assert [(result.actor_id, result.value) for result in results] == [(2, "x"), (0, "y")]
    assert manager.in_flight() == {}


def test_a_late_actor_is_named_with_the_stage_and_is_not_lost(trio):
    manager, handles = trio
    handles[1].is_open = False
    results = manager.call("apply", [(lambda learner: 1, {})] * 3, timeout=0.05, stage="counting")
    assert [result.ok for result in results] == [True, False, True]
    with pytest.raises(WaitTimeoutError, match=r"learner 1, counting: got no answer in 0.05 s"):
        results[1].get()
    assert manager.healthy_actor_ids == [0, 1, 2]
    assert manager.in_flight() == {}
    assert manager.call("apply", [(lambda learner: 1, {})] * 3, timeout=0, stage="counting") == []


def test_a_call_that_is_interrupted_leaves_nothing_behind(trio):
    manager, handles = trio
    handles[1].is_open = False

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        manager.call("apply", [(lambda learner: 1, {})] * 3, timeout=30, stage="counting", watch=interrupt)
    assert manager.in_flight() == {}


def test_an_actor_that_is_declared_lost_meanwhile_is_not_waited_for(trio):
    manager, handles = trio
    handles[1].is_open = False
    results = manager.call(
        "apply",
        [(lambda learner: 1, {})] * 3,
        timeout=30,
        stage="counting",
        watch=lambda: manager.lose(1, "silent"),
    )
    assert isinstance(results[1].error, LearnerLostError)
    assert "silent" in str(results[1].error)
    assert [results[0].value, results[2].value] == [1, 1]


def test_a_loss_is_noticed_and_a_probe_brings_back_who_answers(trio):
    manager, handles = trio
    handles[0].loss = "killed"
    handles[2].is_open = False
    manager.lose(1, "silent")
    manager.lose(2, "silent")
    assert manager.lost == {0: "killed", 1: "silent", 2: "silent"}
    assert manager.probe(0.05) == [1]
    assert manager.healthy_actor_ids == [1]
    assert [
        result.ok
        for result in manager.call("apply", [(lambda learner: 1, {})] * 2, timeout=1, stage="x", actor_ids=[0, 1])
    ] == [False, True]


def test_a_failing_function_is_no_lost_actor(trio):
    manager, _ = trio
    [result] = manager.call("apply", [(lambda learner: 1 / 0, {})], timeout=5, stage="dividing", actor_ids=[1])
    assert "ZeroDivisionError" in str(result.error)
    assert any("On learner 1" in note for note in result.error.__notes__)
    assert manager.healthy_actor_ids == [0, 1, 2]

"""Repair, with learners in this process that exchange for real."""

import threading

import numpy as np
import pytest
from crew_cases import Bench, ThreadHandle, admit, make_crew, wait_in_process
from learner_cases import weights

from dask_rl.learners import manager
from dask_rl.learners.dispatcher import Dispatcher
from dask_rl.learners.group_state import _get_state
from dask_rl.learners.health import HealthReport, HealthState
from dask_rl.learners.learner import Learner
from dask_rl.learners.positions import most_advanced
from dask_rl.learners.request import Position
from dask_rl.storage.errors import GroupLostError, PeersLostError, RestartLimitError


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr(manager, "wait_any", wait_in_process)


@pytest.fixture
def crew_of(request):
    crews = []

    def make(*args, **options):
        crew, bench = make_crew(*args, handle_class=ThreadHandle, transport="gloo", **options)
        crews.append((crew, bench))
        return crew, bench

    yield make
    for crew, bench in crews:
        crew.release()
        for handle in bench.spares:
            handle.release()


def learners_of(crew):
    return [handle.actor.learner for handle in crew.manager.handles]


def set_all_weights(crew, value):
    """Weights that a new learner does not have, at step 0."""
    for learner in learners_of(crew):
        learner.flat.data.fill_(value)


def break_off(learner: Learner, after: int) -> None:
    """Have a learner's connection break when it has copied so many tensors."""
    join = learner.join

    def joining(collective, **options):
        broadcast = collective.broadcast_
        copied = []

        def broadcasting(tensor, source=0):
            if len(copied) == after:
                collective.close()
                raise PeersLostError("on purpose")
            copied.append(tensor)
            broadcast(tensor, source)

        collective.broadcast_ = broadcasting
        learner.join = join
        join(collective, **options)

    learner.join = joining


def test_a_lost_learner_is_replaced_and_takes_over_the_state(crew_of):
    crew, bench = crew_of(2, 1)
    set_all_weights(crew, 0.5)
    crew.manager.handles[0].kill()
    dispatcher = Dispatcher(crew, crew._settings)
    dispatcher.wait(admit(dispatcher, 1), 20)
    one, other = (weights(learner) for learner in learners_of(crew))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert abs(float(learners_of(crew)[0].flat.data.mean()) - 0.5) < 0.01, "the initial ones are gone"
    assert bench.ended == ["place 0"]
    assert [event.name for event in crew.events] == ["learner_lost", "rejoined"]


class Half(Learner):
    """Its replacement breaks off the first take-over after a few tensors."""

    breaks_at: list[int] = []  # noqa: RUF012 - patched as a whole

    def build(self):
        super().build()
        if self.breaks_at:
            break_off(self, self.breaks_at.pop())


@pytest.mark.parametrize("after", [0, 1, 2])
def test_half_a_copy_is_nobodys_state(crew_of, after, monkeypatch):
    crew, _ = crew_of(2, 1, learner_class=Half)
    set_all_weights(crew, 0.5)
    monkeypatch.setattr(Half, "breaks_at", [after])
    crew.manager.handles[0].kill()  # its replacement has the lower rank, and stands at step 0 as well
    dispatcher = Dispatcher(crew, crew._settings)
    dispatcher.wait(admit(dispatcher, 1), 20)
    assert not Half.breaks_at
    one, other = (weights(learner) for learner in learners_of(crew))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert abs(float(learners_of(crew)[0].flat.data.mean()) - 0.5) < 0.01


def test_a_new_start_survives_a_loss_on_the_way(crew_of):
    crew, bench = crew_of(2, 4)
    first = bench.spares[0]
    build = first.actor.build

    def dying(*blueprint):
        first.actor.build = build
        first.kill("killed while it starts")
        return build(*blueprint)

    first.actor.build = dying
    crew.restart()
    assert [handle.where for handle in crew.manager.handles] == ["place 4", "place 5"]
    assert crew.num_restarts == 1
    assert "place 2" in bench.ended
    assert [event.name for event in crew.events] == ["learner_lost", "restarted"]
    dispatcher = Dispatcher(crew, crew._settings)
    dispatcher.wait(admit(dispatcher, 1), 20)


def test_a_new_start_that_fails_for_ever_ends(crew_of):
    crew, bench = crew_of(1, 4, max_restarts=2)
    for spare in bench.spares:
        spare.kill("killed at once")
    with pytest.raises(RestartLimitError, match="killed at once"):
        crew.restart()


def test_one_that_cannot_leave_is_replaced(crew_of):
    crew, bench = crew_of(2, 1)

    def cannot():
        raise RuntimeError("no way out")

    learners_of(crew)[1].leave = cannot
    crew.is_broken = True
    dispatcher = Dispatcher(crew, crew._settings)
    dispatcher.wait(admit(dispatcher, 1), 20)
    assert bench.ended == ["place 1"]
    assert "no way out" in crew.events[0].details["cause"]


def test_one_that_does_not_leave_in_time_is_lost(crew_of):
    limits = ("startup", "data", "collective", "health")
    crew, bench = crew_of(2, 1, **{f"{name}_timeout_seconds": 0.5 for name in limits})
    never = threading.Event()
    learners_of(crew)[1].leave = lambda: never.wait(60)
    # It says that it does nothing, so that its state has no limit.
    crew.manager.handles[1].actor.get_health = lambda: HealthReport(HealthState.READY, 0.0)
    crew.is_broken = True
    dispatcher = Dispatcher(crew, crew._settings)
    dispatcher.make_whole()
    never.set()
    assert bench.ended[0] == "place 1"
    assert "leaving: no answer in 2 s" in crew.events[0].details["cause"]


def test_a_replacement_that_knows_nothing_does_not_carry_a_group_on(crew_of, monkeypatch):
    crew, bench = crew_of(2, 3, learner_class=Half)
    set_all_weights(crew, 0.5)
    monkeypatch.setattr(Half, "breaks_at", [0])
    crew.manager.handles[0].kill()
    # the one survivor is lost while the replacement takes over
    survivor = learners_of(crew)[1]
    monkeypatch.setattr(survivor, "join", lambda *args, **options: crew.manager.handles[1].kill())
    dispatcher = Dispatcher(crew, crew._settings)
    with pytest.raises(GroupLostError, match="nobody left"):
        dispatcher.wait(admit(dispatcher, 1), 20)
    assert isinstance(bench, Bench)


def test_a_worker_that_comes_back_at_the_same_address_can_be_lost_again(crew_of):
    """With fixed ports, a nanny's new worker has the address of the one before."""
    crew, bench = crew_of(2, 2)
    for spare in bench.spares:
        spare.where = "place 0"
    dispatcher = Dispatcher(crew, crew._settings)
    for number in (1, 2):
        crew.manager.handles[0].kill()
        dispatcher.wait(admit(dispatcher, number), 20)
    assert [event.name for event in crew.events] == ["learner_lost", "rejoined"] * 2
    assert crew.num_restarts == 2


def test_the_holder_of_the_state_is_one_of_those_that_closed_ranks(crew_of, monkeypatch):
    crew, bench = crew_of(3, 0, elastic=True, max_restarts=1)
    bench.is_elastic = True
    first, ahead, behind = crew.manager.handles
    ahead.actor.learner.step = 5
    break_off(behind.actor.learner, 1)
    first.kill()
    dispatcher = Dispatcher(crew, crew._settings)
    with pytest.raises(RestartLimitError):
        dispatcher.make_whole()
    assert not behind.actor.learner.knows_state
    assert crew.manager.handles[crew.holder] is ahead
    asked = crew.call("apply", [(_get_state, {})] * 2, timeout=20, stage="reading state")
    assert [asked[crew.holder].ok, asked[1 - crew.holder].ok] == [True, False]
    assert "half a copy" in str(asked[1 - crew.holder].error)


def test_of_two_at_one_step_the_one_that_ended_the_request_is_ahead():
    """The other has not run the hooks after it."""
    begun, ended = Position(step=8, open_request=3, weights_seq_no=2), Position(step=8, weights_seq_no=3)
    assert most_advanced({0: begun, 1: ended}) == 1
    assert most_advanced({0: ended, 1: ended}) == 0
    assert most_advanced({0: ended, 1: Position(step=9, weights_seq_no=2)}) == 1
    assert most_advanced({}) == 0

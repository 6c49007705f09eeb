"""Repair, with learners in this process that exchange for real."""

import numpy as np
import pytest
from crew_cases import Bench, ThreadHandle, admit, make_crew, wait_in_process
from learner_cases import weights

from dask_rl.learners import manager
from dask_rl.learners.dispatcher import Dispatcher
from dask_rl.learners.learner import Learner
from dask_rl.storage.errors import GroupLostError, PeersLostError


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

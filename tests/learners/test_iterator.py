"""Iterators that a learner keeps open: replaced, restored, after failures."""

import pytest
import torch
from learner_cases import ShardedIterator, ShardedSource, make_batch, make_learner

from dask_rl.learners.iterator import Iterables, IterableSource
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import ConfigError


class Failing(ShardedIterator):
    """Cannot be restored."""

    closed = 0

    def load_state_dict(self, state):
        raise ConfigError("other data")

    def close(self):
        Failing.closed += 1


class Unsteady(ShardedSource):
    """A source whose opening can be made to fail, or to give a failing iterator."""

    mode = "sound"

    def open(self, device: torch.device, timeout_seconds: float):
        if Unsteady.mode == "silent":
            raise ConfigError("no data")
        return Failing(self) if Unsteady.mode == "failing" else super().open(device, timeout_seconds)


@pytest.fixture
def mode(monkeypatch):
    return lambda value: monkeypatch.setattr(Unsteady, "mode", value)


def run(learner, source, num_iters=1):
    return learner.run(UpdateRequest(learner.weights_seq_no + 1, source=source, num_iters=num_iters))


def position(learner) -> int:
    (state,) = learner.get_state("iterators")["iterators"].values()
    return state["step"]


def test_a_source_that_could_not_be_opened_may_be_tried_again(mode):
    learner = make_learner({"name": "bc"})
    run(learner, Unsteady("continuous", (0, 1)))
    mode("silent")
    for _ in range(2):
        with pytest.raises(ConfigError, match="no data"):
            run(learner, Unsteady("continuous", (2, 3)))
    mode("sound")
    run(learner, Unsteady("continuous", (2, 3)))
    assert (learner.iterators["sharded"].shards, position(learner)) == ((2, 3), 2), "the same stream goes on"


def test_a_restored_position_stays_until_it_is_taken_over(mode):
    source = Unsteady("continuous", (0, 1))
    learner, restored = make_learner({"name": "bc"}), make_learner({"name": "bc"})
    run(learner, source, 3)
    restored.set_state(learner.get_state())
    assert position(restored) == 3  # saved again before the first update
    mode("failing")
    before = Failing.closed
    with pytest.raises(ConfigError, match="other data"):
        run(restored, source)
    assert Failing.closed == before + 1
    mode("sound")
    run(restored, source)
    assert position(restored) == 4


def test_the_state_after_a_failed_step_asks_for_its_batch_again():
    learner = make_learner({"name": "bc"})
    source = ShardedSource("continuous", (0, 1))
    run(learner, source, 2)
    learner.apply_gradients = lambda keys: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(learner, source)
    assert learner.iterators["sharded"].step == 3
    assert position(learner) == learner.step == 2


def test_an_iterators_unknown_modules_are_refused():
    learner = make_learner({"name": "bc"})
    with pytest.raises(ConfigError, match="unknown modules"):
        run(learner, IterableSource([{"stranger": make_batch("continuous", 4)}], "x"))


def test_other_iterables_are_never_taken_for_those_of_an_earlier_call():
    given = Iterables()
    seen = []
    for _ in range(20):  # freed lists give their addresses to new ones
        source = given.sources([[make_batch("continuous", 2)]])[0]
        assert source not in seen
        seen.append(source)
    batches = [make_batch("continuous", 2)]
    assert given.sources([batches])[0] == given.sources([batches])[0]
    sharded = ShardedSource("continuous", (0,))
    assert given.sources([sharded, batches])[0] is sharded


def test_a_learner_forgets_iterables_that_were_replaced():
    learner, given = make_learner({"name": "bc"}), Iterables()
    for _ in range(3):
        run(learner, given.sources([[make_batch("continuous", 2)]])[0])
    assert list(learner.iterators) == ["iterables"]
    assert position(learner) == 1

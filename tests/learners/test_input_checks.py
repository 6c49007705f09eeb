"""Arguments that are none: every call says so in one line, and leaves the group as it was."""

import pytest
import torch
from group_cases import SPEC, group_config, make_episode, rows_of

from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.module import MAX_MODULE_ID, validate_module_id
from dask_rl.storage.errors import CheckpointError, ConfigError


@pytest.fixture
def group():
    with LearnerGroup(group_config(0, {"name": "bc"}), module_spec=SPEC) as opened:
        yield opened


def batches():
    return (rows_of(4, seed) for seed in range(3))


CALLS = {
    "no batch": lambda g: g.update_from_batch(None),
    "a number as a batch": lambda g: g.update_from_batch(5),
    "a tensor as a batch": lambda g: g.update_from_batch(torch.zeros(3)),
    "ids of two kinds": lambda g: g.update_from_batch({1: rows_of(4), "x": rows_of(4)}),
    "epochs in words": lambda g: g.update_from_batch(rows_of(4), num_epochs="2"),
    "half an epoch": lambda g: g.update_from_batch(rows_of(4), num_epochs=1.5),
    "half a row": lambda g: g.update_from_batch(rows_of(4), minibatch_size=2.5),
    "steps in words": lambda g: g.update_from_iterators([[rows_of(4)]], num_iters="3"),
    "half a step": lambda g: g.update_from_iterators([[rows_of(4)]], num_iters=2.5),
    "a number as iterators": lambda g: g.update_from_iterators(5, num_iters=1),
    "a number as an iterator": lambda g: g.update_from_iterators([5], num_iters=1),
    "numbers as batches": lambda g: g.update_from_iterators([[5]], num_iters=1),
    "a generator": lambda g: g.update_from_iterators([batches()], num_iters=3),
    "nothing to iterate": lambda g: g.update_from_iterators([[]], num_iters=3),
    "no episodes": lambda g: g.update_from_episodes(None),
    "an episode alone": lambda g: g.update_from_episodes(make_episode(4, 0)),
    "a generator of episodes": lambda g: g.update_from_episodes([iter([make_episode(4, 0)])], num_iters=1),
    "counters in words": lambda g: g.update_from_batch(rows_of(4), timesteps="x"),
    "no such learner": lambda g: g.foreach_learner(len, remote_actor_ids=[9]),
    "learners by name": lambda g: g.foreach_learner(len, remote_actor_ids=["a"]),
    "a number of learners": lambda g: g.foreach_learner(len, remote_actor_ids=0),
    "a component's number": lambda g: g.get_state(5),
    "no such component": lambda g: g.get_state("nope"),
    "no such module": lambda g: g.get_state(["learner/rl_module/zzz"]),
    "no state": lambda g: g.set_state(None),
    "an empty state": lambda g: g.set_state({}),
    "another state": lambda g: g.set_state({"a": 1}),
    "another learner's state": lambda g: g.set_state({"learner": {"rl_modul": {}}}),
    "no counters": lambda g: g.set_state({"learner": {"counters": None}}),
    "a counter": lambda g: g.set_state({"learner": {"counters": 5}}),
    "a list of counters": lambda g: g.set_state({"learner": {"counters": [1]}}),
    "a word for counters": lambda g: g.set_state({"learner": {"counters": "x"}}),
    "no weights": lambda g: g.set_weights(None),
    "no weights of a module": lambda g: g.set_weights({"default_module": None}),
    "a numbered module": lambda g: g.add_module(module_id=5, module_spec=SPEC),
    "a module without an id": lambda g: g.add_module(module_id=None, module_spec=SPEC),
    "a long id": lambda g: g.add_module(module_id="x" * 300, module_spec=SPEC),
    "a reserved id": lambda g: g.add_module(module_id="all_modules", module_spec=SPEC),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_with_an_argument_that_is_none(group, call):
    with pytest.raises((ConfigError, CheckpointError)) as raised:
        CALLS[call](group)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    [result] = group.update_from_batch(rows_of(4))
    assert result["all_modules"]["step"] == 1


def test_a_generator_is_told_from_what_can_begin_again(group):
    class Again:
        def __iter__(self):
            return batches()

    group.update_from_iterators([Again()], num_iters=7)
    with pytest.raises(ConfigError, match="that of learner 1: got a generator, which cannot begin again, nor be sent"):
        group._iterables.sources([[rows_of(4)], batches()])
    with pytest.raises(ConfigError, match="iterator of learner 0: got no batch"):
        group.update_from_iterators([[]], num_iters=1)


def test_module_ids():
    validate_module_id("x" * MAX_MODULE_ID)
    with pytest.raises(ConfigError, match=f"allowed: up to {MAX_MODULE_ID} letters"):
        validate_module_id("x" * (MAX_MODULE_ID + 1))
    with pytest.raises(
        ConfigError, match="module id: got 'all_modules'; allowed: any other than all_modules, the name"
    ):
        validate_module_id("all_modules")


def test_a_module_of_the_longest_id_is_saved(group, tmp_path):
    group.add_module(module_id="x" * MAX_MODULE_ID, module_spec=SPEC)
    group.restore_from_path(group.save_to_path(tmp_path / "c"))


def test_a_checkpoint_that_lacks_a_module_is_refused(group, tmp_path):
    path = group.save_to_path(tmp_path / "c")
    group.add_module(module_id="p1", module_spec=SPEC)
    group.update_from_batch({"p1": rows_of(4), "default_module": rows_of(4)})
    before = group.get_weights()
    with pytest.raises(
        CheckpointError, match=r"got no learner/lifetime/p1, .*learner/rl_module/p1; allowed: every part"
    ):
        group.restore_from_path(path)
    assert torch.equal(
        group.get_weights()["default_module"]["policy.log_std"], before["default_module"]["policy.log_std"]
    )
    group.restore_from_path(path, "learner/rl_module/default_module")
    group.restore_from_path(group.save_to_path(tmp_path / "whole"))


def test_weights_are_set_wholly_or_not_at_all(group):
    weights = group.get_weights()
    assert group.set_weights(weights)
    assert group.set_weights(group.get_weights(inference_only=True))
    name, *_ = named = weights["default_module"]
    with pytest.raises(ConfigError, match=f"module state: got no {name}"):
        group.set_weights({"default_module": {other: named[other] for other in named if other != name}})
    with pytest.raises(ConfigError, match=f"module state {name}: got values that are not finite"):
        group.set_weights({"default_module": {**named, name: torch.full_like(named[name], torch.nan)}})


def test_a_state_of_one_part_is_taken(group):
    group.set_state(group.get_state("learner/rl_module"))
    assert group.foreach_learner(_step, remote_actor_ids=[0])[0].get() == 0


def _step(learner):
    return learner.step

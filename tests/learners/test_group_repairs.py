"""Changes of modules and state that are interrupted, fail on one learner, or meet a loss: all learners stay equal."""

import contextlib
import threading

import numpy as np
import pytest
from crew_cases import wait_in_process
from group_cases import SPEC, TWO_MODULES, TellingLearner, ask, assert_learners_agree, flat, group_config, rows_of
from threaded_groups import ThreadedGroup, before_next, fail_next

from dask_rl.learners import manager
from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.calls import Membership
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.learner_stages import LearnerStages
from dask_rl.learners.module import MultiRLModuleSpec
from dask_rl.storage.errors import ConfigError, LearnerError, WorkersMissingError

ONE = MultiRLModuleSpec({"a": SPEC})
TIMEOUT = 20.0


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr(manager, "wait_any", wait_in_process)
    build, one_at_a_time = LearnerStages._build_module, threading.Lock()

    def building(*args):
        with one_at_a_time:  # threads share PyTorch's random numbers, processes do not
            return build(*args)

    monkeypatch.setattr(LearnerStages, "_build_module", building)


@pytest.fixture
def open_group():
    with contextlib.ExitStack() as stack:

        def make(num_learners=2, num_spares=1, spec=TWO_MODULES, **options):
            config = group_config(num_learners, {"name": "bc"}, transport="gloo", max_restarts=5)
            if num_learners == 0:
                return stack.enter_context(LearnerGroup(config, module_spec=spec, **options))
            return stack.enter_context(ThreadedGroup(config, module_spec=spec, num_spares=num_spares, **options))

        yield make


def train(group, *module_ids, seed=0):
    return group.update_from_batch({module_id: rows_of(6, seed) for module_id in module_ids or ("a", "b")})


def handles(group):
    return group.manager.handles


def learner_of(group, rank):
    return handles(group)[rank].actor.learner


def interrupt():
    raise KeyboardInterrupt


def leaves(tree, path=()):
    if not isinstance(tree, dict):
        return {"/".join(path): np.asarray(tree)}
    return {name: leaf for key, value in tree.items() for name, leaf in leaves(value, (*path, key)).items()}


def assert_same(mine, other):
    mine, other = leaves(mine), leaves(other)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def assert_modules(group, *module_ids):
    """The group, its config and all its learners have these, and train them alike."""
    assert set(group.module_spec.modules) == set(module_ids)
    assert [set(result) for result in train(group, *module_ids, seed=9)] == [{*module_ids, "all_modules"}] * len(group)
    assert ask(group, lambda learner: (set(learner.module), set(learner.module_spec.modules))) == [
        (set(module_ids), set(module_ids))
    ] * len(group)
    assert_learners_agree(group)
    assert set(group.get_state()["learner"]["optimizers"]) == set(module_ids)


# -- modules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_module_comes_to_a_group_of_which_one_was_lost_while_idle(open_group, rank):
    group = open_group(spec=ONE)
    train(group, "a")
    weights = flat(group.get_weights())
    handles(group)[rank].kill()
    group.add_module(module_id="b", module_spec=SPEC)
    np.testing.assert_array_equal(flat(group.get_weights(["a"])), weights)
    assert_modules(group, "a", "b")
    assert group.crew.num_restarts == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_module_comes_and_goes_while_a_learner_is_lost(open_group, rank):
    group = open_group(spec=ONE, num_spares=2)
    given = {name: np.asarray(value) + 1.5 for name, value in group.get_weights()["a"].items()}
    before_next(handles(group)[rank], "apply", handles(group)[rank].kill)
    group.add_module(module_id="b", module_spec=SPEC, module_state=given)
    assert_same({n: np.asarray(v) for n, v in group.get_weights()["b"].items()}, given)
    assert_modules(group, "a", "b")
    before_next(handles(group)[rank], "apply", handles(group)[rank].kill)
    group.remove_module("b")
    assert_modules(group, "a")


def test_a_replacement_that_was_constructed_before_a_module_came_has_it(open_group):
    group = open_group(spec=ONE, is_early=True)
    group.add_module(module_id="b", module_spec=SPEC)
    handles(group)[1].kill()
    assert_modules(group, "a", "b")
    assert handles(group)[1].where == "place 2"


def test_an_actor_builds_what_it_is_told_by_then():
    config = group_config(0, {"name": "bc"})
    actor = LearnerActor(config, ONE)
    assert actor.build().error is None
    assert actor.join(Membership(0, 1)).error is None
    actor.learner.flat.data.fill_(0.5)
    options = {"should_module_be_updated": None}
    state = {"a": None, "b": actor.learner.module["a"].get_state()}
    more = config, TWO_MODULES, type(actor.learner), options, [], state
    assert actor.build(more, False).error is None, "one that goes on gets the module"
    assert set(actor.learner.module) == {"a", "b"}
    assert {float(value) for p in actor.learner.module.parameters() for value in p.detach().ravel()} == {0.5}
    assert actor.build(more, True).error is None, "one that begins anew has it, too"
    assert set(actor.learner.module) == {"a", "b"}
    assert float(actor.learner.flat.data.max()) != 0.5


@pytest.mark.parametrize("rank", [0, 1])
def test_a_change_that_is_interrupted_is_completed_before_the_next_update(open_group, rank):
    group = open_group(num_spares=0)
    train(group)
    weights = flat(group.get_weights(["a"]))
    before_next(handles(group)[rank], "apply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        group.remove_module("b")
    assert set(group.get_state()["learner"]["rl_module"]) == set(group.module_spec.modules) == {"a"}
    np.testing.assert_array_equal(flat(group.get_weights()), weights)
    assert_modules(group, "a")
    given = {name: np.asarray(value) + 1.5 for name, value in group.get_weights()["a"].items()}
    before_next(handles(group)[rank], "apply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        group.add_module(module_id="c", module_spec=SPEC, module_state=given)
    assert_same({n: np.asarray(v) for n, v in group.get_weights()["c"].items()}, given)
    assert_modules(group, "a", "c")


@pytest.mark.parametrize("name", ["remove_module", "set_modules"])
def test_a_change_in_this_process_that_is_interrupted_is_completed(open_group, name):
    group = open_group(0)
    train(group)
    fail_next(group.crew.manager.handles[0]._actor.learner, name, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        group.remove_module("b")
    assert_modules(group, "a")


def test_a_module_that_no_learner_could_remove_keeps_weights_and_moments(open_group):
    group = open_group(num_spares=0)
    train(group)
    state = group.get_state()
    for rank in range(2):
        fail_next(learner_of(group, rank), "remove_module", ZeroDivisionError("on purpose"))
    with pytest.raises(LearnerError, match="on purpose"):
        group.remove_module("b")
    assert_same(group.get_state(), state)
    assert_modules(group, "a", "b")


def test_a_module_that_one_of_two_learners_could_not_remove_is_gone_on_both(open_group):
    group = open_group(num_spares=0)
    train(group)
    weights = flat(group.get_weights(["a"]))
    fail_next(learner_of(group, 1), "remove_module", MemoryError("on purpose"))
    with pytest.raises(LearnerError, match="on purpose"):
        group.remove_module("b")
    np.testing.assert_array_equal(flat(group.get_weights()), weights)
    assert_modules(group, "a")


def test_a_module_that_one_of_two_learners_could_not_add_stays_on_neither(open_group):
    group = open_group(num_spares=0, spec=ONE)
    train(group, "a")
    weights = flat(group.get_weights())
    for rank in range(2):
        fail_next(learner_of(group, rank), "add_module", MemoryError("on purpose"))
        with pytest.raises(LearnerError, match="on purpose"):
            group.add_module(module_id="b", module_spec=SPEC)
        assert set(group.module_spec.modules) == {"a"}
        np.testing.assert_array_equal(flat(group.get_weights()), weights)
    assert_modules(group, "a")


def test_what_is_left_of_a_group_that_lacks_workers_is_saved_with_its_modules(open_group, tmp_path):
    group = open_group(num_spares=0)
    train(group)
    weights = flat(group.get_weights(["a"]))
    before_next(handles(group)[1], "apply", handles(group)[1].kill)
    with pytest.raises(WorkersMissingError):
        group.remove_module("b")
    with pytest.raises(WorkersMissingError):
        group.add_module(module_id="b", module_spec=SPEC)
    path = group.save_to_path(tmp_path / "saved")
    config = group.config.model_copy(update={"learners": group_config(0).learners})
    with LearnerGroup.from_checkpoint(path, config=config) as restored:
        assert set(restored.module_spec.modules) == {"a"}
        np.testing.assert_array_equal(flat(restored.get_weights()), weights)


# -- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_learners", [0, 2])
def test_after_an_older_state_was_set_every_update_makes_its_step(open_group, num_learners):
    group = open_group(num_learners)
    states = [group.get_state()]
    for seed in range(4):
        train(group, seed=seed)
        states.append(group.get_state())
    for number, force in ((1, False), (4, False), (2, True), (3, False), (0, True)):
        group.set_state(states[number], force=force)
        for seed in range(3):
            [*results] = train(group, seed=seed)
            assert [result["all_modules"]["num_steps"] for result in results] == [1] * len(group)
    assert group.get_stats()["num_update_calls"] == 3
    assert_learners_agree(group)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_later_state_that_was_interrupted_swallows_no_update(open_group, rank):
    group = open_group(num_spares=0)
    for seed in range(5):
        train(group, seed=seed)
    later = group.get_state()
    other = open_group(num_spares=0)
    train(other)
    before_next(handles(other)[rank], "apply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        other.set_state(later)
    for seed in range(6):
        results = train(other, seed=seed)
        assert [result["all_modules"]["num_steps"] for result in results] == [1, 1]
    assert_learners_agree(other)


def test_a_state_that_is_refused_changes_no_number(open_group):
    group = open_group()
    train(group)
    later = {"learner": {"counters": {"step": 9, "weights_seq_no": 9}, "rl_module": {"x": {}}}}
    with pytest.raises(ConfigError):
        group.set_state(later)
    assert group.get_stats()["num_update_calls"] == 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [None, MemoryError("on purpose")])
def test_weights_that_only_one_learner_took_are_those_of_all_or_none(open_group, rank, error):
    group = open_group(num_spares=0)
    train(group)
    before = flat(group.get_weights())
    given = {id_: {n: np.asarray(v) + 1 for n, v in named.items()} for id_, named in group.get_weights().items()}
    if error is None:
        before_next(handles(group)[rank], "apply", interrupt)
    else:
        fail_next(learner_of(group, rank), "set_weights", error)
    with pytest.raises((KeyboardInterrupt, LearnerError)):
        group.set_weights(given)
    after = flat(group.get_weights())
    assert any(np.array_equal(after, each) for each in (before, flat(given)))
    assert_learners_agree(group)
    train(group)
    assert_learners_agree(group)


# -- functions -------------------------------------------------------------------------------------------------------


def test_a_function_runs_behind_updates_that_are_repeated_after_a_loss(open_group, tmp_path):
    group, gate = open_group(learner_class=TellingLearner), tmp_path / "gate"
    for seed in range(2):
        batch = {"a": rows_of(6, seed), "b": rows_of(6, seed)}
        group.update_from_batch(batch, async_update=True, gate=str(gate))
    handles(group)[1].kill()
    gate.touch()
    results = group.foreach_learner(lambda learner: learner.step, timeout_seconds=TIMEOUT)
    assert [result.get() for result in results] == [2, 2]
    assert len(group.collect_async_results(TIMEOUT)) == 2


def test_a_function_that_would_have_to_wait_too_long_is_not_called(open_group, tmp_path):
    group, gate, mark = open_group(learner_class=TellingLearner), tmp_path / "gate", tmp_path / "mark"
    group.update_from_batch({"a": rows_of(6)}, async_update=True, gate=str(gate))
    results = group.foreach_learner(lambda learner, path: path.touch(), timeout_seconds=0.2, path=mark)
    assert ["update 1: got no result in 0.2 s" in str(result.error) for result in results] == [True, True]
    gate.touch()
    group.collect_async_results(TIMEOUT)
    assert_learners_agree(group)
    assert not mark.exists()

"""Modules that come, go, or are loaded, on all learners of a group alike."""

import numpy as np
import pytest
from group_cases import SPEC, TWO_MODULES, assert_learners_agree, flat, rows_of

from dask_rl.learners.algorithms.registry import parse_algorithm
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.module import MultiRLModuleSpec
from dask_rl.storage.errors import CheckpointError, ConfigError


def train(group, *module_ids, seed=0):
    return group.update_from_batch({module_id: rows_of(6, seed) for module_id in module_ids})


def assert_same(mine, other):
    assert mine.keys() == other.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], other[name])


@pytest.fixture
def group(open_group, num_learners):
    return open_group(num_learners, module_spec=MultiRLModuleSpec({"a": SPEC}))


def test_adding_and_removing_a_module_changes_the_result_keys_and_leaves_the_others_alone(group):
    for seed in range(3):
        train(group, "a", seed=seed)
    weights = group.get_weights(["a"])["a"]
    state = group.get_state("learner/optimizers/a")["learner"]["optimizers"]["a"]
    assert any(state.values())

    def nothing_changed():
        assert_same({k: np.asarray(v) for k, v in group.get_weights(["a"])["a"].items()}, _arrays(weights))
        assert_same(
            _leaves(group.get_state("learner/optimizers/a")), _leaves({"learner": {"optimizers": {"a": state}}})
        )

    spec = group.add_module(module_id="b", module_spec=SPEC)
    assert set(spec.modules) == set(group.module_spec.modules) == {"a", "b"}
    nothing_changed()
    assert_learners_agree(group)
    assert [set(result) for result in train(group, "a", "b", seed=3)] == [{"a", "b", "all_modules"}] * len(group)
    assert_learners_agree(group)
    weights = group.get_weights(["a"])["a"]
    state = group.get_state("learner/optimizers/a")["learner"]["optimizers"]["a"]
    spec = group.remove_module("b")
    assert set(spec.modules) == set(group.module_spec.modules) == {"a"}
    nothing_changed()
    assert [set(result) for result in train(group, "a", seed=4)] == [{"a", "all_modules"}] * len(group)
    with pytest.raises(ConfigError, match=r"unknown modules \['b'\]"):
        train(group, "b")


def _arrays(weights):
    return {name: np.asarray(tensor) for name, tensor in weights.items()}


def _leaves(tree, path=()):
    if not isinstance(tree, dict):
        return {"/".join(path): np.asarray(tree)}
    return {name: leaf for key, value in tree.items() for name, leaf in _leaves(value, (*path, key)).items()}


def test_the_others_train_as_if_nobody_had_come_or_gone(open_group, num_learners):
    """Bit by bit over later steps: weights, targets and the optimizers' moments."""
    visited, quiet = (open_group(num_learners, module_spec=MultiRLModuleSpec({"m": SPEC})) for _ in range(2))
    for seed in range(6):
        if seed == 2:
            visited.add_module(module_id="a", module_spec=SPEC, config_overrides={"learning_rate": 0.1})
        if seed == 4:
            visited.remove_module("a")
        visited.update_from_batch({id_: rows_of(6, seed) for id_ in ("m", "a") if id_ in visited.module_spec.modules})
        quiet.update_from_batch({"m": rows_of(6, seed)})
    assert_same(_leaves(visited.get_state("learner/rl_module")), _leaves(quiet.get_state("learner/rl_module")))
    assert_same(_leaves(visited.get_state("learner/optimizers")), _leaves(quiet.get_state("learner/optimizers")))
    assert_learners_agree(visited)


def test_settings_of_an_added_module_are_its_own_and_checkpoints_restore_it(group, tmp_path, cluster_client):
    group.add_module(module_id="b", module_spec=SPEC, config_overrides={"learning_rate": 0.02, "grad_clip": 0.5})
    group.add_module(module_id="c", module_spec=SPEC, config_overrides={"name": "bc", "hidden_sizes": [7]})
    assert group.config.algorithm_of("b") == group.config.algorithm.model_copy(
        update={"learning_rate": 0.02, "grad_clip": 0.5}
    )
    assert group.config.algorithm_of("c").name == "bc"
    result = train(group, "a", "b", "c")[0]
    assert result["b"]["learning_rate/critic"] == 0.02
    assert set(result["c"]) & {"policy_loss", "value_loss"} == {"policy_loss"}
    path = group.save_to_path(tmp_path / "checkpoint")
    train(group, "a", "b", "c", seed=1)
    with LearnerGroup.from_checkpoint(path, client=cluster_client) as restored:
        assert set(restored.module_spec.modules) == {"a", "b", "c"}
        train(restored, "a", "b", "c", seed=1)
        np.testing.assert_array_equal(flat(restored.get_weights()), flat(group.get_weights()))


def test_an_added_module_with_a_given_state_or_a_complete_algorithm(group):
    given = {name: value + 1.5 for name, value in group.get_weights(["a"])["a"].items()}
    group.add_module(module_id="b", module_spec=SPEC, module_state=given)
    assert_same(_arrays(group.get_weights(["b"])["b"]), _arrays(given))
    algorithm = parse_algorithm({"name": "bc", "hidden_sizes": [3], "learning_rate": 0.5})
    group.add_module(module_id="c", module_spec=SPEC, config_overrides=algorithm)
    assert train(group, "c")[0]["c"]["learning_rate/default"] == 0.5
    assert_learners_agree(group)


def test_new_should_module_be_updated(group):
    group.add_module(module_id="b", module_spec=SPEC, new_should_module_be_updated=["b"])
    assert set(train(group, "a", "b")[0]) == {"b", "all_modules"}
    assert group.config.modules_to_update == ("b",)
    group.add_module(module_id="c", module_spec=SPEC, new_should_module_be_updated=lambda id_, batches: id_ != "b")
    assert set(train(group, "a", "b", "c")[0]) == {"a", "c", "all_modules"}
    group.remove_module("c", new_should_module_be_updated=["a"])
    assert set(train(group, "a", "b")[0]) == {"a", "all_modules"}, "a collection replaces a function"
    with pytest.raises(ConfigError, match=r"modules_to_update: got unknown modules \['x'\]"):
        group.add_module(module_id="d", module_spec=SPEC, new_should_module_be_updated=["x"])
    assert set(group.module_spec.modules) == {"a", "b"}
    assert set(train(group, "a", "b")[0]) == {"a", "all_modules"}


def test_modules_to_update_of_the_constructor_follow_and_are_saved(open_group, num_learners, tmp_path, cluster_client):
    group = open_group(num_learners, module_spec=TWO_MODULES, should_update=["b"])
    assert set(train(group, "a", "b")[0]) == {"b", "all_modules"}
    path = group.save_to_path(tmp_path / "checkpoint")
    with LearnerGroup.from_checkpoint(path, client=cluster_client) as restored:
        assert set(train(restored, "a", "b")[0]) == {"b", "all_modules"}
    group.remove_module("b")
    if group.is_remote:
        group.restart()  # other learners are built of what is there now
    train(group, "a")
    assert_learners_agree(group)


@pytest.mark.parametrize("module_id", ["a", "all_modules", "a/b", "..", "x.json", ""])
def test_ids_that_cannot_be_added_change_nothing(group, module_id):
    with pytest.raises(ValueError, match="module id"):
        group.add_module(module_id=module_id, module_spec=SPEC)
    assert set(train(group, "a")[0]) == {"a", "all_modules"}


def test_what_does_not_fit_changes_nothing_on_any_learner(group):
    before = flat(group.get_weights())
    with pytest.raises(ConfigError, match="learning_rat"):
        group.add_module(module_id="b", module_spec=SPEC, config_overrides={"learning_rat": 1})
    with pytest.raises(ConfigError, match="unknown names"):
        group.add_module(module_id="b", module_spec=SPEC, module_state={"nothing": np.zeros(3)})
    for module_id in ("a", "b"):
        with pytest.raises(ConfigError, match="while another one stays"):
            group.remove_module(module_id)
    np.testing.assert_array_equal(flat(group.get_weights()), before)
    assert set(group.module_spec.modules) == {"a"}
    assert not group.config.module_algorithms
    train(group, "a")
    assert_learners_agree(group)


# -- load_module_state -----------------------------------------------------------------------------------------------


@pytest.fixture
def saved(open_group, tmp_path):
    """Checkpoints: of a group with a and b, and of single modules; their weights by name."""
    source = open_group(0, module_spec=TWO_MODULES, seed=5)
    whole = source.save_to_path(tmp_path / "whole")
    weights = {"whole": source.get_weights()}
    train(source, "a", "b")
    paths = {"whole": whole} | {m: source.save_module(m, tmp_path / f"single-{m}") for m in ("a", "b")}
    return paths, weights | {"single": source.get_weights()}


def check(group, a, b):
    weights = group.get_weights()
    assert_same(_arrays(weights["a"]), _arrays(a))
    assert_same(_arrays(weights["b"]), _arrays(b))
    assert_learners_agree(group)


def test_module_states_are_loaded_in_three_ways(open_group, num_learners, saved):
    paths, weights = saved
    group = open_group(num_learners, module_spec=TWO_MODULES)
    train(group, "a", "b")
    own, moments_before = group.get_weights(), _leaves(group.get_state("learner/optimizers"))
    group.load_module_state(multi_rl_module_ckpt_dir=paths["whole"], modules_to_load=["b"])
    check(group, own["a"], weights["whole"]["b"])
    group.load_module_state(multi_rl_module_ckpt_dir=paths["whole"])
    check(group, weights["whole"]["a"], weights["whole"]["b"])
    group.load_module_state(rl_module_ckpt_dirs={"a": paths["b"]})
    check(group, weights["single"]["b"], weights["whole"]["b"])
    group.load_module_state(multi_rl_module_ckpt_dir=paths["whole"], rl_module_ckpt_dirs={"b": paths["b"]})
    check(group, weights["whole"]["a"], weights["single"]["b"])
    assert_same(_leaves(group.get_state("learner/optimizers")), moments_before)
    train(group, "a", "b")


def test_what_cannot_be_loaded_is_refused_and_loads_nothing(open_group, num_learners, saved, tmp_path):
    paths, _ = saved
    group = open_group(num_learners, module_spec=TWO_MODULES)
    before = flat(group.get_weights())
    for error, words, given in (
        (ValueError, "got no checkpoint", {}),
        (ValueError, "modules_to_load with", {"modules_to_load": ["a"], "rl_module_ckpt_dirs": {"a": paths["a"]}}),
        (ValueError, "got no checkpoint", {"modules_to_load": ["a"]}),
        (CheckpointError, "missing", {"multi_rl_module_ckpt_dir": tmp_path / "missing"}),
        (CheckpointError, "single module", {"multi_rl_module_ckpt_dir": paths["a"]}),
        (CheckpointError, "one module", {"rl_module_ckpt_dirs": {"a": paths["whole"]}}),
        (CheckpointError, "/c", {"multi_rl_module_ckpt_dir": paths["whole"], "modules_to_load": ["a", "c"]}),
        (ConfigError, "'c'", {"rl_module_ckpt_dirs": {"a": paths["a"], "c": paths["b"]}}),
    ):
        with pytest.raises(error, match=words):
            group.load_module_state(**given)
        np.testing.assert_array_equal(flat(group.get_weights()), before)
    with pytest.raises(ConfigError, match="module id"):
        group.save_module("c", tmp_path / "c")

import numpy as np
import pytest
import torch
from learner_cases import make_batch, make_learner, update, weights

from dask_rl.learners.checkpointable import select_state, to_arrays
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import CheckpointError, ConfigError, DaskRLError

STATE = {"rl_module": {"p0": {"w": 1}, "p1": {"w": 2}}, "counters": {"step": 3}, "iterators": {}}


def test_selecting_components():
    assert select_state(STATE) == STATE
    assert select_state(STATE, "rl_module/p0") == {"rl_module": {"p0": {"w": 1}}}
    assert select_state(STATE, ["counters", "rl_module/p1"]) == {"rl_module": {"p1": {"w": 2}}, "counters": {"step": 3}}
    assert select_state(STATE, not_components="rl_module") == {"counters": {"step": 3}, "iterators": {}}
    assert select_state(STATE, "rl_module", not_components="rl_module/p1") == {"rl_module": {"p0": {"w": 1}}}


@pytest.mark.parametrize("names", ["rl_module/p", "nope", ["counters", "counters/step/more"], 5, [5]])
def test_components_that_there_are_none_of_are_refused(names):
    for chosen in ({"components": names}, {"not_components": names}):
        with pytest.raises(ConfigError, match=r"^components: got (?!.*\n)"):
            select_state(STATE, **chosen)
    with pytest.raises(ConfigError, match=r"got 'rl_module/p'; allowed: \['rl_module/p0', 'rl_module/p1'\]"):
        select_state(STATE, "rl_module/p")


def test_arrays_instead_of_tensors():
    arrays = to_arrays({"a": {"b": torch.ones(2)}, "c": 3})
    assert isinstance(arrays["a"]["b"], np.ndarray)
    assert arrays["c"] == 3


def trained(steps=3, **kwargs):
    learner = make_learner({"name": "iql"}, **kwargs)
    for seed in range(steps):
        module_batches = {m: make_batch("continuous", 6, seed) for m in learner.module}
        learner.run(UpdateRequest(learner.weights_seq_no + 1, batch=module_batches))
    return learner


def equal(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_one_component_can_be_restored(tmp_path):
    source = trained(modules=("p0", "p1"))
    source.save_to_path(tmp_path / "c")
    target = make_learner({"name": "iql"}, modules=("p0", "p1"), seed=5)
    before = weights(target, "p1")
    target.restore_from_path(tmp_path / "c", component="rl_module/p0")
    assert equal(weights(target, "p0"), weights(source, "p0"))
    assert equal(weights(target, "p1"), before)
    assert target.step == 0
    target.restore_from_path(tmp_path / "c", component="counters")
    assert target.step == 3
    with pytest.raises(CheckpointError):
        target.restore_from_path(tmp_path / "c", component="rl_module/p9")


def test_a_checkpoint_from_before_the_first_step_forgets_the_optimizers(tmp_path):
    fresh = trained(0)
    fresh.save_to_path(tmp_path / "c")
    learner = trained(5)
    learner.restore_from_path(tmp_path / "c")
    assert (learner.step, learner.num_skipped_steps) == (0, 0)
    for one in (fresh, learner):
        update(one, make_batch("continuous", 6))
    assert equal(weights(learner), weights(fresh))


def test_restoring_keeps_flat_storage_in_place(tmp_path):
    learner = trained()
    learner.save_to_path(tmp_path / "c")
    pointers = [p.data_ptr() for p in learner.module.parameters()]
    learner.restore_from_path(tmp_path / "c")
    assert [p.data_ptr() for p in learner.module.parameters()] == pointers


@pytest.mark.parametrize(("steps", "force", "taken"), [(3, False, True), (2, False, False), (2, True, True)])
def test_weights_with_an_older_number_do_not_overwrite_newer_ones_unless_forced(steps, force, taken):
    older, learner = trained(steps), trained(3, seed=1)
    before, given = weights(learner), older.module.get_state()
    assert learner.set_weights(given, weights_seq_no=older.weights_seq_no, force=force) == taken
    assert equal(weights(learner), weights(older) if taken else before)
    assert learner.weights_seq_no == 3, "the number of requests goes its own way"
    assert learner.set_weights(given)
    assert equal(weights(learner), weights(older))


@pytest.mark.parametrize("force", [False, True])
def test_a_state_with_older_weights_leaves_newer_ones_unless_forced(force):
    older, learner = trained(2), trained(3, seed=1)
    before = weights(learner)
    learner.set_state(older.get_state(), force=force)
    assert equal(weights(learner), weights(older) if force else before)
    assert learner.weights_seq_no == (2 if force else 3)
    learner.set_state(trained(4).get_state(), force=force)
    assert equal(weights(learner), weights(trained(4)))
    assert learner.weights_seq_no == 4


def test_states_of_other_modules_are_refused(tmp_path):
    one = trained(modules=("p0",))
    one.save_to_path(tmp_path / "c")
    with pytest.raises(DaskRLError, match=r"got no lifetime/other, rl_module/other; "):
        make_learner({"name": "iql"}, modules=("other",)).restore_from_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"optimizer state: got p0/critic; allowed: \['p0/default'\]"):
        make_learner({"name": "bc"}, modules=("p0",)).set_state({"optimizers": one.get_state()["optimizers"]})


def test_metadata_is_enough_to_build_the_learner_again():
    learner = trained()
    metadata = learner.get_metadata()
    assert metadata["class_name"] == "Learner"
    other = type(learner)(
        type(learner.config).model_validate(metadata["constructor"]["config"]),
        type(learner.module_spec).from_json(metadata["constructor"]["module_spec"]),
    )
    other.build()
    other.set_state(to_arrays(learner.get_state()))
    for one in (learner, other):
        update(one, make_batch("continuous", 6))
    assert equal(weights(learner), weights(other))

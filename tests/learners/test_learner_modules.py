"""Several modules on one learner: their own algorithms, and modules that come and go."""

import numpy as np
import pytest
import torch
from learner_cases import ACTIONS, OBSERVATIONS, make_batch, make_learner, weights
from learner_peers import run_in_threads

from dask_rl.learners.algorithms.registry import parse_algorithm
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.learner import Learner
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import ConfigError

SPEC = RLModuleSpec(OBSERVATIONS, ACTIONS["continuous"])
SETTINGS = {"name": "iql", "dropout": 0.3, "hidden_sizes": (5, 4)}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def train(learner, module_ids, steps, first=1):
    """Steps whose batch of a module depends on the step and the module alone."""
    for number in range(first, first + steps):
        batch = {module_id: make_batch("continuous", 6, 100 * ord(module_id) + number) for module_id in module_ids}
        learner.run(UpdateRequest(number, batch=batch))


def optimizer_state(learner, module_id):
    out = learner.get_state(["optimizers"])["optimizers"][module_id]
    return {f"{name}/{key}": value.numpy() for name, state in out.items() for key, value in state.items()}


# -- algorithms of their own -------------------------------------------------------------------------------------


def test_modules_train_with_algorithms_of_their_own():
    config = LearnerGroupConfig(
        algorithm={"name": "bc", "hidden_sizes": (5, 4), "learning_rate": 0.01},
        module_algorithms={"q": {**SETTINGS, "learning_rate": 0.02, "grad_clip": 0.1}},
        learners=LearnersConfig(precision="fp64", compile="off"),
    )
    learner = Learner(config, MultiRLModuleSpec({"p": SPEC, "q": SPEC}))
    learner.build()
    result = learner.run(UpdateRequest(1, batch={"p": make_batch("continuous", 6), "q": make_batch("continuous", 6)}))
    assert set(result["p"]) & {"policy_loss", "value_loss"} == {"policy_loss"}
    assert set(result["q"]) & {"policy_loss", "value_loss"} == {"policy_loss", "value_loss"}
    assert result["p"]["learning_rate/default"] == 0.01
    assert result["q"]["learning_rate/critic"] == 0.02
    norms = {key[0]: float(learner.flat.segment_grad(key).norm()) for key in learner.optimizers}
    assert norms["q"] <= 0.1 < norms["p"], "clipping is the module's own"
    alone = make_learner({**SETTINGS, "learning_rate": 0.02, "grad_clip": 0.1}, modules=("q",))
    alone.run(UpdateRequest(1, batch={"q": make_batch("continuous", 6)}))
    assert same(weights(alone, "q"), weights(learner, "q")), "also its noise and initial weights are its own"


def test_modules_of_one_and_of_several_phases_step_together():
    """The single-phase one is put back, too, where the other's later phase is not finite."""

    class BadPhase(Learner):
        bad = False

        def compute_gradients(self, phases, batches, noise):
            losses = super().compute_gradients(phases, batches, noise)
            if self.bad and phases["q"].name == "critic":
                self.flat.segment_grad(("q", "critic")).fill_(torch.inf)
            return losses

    config = LearnerGroupConfig(
        algorithm=SETTINGS,
        module_algorithms={"q": {**SETTINGS, "update_order": "sequential"}},
        learners=LearnersConfig(precision="fp64", compile="off"),
    )
    learner = BadPhase(config, MultiRLModuleSpec({"p": SPEC, "q": SPEC}))
    learner.build()
    train(learner, "pq", 1)
    before = learner.flat.data.clone()
    train(learner, "pq", 1, first=2)
    assert not torch.equal(learner.flat.data, before)
    before = [tensor.clone() for tensor in learner._shared_tensors()]
    learner.bad = True
    train(learner, "pq", 1, first=3)
    for tensor, value in zip(learner._shared_tensors(), before, strict=True):
        assert torch.equal(tensor, value), "its targets, too"
    assert learner.num_skipped_steps == 1


def test_settings_for_unknown_modules_are_refused():
    config = LearnerGroupConfig(algorithm={"name": "bc"}, module_algorithms={"x": {"name": "bc"}})
    learner = Learner(config, MultiRLModuleSpec({"a": SPEC}))
    with pytest.raises(ConfigError, match=r"module_algorithms: got unknown modules \['x'\]; allowed: \['a'\]"):
        learner.build()


def test_a_modules_weights_and_noise_do_not_depend_on_other_modules():
    learners = {ids: make_learner(SETTINGS, modules=tuple(ids)) for ids in ("b", "ab", "abc")}
    for ids, learner in learners.items():
        train(learner, ids, 3)
    for ids in ("ab", "abc"):
        assert same(weights(learners["b"], "b"), weights(learners[ids], "b"))


def test_an_unknown_module_id_is_a_value_error():
    learner = make_learner({"name": "bc"}, modules=("a",))
    with pytest.raises(ValueError, match="unknown modules"):
        learner.run(UpdateRequest(1, batch={"x": make_batch("continuous", 3)}))


# -- adding and removing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", ["a", "c"])
@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_adding_and_removing_a_module_leaves_the_others_bit_identical(new, order):
    settings = {**SETTINGS, "update_order": order}
    learner, undisturbed = (make_learner(settings, modules=("b",)) for _ in range(2))
    train(learner, "b", 2)
    before = optimizer_state(learner, "b")
    learner.add_module(new, SPEC)
    assert same(optimizer_state(learner, "b"), before)
    train(learner, ["b", new], 2, first=3)
    learner.remove_module(new)
    train(learner, "b", 2, first=5)
    train(undisturbed, "b", 6)
    assert same(weights(learner, "b"), weights(undisturbed, "b"))
    assert same(optimizer_state(learner, "b"), optimizer_state(undisturbed, "b"))
    assert torch.equal(learner.flat.data, undisturbed.flat.data)


def test_adding_and_removing_modules_changes_the_result_keys():
    learner = make_learner(SETTINGS, modules=("a",))
    run = lambda number, ids: list(  # noqa: E731
        learner.run(UpdateRequest(number, batch={id_: make_batch("continuous", 6) for id_ in ids}))
    )
    assert run(1, "a") == ["a", "all_modules"]
    learner.add_module("b", SPEC)
    assert run(2, "ab") == ["a", "b", "all_modules"]
    learner.remove_module("a")
    assert run(3, "b") == ["b", "all_modules"]
    with pytest.raises(ConfigError, match="unknown modules"):
        run(4, "ab")


def test_config_and_spec_follow_so_that_the_learner_can_be_built_again():
    learner = make_learner(SETTINGS, modules=("a",))
    learner.set_modules_to_update(("a",))
    learner.add_module("b", SPEC, parse_algorithm({"name": "bc", "hidden_sizes": (3,)}))
    learner.set_modules_to_update(("b", "a"))
    train(learner, "ab", 2)
    other = Learner(learner.config, learner.module_spec)
    other.build()
    other.set_state(learner.get_state())
    for each in (learner, other):
        train(each, "ab", 2, first=3)
    assert torch.equal(learner.flat.data, other.flat.data)
    assert learner.config.modules_to_update == ("a", "b")
    learner.remove_module("b")
    assert learner.config.module_algorithms == {}
    assert learner.config.modules_to_update == learner.modules_to_update == ("a",)
    assert list(learner.module_spec.modules) == ["a"]


def test_a_given_module_state_is_honoured():
    source = make_learner(SETTINGS, modules=("b",))
    train(source, "b", 2)
    learner = make_learner(SETTINGS, modules=("a",))
    learner.add_module("b", SPEC, state=source.module["b"].get_state())
    assert same(weights(learner, "b"), weights(source, "b"))
    learner.remove_module("b")
    learner.add_module("b", SPEC)
    assert not same(weights(learner, "b"), weights(source, "b"))
    assert not learner.optimizers["b", "policy"].state_dict(), "optimizer state of a removed module is gone"


@pytest.mark.parametrize(
    ("module_id", "kwargs", "match"),
    [
        ("a", {}, "module id: got 'a' again"),
        ("all_modules", {}, "module id"),
        ("x.json", {}, "module id"),
        ("b", {"state": {"nope": torch.zeros(1)}}, "unknown names"),
        (
            "b",
            {"algorithm_config": parse_algorithm({"name": "bc", "hidden_sizes": (3,)}), "state": {"x": 1}},
            "unknown",
        ),
    ],
)
def test_a_module_that_cannot_be_added_leaves_everything_as_it_was(module_id, kwargs, match):
    learner, undisturbed = (make_learner(SETTINGS, modules=("a",)) for _ in range(2))
    train(learner, "a", 2)
    config, spec = learner.config, learner.module_spec
    with pytest.raises(ConfigError, match=match):
        learner.add_module(module_id, SPEC, **kwargs)
    assert (learner.config, learner.module_spec, list(learner.module)) == (config, spec, ["a"])
    train(learner, "a", 2, first=3)
    train(undisturbed, "a", 4)
    assert torch.equal(learner.flat.data, undisturbed.flat.data)


class TwoOwnersOfB(Learner):
    def configure_optimizers_for_module(self, module_id):
        super().configure_optimizers_for_module(module_id)
        if module_id == "b":
            named = list(self.module[module_id].named_parameters())
            self.register_optimizer(module_id, "again", torch.optim.SGD, named, 0.1)


def test_an_own_stage_that_fails_on_a_new_module_leaves_everything_as_it_was():
    learner, undisturbed = (make_learner(SETTINGS, modules=("a",), learner_class=TwoOwnersOfB) for _ in range(2))
    train(learner, "a", 2)
    with pytest.raises(ConfigError, match="one optimizer a parameter"):
        learner.add_module("b", SPEC)
    train(learner, "a", 2, first=3)
    train(undisturbed, "a", 4)
    assert torch.equal(learner.flat.data, undisturbed.flat.data)
    assert same(optimizer_state(learner, "a"), optimizer_state(undisturbed, "a"))


def test_the_last_module_and_unknown_ones_cannot_be_removed():
    learner = make_learner(SETTINGS, modules=("a",))
    with pytest.raises(ConfigError, match="got 'a', the only one"):
        learner.remove_module("a")
    with pytest.raises(ConfigError, match=r"module id: got 'x'; allowed: \['a'\]"):
        learner.remove_module("x")


def test_an_added_module_starts_equal_on_all_learners_and_learns_with_them():
    learners = [make_learner(SETTINGS, modules=("a",)) for _ in range(2)]
    for learner in learners:
        torch.manual_seed(id(learner) % 1000)  # whatever torch's own generator is at
        learner.add_module("b", SPEC)
    assert same(weights(learners[0], "b"), weights(learners[1], "b"))

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        batch = {id_: make_batch("continuous", 6, collective.rank) for id_ in "ab"}
        return list(learner.run(UpdateRequest(1, batch=batch)))

    assert run_in_threads(2, work) == [["a", "b", "all_modules"]] * 2
    assert torch.equal(learners[0].flat.data, learners[1].flat.data)


def test_counts_of_the_modules_that_stay_go_on():
    learner = make_learner(SETTINGS, modules=("a",))
    train(learner, "a", 2)
    learner.add_module("b", SPEC)
    train(learner, "ab", 1, first=3)
    assert learner.get_state("lifetime") == {
        "lifetime": {"a": {"num_rows": 18, "num_steps": 3}, "b": {"num_rows": 6, "num_steps": 1}}
    }

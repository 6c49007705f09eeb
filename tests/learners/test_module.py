import json

import gymnasium
import numpy as np
import pytest
import torch
from learner_cases import ACTIONS, OBSERVATIONS, make_learner

from dask_rl.learners.algorithms.bc import BCModule
from dask_rl.learners.algorithms.registry import build_algorithm, parse_algorithm
from dask_rl.learners.module import (
    MultiRLModule,
    MultiRLModuleSpec,
    RLModuleSpec,
    register_module,
    validate_module_id,
)
from dask_rl.storage.errors import ConfigError

SPEC = RLModuleSpec(OBSERVATIONS, ACTIONS["continuous"])


@register_module
class RegisteredModule(BCModule):
    pass


class UnregisteredModule(BCModule):
    pass


def test_specs_survive_json():
    spec = MultiRLModuleSpec(
        {"a": SPEC, "b": RLModuleSpec(OBSERVATIONS, gymnasium.spaces.Discrete(3, start=1), RegisteredModule)}
    )
    assert MultiRLModuleSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert MultiRLModuleSpec.of(SPEC).modules == {"default_module": SPEC}
    assert MultiRLModuleSpec.of(spec) is spec


def test_an_unregistered_class_is_not_imported_by_name():
    spec = RLModuleSpec(OBSERVATIONS, ACTIONS["discrete"], UnregisteredModule)
    with pytest.raises(ConfigError, match=r"module class: got 'UnregisteredModule'; .*register_module"):
        RLModuleSpec.from_json(spec.to_json())


def test_a_specs_own_class_is_built():
    algorithm = build_algorithm(parse_algorithm({"name": "bc"}))
    spec = RLModuleSpec(OBSERVATIONS, ACTIONS["discrete"], RegisteredModule)
    assert type(algorithm.build_module(spec)) is RegisteredModule


@pytest.mark.parametrize(
    "module_id", ["", "a/b", "../x", "a..b", ".hidden", "all_modules", "a b", "é", "a.json", "b.safetensors", "A.JSON"]
)
def test_ids_that_can_name_no_component_are_refused(module_id):
    for construct in (validate_module_id, lambda id_: MultiRLModuleSpec({id_: SPEC})):
        with pytest.raises(ConfigError, match="module id"):
            construct(module_id)


def test_ids_with_dots_and_order():
    module = make_learner({"name": "bc"}, modules=("p.1", "a-2", "B_3")).module
    assert list(module) == ["B_3", "a-2", "p.1"]
    assert "p.1" in module
    assert "x" not in module
    with pytest.raises(ConfigError, match=r"module id: got 'x'; allowed: \['B_3'"):
        module["x"]
    with pytest.raises(ConfigError):
        MultiRLModule({"a/b": module["p.1"]})
    assert len({id(p) for p in module.parameters()}) == 3 * len(list(module["p.1"].parameters()))


def test_states_are_copies_and_are_set_in_place():
    learner = make_learner({"name": "bc"})
    module = learner.module["default_module"]
    state = module.get_state()
    pointers = {name: t.data_ptr() for name, t in module.state_dict().items()}
    module.set_state({name: np.full(t.shape, 2.0) for name, t in state.items()})
    assert {name: t.data_ptr() for name, t in module.state_dict().items()} == pointers
    assert all((t == 2).all() for t in module.state_dict().values())
    assert not any((t == 2).all() for t in state.values() if t.numel() > 1)
    module.set_state({"policy.log_std": torch.zeros(2)})
    assert (module.get_state()["policy.log_std"] == 0).all()
    assert (module.get_state()["policy.network.layers.0.bias"] == 2).all()


def test_wrong_states_are_refused():
    module = make_learner({"name": "bc"}).module
    with pytest.raises(ConfigError, match=r"unknown names \['nope'\]"):
        module.set_state({"default_module": {"nope": torch.zeros(1)}})
    with pytest.raises(ConfigError, match=r"module state policy.log_std: got shape \(3,\); allowed: \(2,\)"):
        module.set_state({"default_module": {"policy.log_std": torch.zeros(3)}})
    with pytest.raises(ConfigError, match="module id"):
        module.set_state({"other": {}})


def test_inference_only_weights_are_the_policys():
    module = make_learner({"name": "iql"}, modules=("a", "b")).module
    state = module.get_state(["b"], inference_only=True)
    assert list(state) == ["b"]
    assert state["b"]
    assert all(name.startswith("policy.") for name in state["b"])

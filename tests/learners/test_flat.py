import numpy as np
import pytest
import torch
from learner_cases import gradients, make_batch, make_learner, update, weights
from torch import nn

from dask_rl.learners.flat import ALIGNMENT_BYTES, FlatParameters, FlatTargets
from dask_rl.storage.errors import ConfigError


def make_flat(dtype=torch.float32):
    torch.manual_seed(0)
    a, b = nn.Linear(3, 5).to(dtype), nn.Linear(5, 1).to(dtype)
    groups = {("m", "a"): list(a.named_parameters()), ("m", "b"): list(b.named_parameters())}
    return FlatParameters(groups, ["m"], dtype=dtype, device=torch.device("cpu")), a, b


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_tensor_and_segment_is_aligned(dtype):
    flat, a, b = make_flat(dtype)
    for segment in flat.segments.values():
        assert segment.start * dtype.itemsize % ALIGNMENT_BYTES == 0
        assert segment.stop * dtype.itemsize % ALIGNMENT_BYTES == 0
        for slot in segment.slots:
            assert slot.start * dtype.itemsize % ALIGNMENT_BYTES == 0
    for parameter in [*a.parameters(), *b.parameters()]:
        assert parameter.data_ptr() % ALIGNMENT_BYTES == 0
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() % ALIGNMENT_BYTES == 0
    assert flat.ranges([("m", "b"), ("m", "a")]) == [(0, flat.size)]
    assert flat.ranges([("m", "b")]) == [(flat.segments["m", "b"].start, flat.size)]


def test_parameters_keep_their_values_and_live_in_the_buffer():
    flat, a, _ = make_flat()
    torch.manual_seed(0)
    original = nn.Linear(3, 5)
    assert torch.equal(a.weight, original.weight)
    assert torch.equal(a.bias, original.bias)
    flat.segment_data(("m", "a")).fill_(3)
    assert (a.weight == 3).all()
    flat.data.zero_()
    assert dict(a.named_parameters()).keys() == {"weight", "bias"}
    a.load_state_dict({"weight": torch.ones(5, 3), "bias": torch.zeros(5)})
    assert flat.segment_data(("m", "a")).sum() == 15
    a(torch.ones(1, 3)).sum().backward()
    assert flat.segment_grad(("m", "a")).sum() == 20
    assert not flat.segment_grad(("m", "b")).any()


def test_detached_gradients_are_put_back_with_their_values():
    flat, a, b = make_flat()
    flat.grad.fill_(9)
    a.zero_grad(set_to_none=True)
    b.zero_grad(set_to_none=True)
    a(torch.ones(1, 3)).sum().backward()
    expected = {name: p.grad.clone() for name, p in a.named_parameters()}
    flat.reattach()
    for name, parameter in a.named_parameters():
        assert torch.equal(parameter.grad, expected[name])
        assert parameter.grad.untyped_storage().data_ptr() == flat.grad.untyped_storage().data_ptr()
    for slot in flat.segments["m", "b"].slots:
        assert not slot.view(flat.grad).any(), "no gradient is a gradient of 0"


def test_a_learner_trains_on_after_set_to_none():
    plain, detached = (make_learner({"name": "iql"}) for _ in range(2))
    for seed in range(3):
        batch = make_batch("continuous", 6, seed)
        update(plain, batch)
        detached.module.zero_grad(set_to_none=True)
        update(detached, batch)
    assert torch.equal(plain.flat.data, detached.flat.data)


def test_a_parameter_has_one_owner():
    shared = nn.Parameter(torch.zeros(2))
    groups = {("m", "a"): [("x", shared)], ("m", "b"): [("y", shared)]}
    with pytest.raises(ConfigError, match=r"parameter y of module 'm': got optimizer 'b' .* beside optimizer 'a'"):
        FlatParameters(groups, ["m"], dtype=torch.float32, device=torch.device("cpu"))


def test_saved_states_have_the_usual_names_and_shapes():
    learner = make_learner({"name": "iql"})
    module = learner.module["default_module"]
    fresh = learner.algorithms["default_module"].build_module(learner.module_spec.modules["default_module"])
    assert {n: t.shape for n, t in module.state_dict().items()} == {n: t.shape for n, t in fresh.state_dict().items()}
    fresh.load_state_dict(module.state_dict())
    before = weights(learner)
    module.load_state_dict({name: t + 1 for name, t in before_as_tensors(before).items()})
    update(learner, make_batch("continuous", 4))
    after = weights(learner)
    for name in before:
        if name.startswith("policy.network"):
            assert np.abs(after[name] - before[name] - 1).max() < 0.01


def before_as_tensors(values):
    return {name: torch.from_numpy(value) for name, value in values.items()}


@pytest.mark.parametrize("contiguous", [True, False])
def test_targets_move_by_lerp(contiguous):
    source, target = nn.Linear(3, 5), nn.Linear(3, 5)
    if contiguous:
        groups = {("m", "a"): list(source.named_parameters())}
        FlatParameters(groups, ["m"], dtype=torch.float32, device=torch.device("cpu"))
    targets = FlatTargets(list(target.named_parameters()), list(source.named_parameters()))
    assert (len(targets._pairs) == 1) == contiguous
    expected = {name: torch.lerp(p, source.get_parameter(name), 0.3) for name, p in target.named_parameters()}
    targets.step(0.3)
    for name, parameter in target.named_parameters():
        assert torch.equal(parameter, expected[name])
    targets.step(1.0)
    for name, parameter in target.named_parameters():
        torch.testing.assert_close(parameter, source.get_parameter(name), rtol=0, atol=1e-7)


def test_targets_need_the_structure_of_their_source():
    with pytest.raises(ConfigError, match="one structure"):
        FlatTargets(list(nn.Linear(2, 3).named_parameters()), list(nn.Linear(3, 3).named_parameters()))


def test_gaps_stay_zero():
    learner = make_learner({"name": "iql", "learning_rate": 0.1})
    for seed in range(3):
        update(learner, make_batch("continuous", 6, seed))
    gradients(learner, make_batch("continuous", 6))
    covered = torch.zeros(learner.flat.size, dtype=torch.bool)
    for segment in learner.flat.segments.values():
        for slot in segment.slots:
            covered[slot.start : slot.stop] = True
    assert not covered.all()
    assert not learner.flat.data[~covered].any()
    assert not learner.flat.grad[: learner.flat.size][~covered].any()

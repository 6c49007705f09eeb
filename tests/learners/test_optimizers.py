import functools

import numpy.testing as npt
import pytest
import torch
from torch import nn

from dask_rl.learners.flat import FlatParameters
from dask_rl.learners.optimizers import Registration, SegmentOptimizer, clip_gradients, gradient_norms
from dask_rl.learners.schedules import Constant, Piecewise
from dask_rl.storage.errors import CheckpointError

KEY, RATE = ("m", "o"), Constant(0.01)


class Odd(nn.Module):
    """A matrix, a vector and a scalar, as a temperature is."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.scalar = nn.Parameter(torch.randn((), generator=generator))
        self.matrix = nn.Parameter(torch.randn(3, 5, generator=generator))
        self.vector = nn.Parameter(torch.randn(7, generator=generator))

    def loss(self, x):
        return (torch.tanh(x @ self.matrix).sum() * self.scalar + self.vector.square().sum() * x.sum()).square()


def make(factory=torch.optim.Adam, schedule=RATE, names=None, **kwargs):
    module = Odd()
    parameters = [(n, p) for n, p in module.named_parameters() if names is None or n in names]
    flat = FlatParameters({KEY: parameters}, ["m"], dtype=torch.float32, device=torch.device("cpu"))
    return module, flat, SegmentOptimizer(flat, KEY, Registration(parameters, factory, schedule, kwargs))


def train(module, flat, optimizer, steps, start=0):
    for step in range(start, start + steps):
        flat.grad.zero_()
        module.loss(torch.full((2, 3), 0.1 * (step + 1))).backward()
        optimizer.step(step)


FACTORIES = {
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "per tensor": (functools.partial(torch.optim.Adam, betas=(0.8, 0.9)), {}),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_flat_segment_learns_as_torchs_own_optimizer(name):
    factory, kwargs = FACTORIES[name]
    module, flat, optimizer = make(factory, **kwargs)
    other = Odd()
    reference = factory(other.parameters(), lr=0.01, **kwargs)
    for step in range(6):
        reference.zero_grad()
        other.loss(torch.full((2, 3), 0.1 * (step + 1))).backward()
        reference.step()
    train(module, flat, optimizer, 6)
    for parameter_name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, other.get_parameter(parameter_name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("names", [None, ("scalar",)])
def test_state_by_parameter_name_goes_on_bit_by_bit(name, names):
    factory, kwargs = FACTORIES[name]
    module, flat, optimizer = make(factory, names=names, **kwargs)
    train(module, flat, optimizer, 3)
    saved, values = optimizer.state_dict(), {n: p.detach().clone() for n, p in module.named_parameters()}
    train(module, flat, optimizer, 3, start=3)
    other, other_flat, other_optimizer = make(factory, names=names, **kwargs)
    other.load_state_dict(values)
    other_optimizer.load_state_dict({key: value.numpy() for key, value in saved.items()})
    train(other, other_flat, other_optimizer, 3, start=3)
    assert torch.equal(flat.data, other_flat.data)


def test_names_of_a_saved_state():
    module, flat, optimizer = make()
    assert optimizer.state_dict() == {}
    train(module, flat, optimizer, 1)
    state = optimizer.state_dict()
    assert set(state) == {"step"} | {
        f"{k}.{n}" for k in ("exp_avg", "exp_avg_sq") for n in ("scalar", "matrix", "vector")
    }
    assert state["exp_avg.matrix"].shape == (3, 5)
    assert state["exp_avg.scalar"].shape == ()
    assert state["step"] == 1


def test_an_empty_state_forgets_what_was_learned():
    module, flat, optimizer = make()
    train(module, flat, optimizer, 3)
    optimizer.load_state_dict({})
    assert optimizer.state_dict() == {}


@pytest.mark.parametrize("factory", ["adam", "per tensor"])
def test_states_of_other_networks_are_refused(factory):
    factory, kwargs = FACTORIES[factory]
    module, flat, optimizer = make(factory, **kwargs)
    train(module, flat, optimizer, 1)
    state = optimizer.state_dict()
    missing = {key: value for key, value in state.items() if key != "exp_avg.vector"}
    misshapen = {**state, "exp_avg.vector": torch.zeros(6)}
    for wrong in (missing, misshapen, {**state, "exp_avg.other": torch.zeros(2)}):
        with pytest.raises(CheckpointError, match="optimizer state exp_avg of m/o"):
            optimizer.load_state_dict(wrong)


@pytest.mark.parametrize("name", FACTORIES)
def test_state_can_be_made_without_moving_anything(name):
    factory, kwargs = FACTORIES[name]
    trained = make(factory, **kwargs)
    train(*trained, 2)
    module, flat, optimizer = make(factory, **kwargs)
    flat.grad.fill_(1)
    before = flat.data.clone()
    optimizer.ensure_state(True)
    assert torch.equal(flat.data, before)
    mine, theirs = optimizer.tensors(), trained[2].tensors()
    assert [t.shape for t in mine] == [t.shape for t in theirs]
    for to, source in zip(mine, theirs, strict=True):
        to.copy_(source)
    flat.data.copy_(trained[1].data)
    train(*trained, 2, start=2)
    train(module, flat, optimizer, 2, start=2)
    assert torch.equal(flat.data, trained[1].data)
    optimizer.ensure_state(False)
    assert optimizer.tensors() == []


def test_the_rate_follows_the_schedule():
    _, flat, optimizer = make(torch.optim.SGD, Piecewise(((0, 1.0), (2, 0.0))))
    flat.grad.fill_(1)
    before = flat.data.clone()
    moves = []
    for step in range(4):
        optimizer.step(step)
        moves.append(round(float((before - flat.data).max()), 6))
        before = flat.data.clone()
    assert moves == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("by", ["value", "norm", "global_norm"])
@pytest.mark.parametrize(("limit", "scale"), [(0.05, 1.0), (1e6, 1.0), (1e-6, 1e-7)])
def test_clipping_is_torchs(by, limit, scale):
    module, flat, _ = make()
    (scale * module.loss(torch.ones(2, 3))).backward()
    other = Odd()
    (scale * other.loss(torch.ones(2, 3))).backward()
    if by == "value":
        nn.utils.clip_grad_value_(other.parameters(), limit)
    elif by == "global_norm":
        norm = nn.utils.clip_grad_norm_(other.parameters(), limit)
        npt.assert_allclose(gradient_norms(flat, [KEY]).item(), norm.item(), rtol=1e-6)
    else:
        for parameter in other.parameters():
            nn.utils.clip_grad_norm_([parameter], limit)
    clip_gradients(flat, KEY, limit, by)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, other.get_parameter(name).grad, rtol=1e-6, atol=0)

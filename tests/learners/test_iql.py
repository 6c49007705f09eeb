"""IQL against a second implementation in numpy, written from the paper's equations."""

import math

import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import HIGH, LOW, gradients, make_batch, make_learner, update, weights
from numpy_networks import (
    Adam,
    backward,
    central_differences,
    forward,
    linear_layers,
    member_layers,
    name_linear,
    name_members,
    policy_gradients,
)

from dask_rl.learners.algorithm import Phase
from dask_rl.learners.losses import expectile_loss

RATE, DISCOUNT, TARGET_RATE = 0.01, 0.9, 0.1


class NumpyIQL:
    """Kostrikov et al. 2021: equations 5 (value), 6 (critic), 7 (policy)."""

    def __init__(self, parameters, *, discrete, expectile=0.8, temperature=2.0, num_steps=0, sequential=False):
        self.p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
        self.discrete, self.sequential = discrete, sequential
        self.expectile, self.temperature, self.num_steps = expectile, temperature, num_steps
        self.adam, self.step = Adam(), 0

    def value(self, p, states):
        out, tape = forward(linear_layers(p, "value"), states)
        return out[:, 0], tape

    def critics(self, p, prefix, b):
        """Q_i(s, a), (2, B), with layers, tapes and the place of a in the outputs."""
        inputs = b["s"] if self.discrete else np.concatenate([b["s"], b["a"]], 1)
        layers = [member_layers(p, prefix, i) for i in range(2)]
        outs, tapes = zip(*(forward(net, inputs) for net in layers), strict=True)
        column = b["a"] if self.discrete else np.zeros(len(inputs), int)
        return np.stack([out[np.arange(len(out)), column] for out in outs]), layers, tapes, outs, column

    def advantages(self, p, b):
        return self.critics(p, "target_critic", b)[0].min(0) - self.value(p, b["s"])[0]

    def value_loss(self, p, b):
        u = self.advantages(p, b)
        weight = np.abs(self.expectile - (u < 0))
        by_value = (-2 * weight * u * b["mask"] / b["n"])[:, None]
        tape = self.value(p, b["s"])[1]
        return (weight * u**2 * b["mask"]).sum() / b["n"], name_linear(
            "value", backward(linear_layers(p, "value"), tape, by_value)
        )

    def critic_loss(self, p, b):
        next_value = self.value(p, b["s'"])[0]
        y = b["r"] + b["discounts"] * np.where((b["d"] == 0) & b["next_valid"], next_value, 0)
        known = b["mask"] * ((b["d"] == 1) | b["next_valid"])  # cut off without s': the target is unknown
        q, layers, tapes, outs, column = self.critics(p, "critic", b)
        by_member = []
        for i in range(2):
            by_out = np.zeros_like(outs[i])
            by_out[np.arange(len(column)), column] = -2 * (y - q[i]) * known / b["n"]
            by_member.append(backward(layers[i], tapes[i], by_out))
        return ((y - q) ** 2 * known).sum() / b["n"], name_members("critic", by_member)

    def policy_loss(self, p, b, frozen=None):
        """`frozen`: the parameters that the weights read, which carry no gradient."""
        with np.errstate(over="ignore"):
            w = np.minimum(np.exp(self.temperature * self.advantages(frozen or p, b)), 100)
        return policy_gradients(p, b["s"], b["a"], w * b["mask"] / b["n"], discrete=self.discrete)

    def update(self, batch):
        b = self.read(batch)
        cosine = RATE * 0.5 * (1 + math.cos(math.pi * self.step / self.num_steps)) if self.num_steps else RATE
        stages = [(self.value_loss, RATE), (self.policy_loss, cosine), (self.critic_loss, RATE)]
        if self.sequential:
            for loss, rate in stages:
                self.adam.step(self.p, loss(self.p, b)[1], rate)
        else:
            for by_name, rate in [(loss(self.p, b)[1], rate) for loss, rate in stages]:
                self.adam.step(self.p, by_name, rate)
        for name in self.p:
            if name.startswith("target_critic."):
                source = self.p[name.removeprefix("target_")]
                self.p[name] = (1 - TARGET_RATE) * self.p[name] + TARGET_RATE * source
        self.step += 1

    def read(self, batch):
        b = {name: tensor.numpy() for name, tensor in batch.items()}
        if self.discrete:
            actions = b["actions"] - 1
        else:
            limit = 1 - 1e-5
            actions = np.clip((b["actions"] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2), -limit, limit)
        mask = b.get("mask", np.ones(len(b["rewards"])))
        return {
            "s": b["observations"], "a": actions, "r": b["rewards"], "d": b["terminations"], "mask": mask,
            "s'": b["next_observations"], "next_valid": b["next_valid"], "n": mask.sum(),
            "discounts": b.get("discounts", DISCOUNT),
        }  # fmt: skip


SETTINGS = {
    "name": "iql", "learning_rate": RATE, "discount": DISCOUNT, "target_rate": TARGET_RATE,
    "expectile": 0.8, "temperature": 2.0, "policy_schedule": "constant",
}  # fmt: skip
KINDS = ["continuous", "discrete"]


def part_ways(learner, *, seed=3):
    """Targets that differ from their critics, weights large enough that every term counts."""
    rng = np.random.default_rng(seed)
    module = learner.module["default_module"]
    state = {name: 1.5 * rng.normal(size=tuple(tensor.shape)) for name, tensor in module.get_state().items()}
    if "policy.log_std" in state:
        state["policy.log_std"] = np.array([0.3, -0.4])
    module.set_state(state)


def assert_same(learner, expected, tolerance=1e-11):
    for name, value in weights(learner).items():
        npt.assert_allclose(value, expected.p[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_implementation_has_the_gradients_of_its_losses(kind):
    learner = make_learner(SETTINGS, kind)
    part_ways(learner)
    other = NumpyIQL(weights(learner), discrete=kind == "discrete")
    b = other.read(make_batch(kind, 9))
    for prefix, loss in [("value.", other.value_loss), ("critic.", other.critic_loss)]:
        names = [name for name in other.p if name.startswith(prefix)]
        exact = loss(other.p, b)[1]
        assert sorted(exact) == sorted(names)
        for name, numeric in central_differences(lambda p, loss=loss: loss(p, b)[0], other.p, names).items():
            npt.assert_allclose(exact[name], numeric, rtol=1e-5, atol=1e-6, err_msg=name)
    names = [name for name in other.p if name.startswith("policy.")]
    exact = other.policy_loss(other.p, b)[1]
    assert sorted(exact) == sorted(names)
    for name, numeric in central_differences(lambda p: other.policy_loss(p, b, other.p)[0], other.p, names).items():
        npt.assert_allclose(exact[name], numeric, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_whole_updates_are_those_of_the_paper(kind, order):
    learner = make_learner({**SETTINGS, "update_order": order}, kind)
    part_ways(learner)
    other = NumpyIQL(weights(learner), discrete=kind == "discrete", sequential=order == "sequential")
    for seed in range(4):
        batch = make_batch(kind, 11, seed)
        update(learner, batch)
        other.update(batch)
        assert_same(learner, other)


@pytest.mark.parametrize("kind", KINDS)
def test_discounts_of_several_steps_stand_in_for_the_discount(kind):
    learner = make_learner(SETTINGS, kind)
    part_ways(learner)
    other = NumpyIQL(weights(learner), discrete=kind == "discrete")
    for seed in range(2):
        batch = make_batch(kind, 11, seed)
        batch["discounts"] = DISCOUNT ** torch.arange(11, dtype=torch.float64)
        update(learner, batch)
        other.update(batch)
        assert_same(learner, other)


def test_the_two_orders_differ():
    learners = [make_learner({**SETTINGS, "update_order": order}) for order in ("simultaneous", "sequential")]
    for learner in learners:
        update(learner, make_batch("continuous", 11))
    a, b = map(weights, learners)
    assert any(not np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_masked_rows_and_the_cosine_of_the_policy(order):
    settings = {**SETTINGS, "policy_schedule": "cosine", "update_order": order}
    learner = make_learner(settings, num_steps=3)
    other = NumpyIQL(weights(learner), discrete=False, num_steps=3, sequential=order == "sequential")
    for seed in range(3):
        batch = make_batch("continuous", 8, seed)
        batch["mask"] = torch.tensor([1, 1, 0, 1, 0, 1, 1, 1], dtype=torch.float64)
        update(learner, batch)
        other.update(batch)
    assert_same(learner, other)
    before = weights(learner)
    result = update(learner, make_batch("continuous", 8))["default_module"]
    after = weights(learner)
    assert result["learning_rate/policy"] == 0
    for name in before:
        # torch's own schedule would rise again after the run's last step
        assert np.array_equal(before[name], after[name]) == name.startswith("policy."), name


@pytest.mark.parametrize("kind", KINDS)
def test_reported_losses_are_means_over_the_rows(kind):
    learner = make_learner(SETTINGS, kind)
    part_ways(learner)
    other = NumpyIQL(weights(learner), discrete=kind == "discrete")
    batch = make_batch(kind, 7)
    b = other.read(batch)
    result = update(learner, batch)["default_module"]
    for name, loss in [("value", other.value_loss), ("policy", other.policy_loss), ("critic", other.critic_loss)]:
        npt.assert_allclose(result[f"{name}_loss"], loss(other.p, b)[0], rtol=1e-12)
    npt.assert_allclose(result["total_loss"], sum(result[f"{n}_loss"] for n in ("value", "policy", "critic")))
    assert result["num_rows"] == 7


def test_expectile_loss():
    u = torch.tensor([-2.0, -0.5, 0.0, 3.0], dtype=torch.float64)
    npt.assert_allclose(expectile_loss(u, 0.9).numpy(), [0.4, 0.025, 0.0, 8.1], rtol=1e-12)


def _critic_gradient(learner, batch):
    return gradients(learner, batch)["step/critic"].numpy()


def test_terminated_rows_do_not_bootstrap_and_truncated_ones_do():
    learner = make_learner(SETTINGS)
    batch = make_batch("continuous", 4)
    batch["next_valid"][:] = True
    moved = {**batch, "next_observations": batch["next_observations"] + 1}
    for terminated in (True, False):
        batch["terminations"][:] = moved["terminations"][:] = float(terminated)
        same = np.array_equal(_critic_gradient(learner, batch), _critic_gradient(learner, moved))
        assert same == terminated


def test_a_truncated_row_without_next_observation_teaches_value_and_policy_only():
    learner = make_learner(SETTINGS)
    batch = make_batch("continuous", 1)
    batch["next_valid"][:], batch["terminations"][:] = False, 0
    by_segment = gradients(learner, batch)
    assert not by_segment["step/critic"].any()
    assert by_segment["step/value"].any()
    assert by_segment["step/policy"].any()
    batch["terminations"][:] = 1
    assert gradients(learner, batch)["step/critic"].any()


@pytest.mark.parametrize("advantage", [50.0, 1e6])
def test_weights_are_clamped_at_100(advantage):
    learner = make_learner({**SETTINGS, "temperature": 10.0})
    batch = make_batch("continuous", 6)
    module = learner.module["default_module"]
    with torch.no_grad():
        module.get_parameter("value.layers.2.bias").fill_(-advantage)
    losses = learner.compute_losses("default_module", batch, {}, Phase("policy", ("policy",)))
    log_prob = module.policy.log_prob(batch["observations"], batch["actions"])
    npt.assert_allclose(losses["policy_loss"].item(), -100 * log_prob.sum().item(), rtol=1e-12)
    assert torch.isfinite(gradients(learner, batch)["step/policy"]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_the_policy(kind):
    learner = make_learner({**SETTINGS, "dropout": 0.4}, kind)
    part_ways(learner)
    batch = make_batch(kind, 6)
    rng = np.random.default_rng(0)
    noise = {f"policy_dropout_{i}": rng.random((6, size)) for i, size in enumerate((5, 4))}
    masks = [np.where(values < 0.4, 0.0, 1 / 0.6) for values in noise.values()]
    other = NumpyIQL(weights(learner), discrete=kind == "discrete")
    b = other.read(batch)
    w = np.minimum(np.exp(2 * other.advantages(other.p, b)), 100)
    _, expected = policy_gradients(other.p, b["s"], b["a"], w, discrete=kind == "discrete", masks=masks)
    got = gradients(learner, batch, {name: torch.from_numpy(values) for name, values in noise.items()})["step/policy"]
    start = learner.flat.segments["default_module", "policy"].start
    for slot in learner.flat.segments["default_module", "policy"].slots:
        part = got[slot.start - start : slot.stop - start].view(slot.shape).numpy()
        npt.assert_allclose(part, expected[slot.name], rtol=1e-10, atol=1e-10, err_msg=slot.name)


def test_dropout_is_drawn_anew_each_step_and_not_used_for_acting():
    learner = make_learner({**SETTINGS, "dropout": 0.5})
    batch = make_batch("continuous", 6)
    phase = learner.algorithms["default_module"].phases()[0]
    losses = []
    for step in (0, 1, 0):
        noise = learner._noise["default_module"].draw(step, (0,), 6)
        losses.append(learner.compute_losses("default_module", batch, noise, phase)["policy_loss"].item())
    assert losses[0] == losses[2] != losses[1]
    module = learner.module["default_module"]
    assert torch.equal(module.forward_inference(batch["observations"]), module.forward_inference(batch["observations"]))


def test_targets_start_as_their_critics_and_learn_by_lerp_only():
    learner = make_learner(SETTINGS)
    p = weights(learner)
    for name in p:
        if name.startswith("critic."):
            assert np.array_equal(p[name], p[f"target_{name}"])
    assert not any(
        name.startswith("target") for s in learner.flat.segments.values() for name in [x.name for x in s.slots]
    )
    update(learner, make_batch("continuous", 6))
    after = weights(learner)
    for name in p:
        if name.startswith("target_critic."):
            expected = p[name] + TARGET_RATE * (after[name.removeprefix("target_")] - p[name])
            npt.assert_allclose(after[name], expected, rtol=1e-13, atol=1e-15)

"""Behaviour cloning against a second implementation in numpy."""

import numpy as np
import numpy.testing as npt
import pytest
import torch
from learner_cases import HIGH, LOW, make_batch, make_learner, update, weights
from numpy_networks import (
    Adam,
    backward,
    central_differences,
    forward,
    linear_layers,
    name_linear,
    policy_gradients,
)

RATE = 0.02


def normalized(batch, *, limit=np.inf):
    return np.clip((batch["actions"].numpy() - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2), -limit, limit)


def loss_and_gradients(policy, parameters, batch):
    """Mean over the rows that count of −log π(a|s), or of the mean squared error over the action dimensions."""
    states = batch["observations"].numpy()
    mask = batch["mask"].numpy() if "mask" in batch else np.ones(len(states))
    share = mask / mask.sum()
    if policy == "discrete":
        return policy_gradients(parameters, states, batch["actions"].numpy() - 1, share, discrete=True)
    if policy == "stochastic":
        return policy_gradients(parameters, states, normalized(batch, limit=1 - 1e-5), share, discrete=False)
    layers = linear_layers(parameters, "policy.network")
    out, tape = forward(layers, states)
    difference = np.tanh(out) - normalized(batch)
    by_out = 2 * difference * (1 - np.tanh(out) ** 2) * share[:, None] / 2
    return ((difference**2).mean(1) * share).sum(), name_linear("policy.network", backward(layers, tape, by_out))


def make(policy):
    settings = {"name": "bc", "learning_rate": RATE}
    if policy == "discrete":
        return make_learner(settings, "discrete")
    return make_learner({**settings, "policy": policy}, "continuous")


@pytest.mark.parametrize("policy", ["stochastic", "deterministic", "discrete"])
def test_whole_updates(policy):
    learner = make(policy)
    kind = "discrete" if policy == "discrete" else "continuous"
    expected = {name: value.astype(np.float64) for name, value in weights(learner).items()}
    if policy == "stochastic":
        expected["policy.log_std"] += [0.3, -0.4]
        learner.module["default_module"].set_state({"policy.log_std": expected["policy.log_std"]})
    adam = Adam()
    for seed in range(4):
        batch = make_batch(kind, 9, seed)
        if seed % 2:
            batch["mask"] = torch.tensor([1, 0, 1, 1, 1, 0, 1, 1, 1], dtype=torch.float64)
        loss, by_name = loss_and_gradients(policy, expected, batch)
        assert sorted(by_name) == sorted(expected)
        numeric = central_differences(lambda p, b=batch: loss_and_gradients(policy, p, b)[0], expected, expected)
        for name in numeric:
            npt.assert_allclose(by_name[name], numeric[name], rtol=1e-5, atol=1e-7, err_msg=name)
        result = update(learner, batch)["default_module"]
        adam.step(expected, by_name, RATE)
        npt.assert_allclose(result["policy_loss"], loss, rtol=1e-12)
        for name, value in weights(learner).items():
            npt.assert_allclose(value, expected[name], rtol=1e-11, atol=1e-11, err_msg=name)


def test_log_std_stops_at_its_bounds():
    learner = make("stochastic")
    module = learner.module["default_module"]
    batch = make_batch("continuous", 5)
    values = []
    for log_std in (-5.0, -9.0, 2.0, 7.0):
        module.set_state({"policy.log_std": np.full(2, log_std)})
        values.append(module.policy.log_prob(batch["observations"], batch["actions"]).sum().item())
    assert values[0] == values[1] != values[2] == values[3]


def test_a_deterministic_policy_of_discrete_actions_is_a_softmax():
    learner = make_learner({"name": "bc", "policy": "deterministic"}, "discrete")
    loss = update(learner, make_batch("discrete", 5))["default_module"]["policy_loss"]
    assert loss == pytest.approx(np.log(3), rel=0.5)


def test_cloning_a_constant_action_finds_it():
    for policy, kind in [("stochastic", "continuous"), ("deterministic", "continuous"), ("stochastic", "discrete")]:
        learner = make_learner({"name": "bc", "policy": policy, "learning_rate": 0.02}, kind)
        batch = make_batch(kind, 16)
        batch["actions"][:] = torch.tensor([1.0, 2.0]) if kind == "continuous" else 2
        for _ in range(200):
            update(learner, batch)
        acted = learner.module["default_module"].forward_inference(batch["observations"]).detach()
        npt.assert_allclose(acted.numpy(), batch["actions"].numpy(), atol=0.1)

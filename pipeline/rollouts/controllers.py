"""Behaviours for collecting data: a policy with noise, random actions, a swing-up for Pendulum-v1."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.nested import Columns, flatten_space, parts_of, unflatten
from dask_rl.storage.schema import ACTIONS

from .environments import Environment, Policy, Space

Array = npt.NDArray[Any]
Generators = Sequence[np.random.Generator]


class Behaviour(Protocol):
    """What acts while data is collected; its randomness comes from one generator per episode."""

    def act(self, observations: Columns, generators: Generators) -> Columns:
        """Map observations (B, *obs) of B episodes to actions (B, *act); nested ones are mappings by key."""
        ...


class NoisyPolicy:
    """A policy whose actions are disturbed, each part of nested ones by itself.

    Box: Gaussian noise of standard deviation `action_noise` times half the range, clipped to the bounds.
    Other spaces: a random action with probability `action_noise`.
    """

    def __init__(self, policy: Policy, action_noise: float = 0.0) -> None:
        self._policy = policy
        self._action_noise = action_noise

    def act(self, observations: Columns, generators: Generators) -> Columns:
        """Return the policy's actions with noise."""
        space = self._policy.action_space
        parts = parts_of(ACTIONS, space, self._policy(observations))
        if self._action_noise:
            spaces_of = flatten_space(ACTIONS, space)
            parts = {path: self._disturbed(spaces_of[path], actions, generators) for path, actions in parts.items()}
        return unflatten(ACTIONS, parts)

    def _disturbed(self, space: Space, actions: Array, generators: Generators) -> Array:
        if isinstance(space, spaces.Box):
            half_range = np.where(np.isfinite(space.high - space.low), (space.high - space.low) / 2, 1.0)
            noise = np.stack([generator.standard_normal(space.shape) for generator in generators])
            return np.clip(actions + self._action_noise * half_range * noise, space.low, space.high)
        rows = zip(actions, generators, strict=True)
        return np.stack([_random(space, g) if g.random() < self._action_noise else a for a, g in rows])


class RandomActions:
    """Uniformly random actions."""

    def __init__(self, action_space: Space) -> None:
        self._parts = flatten_space(ACTIONS, action_space)

    def act(self, observations: Columns, generators: Generators) -> Columns:
        """Return one random action per episode."""
        return unflatten(
            ACTIONS,
            {
                path: np.stack([_random(part, generator) for generator in generators])
                for path, part in self._parts.items()
            },
        )


class PendulumSwingUp:
    """Swings Pendulum-v1 up by pumping energy, and balances it with a linear feedback.

    θ = 0 is upright. With mass, length = 1 and g = 10 the energy is E = θ̇²/6 + 5 cos θ, and 5 at rest at the
    top; a torque along θ̇ raises it (Åström & Furuta 2000, "Swinging up a pendulum by energy control").
    """

    observation_space: Space = spaces.Box(
        low=np.array([-1, -1, -8], np.float32), high=np.array([1, 1, 8], np.float32), dtype=np.float32
    )
    action_space: Space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    TOP_ENERGY = 5.0
    PUMP_GAIN = 4.0
    ANGLE_GAIN, SPEED_GAIN = 10.0, 2.5
    BALANCE_ANGLE = 0.4  # rad: where 2 N·m can still hold it

    def __call__(self, observations: Array) -> Array:
        """Map observations (B, 3) of cos θ, sin θ, θ̇ to torques (B, 1) in N·m."""
        cosine, sine, speed = observations.astype(np.float64).T
        angle = np.arctan2(sine, cosine)
        missing = self.TOP_ENERGY - (speed**2 / 6 + 5 * cosine)
        direction = np.where(speed == 0, 1.0, np.sign(speed))
        pump = self.PUMP_GAIN * missing * direction
        balance = -self.ANGLE_GAIN * angle - self.SPEED_GAIN * speed
        torque = np.where(np.abs(angle) < self.BALANCE_ANGLE, balance, pump)
        return np.clip(torque, -2.0, 2.0).astype(np.float32)[:, None]


CONTROLLERS = ("random", "pendulum-swing-up")


def make_behaviour(name: str, environment: Environment, action_noise: float) -> Behaviour:
    """Return a built-in behaviour; a name that does not exist or does not fit raises ConfigError."""
    if name == "random":
        return RandomActions(environment.action_space)
    if name not in CONTROLLERS:
        raise ConfigError(explain("policy", got=repr(name), allowed=", ".join(CONTROLLERS), fix="use one of these"))
    if environment.spec is None or environment.spec.id != "Pendulum-v1":
        raise ConfigError(
            explain(
                "policy",
                got=f"{name} for {environment.spec.id if environment.spec else environment}",
                allowed="pendulum-swing-up for Pendulum-v1",
                fix="use random or a trained policy",
            )
        )
    return NoisyPolicy(PendulumSwingUp(), action_noise)


def _random(space: Space, generator: np.random.Generator) -> Array:
    """Draw uniformly from a space without its own generator, which would be one more state."""
    if isinstance(space, spaces.Box):
        low = np.where(np.isfinite(space.low), space.low, -1.0)
        high = np.where(np.isfinite(space.high), space.high, 1.0)
        return generator.uniform(low, high).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return generator.integers(0, 2, space.shape).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start + generator.integers(0, space.nvec))
    discrete = cast(spaces.Discrete, space)  # environments.py lets no other space in
    return np.asarray(discrete.start + generator.integers(0, discrete.n))

"""Gymnasium environments: making them, comparing their spaces with a policy's."""

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field

from dask_rl.storage.errors import ConfigError, InvalidDataError, explain
from dask_rl.storage.nested import subspaces
from dask_rl.storage.spaces import describe_space, spaces_equal
from dask_rl.storage.validation import check_space

from .stacked_frames import stack_frames

Space = gymnasium.Space[Any]
Environment = gymnasium.Env[Any, Any]


class HasSpaces(Protocol):
    """What is made for an environment: a policy, a module's spec."""

    @property
    def observation_space(self) -> Space:
        """The space of one observation."""
        ...

    @property
    def action_space(self) -> Space:
        """The space of one action."""
        ...


class Policy(HasSpaces, Protocol):
    """What acts: picklable, and a function of the observations alone."""

    def __call__(self, observations: Any) -> Any:
        """Map observations (B, *obs) to actions (B, *act) in the action space's own units; nested ones by key."""
        ...


class EnvironmentConfig(BaseModel):
    """A Gymnasium environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    environment: str
    """Gymnasium id, such as CartPole-v1 or my_module:MyEnvironment-v0, which imports my_module first."""
    environment_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    max_episode_steps: int | None = Field(None, ge=1)
    """Steps after which an episode is truncated; default: the environment's own limit."""


def make_environment(config: EnvironmentConfig, observation_space: Space | None = None) -> Environment:
    """Make the environment.

    Args:
        config: which one.
        observation_space: what a policy sees; where that are several frames of the environment's, they are stacked.

    Raises:
        ConfigError: Gymnasium does not know it, cannot build it, or its spaces are not made of arrays.
    """
    try:
        environment = gymnasium.make(
            config.environment,
            max_episode_steps=config.max_episode_steps,
            disable_env_checker=True,
            **config.environment_kwargs,
        )
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            explain(
                "environment",
                got=f"{config.environment!r} ({' '.join(str(error).split()).rstrip('.')})",
                allowed="a Gymnasium id",
                fix="correct it, or name its module too, as in my_module:MyEnvironment-v0",
            )
        ) from None
    try:
        for name, space in (("observation", environment.observation_space), ("action", environment.action_space)):
            check_space(f"{name} space of {config.environment}", space)
    except InvalidDataError as error:
        environment.close()
        raise ConfigError(f"{error} Wrap the environment, e.g. with gymnasium.wrappers.FlattenObservation.") from None
    return environment if observation_space is None else stack_frames(environment, observation_space)


def check_environment(policy: HasSpaces, config: EnvironmentConfig) -> None:
    """Make the environment and refuse a policy, or a module's spec, that does not fit it.

    Raises:
        ConfigError: see `make_environment` and `check_spaces`.
    """
    environment = make_environment(config, policy.observation_space)
    try:
        check_spaces(policy, environment, config.environment)
    finally:
        environment.close()


def check_spaces(policy: HasSpaces, environment: Environment, name: str) -> None:
    """Refuse a policy whose spaces are not the environment's.

    Observations must agree in kind and shape; the bounds that a dataset happened to show do not matter to a
    policy. Actions must agree in their bounds too, as these are the policy's units.

    Raises:
        ConfigError: naming both spaces and what to do.
    """
    pairs = (
        ("observation", policy.observation_space, environment.observation_space, _same_layout),
        ("action", policy.action_space, environment.action_space, _same_actions),
    )
    for what, got, wanted, same in pairs:
        if not same(got, wanted):
            raise ConfigError(
                explain(
                    f"{what} space of the policy",
                    got=describe_space(got),
                    allowed=f"that of {name}, {describe_space(wanted)}",
                    fix="name the environment that the data came from, or import the data with these spaces: "
                    f"dask-rl data import --environment {name} [--normalized-actions] SOURCE DEST",
                )
            )


def _same_layout(a: Space, b: Space) -> bool:
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box):
        return a.shape == b.shape and np.dtype(a.dtype).kind == np.dtype(b.dtype).kind
    return _same_parts(a, b, _same_layout)


def _same_actions(a: Space, b: Space) -> bool:
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box):
        return _same_layout(a, b) and np.allclose(a.low, b.low, 1e-6) and np.allclose(a.high, b.high, 1e-6)
    return _same_parts(a, b, _same_actions)


def _same_parts(a: Space, b: Space, same: Callable[[Space, Space], bool]) -> bool:
    """Compare composite spaces part by part, others as they are."""
    parts, others = subspaces(a), subspaces(b)
    if parts is None or others is None:
        return spaces_equal(a, b)
    of_one_kind = type(a) is type(b) and parts.keys() == others.keys()
    return of_one_kind and all(same(part, others[key]) for key, part in parts.items())

"""Rewards that are replaced, scaled, shifted and clipped."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .config import TransformConfig

Array = npt.NDArray[Any]


def change_rewards(rewards: Array, terminations: Array, config: TransformConfig) -> Array:
    """Return the rewards of an episode as the config wants them, worked out in float64, in the type that they have.

    Args:
        rewards: (T,)
        terminations: (T,)
        config: what the user wants.
    """
    if not config.changes_rewards:
        return rewards
    changed = rewards.astype(np.float64)
    if config.step_reward is not None:
        changed[:] = config.step_reward
    if config.termination_reward is not None:
        changed[terminations] = config.termination_reward
    changed = changed * config.reward_scale + config.reward_shift
    if config.min_reward is not None or config.max_reward is not None:
        changed = np.clip(changed, config.min_reward, config.max_reward)
    with np.errstate(over="ignore"):  # what becomes infinite is refused, with its place
        return changed.astype(rewards.dtype)

"""Returns of a policy in its environment."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from distributed import Client
from pydantic import Field

from dask_rl.learners.batch import ModuleID
from dask_rl.learners.config import Seconds, Seed

from .controllers import NoisyPolicy
from .environments import EnvironmentConfig, Policy, check_environment
from .rollout import RolloutTask, score, split_episodes
from .tasks import map_in_order


class EvaluationConfig(EnvironmentConfig):
    """Rollouts of the learned policy."""

    module_id: ModuleID | None = None
    """Of a job with several modules, the one that plays; default: the only one."""
    num_episodes: int = Field(20, ge=1)
    """Episodes of one evaluation."""
    every_steps: int | None = Field(None, ge=1)
    """Gradient steps between evaluations; default: at the end only."""
    seed: Seed = 0
    """Episode i is reset with seed + i."""
    episodes_per_task: int = Field(10, ge=1)
    """Episodes of one task, played in lock-step. Results do not depend on the number of workers."""
    timeout_seconds: Seconds = 600
    """Bound on the time of one task, and on the wait for it."""


@dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths per episode, and their summary."""

    environment: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    normalized_score: float | None
    """100 · (mean − ref_min) / (ref_max − ref_min); None without reference scores."""

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """Mean undiscounted return."""
        return float(np.mean(self.returns))

    @property
    def return_standard_error(self) -> float | None:
        """Standard error of the mean; None for one episode."""
        if self.num_episodes < 2:
            return None
        return float(np.std(self.returns, ddof=1)) / math.sqrt(self.num_episodes)

    def summary(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "return_mean": self.return_mean,
            "return_standard_error": self.return_standard_error,
            "num_episodes": self.num_episodes,
            **asdict(self),
        }


def evaluate(
    policy: Policy,
    config: EvaluationConfig,
    *,
    ref_scores: tuple[float, float] | None = None,
    client: Client | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> EvaluationResult:
    """Play `config.num_episodes` episodes, as tasks on the client's workers or here.

    Args:
        policy: what acts.
        config: the environment and the episodes.
        ref_scores: returns of a random policy and an expert.
        client: where to run; None: here.
        progress: called with (episodes done, all).

    Raises:
        ConfigError: an unknown environment, or one with other spaces than the policy's.
        WaitTimeoutError: a task took longer than `config.timeout_seconds`.
    """
    check_environment(policy, config)
    space = policy.observation_space
    sizes = config.num_episodes, config.episodes_per_task, config.seed
    tasks = split_episodes(config, *sizes, space, config.timeout_seconds)
    scores: list[tuple[float, int]] = []
    play = functools.partial(_play, policy)
    for part in map_in_order(play, tasks, client=client, name="evaluate", timeout_seconds=config.timeout_seconds):
        scores.extend(part)
        if progress is not None:
            progress(len(scores), config.num_episodes)
    returns, lengths = zip(*scores, strict=True)
    return EvaluationResult(config.environment, returns, lengths, _normalized(returns, ref_scores))


def _play(policy: Policy, task: RolloutTask) -> list[tuple[float, int]]:
    return score(NoisyPolicy(policy), task)


def _normalized(returns: Sequence[float], ref_scores: tuple[float, float] | None) -> float | None:
    if ref_scores is None or ref_scores[0] == ref_scores[1]:
        return None
    low, high = ref_scores
    return 100 * (float(np.mean(returns)) - low) / (high - low)

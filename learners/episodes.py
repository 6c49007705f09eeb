"""Episodes as learners get them: stretches of them, and the batch that they make."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dask_rl.storage.episode import Array, Episode
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.multi_agent_episode import AgentID, MultiAgentEpisode
from dask_rl.storage.nested import flatten
from dask_rl.storage.transforms import returns_to_go

from .batch import DEFAULT_MODULE_ID, Batch, ModuleID, MultiBatch

AnyEpisode = Episode | MultiAgentEpisode
DiscountOf = Callable[[ModuleID], float]
"""The discount that a module trains with."""


@dataclass(frozen=True)
class EpisodeShare:
    """The stretch of one agent's episode that one learner trains on.

    Where the stretch begins or ends at a cut, nothing of the episode is lost: what came before is there as lookback,
    the observation after it is real, and the return after it is known.
    """

    episode: Episode
    """The stretch with its lookback; the whole episode where it was not cut."""
    module_id: ModuleID = DEFAULT_MODULE_ID
    num_lookback: int = 0
    """Leading steps that are context only: they are trained on in another share."""
    return_after: float = 0.0
    """Discounted return of the steps after the stretch, seen from its final observation."""

    def __len__(self) -> int:
        """Return the number of steps to train on."""
        return len(self.episode) - self.num_lookback


@dataclass(frozen=True)
class AgentSteps:
    """One agent of an episode; the only one of an Episode."""

    agent_id: AgentID
    episode: Episode
    module_id: ModuleID
    env_steps: Array  # (T,) int


def agents_of(episode: AnyEpisode) -> list[AgentSteps]:
    """Return the agents of an episode in sorted order.

    Raises:
        ConfigError: it is neither an Episode nor a MultiAgentEpisode.
    """
    if isinstance(episode, Episode):
        return [AgentSteps("", episode, DEFAULT_MODULE_ID, np.arange(len(episode)))]
    if isinstance(episode, MultiAgentEpisode):
        return [
            AgentSteps(agent_id, episode.agents[agent_id], episode.module_ids[agent_id], episode.env_steps[agent_id])
            for agent_id in sorted(episode.agents)
        ]
    allowed = "each an Episode or a MultiAgentEpisode"
    raise ConfigError(explain("episodes", got=type(episode).__name__, allowed=allowed, fix="convert it"))


def multi_batch_from_episodes(
    episodes: Iterable[EpisodeShare | AnyEpisode], dtype: torch.dtype, discount_of: DiscountOf
) -> MultiBatch:
    """Lay stretches end to end as batches of transitions by module id, in sorted order.

    Args:
        episodes: shares; an episode stands for all of itself. Steps of lookback give no rows.
        dtype: that of all floats.
        discount_of: that of returns-to-go, which reach to the end of the whole episode, by module id.

    Returns:
        Batches with observations, next_observations, next_valid, actions, rewards, terminations, returns_to_go; of
        nested observations and actions one tensor a part.

    Raises:
        ConfigError: something that is no episode, or episodes of one module whose parts or shapes differ.
    """
    by_module: dict[ModuleID, list[EpisodeShare]] = {}
    for share in _as_shares(episodes):
        by_module.setdefault(share.module_id, []).append(share)
    return {
        module_id: _batch(module_id, by_module[module_id], dtype, discount_of(module_id))
        for module_id in sorted(by_module)
    }


def _as_shares(episodes: Iterable[EpisodeShare | AnyEpisode]) -> Iterator[EpisodeShare]:
    for episode in episodes:
        if isinstance(episode, EpisodeShare):
            yield episode
        else:
            for agent in agents_of(episode):
                yield EpisodeShare(agent.episode, agent.module_id)


def _batch(module_id: ModuleID, shares: Sequence[EpisodeShare], dtype: torch.dtype, discount: float) -> Batch:
    columns: dict[str, list[Array]] = {}

    def put(name: str, values: Array) -> None:
        columns.setdefault(name, []).append(values)

    for share in shares:
        episode, first = share.episode, share.num_lookback
        next_valid = np.ones(len(share), np.bool_)
        next_valid[-1] = episode.has_final_observation
        for path, column in flatten("observations", episode.observations).items():
            put(path, column[first:-1])
            put(f"next_{path}", column[first + 1 :])
        put("next_valid", next_valid)
        for path, column in flatten("actions", episode.actions).items():
            put(path, column[first:])
        put("rewards", episode.rewards[first:])
        put("terminations", episode.terminations[first:].astype(np.float32))
    for name, parts in columns.items():
        if len(parts) != len(shares):
            subject = f"episodes of module {module_id!r}: {name}"
            got = f"{len(shares) - len(parts)} of {len(shares)} without it"
            raise ConfigError(explain(subject, got=got, allowed="the same parts in all", fix="make them equal"))
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            subject = f"episodes of module {module_id!r}: {name}"
            raise ConfigError(
                explain(subject, got=f"shapes {sorted(shapes)}", allowed="one shape", fix="make them equal")
            )
    columns["returns_to_go"] = [_returns(shares, discount)]
    return {name: _tensor(np.concatenate(parts), dtype) for name, parts in columns.items()}


def _returns(shares: Sequence[EpisodeShare], discount: float) -> Array:
    """Return the returns-to-go of all shares' rows, (rows,) float64.

    The return after a stretch enters as the reward of one step more: then the scan goes on exactly as that of the
    whole episode would, to the last bit.
    """
    lengths = np.array([len(share) for share in shares])
    ends = np.cumsum(lengths + 2)  # that step, and the row of the final observation
    rewards = np.zeros(ends[-1])
    is_step = np.ones(ends[-1], np.bool_)
    for share, end in zip(shares, ends, strict=True):
        rewards[end - 2 - len(share) : end - 2] = share.episode.rewards[share.num_lookback :]
        rewards[end - 2] = share.return_after
        is_step[end - 2 : end] = False
    return returns_to_go(rewards, ends - lengths - 2, ends, discount)[is_step]


def _tensor(values: Array, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor

"""One episode of several agents: an Episode each, and the environment steps at which it acted."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .episode import Episode
from .errors import InvalidDataError, explain

AgentID = str


@dataclass(frozen=True)
class MultiAgentEpisode:
    """One episode of an environment in which one or more agents act, not necessarily at every step.

    Step t of an agent's episode was taken at environment step `env_steps[agent][t]`; the agent may have been absent,
    or not its turn, in between. Several agents may share a module.

    Raises:
        InvalidDataError: no agent, the mappings differ in their agents, or environment steps that are no increasing
            integers, one for each step of the agent.
    """

    agents: Mapping[AgentID, Episode]
    module_ids: Mapping[AgentID, str]
    """The module that each agent acts by, and that is trained on its steps."""
    env_steps: Mapping[AgentID, npt.NDArray[np.int64]]  # each (T_agent,), strictly increasing, from 0 on

    def __post_init__(self) -> None:
        """Check that the three mappings describe the same agents and steps."""
        if not self.agents:
            raise InvalidDataError(explain("multi-agent episode", got="no agent", allowed="at least 1", fix="drop it"))
        for name in ("module_ids", "env_steps"):
            got = sorted(getattr(self, name))
            if got != sorted(self.agents):
                raise InvalidDataError(
                    explain(
                        f"multi-agent episode: {name}",
                        got=f"agents {got}",
                        allowed=sorted(self.agents),
                        fix="name each agent once",
                    )
                )
        for agent_id, episode in self.agents.items():
            self._check_steps(agent_id, len(episode))

    def _check_steps(self, agent_id: AgentID, length: int) -> None:
        steps = self.env_steps[agent_id]
        subject = f"multi-agent episode: env_steps of agent {agent_id!r}"
        if not isinstance(steps, np.ndarray) or steps.dtype.kind != "i" or steps.shape != (length,):
            got = f"{steps.dtype} of shape {steps.shape}" if isinstance(steps, np.ndarray) else type(steps).__name__
            allowed = f"an array of signed integers of shape ({length},)"
            raise InvalidDataError(explain(subject, got=got, allowed=allowed, fix="give one for each of its steps"))
        wrong = np.flatnonzero(steps[1:] <= steps[:-1])  # a difference may overflow
        if steps[0] < 0 or len(wrong):
            got = steps[0] if steps[0] < 0 else f"{steps[wrong[0] + 1]} after {steps[wrong[0]]}"
            raise InvalidDataError(explain(subject, got=got, allowed="0 or more, increasing", fix="repair the source"))

    def __len__(self) -> int:
        """Return the number of environment steps, up to the last at which an agent acted."""
        return 1 + max(int(steps[-1]) for steps in self.env_steps.values())

    @property
    def num_agent_steps(self) -> int:
        """The number of steps of all agents together: the rows that learners train on."""
        return sum(len(episode) for episode in self.agents.values())

"""What becomes of the observations: they stay, are standardised, or become what they were."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.building.parallel_build import TaskRunner
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.spaces import Space, space_from_json

from .config import TransformConfig
from .fitting import fit_normalization
from .normalization import PROVENANCE_KEY, Normalization
from .sources import Sources


@dataclass(frozen=True)
class ObservationPlan:
    """What is done, and what the dataset then says of its observations."""

    space: Space
    environment: str | None
    normalization: Normalization | None
    """What is applied or undone; None: nothing."""
    provenance: dict[str, Any]
    """The statistics of observations that are standardised, for the dataset's provenance."""


def plan_observations(
    sources: Sources, config: TransformConfig, kept: npt.NDArray[np.bool_], run: TaskRunner
) -> ObservationPlan:
    """Decide it.

    Args:
        sources: the datasets.
        config: what the user wants.
        kept: the episodes whose statistics count, (num_episodes,).
        run: runs the tasks that read.

    Raises:
        ConfigError: there is nothing to standardise, or to undo.
    """
    if config.denormalize:
        if sources.normalization is None:
            got, allowed = f"{sources.names[0]}, which is not standardised", "what `normalize` has made"
            raise ConfigError(explain("denormalize", got=got, allowed=allowed, fix="leave it out"))
        space = space_from_json(sources.normalization.observation_space)
        return ObservationPlan(space, sources.normalization.environment, sources.normalization, {})
    if config.normalize:
        fitted = fit_normalization(sources, kept, run)
        # An environment gives other observations: a policy is not to be tried there by default.
        return ObservationPlan(fitted.space(), None, fitted, _provenance(fitted))
    return ObservationPlan(sources.observation_space, sources.environment, None, _provenance(sources.normalization))


def _provenance(normalization: Normalization | None) -> dict[str, Any]:
    return {} if normalization is None else {PROVENANCE_KEY: normalization.model_dump(mode="json")}

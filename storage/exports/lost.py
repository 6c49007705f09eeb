"""What of a dataset a format may have no place for, in words. Each exporter names those that it loses."""

from collections.abc import Iterator

import numpy as np

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.spaces import describe_space
from dask_rl.storage.transforming.normalization import PROVENANCE_KEY


def standardised(dataset: OfflineDataset) -> Iterator[str]:
    """Say that others will take standardised observations for those of the environment."""
    if PROVENANCE_KEY in dataset.provenance:
        yield "that observations are standardised, and by which statistics: `data transform --denormalize` before"


def environment(dataset: OfflineDataset) -> Iterator[str]:
    """Name the environment."""
    if dataset.environment is not None:
        yield f"the environment {dataset.environment}"


def ref_scores(dataset: OfflineDataset) -> Iterator[str]:
    """Name the scores that normalise returns."""
    if dataset.ref_scores is not None:
        yield f"the reference scores {dataset.ref_scores[0]:g} and {dataset.ref_scores[1]:g}"


def spaces(dataset: OfflineDataset) -> Iterator[str]:
    """Name the spaces: an import infers others, without bounds of observations, from the values."""
    for kind, space in (("observations", dataset.observation_space), ("actions", dataset.action_space)):
        yield f"the space of {kind} {describe_space(space)}"


def episode_ids(dataset: OfflineDataset) -> Iterator[str]:
    """Count the numbers of episodes in their own sources, if they are not those of the export."""
    if (changed := int((dataset.episode_ids != np.arange(dataset.num_episodes)).sum())) > 0:
        yield f"{changed} numbers of episodes"

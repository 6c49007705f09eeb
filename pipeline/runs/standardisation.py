"""Which observations are standardised, and by what: statistics of the dataset, saved with the weights.

Either the feed does it (`algorithm.normalize_observations`), or the dataset was made so (`data transform --normalize`).
A policy sees observations as its environment gives them, and does the same.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.learners.images import is_image
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.nested import flatten_space
from dask_rl.storage.schema import OBSERVATIONS
from dask_rl.storage.spaces import Space, describe_space, space_from_json
from dask_rl.storage.stats import column_statistics
from dask_rl.storage.transforming.normalization import parse_normalization
from dask_rl.storage.transforms import Normalize

Normalizers = Mapping[str, Normalize]
"""By the path of a part of the observations; of a space that is not nested by `observations`. Empty: none."""
_SETTING = "algorithm.normalize_observations"


def fit_normalizers(dataset: OfflineDataset, delivered: Space) -> Normalizers:
    """Return the standardisation of all parts that are numbers; images and choices have an encoding of their own.

    Args:
        dataset: whose statistics are taken.
        delivered: the space of the observations that learners see.

    Raises:
        ConfigError: no part is a number, one is of stacked frames, or the dataset is standardised.
    """
    if parse_normalization(dataset.path, dataset.provenance) is not None:
        got, fix = "true, for a dataset that `data transform --normalize` made", "leave it out"
        raise ConfigError(explain(_SETTING, got=got, allowed="observations as they were collected", fix=fix))
    parts = {path: part for path, part in flatten_space(OBSERVATIONS, delivered).items() if _is_number(part)}
    if not parts:
        got, fix = f"true, for {describe_space(delivered)}", "leave it out"
        raise ConfigError(explain(_SETTING, got=got, allowed="observations with a Box of numbers", fix=fix))
    for path, part in parts.items():
        if part.shape != dataset.arrays[path].row_shape:
            got, fix = f"true, for {path}, whose frames are stacked", "leave out one of them"
            raise ConfigError(explain(_SETTING, got=got, allowed="single frames", fix=fix))
    return {path: Normalize.from_statistics(column_statistics(dataset, path)) for path in parts}


def collected_space(dataset: OfflineDataset) -> Space:
    """Return the space of a dataset's observations before they were standardised: that of their environment."""
    stored = parse_normalization(dataset.path, dataset.provenance)
    return dataset.observation_space if stored is None else space_from_json(stored.observation_space)


def stored_normalizers(dataset: OfflineDataset, delivered: Space) -> Normalizers:
    """Return the standardisation that the observations of a dataset have been through.

    Args:
        dataset: what is read.
        delivered: the space of the observations that learners see: of stacked frames each is standardised alike.
    """
    stored = parse_normalization(dataset.path, dataset.provenance)
    if stored is None:
        return {}
    normalizers = {}
    for path, part in flatten_space(OBSERVATIONS, delivered).items():
        if (scaling := stored.parts.get(path)) is not None:
            frames = int(np.prod(part.shape or ())) // max(1, len(scaling.mean))
            normalizers[path] = Normalize(scaling.mean * frames, scaling.std * frames, scaling.eps)
    return normalizers


def _is_number(space: Space) -> bool:
    return isinstance(space, spaces.Box) and not is_image(space)


def normalizers_to_json(normalizers: Normalizers) -> dict[str, Any] | None:
    """Return JSON values: None for none, the standardisation itself where the space is not nested."""
    if list(normalizers) == [OBSERVATIONS]:
        return normalizers[OBSERVATIONS].to_json()
    return {path: normalizers[path].to_json() for path in sorted(normalizers)} or None


def normalizers_from_json(obj: Mapping[str, Any] | None, space: Space) -> Normalizers:
    """Read back `normalizers_to_json`; what does not fit the space raises an error of numpy's or Python's own."""
    if obj is None:
        return {}
    by_path = {OBSERVATIONS: obj} if "mean" in obj else obj
    parts = flatten_space(OBSERVATIONS, space)
    normalizers = {path: Normalize.from_json(by_path[path]) for path in sorted(by_path)}
    for path, normalize in normalizers.items():
        normalize.apply(np.zeros((1, *(parts[path].shape or ())), np.float32))
    return normalizers

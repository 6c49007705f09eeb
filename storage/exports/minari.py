"""Minari datasets: `data/metadata.json` and the episodes in HDF5, Arrow or Parquet.

What Minari has no place for goes where it looks at nothing: the metadata of an episode keep its number in the source
and whether its final observation is a real one.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.nested import subspaces
from dask_rl.storage.spaces import Space, space_to_json

from . import lost
from .base import Progress
from .minari_arrow import ArrowEpisodes
from .minari_hdf5 import Hdf5Episodes

# The first versions that read what is written here: images that are no JPEG came later.
_VERSION, _WITH_IMAGES = "0.5.0", "0.5.4"
_ID = re.compile(r"[A-Za-z0-9_][\w.-]*-v\d+")


@dataclass(frozen=True)
class MinariExporter:
    """Writes the directory of one Minari dataset, to be put under Minari's root by the path of its id."""

    name: str
    data_format: str
    """hdf5, arrow or parquet."""

    def check(self, dataset: OfflineDataset) -> None:
        """Every dataset can be written."""

    def is_export(self, path: Path) -> bool:
        """Whether this is the directory of a Minari dataset, in any of its formats; see `Exporter`."""
        return os.path.isfile(path / "data" / "metadata.json") and os.listdir(path) == ["data"]

    def write(self, dataset: OfflineDataset, path: Path, name: str, progress: Progress) -> tuple[str, ...]:
        """Write the directory; see `Exporter`."""
        data = path / "data"
        data.mkdir(parents=True)
        (data / "metadata.json").write_text(json.dumps(self._metadata(dataset, name)))
        space, actions = dataset.observation_space, dataset.action_space
        if self.data_format == "hdf5":
            episodes: Hdf5Episodes | ArrowEpisodes = Hdf5Episodes(data, space, actions)
        else:
            episodes = ArrowEpisodes(data, self.data_format, space, actions)
        with episodes:
            for number, episode in enumerate(dataset.episodes()):
                episodes.write(number, episode)
                progress(number + 1, dataset.num_episodes)
        return tuple(_lost(dataset))

    def _metadata(self, dataset: OfflineDataset, name: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "dataset_id": name if _ID.fullmatch(name) else f"{re.sub(r'[^A-Za-z0-9_]+', '_', Path(name).stem)}-v0",
            "total_episodes": dataset.num_episodes,
            "total_steps": dataset.num_steps,
            "data_format": self.data_format,
            "observation_space": json.dumps(_space_to_json(dataset.observation_space)),
            "action_space": json.dumps(_space_to_json(dataset.action_space)),
            "minari_version": _WITH_IMAGES if _has_images(dataset) else _VERSION,
            "jpeg_encoding": False,
            "dataset_size": round(sum(spec.row_bytes for spec in dataset.arrays.values()) * dataset.num_rows / 1e6, 1),
            "author": [],
            "author_email": [],
            "description": f"Exported by dask-rl; content {dataset.content_hash}.",
        }
        if dataset.ref_scores is not None:
            metadata["ref_min_score"], metadata["ref_max_score"] = dataset.ref_scores
        if (spec := _environment(dataset.environment)) is not None:
            metadata["env_spec"] = spec
        return metadata


def _environment(name: str | None) -> str | None:
    """Return the specification of the environment, as installed here; of another one its id alone."""
    if name is None:
        return None
    try:
        return gymnasium.spec(name).to_json()
    except (gymnasium.error.Error, TypeError, ModuleNotFoundError):
        pass
    try:
        return EnvSpec(id=name).to_json()
    except gymnasium.error.Error:  # no id that Gymnasium, and so Minari, would read
        return None


def _has_images(dataset: OfflineDataset) -> bool:
    return any(spec.dtype == np.uint8 and len(spec.row_shape) in (2, 3) for spec in dataset.arrays.values())


def _space_to_json(space: Space) -> dict[str, Any]:
    """Return a space as Minari writes it: bounds without end are JSON's Infinity."""
    described = space_to_json(space)
    if isinstance(space, spaces.Box):
        return described | {"low": space.low.tolist(), "high": space.high.tolist()}
    parts = subspaces(space)
    if parts is None:
        return described
    inner = {key: _space_to_json(part) for key, part in parts.items()}
    return described | {"subspaces": list(inner.values()) if isinstance(space, spaces.Tuple) else inner}


def _lost(dataset: OfflineDataset) -> Iterator[str]:
    yield from lost.standardised(dataset)
    if (spec := _environment(dataset.environment)) is None:
        yield from lost.environment(dataset)
    elif json.loads(spec)["entry_point"] is None:
        yield f"how to make {dataset.environment}: it is not installed here, its id alone is kept"
    if num_missing := int(np.sum(~dataset.has_final_observation)):
        yield (
            f"{num_missing} episodes have no final observation: the last one is there twice, which other readers take "
            "for real"
        )

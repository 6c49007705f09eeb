"""Minari's episodes in HDF5: one group an episode; Dict values are groups, Tuple values groups of `_index_i`."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.nested import Columns, subspaces
from dask_rl.storage.spaces import Space

_FILE = "main_data.hdf5"


class Hdf5Episodes:
    """Writes `main_data.hdf5` in a `data` folder; a context manager.

    Raises:
        ConfigError: h5py is not installed.
    """

    def __init__(self, folder: Path, observation_space: Space, action_space: Space) -> None:
        try:
            import h5py
        except ImportError as error:
            raise ConfigError(
                explain(str(folder), got="no h5py to write HDF5 with", fix="pip install 'dask-rl[formats]'")
            ) from error
        self._spaces = {"observations": observation_space, "actions": action_space}
        self._open_files = ExitStack()
        self._file = self._open_files.enter_context(h5py.File(folder / _FILE, "w"))

    def write(self, number: int, episode: Episode) -> None:
        """Write one episode."""
        group = self._file.create_group(f"episode_{number}")
        group.attrs.update(episode_metadata(number, episode))
        for name, space in self._spaces.items():
            _write(group, name, getattr(episode, name), space)
        for name in ("rewards", "terminations", "truncations"):
            group[name] = getattr(episode, name)
        for name, column in episode.infos.items():
            group[f"infos/{name}"] = reset_row(column)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open_files.close()


def episode_metadata(number: int, episode: Episode) -> dict[str, Any]:
    """Return what Minari keeps of an episode, and what only a re-import reads."""
    metadata: dict[str, Any] = {"id": number, "total_steps": len(episode), "episode_id": episode.id}
    if episode.seed is not None:
        metadata["seed"] = episode.seed
    if not episode.has_final_observation:
        metadata["has_final_observation"] = False
    return metadata


def reset_row(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return T+1 rows of an info: Minari's first one comes from the reset, and is empty here."""
    empty = np.full((1, *column.shape[1:]), np.nan if column.dtype.kind == "f" else 0, column.dtype)
    return np.concatenate([empty, column])


def _write(group: Any, name: str, value: Columns, space: Space) -> None:
    parts = subspaces(space)
    if parts is None or not isinstance(value, Mapping):
        group[name] = value
        return
    inner = group.create_group(name)
    prefix = "_index_" if isinstance(space, spaces.Tuple) else ""
    for key, part in parts.items():
        _write(inner, f"{prefix}{key}", value[key], part)

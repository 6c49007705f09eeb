"""Minari's episodes in Arrow or Parquet: a folder each, with one part of T+1 rows."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.nested import Columns, subspaces
from dask_rl.storage.spaces import Space

from .minari_hdf5 import episode_metadata, reset_row

Array = np.ndarray[Any, Any]


class ArrowEpisodes:
    """Writes the folders of episodes in a `data` folder; a context manager.

    Args:
        folder: the `data` folder.
        kind: `arrow` or `parquet`.
        observation_space: space of the observations.
        action_space: space of the actions.

    Raises:
        ConfigError: pyarrow is not installed.
    """

    def __init__(self, folder: Path, kind: str, observation_space: Space, action_space: Space) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise ConfigError(
                explain(str(folder), got="no pyarrow to write Arrow with", fix="pip install 'dask-rl[formats]'")
            ) from error
        self._arrow = pyarrow
        self._folder = folder
        self._kind = kind
        self._observation_space = observation_space
        self._action_space = action_space

    def write(self, number: int, episode: Episode) -> None:
        """Write one episode."""
        columns = {
            "observations": self._encode(episode.observations, self._observation_space, 0),
            "actions": self._encode(episode.actions, self._action_space, 1),
        }
        for name in ("rewards", "terminations", "truncations"):
            columns[name] = self._arrow.array(_pad(getattr(episode, name), 1))
        if episode.infos:
            columns["infos"] = self._encode_infos(episode.infos)
        folder = self._folder / str(number)
        folder.mkdir()
        table = self._arrow.table(columns)
        path = folder / f"part-0.{self._kind}"
        if self._kind == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(table, path)
        else:
            with self._arrow.OSFile(str(path), "wb") as file, self._arrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        (folder / "metadata.json").write_text(json.dumps(episode_metadata(number, episode)))

    def _encode(self, value: Columns, space: Space, pad: int) -> Any:
        """Return the rows of a value of a space, and `pad` empty ones."""
        parts = subspaces(space)
        if parts is not None and isinstance(value, Mapping):
            arrays = [self._encode(value[key], part, pad) for key, part in parts.items()]
            return self._arrow.StructArray.from_arrays(arrays, names=list(parts))
        rows = _pad(np.asarray(value), pad)
        return self._arrow.array(rows) if isinstance(space, spaces.Discrete) else self._lists(rows)

    def _encode_infos(self, infos: Mapping[str, Array]) -> Any:
        arrays, fields = [], []
        for name, column in infos.items():
            rows = reset_row(column)
            array = self._lists(rows) if rows.ndim > 1 else self._arrow.array(rows)
            shape = {"shape": ",".join(str(n) for n in rows.shape[1:])} if rows.ndim > 1 else None
            arrays.append(array)
            fields.append(self._arrow.field(name, array.type, metadata=shape))
        return self._arrow.StructArray.from_arrays(arrays, fields=fields)

    def _lists(self, rows: Array) -> Any:
        """Return rows as flat lists of one length."""
        flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
        values = self._arrow.array(flat.reshape(-1))
        return self._arrow.FixedSizeListArray.from_arrays(values, flat.shape[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Every file is closed already."""


def _pad(rows: Array, pad: int) -> Array:
    return np.concatenate([rows, np.zeros((pad, *rows.shape[1:]), rows.dtype)]) if pad else rows

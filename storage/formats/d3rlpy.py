"""d3rlpy's HDF5 files: v1 (flat arrays) and v2 (arrays per episode).

Neither stores the observation after the last step. In v1 `terminals` may be set on two consecutive rows at a
terminated end, so only `episode_terminals` says where an episode ends, and the last row whether it terminated.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, ImportOptions, RawEpisode, Source, flags_at_end
from .hdf5 import is_hdf5_name, open_hdf5, read_dataset

_V1_KEYS = ("observations", "actions", "rewards", "terminals", "episode_terminals")
_SCAN_ROWS = 2**20
_V1_RULE = (
    "episodes split at episode_terminals; terminated where terminals is set on the last row, truncated otherwise; "
    "the source stores no final observations"
)
_V2_RULE = (
    "episodes as stored; terminated where the source says so, truncated otherwise; "
    "the source stores no final observations"
)


class D3rlpyImporter:
    """Reads `ReplayBuffer.dump` (v2) and `MDPDataset.dump` (v1) files."""

    name = "d3rlpy"

    def detect(self, path: Path) -> bool:
        """Whether this is an HDF5 file with d3rlpy's keys."""
        if not (path.is_file() and is_hdf5_name(path)):
            return False
        with open_hdf5(path) as file:
            return _is_v2(file) or "episode_terminals" in file

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open a file of either version; see `Importer`."""
        with open_hdf5(path) as file:
            if _is_v2(file):
                num_episodes = int(file["num_episodes"][()])
                steps = (read_dataset(file, f"rewards_{i}", str(path)).shape[0] for i in range(num_episodes))
                return Source(_V2_RULE, partial(_read_v2, path, num_episodes), num_episodes, num_steps=sum(steps))
            columns = {key: read_dataset(file, key, str(path)) for key in _V1_KEYS}
            lengths = {key: column.shape[0] if column.shape else 0 for key, column in columns.items()}
            if len(set(lengths.values())) != 1 or not lengths["actions"]:
                raise SourceFormatError(
                    explain(str(path), got=f"rows {lengths}", allowed="equal, at least 1", fix="fetch the file again")
                )
            left_out = tuple(sorted(set(file) - {*_V1_KEYS, "discrete_action", "version"}))
            stops = _episode_stops(columns["episode_terminals"])
            return Source(
                rule=_V1_RULE,
                episodes=partial(_read_v1, path, stops),
                num_episodes=len(stops),
                num_steps=lengths["actions"],
                left_out=left_out,
            )


def _is_v2(file: Any) -> bool:
    return "columns" in file and "num_episodes" in file


def _read_v1(path: Path, stops: Array, start: int, stop: int | None) -> Iterator[RawEpisode]:
    with open_hdf5(path) as file:
        for number in range(len(stops))[start:stop]:
            rows = slice(int(stops[number - 1]) if number else 0, int(stops[number]))
            terminated = bool(file["terminals"][rows.stop - 1])
            yield _episode(
                str(path),
                number,
                (file["observations"][rows], file["actions"][rows], file["rewards"][rows]),
                terminated,
            )


def _episode_stops(episode_terminals: Any) -> Array:
    """Return the exclusive end of each episode; rows after the last flag are an episode that was cut off."""
    num_rows = episode_terminals.shape[0]
    stops = [
        first + 1 + np.flatnonzero(episode_terminals[first : first + _SCAN_ROWS])
        for first in range(0, num_rows, _SCAN_ROWS)
    ]
    return np.unique(np.concatenate([*stops, [num_rows]]))


def _read_v2(path: Path, num_episodes: int, start: int, stop: int | None) -> Iterator[RawEpisode]:
    with open_hdf5(path) as file:
        for number in range(num_episodes)[start:stop]:
            if f"observations_{number}_0" in file:
                raise SourceFormatError(
                    explain(
                        f"{path}: episode {number}",
                        got="a tuple of observations",
                        allowed="one array",
                        fix="flatten the source first: nested observations are not supported yet",
                    )
                )
            keys = [f"{key}_{number}" for key in ("observations", "actions", "rewards")]
            columns = [read_dataset(file, key, str(path))[()] for key in keys]
            terminated = bool(read_dataset(file, f"terminated_{number}", str(path))[()])
            yield _episode(str(path), number, (columns[0], columns[1], columns[2]), terminated)


def _episode(origin: str, number: int, columns: tuple[Array, Array, Array], terminated: bool) -> RawEpisode:
    observations, actions, rewards = columns
    return RawEpisode(
        origin=origin,
        id=number,
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=flags_at_end(len(rewards), terminated),
        truncations=flags_at_end(len(rewards), not terminated),
        has_final_observation=False,
    )

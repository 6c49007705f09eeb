"""d3rlpy's HDF5 files: v1 (flat arrays) and v2 (arrays per episode).

Neither stores the observation after the last step. In v1 `terminals` may be set on two consecutive rows at a
terminated end, so only `episode_terminals` says where an episode ends, and the last row whether it terminated.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import Columns

from .base import Array, ImportOptions, RawEpisode, Source, as_flags, flags_at_end
from .flat import Cuts, Roles, check_columns, cut_after, make_flat_source, read_flags
from .hdf5 import is_hdf5_name, open_hdf5, open_hdf5_columns, read_dataset

_V1_KEYS = ("observations", "actions", "rewards", "terminals", "episode_terminals")
_V1_RULE = "episodes split at episode_terminals; terminated where terminals is set on the last row, truncated otherwise"
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
                num_episodes = int(read_dataset(file, "num_episodes", str(path))[()])
                num_steps = sum(_num_steps(file, number, str(path)) for number in range(num_episodes))
                return Source(_V2_RULE, partial(_read_v2, path, num_episodes), num_episodes, num_steps=num_steps)
            columns = {key: read_dataset(file, key, str(path)) for key in _V1_KEYS}
            check_columns(str(path), columns)
            starts, stops = cut_after(read_flags(columns["episode_terminals"], f"{path}: episode_terminals"))
            terminals = read_flags(columns["terminals"], f"{path}: terminals")
            terminated = terminals[stops - 1]
            left_out = tuple(sorted(set(file) - {*_V1_KEYS, "discrete_action", "version"}))
        roles = Roles({"observations": "observations"}, {"actions": "actions"})
        cuts = Cuts(starts, stops, terminated)
        num_inside = int(terminals.sum() - terminated.sum())
        notes = (f"terminals is also set where no episode ends (rows: {num_inside}); there it is not used",)
        facts: dict[str, Any] = {"left_out": left_out, "notes": notes if num_inside else ()}
        return make_flat_source(_V1_RULE, str(path), partial(open_hdf5_columns, path), roles, cuts, **facts)


def _is_v2(file: Any) -> bool:
    return "columns" in file and "num_episodes" in file


def _num_steps(file: Any, number: int, origin: str) -> int:
    rewards = read_dataset(file, f"rewards_{number}", origin)
    if not rewards.shape:
        got, allowed = "a single number", "one for each step"
        raise SourceFormatError(explain(f"{origin}{rewards.name}", got=got, allowed=allowed, fix="fetch it again"))
    return int(rewards.shape[0])


def _read_v2(path: Path, num_episodes: int, start: int, stop: int | None) -> Iterator[RawEpisode]:
    origin = str(path)
    with open_hdf5(path) as file:
        for number in range(num_episodes)[start:stop]:
            rewards = read_dataset(file, f"rewards_{number}", origin)[()]
            flag = np.atleast_1d(read_dataset(file, f"terminated_{number}", origin)[()])
            terminated = bool(as_flags(flag, f"{origin}/terminated_{number}").item())
            yield RawEpisode(
                origin=origin,
                id=number,
                observations=_value(file, f"observations_{number}", origin),
                actions=_value(file, f"actions_{number}", origin),
                rewards=rewards,
                terminations=flags_at_end(len(rewards), terminated),
                truncations=flags_at_end(len(rewards), not terminated),
                has_final_observation=False,
            )


def _value(file: Any, key: str, origin: str) -> Columns:
    """Return an array, or those of a tuple, which are stored under numbered keys."""
    if f"{key}_0" not in file:
        whole: Array = read_dataset(file, key, origin)[()]
        return whole
    parts = itertools.takewhile(lambda part: f"{key}_{part}" in file, itertools.count())
    return {str(part): read_dataset(file, f"{key}_{part}", origin)[()] for part in parts}

"""Episodes of a dataset, read many at a time: a read for every short episode would decode each chunk again."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.nested import unflatten
from dask_rl.storage.schema import (
    ACTIONS,
    INFOS_PREFIX,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    is_part_of,
)

IntArray = npt.NDArray[np.int64]
_SPAN_BYTES = 8 * 2**20


def spans(dataset: OfflineDataset, numbers: IntArray, fields: Mapping[str, str]) -> Iterator[IntArray]:
    """Yield groups of the episodes, those from the first to the last of each being read at once: some megabytes.

    Args:
        dataset: the dataset.
        numbers: of episodes, growing.
        fields: of which rows will be read, as values.
    """
    row_bytes = sum(dataset.arrays[field].row_bytes for field in fields.values())
    starts, ends = dataset.episode_starts[numbers], dataset.episode_ends[numbers]
    done = 0
    while done < len(numbers):
        stop = int(np.searchsorted(ends, starts[done] + _SPAN_BYTES // row_bytes, side="right"))
        stop = max(stop, done + 1)
        yield numbers[done:stop]
        done = stop


def read_episodes(dataset: OfflineDataset, numbers: IntArray, fields: Mapping[str, str]) -> Iterator[Episode]:
    """Yield the episodes of these numbers, in memory bounded by some megabytes or one episode.

    Args:
        dataset: the dataset.
        numbers: growing.
        fields: names in the dataset of the fields that are read, by those that they get.
    """
    for group in spans(dataset, numbers, fields):
        first, last = int(dataset.episode_starts[group[0]]), int(dataset.episode_ends[group[-1]])
        columns = {new: dataset.read(old, first, last) for new, old in fields.items()}
        for number in group.tolist():
            start, stop = int(dataset.episode_starts[number]) - first, int(dataset.episode_ends[number]) - first
            steps = {
                path: column[start : stop if is_part_of(path, OBSERVATIONS) else stop - 1]
                for path, column in columns.items()
            }
            seed = int(dataset.episode_seeds[number])
            yield Episode(
                observations=unflatten(OBSERVATIONS, steps),
                actions=unflatten(ACTIONS, steps),
                rewards=steps[REWARDS],
                terminations=steps[TERMINATIONS],
                truncations=steps[TRUNCATIONS],
                infos={p.removeprefix(INFOS_PREFIX): c for p, c in steps.items() if p.startswith(INFOS_PREFIX)},
                has_final_observation=bool(dataset.has_final_observation[number]),
                id=int(dataset.episode_ids[number]),
                seed=None if seed < 0 else seed,
            )

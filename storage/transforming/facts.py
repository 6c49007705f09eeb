"""What is known of each episode of all sources: what conditions name."""

import functools
from collections.abc import Set
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.building.parallel_build import TaskRunner
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.schema import REWARDS, TERMINATIONS, TRUNCATIONS

from .sources import Range, SourcePart, Sources
from .spans import spans

Column = npt.NDArray[Any]
_FIELDS = {"return_": REWARDS, "terminated": TERMINATIONS, "truncated": TRUNCATIONS}


def find_facts(sources: Sources, names: Set[str], run: TaskRunner) -> dict[str, Column]:
    """Return columns by name, each (num_episodes,).

    Args:
        sources: the datasets.
        names: of `condition.FACTS`; only what these need is read.
        run: runs the tasks that read.
    """
    facts: dict[str, Column] = {
        "length": sources.lengths,
        "id": sources.ids,
        "seed": sources.seeds,
        "has_final_observation": sources.has_final_observation,
        "index": np.concatenate([np.arange(part.num_episodes) for part in sources.parts]),
        "source": np.repeat(np.arange(len(sources.parts)), [part.num_episodes for part in sources.parts]),
    }
    read = sorted(names & _FIELDS.keys())
    if read:
        found = list(run(functools.partial(_read_facts, sources.parts, read), sources.ranges(), "episode-facts"))
        facts |= {name: np.concatenate([part[name] for part in found]) for name in read}
    return facts


def _read_facts(parts: tuple[SourcePart, ...], names: list[str], numbers: Range) -> dict[str, Column]:
    """Read what is not known without rows, of a range of episodes; the body of a task."""
    found: dict[str, list[Column]] = {name: [] for name in names}
    for part in parts:
        start, stop = part.overlap(*numbers)
        if start == stop:
            continue
        with part.open() as dataset:
            for name in names:
                field = {name: _FIELDS[name]}
                for group in spans(dataset, np.arange(start, stop), field):
                    found[name].append(_read_fact(dataset, _FIELDS[name], group))
    return {name: np.concatenate(columns) for name, columns in found.items()}


def _read_fact(dataset: OfflineDataset, field: str, group: npt.NDArray[np.int64]) -> Column:
    starts, ends = dataset.episode_starts[group], dataset.episode_ends[group]
    rows = dataset.read(field, int(starts[0]), int(ends[-1]))
    if field != REWARDS:
        return rows[ends - 2 - starts[0]]
    # The final rows are 0: sums over T+1 rows are sums over T steps.
    returns: Column = np.add.reduceat(rows, starts - starts[0], dtype=np.float64)
    return returns

"""The statistics by which observations are standardised: those of the steps that are kept."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dask_rl.storage.building.parallel_build import TaskRunner
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.spaces import describe_space, space_to_json
from dask_rl.storage.stats import Moments, combine_moments, moments_of, statistics_of

from .normalization import Normalization, PartScaling, scaled_parts
from .sources import Range, SourcePart, Sources
from .spans import spans


def fit_normalization(sources: Sources, kept: npt.NDArray[np.bool_], run: TaskRunner) -> Normalization:
    """Return the standardisation of all parts of the observations that are numbers.

    Args:
        sources: the datasets.
        kept: which episodes count, (num_episodes,).
        run: runs the tasks that read; the result does not depend on it.

    Raises:
        ConfigError: no part is a number, or the observations are standardised already.
    """
    paths = scaled_parts(sources.observation_space)
    if sources.normalization is not None or not paths:
        got, allowed = "observations that are standardised", "others"
        if not paths:
            got, allowed = describe_space(sources.observation_space), "observations with a Box of numbers"
        raise ConfigError(explain("normalize", got=got, allowed=allowed, fix="leave it out"))
    task = functools.partial(_range_moments, sources.parts, np.packbits(kept), paths)
    found = list(run(task, sources.ranges(), "observation-statistics"))
    parts = {}
    for number, path in enumerate(paths):
        statistics = statistics_of(moments[number] for moments in found)
        mean, std = (tuple(column.ravel().tolist()) for column in (statistics.mean, statistics.std))
        parts[path] = PartScaling.model_validate(
            {"mean": mean, "std": std, "dtype": sources.arrays[path].dtype.newbyteorder("=").name}
        )
    return Normalization(
        observation_space=space_to_json(sources.observation_space), environment=sources.environment, parts=parts
    )


def _range_moments(
    parts: tuple[SourcePart, ...], packed: npt.NDArray[np.uint8], paths: Sequence[str], numbers: Range
) -> list[Moments]:
    """Go through the steps of a range of episodes; the body of a task. Returns moments by path."""
    kept = np.unpackbits(packed, count=numbers[1]).view(np.bool_)
    found: list[list[Moments]] = [[] for _ in paths]
    for part in parts:
        start, stop = part.overlap(*numbers)
        own = start + np.flatnonzero(kept[part.first + start : part.first + stop])
        if not len(own):
            continue
        with part.open() as dataset:
            for moments, path in zip(found, paths, strict=True):
                for group in spans(dataset, own, {path: path}):
                    first, last = int(dataset.episode_starts[group[0]]), int(dataset.episode_ends[group[-1]])
                    mask = np.zeros(last - first, np.int8)
                    mask[dataset.episode_starts[group] - first] += 1
                    mask[dataset.episode_ends[group] - 1 - first] -= 1
                    steps = np.cumsum(mask, dtype=np.int8).view(np.bool_)
                    moments.append(moments_of(dataset.read(path, first, last)[steps]))
    return [combine_moments(part for part in moments if part.count) for moments in found]

"""The datasets that a transform reads, their episodes numbered through."""

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.locate import local_path
from dask_rl.storage.schema import ArraySpec
from dask_rl.storage.spaces import Space, describe_space, spaces_equal

from .config import TransformConfig
from .fields import choose_fields
from .joined_spaces import join_spaces
from .normalization import Normalization, parse_normalization

Range = tuple[int, int]
_NUM_RANGES = 32


@dataclass(frozen=True)
class SourcePart:
    """One dataset, as any process can open it again, and the numbers of its episodes among those of all."""

    path: str
    content_hash: str
    first: int
    num_episodes: int
    fields: Mapping[str, str]
    """Names in the source of the fields that are read, by their names in the dataset to be."""

    def open(self) -> OfflineDataset:
        """Open the generation that was there when the transform began."""
        return OfflineDataset.open(self.path, content_hash=self.content_hash)

    def overlap(self, start: int, stop: int) -> Range:
        """Return which of its own episodes are among those of numbers [start, stop)."""
        own_start, own_stop = max(start - self.first, 0), min(stop - self.first, self.num_episodes)
        return own_start, max(own_stop, own_start)


@dataclass(frozen=True, eq=False)
class Sources:
    """All datasets, and what is known of them without reading a row."""

    parts: tuple[SourcePart, ...]
    names: tuple[str, ...]
    lengths: npt.NDArray[np.int64]  # (num_episodes,) steps
    ids: npt.NDArray[np.int64]  # (num_episodes,)
    seeds: npt.NDArray[np.int64]  # (num_episodes,) -1: unknown
    has_final_observation: npt.NDArray[np.bool_]  # (num_episodes,)
    observation_space: Space
    """Of all sources together: where they differ in their bounds only, the wider ones."""
    action_space: Space
    """As the observations'."""
    joined: tuple[str, ...]
    """Which of these two spaces is not that of every source."""
    environments: tuple[str | None, ...]
    """Of the sources."""
    ref_scores: tuple[float, float] | None
    """None where they differ."""
    provenances: tuple[Mapping[str, Any], ...]
    normalization: Normalization | None
    """How the observations of all of them were standardised; None: they were not."""
    arrays: Mapping[str, ArraySpec]
    """Of the dataset to be, in the types of the sources."""

    @property
    def num_episodes(self) -> int:
        """Of all sources."""
        return len(self.lengths)

    @property
    def environment(self) -> str | None:
        """The one of all sources; None where they differ."""
        return self.environments[0] if len(set(self.environments)) == 1 else None

    def num_steps_of(self, kept: npt.NDArray[np.bool_]) -> int:
        """Return the steps of some of the episodes, (num_episodes,)."""
        return int(self.lengths[kept].sum())

    def ranges(self) -> list[Range]:
        """Return ranges of episodes with about the same number of rows, which depend on the sources alone."""
        ends = np.cumsum(self.lengths + 1)
        targets = ends[-1] * np.arange(1, _NUM_RANGES) // _NUM_RANGES
        cuts = np.unique([0, *np.searchsorted(ends, targets, side="right"), self.num_episodes]).tolist()
        return list(itertools.pairwise(cuts))


def open_sources(paths: Iterable[str | os.PathLike[str]], config: TransformConfig) -> Sources:
    """Open all datasets, and check that they fit each other.

    Raises:
        DatasetNotFoundError: there is no such dataset.
        ConfigError: there is none at all, their spaces or fields differ, or the config names infos that they lack.
    """
    given = [os.fspath(path) for path in paths]
    if not given:
        raise ConfigError(explain("sources", got="none", allowed="at least 1 dataset", fix="name one"))
    opened: list[OfflineDataset] = []
    try:
        opened.extend(OfflineDataset.open(path) for path in given)
        return _describe(given, opened, config)
    finally:
        for dataset in opened:
            dataset.close()


def _describe(given: list[str], opened: list[OfflineDataset], config: TransformConfig) -> Sources:
    first = opened[0]
    fields = [choose_fields(dataset.path, dataset.arrays, config) for dataset in opened]
    arrays = [
        {new: ArraySpec(new, dataset.arrays[old].dtype, dataset.arrays[old].row_shape) for new, old in chosen.items()}
        for dataset, chosen in zip(opened, fields, strict=True)
    ]
    spaces, joined = _join_all(opened)
    for dataset, found in zip(opened, arrays, strict=True):
        _check_fits(first, arrays[0], dataset, found)
    normalizations = [parse_normalization(dataset.path, dataset.provenance) for dataset in opened]
    for dataset, normalization in zip(opened, normalizations, strict=True):
        if normalization != normalizations[0]:
            got, allowed = "observations standardised otherwise", f"as in {first.path}, or not at all"
            fix = "undo it before (denormalize, --denormalize)"
            raise ConfigError(explain(f"observations of {dataset.path}", got=got, allowed=allowed, fix=fix))
    starts = np.cumsum([0, *(dataset.num_episodes for dataset in opened)])
    # Workers may have another working directory; of a URL, a dataset keeps no credentials in its own path.
    paths = [url if local_path(url) is None else dataset.path for url, dataset in zip(given, opened, strict=True)]
    parts = tuple(
        SourcePart(path, dataset.content_hash, int(start), dataset.num_episodes, chosen)
        for path, dataset, start, chosen in zip(paths, opened, starts[:-1], fields, strict=True)
    )
    return Sources(
        parts=parts,
        names=tuple(os.path.basename(dataset.path.rstrip("/")) for dataset in opened),
        lengths=np.concatenate([dataset.episode_lengths for dataset in opened]),
        ids=np.concatenate([dataset.episode_ids for dataset in opened]),
        seeds=np.concatenate([dataset.episode_seeds for dataset in opened]),
        has_final_observation=np.concatenate([dataset.has_final_observation for dataset in opened]),
        observation_space=spaces["observation_space"],
        action_space=spaces["action_space"],
        joined=joined,
        environments=tuple(dataset.environment for dataset in opened),
        ref_scores=first.ref_scores if len({dataset.ref_scores for dataset in opened}) == 1 else None,
        provenances=tuple(dataset.provenance for dataset in opened),
        normalization=normalizations[0],
        arrays=arrays[0],
    )


def _join_all(opened: list[OfflineDataset]) -> tuple[Mapping[str, Space], tuple[str, ...]]:
    """Return the two spaces of all datasets together, and the names of those that are not the space of each of them."""
    joined = {name: _joined_space(name, opened) for name in ("observation_space", "action_space")}
    wider = [name for name, space in joined.items() if not all(spaces_equal(space, getattr(it, name)) for it in opened)]
    return joined, tuple(wider)


def _joined_space(name: str, opened: list[OfflineDataset]) -> Space:
    given = [getattr(dataset, name) for dataset in opened]
    joined = join_spaces(given)
    if joined is None:
        number = next(number for number in range(2, len(given) + 1) if join_spaces(given[:number]) is None) - 1
        raise ConfigError(
            explain(
                f"{name} of {opened[number].path}",
                got=describe_space(given[number]),
                allowed=f"one like that of {opened[0].path}, {describe_space(given[0])}; the bounds may be others",
                fix="merge what fits",
            )
        )
    return joined


def _check_fits(
    first: OfflineDataset, wanted: Mapping[str, ArraySpec], other: OfflineDataset, found: Mapping[str, ArraySpec]
) -> None:
    different = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    if different:
        path = different[0]
        raise ConfigError(
            explain(
                f"{path} of {other.path}",
                got=_describe_array(found.get(path)),
                allowed=f"{_describe_array(wanted.get(path))}, as in {first.path}",
                fix="choose infos that all have (--infos), or rename them",
            )
        )


def _describe_array(spec: ArraySpec | None) -> str:
    return "no such field" if spec is None else f"{spec.dtype.name} {spec.row_shape}"

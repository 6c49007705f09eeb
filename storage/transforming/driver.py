"""Datasets in, one or two datasets out; by tasks or in one stream, the same bytes."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_rl.storage.building.parallel_build import TaskRunner
from dask_rl.storage.building.supply import Survey
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.writer import DatasetWriter

from .config import TransformConfig
from .facts import find_facts
from .observations import ObservationPlan, plan_observations
from .selection import needed_facts, select, split
from .sources import Sources, open_sources
from .summary import TransformSummary, WrittenDataset
from .target import Path, Target, check_targets, is_written, plan_targets
from .transform_supply import TransformSupply, survey_range

Progress = Callable[[int, int | None], None]


def transform_datasets(
    sources: Path | Sequence[Path],
    dest: Path,
    *,
    config: TransformConfig | None = None,
    validation: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    run: TaskRunner | None = None,
) -> TransformSummary:
    """Write a new dataset from the episodes of others; see `TransformConfig` for what becomes of them.

    Args:
        sources: one or several datasets, whose spaces and fields fit each other; their episodes follow one another.
        dest: the new dataset.
        config: what to do; None copies.
        validation: the second dataset of a split, which gets the share `validation_fraction`.
        overwrite: replace datasets that are there.
        progress: called with the number of steps that were gone through in all passes, and their total.
        run: runs the tasks; None: one stream, in this process, with the same result.

    Raises:
        DatasetNotFoundError: a source is not there.
        ConfigError: sources that do not fit, or a config that does not fit them; or no episode is left.
        InvalidDataError: rewards outgrow their type.
        DatasetError: a destination exists or cannot be written.
    """
    config, runner = config or TransformConfig(), run or _in_process
    targets = plan_targets(dest, validation, config)
    opened = open_sources([sources] if isinstance(sources, str | os.PathLike) else sources, config)
    there = frozenset() if overwrite else _already_there(opened, targets, config)
    check_targets([target for target in targets if target.part not in there], opened.parts, overwrite)
    selection = select(find_facts(opened, needed_facts(config), runner), config)
    fraction = config.validation_fraction
    masks = [selection.kept] if fraction is None else split(selection.kept, fraction, config.seed)
    targets = [replace(target, kept=mask) for target, mask in zip(targets, masks, strict=True)]
    observations = plan_observations(opened, config, masks[0], runner)
    missing = [target for target in targets if target.part not in there]
    num_steps = sum(opened.num_steps_of(target.kept) for target in missing)
    passes = _Passes(opened, observations, progress or (lambda done, total: None), run, num_steps)
    for target in missing:
        _write(passes, target, config, overwrite)
    written = [_facts_of(target.path) for target in targets]
    return TransformSummary(
        **vars(written[0]),
        num_source_episodes=opened.num_episodes,
        num_source_steps=int(opened.lengths.sum()),
        dropped=selection.dropped,
        validation=written[1] if len(written) > 1 else None,
        notes=tuple(_notes(opened, targets, there, config)),
    )


def _already_there(sources: Sources, targets: Sequence[Target], config: TransformConfig) -> frozenset[str]:
    """Return which part of a split an earlier run wrote that died before the other; where both are, it did not."""
    if len(targets) == 1:
        return frozenset()
    there = frozenset(it.part for it in targets if is_written(it, _provenance(sources, config, it)))
    return there if len(there) < len(targets) else frozenset()


def _in_process(function: Callable[[Any], Any], items: Iterable[Any], name: str) -> Iterator[Any]:
    return map(function, items)


@dataclass
class _Passes:
    """What all passes over the episodes share, and how far they are."""

    sources: Sources
    observations: ObservationPlan
    progress: Progress
    run: TaskRunner | None
    num_steps: int
    """Steps of all episodes that are written."""
    done: int = 0

    def report(self, num_steps: int) -> None:
        """Say that so many more steps were gone through: once for a stream; tasks survey them before."""
        self.done += num_steps
        self.progress(self.done, self.num_steps * (1 if self.run is None else 2))


def _write(passes: _Passes, target: Target, config: TransformConfig, overwrite: bool) -> None:
    sources, observations = passes.sources, passes.observations
    supply = TransformSupply(
        sources.parts,
        np.packbits(target.kept),
        config,
        observations.normalization,
        observations.space,
        sources.action_space,
    )
    with DatasetWriter(
        target.path,
        observation_space=supply.observation_space,
        action_space=supply.action_space,
        environment=observations.environment,
        ref_scores=None if config.changes_rewards else sources.ref_scores,
        provenance=_provenance(sources, config, target) | observations.provenance,
        shard_rows=config.shard_rows,
        overwrite=overwrite,
    ) as writer:
        if passes.run is None:
            for episode in supply.episodes(0, sources.num_episodes):
                if episode is not None:
                    writer.add_episode(episode)
                    passes.report(len(episode))
        else:
            _write_by_tasks(writer, supply, passes, passes.run)


def _write_by_tasks(writer: DatasetWriter, supply: TransformSupply, passes: _Passes, run: TaskRunner) -> None:
    surveys = []
    for part in run(functools.partial(survey_range, supply), passes.sources.ranges(), "survey"):
        surveys.append(part)
        passes.report(part.num_steps)
    surveyed = Survey.join(surveys)
    num_rows, reported = int(surveyed.row_ends[-1]), 0

    def report(rows: int) -> None:
        nonlocal reported
        done = surveyed.num_steps * rows // num_rows
        passes.report(done - reported)
        reported = done

    writer.add_supply(supply, surveyed, run, report)


def _provenance(sources: Sources, config: TransformConfig, target: Target) -> dict[str, Any]:
    named = zip(sources.names, sources.parts, strict=True)
    transform = {
        "sources": [{"name": name, "content_hash": part.content_hash} for name, part in named],
        "options": config.model_dump(mode="json", exclude_defaults=True),
        "part": target.part,
    }
    return {"transform": transform, "sources": list(sources.provenances)}


def _facts_of(path: Path) -> WrittenDataset:
    with OfflineDataset.open(path) as dataset:
        return WrittenDataset.of(dataset)


def _notes(sources: Sources, targets: Sequence[Target], there: Set[str], config: TransformConfig) -> Iterator[str]:
    """Yield what the user should look at."""
    for target in targets:
        if target.part in there:
            yield f"{os.fspath(target.path)} was there already, from an earlier run of the same transform"
    if len(set(sources.environments)) > 1:
        yield f"the sources are of {', '.join(map(str, sources.environments))}: the dataset names no environment"
    for name in sources.joined:
        yield f"the sources differ in the bounds of their {name}: the dataset's has the wider ones"
    if config.changes_rewards and sources.ref_scores is not None:
        yield "the rewards are others: the reference scores of the source are left out"
    if config.normalize and sources.environment is not None:
        yield f"{sources.environment} gives other observations than the dataset now has: it names no environment"
    if config.ids == "keep" and len(sources.parts) > 1:
        kept = np.logical_or.reduce([target.kept for target in targets])
        twice = int(kept.sum()) - len(np.unique(sources.ids[kept]))
        if twice:
            yield f"{twice} episodes have the id of an earlier one: renumber them (ids=renumber, --ids renumber)"

"""A foreign source in, a dataset out."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import gymnasium

from dask_rl.storage.building.parallel_build import TaskRunner
from dask_rl.storage.building.step_columns import StepColumns
from dask_rl.storage.building.supply import Survey
from dask_rl.storage.building.taken import refuse_if_taken
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.transforming.normalization import parse_normalization
from dask_rl.storage.writer import DatasetWriter

from . import inference
from .base import ImportOptions, ImportSummary, Source, Space
from .checks import check_normalized
from .import_supply import ImportSupply, split_ranges, survey_range
from .registry import check_exists, detect_format, get_importer
from .tally import Tally

Progress = Callable[[int, int | None], None]
_SURVEY_TASKS = 32


def import_dataset(
    source: str | Path,
    dest: str | Path,
    *,
    format: str | None = None,
    options: ImportOptions | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress | None = None,
    run: TaskRunner | None = None,
) -> ImportSummary:
    """Import a foreign dataset into a new dask-rl dataset at `dest`, or append it to one that is there.

    Args:
        source: a file or directory.
        dest: the dataset.
        format: name of the importer; found out by default.
        options: what the user knows about the source.
        overwrite: replace a dataset at `dest`.
        append: add the episodes to the dataset at `dest`, whose spaces they must fit.
        progress: called with the number of steps read and their total, if it is known. A source that declares no
            spaces is read twice, one that is imported by tasks once more, and all passes count.
        run: runs the tasks of an import in parallel, which gives the same dataset; None: one stream, in this process.

    Raises:
        DatasetNotFoundError: there is no such source.
        SourceFormatError: the source is of no known format, or damaged.
        InvalidDataError: the source holds what no learner may see; naming file, episode, step and field.
        DatasetError: `dest` exists or cannot be written.
        ConfigError: an option does not fit.
    """
    path, options = Path(source), options or ImportOptions()
    check_exists(path)
    if not append:
        refuse_if_taken(dest, overwrite)
    name = format or detect_format(path)
    opened = get_importer(name).read(path, options)
    return import_source(
        opened,
        dest,
        name=name,
        label=str(path),
        options=options,
        overwrite=overwrite,
        append=append,
        progress=progress,
        run=run,
    )


def import_source(
    source: Source,
    dest: str | Path,
    *,
    name: str,
    label: str,
    options: ImportOptions,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress | None = None,
    run: TaskRunner | None = None,
) -> ImportSummary:
    """Import a source that is open already; see `import_dataset`.

    Args:
        source: the source.
        dest: the dataset.
        name: of the format.
        label: what messages call the source; the last part of it goes into the provenance.
        options: what the user knows about the source.
        overwrite: replace a dataset at `dest`.
        append: add the episodes to the dataset at `dest`, whose spaces they must fit.
        progress: as for `import_dataset`.
        run: as for `import_dataset`.
    """
    spaces = _spaces_of(dest) if append else (source.observation_space, source.action_space)
    plan = _plan(source, spaces, options, progress or (lambda done, total: None), num_passes=1 if run is None else 2)
    writer = DatasetWriter(
        dest,
        observation_space=plan.supply.observation_space,
        action_space=plan.supply.action_space,
        environment=options.environment or (None if append else source.environment),
        ref_scores=None if append else source.ref_scores,
        provenance={"source": Path(label).name, "format": name, "rule": plan.rule, "options": options.model_dump()},
        shard_rows=options.shard_rows,
        overwrite=overwrite,
        append=append,
    )
    tally = Tally()
    with writer:
        if (steps := _whole(source, plan)) is not None:
            tally.keep_all(steps)
            writer.add_steps(steps)
            plan.report(tally.num_steps)
        elif run is None:
            _write_stream(writer, plan, tally)
        else:
            _write_by_tasks(writer, source.num_episodes, plan, tally, label, run)
        tally.check(label, writer.num_episodes)
        dataset = writer.finish()
    with dataset:
        return _summary(dataset, name, source, plan, tally)


@dataclass(frozen=True)
class _Plan:
    """What is decided before the first episode is written."""

    supply: ImportSupply
    rule: str
    progress: Progress
    num_steps: int | None
    """Steps of the source, if they are known."""
    done_steps: int
    """Steps that the pass for the spaces has reported."""
    num_passes: int
    """Passes that are still to come."""

    def report(self, num_steps: int) -> None:
        """Say how many steps were read since the pass for the spaces."""
        total = None if self.num_steps is None else self.done_steps + self.num_passes * self.num_steps
        self.progress(self.done_steps + num_steps, total)


def _spaces_of(dest: str | Path) -> tuple[Space, Space]:
    """Return the spaces of a dataset that is to grow; its observations must be as they came from their source."""
    with OfflineDataset.open(dest) as dataset:
        if parse_normalization(dataset.path, dataset.provenance) is not None:
            got, allowed = "standardised observations", "observations as those of the source"
            fix = "undo that first: dask-rl data transform --denormalize"
            raise ConfigError(explain(f"dataset {dest} to append to", got=got, allowed=allowed, fix=fix))
        return dataset.observation_space, dataset.action_space


def _plan(
    source: Source,
    spaces: tuple[Space | None, Space | None],
    options: ImportOptions,
    progress: Progress,
    num_passes: int,
) -> _Plan:
    observation_space, action_space = spaces
    rule = [source.rule]
    if options.max_episode_steps is not None:
        rule.append(f"terminations after exactly {options.max_episode_steps} steps taken as truncations")
    if options.environment is not None:
        observation_space, action_space = _environment_spaces(options.environment)
        rule.append(f"spaces of {options.environment}")
    num_steps, done_steps = source.num_steps, 0
    if observation_space is None or action_space is None:
        total = None if num_steps is None else (1 + num_passes) * num_steps
        observations, actions, done_steps = inference.scan(source.episodes(0, None), lambda done: progress(done, total))
        num_steps = done_steps
        observation_space = observation_space or inference.observation_space(observations)
        action_space = action_space or inference.action_space(actions)
        rule.append(inference.RULE)
    if options.normalized_actions:
        check_normalized(action_space)
        rule.append("actions mapped from [-1, 1] to the bounds of their space")
    if options.clip_actions:
        rule.append("actions clipped to the bounds of their space")
    narrow = source.observation_space is None
    supply = ImportSupply(source.episodes, observation_space, action_space, options, narrow)
    return _Plan(supply, "; ".join(rule), progress, num_steps, done_steps, num_passes)


def _environment_spaces(name: str) -> tuple[Space, Space]:
    try:
        environment = gymnasium.make(name)
    except (gymnasium.error.Error, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            explain("environment", got=f"{name!r} ({reason})", allowed="a Gymnasium id", fix="check the name")
        ) from error
    found: tuple[Space, Space] = (environment.observation_space, environment.action_space)
    environment.close()
    return found


def _whole(source: Source, plan: _Plan) -> StepColumns | None:
    """Return all episodes at once, if they are in memory and stay as they are."""
    supply = plan.supply
    changed = supply.options.model_dump(exclude={"shard_rows", "environment"}, exclude_defaults=True)
    if source.whole is None or changed:
        return None
    return source.whole(supply.observation_space, supply.action_space, supply.narrow)


def _write_stream(writer: DatasetWriter, plan: _Plan, tally: Tally) -> None:
    for episode in plan.supply.episodes(0, None, tally):
        if episode is not None:
            writer.add_episode(episode)
        plan.report(tally.num_steps)


def _write_by_tasks(
    writer: DatasetWriter, num_episodes: int | None, plan: _Plan, tally: Tally, label: str, run: TaskRunner
) -> None:
    """Have tasks find out what all episodes are, and others write the shards."""
    surveys = []
    ranges = split_ranges(num_episodes, _SURVEY_TASKS)
    for part, counts in run(functools.partial(survey_range, plan.supply), ranges, "survey"):
        surveys.append(part)
        tally.add(counts)
        plan.report(tally.num_steps)
    surveyed = Survey.join(surveys)
    tally.check(label, surveyed.num_episodes)
    plan = replace(plan, num_steps=tally.num_steps)
    num_rows = int(surveyed.row_ends[-1])
    writer.add_supply(
        plan.supply, surveyed, run, lambda rows: plan.report(tally.num_steps * (num_rows + rows) // num_rows)
    )


def _summary(dataset: OfflineDataset, name: str, source: Source, plan: _Plan, tally: Tally) -> ImportSummary:
    """Return the facts of the dataset itself, and what it does not tell."""
    facts = dataset.describe()
    shared = {item.name for item in fields(ImportSummary)} & facts.keys()
    return ImportSummary(
        **{key: facts[key] for key in shared},
        format=name,
        rule=plan.rule,
        dropped=dict(tally.dropped),
        left_out=source.left_out,
        notes=(*source.notes, *tally.notes(dataset.action_space, plan.supply.options)),
    )

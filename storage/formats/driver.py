"""A foreign source in, a dataset out."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, DatasetError, SourceFormatError, explain
from dask_rl.storage.spaces import describe_space
from dask_rl.storage.writer import DatasetWriter

from . import inference
from .base import ImportOptions, ImportSummary, Source, Space
from .checks import InvalidEpisodeError, apply_time_limit, check_normalized, to_episode
from .registry import check_exists, detect_format, get_importer

Progress = Callable[[int, int | None], None]


def import_dataset(
    source: str | Path,
    dest: str | Path,
    *,
    format: str | None = None,
    options: ImportOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Import a foreign dataset into a new dask-rl dataset at `dest`.

    Args:
        source: a file or directory.
        dest: the new dataset.
        format: name of the importer; found out by default.
        options: what the user knows about the source.
        overwrite: replace a dataset at `dest`.
        progress: called with the number of steps read and their total, if it is known. A source that declares no
            spaces is read twice, and both passes count.

    Raises:
        DatasetNotFoundError: there is no such source.
        SourceFormatError: the source is of no known format, or damaged.
        InvalidDataError: the source holds what no learner may see; naming file, episode, step and field.
        DatasetError: `dest` exists or cannot be written.
        ConfigError: an option does not fit.
    """
    path, options = Path(source), options or ImportOptions()
    check_exists(path)
    _check_free(Path(dest), overwrite)
    name = format or detect_format(path)
    opened = get_importer(name).read(path, options)
    plan = _plan(opened, options, progress)
    writer = DatasetWriter(
        dest,
        observation_space=plan.observation_space,
        action_space=plan.action_space,
        environment=options.environment or opened.environment,
        ref_scores=opened.ref_scores,
        provenance={"source": path.name, "format": name, "rule": plan.rule, "options": options.model_dump()},
        shard_rows=options.shard_rows,
        overwrite=overwrite,
    )
    tally = _Tally()
    with writer:
        for episode in _episodes(opened, plan, options, tally, progress):
            writer.add_episode(episode)
        tally.check(path, writer.num_episodes)
        dataset = writer.finish()
    with dataset:
        return _summary(dataset, name, opened, plan, tally, options)


def _check_free(dest: Path, overwrite: bool) -> None:
    """Refuse early what the writer would refuse after the first pass."""
    if os.path.lexists(dest) and not overwrite:
        fix = "choose another path, or overwrite it (overwrite=True, --overwrite)"
        raise DatasetError(explain(f"dataset {dest}", got="a path that exists already", allowed="a new path", fix=fix))


@dataclass
class _Plan:
    """What is decided before the first episode is written."""

    observation_space: Space
    action_space: Space
    rule: str
    total_steps: int | None
    narrow: bool
    """The source declares no types of its own: floats become float32."""
    done_steps: int = 0
    """Steps that the first pass has reported."""


def _plan(source: Source, options: ImportOptions, progress: Progress | None) -> _Plan:
    observation_space, action_space = source.observation_space, source.action_space
    rule = [source.rule]
    if options.max_episode_steps is not None:
        rule.append(f"terminations after exactly {options.max_episode_steps} steps taken as truncations")
    if options.environment is not None:
        observation_space, action_space = _environment_spaces(options.environment)
        rule.append(f"spaces of {options.environment}")
    plan_steps = source.num_steps
    done_steps = 0
    narrow = source.observation_space is None
    if observation_space is None or action_space is None:
        total = None if plan_steps is None else 2 * plan_steps

        def report(num_steps: int) -> None:
            if progress is not None:
                progress(num_steps, total)

        observations, actions, done_steps = inference.scan(source.episodes(0, None), report)
        plan_steps = 2 * done_steps
        observation_space = observation_space or inference.observation_space(observations)
        action_space = action_space or inference.action_space(actions)
        rule.append(inference.RULE)
    if options.normalized_actions:
        check_normalized(action_space)
        rule.append("actions mapped from [-1, 1] to the bounds of their space")
    if options.clip_actions:
        rule.append("actions clipped to the bounds of their space")
    return _Plan(observation_space, action_space, "; ".join(rule), plan_steps, narrow, done_steps)


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


def _episodes(
    source: Source, plan: _Plan, options: ImportOptions, tally: "_Tally", progress: Progress | None
) -> Iterator[Episode]:
    """Yield the valid episodes; the others are counted or raised, as the options say."""
    num_steps = plan.done_steps
    for raw in source.episodes(0, None):
        raw = apply_time_limit(raw, options.max_episode_steps)
        num_steps += len(raw.rewards)
        try:
            episode, clipped_steps = to_episode(
                raw, plan.observation_space, plan.action_space, options, narrow=plan.narrow
            )
        except InvalidEpisodeError as error:
            if options.on_invalid == "error":
                raise
            tally.drop(error, len(raw.rewards))
        else:
            tally.keep(episode, clipped_steps)
            yield episode
        if progress is not None:
            progress(num_steps, plan.total_steps)


@dataclass
class _Tally:
    """What the dataset does not tell: what was left out or changed on the way to it."""

    dropped: Counter[str] = field(default_factory=Counter)
    dropped_steps: int = 0
    first_drop: str = ""
    clipped_steps: int = 0
    largest_action: float = 0.0

    def keep(self, episode: Episode, clipped_steps: int) -> None:
        self.clipped_steps += clipped_steps
        if episode.actions.dtype.kind == "f":
            self.largest_action = max(self.largest_action, float(np.abs(episode.actions).max(initial=0)))

    def drop(self, error: InvalidEpisodeError, num_steps: int) -> None:
        self.dropped[error.reason] += 1
        self.dropped_steps += num_steps
        self.first_drop = self.first_drop or str(error)

    def check(self, path: Path, num_episodes: int) -> None:
        if not num_episodes:
            total = sum(self.dropped.values())
            got = f"{total} episodes, all invalid ({self.first_drop})" if total else "no episodes"
            raise SourceFormatError(explain(str(path), got=got, allowed="at least one", fix="check the source"))

    def notes(self, action_space: Space, options: ImportOptions) -> Iterator[str]:
        if self.dropped:
            yield f"the dropped episodes had {self.dropped_steps} steps; the first: {self.first_drop}"
        if self.clipped_steps:
            yield f"actions were clipped at {self.clipped_steps} steps"
        if (
            isinstance(action_space, spaces.Box)
            and not options.normalized_actions
            and self.largest_action <= 1
            and action_space.is_bounded()
            and float(np.abs([action_space.low, action_space.high]).min()) > 1
        ):
            yield (
                f"all actions lie in [-1, 1] while the space is {describe_space(action_space)}: if the source "
                "normalised them, import it again with normalized_actions"
            )


def _summary(
    dataset: OfflineDataset, name: str, source: Source, plan: _Plan, tally: _Tally, options: ImportOptions
) -> ImportSummary:
    """Return the facts of the dataset itself, and what it does not tell."""
    facts = dataset.describe()
    shared = {item.name for item in fields(ImportSummary)} & facts.keys()
    return ImportSummary(
        **{key: facts[key] for key in shared},
        format=name,
        rule=plan.rule,
        dropped=dict(tally.dropped),
        left_out=source.left_out,
        notes=tuple(tally.notes(dataset.action_space, options)),
    )

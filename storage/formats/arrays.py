"""Episodes in arrays in memory: columns on one time axis, and what tells where episodes end."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.building.step_columns import StepColumns
from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import Columns, flatten, flatten_space, map_columns

from .base import Array, ImportOptions, ImportSummary, Source, Space
from .driver import Progress, import_source
from .flat import Cuts, Lookup, Roles, check_columns, cut_after, make_flat_source, read_flags

_NAME = "arrays"
_NEXT = "next_observations"
_NESTED = ("observations", "actions")


def import_arrays(
    dest: str | os.PathLike[str],
    *,
    observations: Columns,
    actions: Columns,
    rewards: npt.ArrayLike | None = None,
    terminations: npt.ArrayLike | None = None,
    truncations: npt.ArrayLike | None = None,
    episode_ends: npt.ArrayLike | None = None,
    next_observations: Columns | None = None,
    infos: Mapping[str, npt.ArrayLike] | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    options: ImportOptions | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Write arrays of many episodes, one after the other, as a dataset, with the checks of an import.

    An episode ends where `terminations` or `truncations` is set, or at `episode_ends`. One that ends without a
    termination, such as the last rows, is truncated. N are the steps of all episodes, E the episodes.

    Args:
        dest: the new dataset, such as `mine.zarr`.
        observations: (N, …), or (N+E, …) where each episode has its final observation too; nested: by key.
        actions: (N, …); nested: by key.
        rewards: (N,); None: all are 0.
        terminations: (N,) the environment ended the episode: nothing is to be bootstrapped.
        truncations: (N,) the episode was cut off.
        episode_ends: (E,) exclusive rows of steps at which episodes end.
        next_observations: (N, …) what followed each step; only the last of each episode is stored.
        infos: {name: (N, …)}, such as `behavior_logp`.
        observation_space: by default inferred, or that of the environment which the options name.
        action_space: as well.
        options: what else is known, such as a time limit.
        overwrite: replace a dataset at `dest`.
        append: add the episodes to the dataset at `dest`.
        progress: called with the number of steps read and their total.

    Raises:
        SourceFormatError: the lengths do not fit each other, or nothing tells where episodes end.
        InvalidDataError: values that no learner may see; naming episode, step and field.
        DatasetError: `dest` exists or cannot be written.
    """
    steps = flatten("actions", _arrays("actions", actions))
    steps |= flatten(_NEXT, _arrays(_NEXT, next_observations)) if next_observations is not None else {}
    named = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
    named |= {f"infos/{name}": column for name, column in (infos or {}).items()}
    steps |= {name: _array(name, column) for name, column in named.items() if column is not None}
    source = _make_source(flatten("observations", _arrays("observations", observations)), steps, episode_ends)
    return import_source(
        replace(source, observation_space=observation_space, action_space=action_space),
        os.fspath(dest),
        name=_NAME,
        label=_NAME,
        options=options or ImportOptions(),
        overwrite=overwrite,
        append=append,
        progress=progress,
    )


def _make_source(
    observed: Mapping[str, Array], steps: Mapping[str, Array], episode_ends: npt.ArrayLike | None
) -> Source:
    num_steps, num_observations = check_columns(_NAME, steps), check_columns(_NAME, observed)
    cuts, rule = _cuts(num_steps, steps, episode_ends)
    final_rows = num_observations == num_steps + len(cuts)
    if num_observations != num_steps + final_rows * len(cuts):
        allowed = f"{num_steps}, or {num_steps + len(cuts)} with the final ones of {len(cuts)} episodes"
        fix = "give one observation a step, or one more an episode"
        raise SourceFormatError(explain("observations", got=f"{num_observations} rows", allowed=allowed, fix=fix))
    if final_rows:
        cuts = replace(cuts, observation_starts=cuts.starts + np.arange(len(cuts)))
    following = {} if final_rows else {path.removeprefix("next_"): path for path in steps if path.startswith(_NEXT)}
    roles = Roles(
        {path: path for path in observed},
        {path: path for path in steps if path == "actions" or path.startswith("actions/")},
        "rewards" if "rewards" in steps else None,
        following,
        {path.removeprefix("infos/"): path for path in steps if path.startswith("infos/")},
        final_rows,
    )
    columns = {**steps, **observed}
    whole = None if following else partial(_whole, columns, cuts)
    return make_flat_source(rule, _NAME, partial(_open_arrays, columns), roles, cuts, whole=whole)


def _whole(
    columns: Mapping[str, Array], cuts: Cuts, observation_space: Space, action_space: Space, narrow: bool
) -> StepColumns | None:
    """Return all episodes in the spaces' shapes; None if their parts or shapes are others."""
    wanted = flatten_space("observations", observation_space) | flatten_space("actions", action_space)
    found: dict[str, Array] = {}
    for path, space in wanted.items():
        shape = tuple(space.shape or ())
        column = columns.get(path)
        # axes of length 1 carry nothing: (N, 1) discrete actions and (N,) ones are the same
        if column is None or [n for n in column.shape[1:] if n != 1] != [n for n in shape if n != 1]:
            return None
        found[path] = column.reshape(len(column), *shape)
    num_steps = cuts.num_steps
    rewards = columns.get("rewards", np.zeros(num_steps, np.float32))
    if rewards.size != num_steps or len(wanted) != sum(path.split("/")[0] in _NESTED for path in columns):
        return None
    narrowed = {"rewards": rewards.reshape(-1)} | {p: c for p, c in columns.items() if p.startswith("infos/")}
    for path, column in narrowed.items():
        with np.errstate(over="ignore"):  # what becomes infinite is refused, with its place
            found[path] = column.astype(np.float32, copy=False) if narrow and column.dtype.kind == "f" else column
    ends = np.zeros((2, num_steps), np.bool_)
    ends[0, cuts.stops - 1], ends[1, cuts.stops - 1] = cuts.terminated, ~cuts.terminated
    return StepColumns(found | {"terminations": ends[0], "truncations": ends[1]}, cuts.stops - cuts.starts)


def _arrays(name: str, value: Columns) -> Columns:
    return map_columns(partial(_array, name), value)


def _array(name: str, value: npt.ArrayLike) -> Array:
    try:
        return np.asarray(value)
    except (ValueError, OverflowError) as error:
        got, fix = "rows of different lengths", "pad them"
        raise SourceFormatError(explain(name, got=got, allowed="one array of numbers", fix=fix)) from error


@contextmanager
def _open_arrays(arrays: Mapping[str, Array]) -> Iterator[Lookup]:
    yield arrays.__getitem__


def _whole_numbers(ends: npt.ArrayLike) -> Array:
    """Return exclusive rows as (episodes,) int64."""
    given = _array("episode_ends", ends).reshape(-1)
    if given.dtype.kind == "f":
        given = given.astype(np.float64)  # others do not hold the bound
    if len(given) and not (given.dtype.kind in "iuf" and (np.abs(given) < 2**53).all() and (given % 1 == 0).all()):
        got, fix = f"{given[:3].tolist()} … of type {given.dtype}", "correct them"
        raise SourceFormatError(explain("episode_ends", got=got, allowed="whole numbers", fix=fix))
    return given.astype(np.int64)


def _cuts(num_steps: int, steps: Mapping[str, Array], episode_ends: npt.ArrayLike | None) -> tuple[Cuts, str]:
    """Return the episodes, and by which rule they were found."""
    flags: dict[str, Any] = {
        name: read_flags(steps[name], name) for name in ("terminations", "truncations") if name in steps
    }
    flagged = np.logical_or.reduce([np.zeros(num_steps, bool), *flags.values()])
    if episode_ends is not None:
        ends = _whole_numbers(episode_ends)
        starts, stops = np.append(0, ends[:-1]), ends
        if not len(ends) or (starts >= stops).any() or stops[-1] != num_steps:
            got, allowed = f"ends up to {ends[-1] if len(ends) else 0}", f"growing ends, the last {num_steps}"
            raise SourceFormatError(explain("episode_ends", got=got, allowed=allowed, fix="correct them"))
        inside = np.setdiff1d(np.flatnonzero(flagged), stops - 1)
        if len(inside):
            got = f"an end flagged at row {inside[0]}, inside an episode"
            raise SourceFormatError(explain("episode_ends", got=got, allowed="flags at ends only", fix="correct them"))
        rule = "episodes split at episode_ends"
    elif flags:
        starts, stops = cut_after(flagged)
        rule = f"episodes split at {' and '.join(flags)}; rows after the last end are a truncated episode"
    else:
        allowed = "terminations, truncations or episode_ends"
        raise SourceFormatError(explain(_NAME, got="no ends of episodes", allowed=allowed, fix="give one of them"))
    terminated = flags.get("terminations", np.zeros(num_steps, bool))[stops - 1]
    return Cuts(starts, stops, terminated), f"{rule}; terminated where terminations is set, truncated otherwise"

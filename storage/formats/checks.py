"""From what a source has to an Episode in the dataset's spaces: cast, map, check. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, InvalidDataError, explain
from dask_rl.storage.nested import Columns, flatten, flatten_space, unflatten
from dask_rl.storage.spaces import describe_space
from dask_rl.storage.validation import holds, space_bounds

from .base import Array, ImportOptions, RawEpisode, Space, flags_at_end

_FIX = "repair the source, or leave such episodes out with on_invalid='drop' (--drop-invalid)"


class InvalidEpisodeError(InvalidDataError):
    """An episode of a source is invalid; `reason` is what a summary counts it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["InvalidEpisodeError"], tuple[str, str]]:
        return type(self), (self.reason, str(self))  # it travels from worker processes


def apply_time_limit(raw: RawEpisode, max_episode_steps: int | None) -> RawEpisode:
    """Take a termination after exactly `max_episode_steps` steps as a truncation."""
    num_steps = len(raw.rewards)
    if num_steps != max_episode_steps or not raw.terminations[-1:].any():
        return raw
    return replace(raw, terminations=flags_at_end(num_steps, False), truncations=flags_at_end(num_steps, True))


def check_normalized(action_space: Space) -> None:
    """Check that actions in [-1, 1] can be mapped to this space.

    Raises:
        ConfigError: it is no bounded Box.
    """
    if not isinstance(action_space, spaces.Box) or not action_space.is_bounded():
        raise ConfigError(
            explain(
                "normalized_actions",
                got=describe_space(action_space),
                allowed="a Box with finite bounds",
                fix="leave normalized_actions out, or name the environment",
            )
        )


def to_episode(
    raw: RawEpisode, observation_space: Space, action_space: Space, options: ImportOptions, *, narrow: bool
) -> tuple[Episode, int]:
    """Return the episode in the given spaces, and at how many of its steps actions were clipped.

    Args:
        raw: the episode as the source has it.
        observation_space: the dataset's; floats narrower than its dtype stay so.
        action_space: the dataset's.
        options: what to do with actions.
        narrow: store rewards and infos as float32 even if they are wider.

    Raises:
        InvalidEpisodeError: naming file, episode, step and field.
    """
    observations = _observations(raw, observation_space)
    actions, clipped_steps = _actions(raw, action_space, options)
    rewards = _floats(raw, "rewards", raw.rewards, narrow).reshape(-1)
    if len(rewards) != len(raw.rewards):
        raise _fault(raw, "rewards", "wrong shape", got=f"shape {raw.rewards.shape}", allowed="one number a step")
    try:
        episode = Episode(
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminations=raw.terminations,
            truncations=raw.truncations,
            infos={key: _floats(raw, f"infos/{key}", column, narrow) for key, column in raw.infos.items()},
            has_final_observation=raw.has_final_observation,
            id=raw.id,
            seed=raw.seed,
        )
    except InvalidEpisodeError:
        raise
    except InvalidDataError as error:
        raise InvalidEpisodeError("lengths or flags do not fit", f"{raw.origin}: {error}") from error
    return episode, clipped_steps


def _parts(raw: RawEpisode, field: str, value: Columns, space: Space) -> Iterator[tuple[str, Array, Space]]:
    """Yield the parts of a nested value, or the whole of a plain one: path, rows, space."""
    try:
        columns, wanted = flatten(field, value), flatten_space(field, space)
    except InvalidDataError as error:
        raise InvalidEpisodeError(f"{field}: wrong parts", f"{raw.origin}: episode {raw.id}, {error}") from error
    if columns.keys() != wanted.keys():
        got, allowed = (
            ", ".join(sorted(found)) if found.keys() != {field} else "one array" for found in (columns, wanted)
        )
        raise _fault(raw, field, "wrong parts", got=got, allowed=allowed)
    for path, part in wanted.items():
        yield path, columns[path], part


def _observations(raw: RawEpisode, space: Space) -> Columns:
    """Return T+1 rows: where the source has no final observation, the last one again."""
    columns = {}
    for path, values, part in _parts(raw, "observations", raw.observations, space):
        column = _column(raw, path, values, part)
        if not isinstance(part, spaces.Box):  # a Box of observations is no promise: see CartPole's
            _check_members(raw, path, column, part)
        columns[path] = column if raw.has_final_observation else np.concatenate([column, column[-1:]])
    return unflatten("observations", columns)


def _actions(raw: RawEpisode, space: Space, options: ImportOptions) -> tuple[Columns, int]:
    columns = {}
    clipped = np.zeros(len(raw.rewards), dtype=bool)
    for path, values, part in _parts(raw, "actions", raw.actions, space):
        if isinstance(part, spaces.Box) and (options.normalized_actions or options.clip_actions):
            values, outside = _mapped(raw, path, values, part, options)
            clipped |= outside
        columns[path] = _column(raw, path, values, part)
        _check_members(raw, path, columns[path], part)
    return unflatten("actions", columns), int(clipped.sum())


def _mapped(
    raw: RawEpisode, path: str, values: Array, space: spaces.Box, options: ImportOptions
) -> tuple[Array, Array | bool]:
    """Return the actions mapped and clipped as the options say, and at which steps they were clipped."""
    actions = _column(raw, path, values, spaces.Box(-np.inf, np.inf, space.shape, np.float64))
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if options.normalized_actions:
        actions = low + (actions + 1.0) * 0.5 * (high - low)
    outside: Array | bool = False
    if options.clip_actions and len(actions) == len(raw.rewards):
        clipped = np.clip(actions, low, high)
        outside = (clipped != actions).reshape(len(actions), -1).any(axis=1)
        actions = clipped
    return actions, outside  # not cast: fractions for a space of whole numbers are to be refused


def _column(raw: RawEpisode, field: str, values: Array, space: Space) -> Array:
    """Return (T, *space.shape), finite, in the space's dtype or a narrower float."""
    wanted, described = tuple(space.shape or ()), describe_space(space)
    dtype = np.dtype(space.dtype if space.dtype is not None else np.float32)
    if values.dtype.kind not in "biuf" or not len(values):
        got = f"{len(values)} values of type {values.dtype}"
        raise _fault(raw, field, "no numbers", got=got, allowed=described)
    # axes of length 1 carry nothing: (T, 1) discrete actions and (T,) ones are the same
    if [n for n in values.shape[1:] if n != 1] != [n for n in wanted if n != 1]:
        raise _fault(raw, field, "wrong shape", got=f"shape {values.shape[1:]}", allowed=described)
    values = values.reshape(len(values), *wanted)
    if values.dtype.kind == "f":
        _check_finite(raw, field, values)
        if dtype.kind == "f" and values.dtype.itemsize < dtype.itemsize:
            return values
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = values.astype(dtype)
    if dtype.kind == values.dtype.kind == "f":
        _check_finite(raw, field, cast)
    elif not (same := holds(cast, values)).all():
        step = int(np.argwhere(~same)[0][0])
        raise _fault(raw, field, "outside its space", got=values[step].tolist(), allowed=described, step=step)
    return cast


def _floats(raw: RawEpisode, field: str, values: Array, narrow: bool) -> Array:
    """Return finite floats, in float32 if `narrow` says so; other types as they are."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = values.astype(np.float32) if narrow else values
        _check_finite(raw, field, values)
    elif field == "rewards" and values.dtype.kind not in "biu":
        raise _fault(raw, field, "no numbers", got=f"values of type {values.dtype}", allowed="numbers")
    return values


def _check_finite(raw: RawEpisode, field: str, values: Array) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        at = np.argwhere(bad)[0]
        got = values[tuple(at)].item()
        raise _fault(raw, field, "not finite", got=got, allowed="finite numbers", step=int(at[0]))


def _check_members(raw: RawEpisode, field: str, values: Array, space: Space) -> None:
    low, high = space_bounds(space, np.dtype(np.float64))
    outside = (values < low) | (values > high)
    if outside.any():
        step = int(np.argwhere(outside)[0][0])
        fault = {"got": values[step].tolist(), "allowed": describe_space(space), "step": step}
        fix = f"{_FIX}, or clip them with clip_actions" if isinstance(space, spaces.Box) else _FIX
        raise _fault(raw, field, "outside its space", fix=fix, **fault)


def _fault(
    raw: RawEpisode, field: str, reason: str, *, got: Any, allowed: str, step: int | None = None, fix: str = _FIX
) -> InvalidEpisodeError:
    middle = "" if step is None else f", step {step}"
    subject = f"{raw.origin}: episode {raw.id}{middle}, {field}"
    return InvalidEpisodeError(f"{field}: {reason}", explain(subject, got=got, allowed=allowed, fix=fix))

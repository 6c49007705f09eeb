"""What may enter a dataset: finite numbers, of the right shape and type, inside their space."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from .episode import Episode
from .errors import InvalidDataError, explain
from .nested import flatten_space
from .schema import (
    ACTIONS,
    ALLOWED_DTYPES,
    INFO_NAME,
    INFOS_PREFIX,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    ArraySpec,
    is_part_of,
    little_endian,
)
from .spaces import Space, describe_space

Array = npt.NDArray[Any]
_TOLERANCE = 1e-6  # relative: float32 arithmetic at the bounds


def array_specs(episode: Episode, observation_space: Space, action_space: Space) -> dict[str, ArraySpec]:
    """Return the arrays that hold episodes like this one; the first episode of a dataset decides.

    Float columns keep the width of the data where that is narrower than the space's.

    Raises:
        InvalidDataError: an info that no array can hold, or observations or actions in other parts than their space.
    """
    columns = dict(episode_columns(episode))
    dtypes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for name, space in ((OBSERVATIONS, observation_space), (ACTIONS, action_space)):
        parts = flatten_space(name, space)
        found = sorted(path for path in columns if is_part_of(path, name))
        if found != sorted(parts):
            allowed = f"{sorted(parts)}, as in {describe_space(space)}"
            raise InvalidDataError(
                explain(f"{name} of the first episode", got=found, allowed=allowed, fix="correct them, or the space")
            )
        dtypes |= {path: _space_dtype(part, columns[path]) for path, part in parts.items()}
    dtypes[REWARDS] = (_reward_dtype(columns[REWARDS]), ())
    dtypes[TERMINATIONS] = dtypes[TRUNCATIONS] = (np.dtype(bool), ())
    for name, column in episode.infos.items():
        array = np.asarray(column)
        if not INFO_NAME.fullmatch(name) or array.dtype.name not in ALLOWED_DTYPES or 0 in array.shape[1:]:
            raise InvalidDataError(
                explain(
                    f"infos/{name}",
                    got=f"{array.dtype} of shape {array.shape}",
                    allowed="numbers of at most 64 bits or booleans, under a name of letters, digits, '_', '.' and '-'",
                    fix="leave it out",
                )
            )
        dtypes[INFOS_PREFIX + name] = (array.dtype, array.shape[1:])
    return {path: ArraySpec(path, little_endian(dtype), shape) for path, (dtype, shape) in dtypes.items()}


class EpisodeChecker:
    """Checks episodes and gives their columns in the stored types.

    Args:
        specs: the arrays of the dataset.
        observation_space: space of the observations; discrete ones are checked against it.
        action_space: space of the actions; they are checked against it.
    """

    def __init__(self, specs: Mapping[str, ArraySpec], observation_space: Space, action_space: Space) -> None:
        """Work out the bounds once."""
        self._specs = specs
        observed = flatten_space(OBSERVATIONS, observation_space)
        self._observations = tuple(observed)
        self._spaces = flatten_space(ACTIONS, action_space)
        self._spaces |= {path: space for path, space in observed.items() if not isinstance(space, spaces.Box)}
        self.bounds = {path: space_bounds(space, specs[path].dtype) for path, space in self._spaces.items()}
        """Smallest and largest elements of the columns that are checked against a space."""

    def columns(self, episode: Episode, number: int) -> dict[str, Array]:
        """Return the episode's columns.

        Args:
            episode: the episode.
            number: its place in the dataset, for messages.

        Raises:
            InvalidDataError: naming the episode, the step, the field and the value.
        """
        columns = dict(episode_columns(episode))
        if columns.keys() != self._specs.keys():
            raise InvalidDataError(
                explain(
                    f"episode {number}",
                    got=f"fields {sorted(columns)}",
                    allowed=f"those of the first episode, {sorted(self._specs)}",
                    fix="give every episode the same infos, and the same parts of observations and actions",
                )
            )
        checked = {path: _cast(column, number, self._specs[path]) for path, column in columns.items()}
        for path, (low, high) in self.bounds.items():
            column = checked[path]
            good = (column >= low) & (column <= high)
            if not good.all():
                raise _invalid(good, column, number, path, describe_space(self._spaces[path]))
        if not episode.has_final_observation:
            for path in self._observations:
                rows = checked[path]
                checked[path] = np.concatenate([rows[:-1], rows[-2:-1]])
        return checked


def episode_columns(episode: Episode) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of an episode with their paths, those of nested values too."""
    yield from episode.columns().items()


def check_space(subject: str, space: Space) -> None:
    """Check that arrays can hold the space's elements.

    Raises:
        InvalidDataError: it or a part of it is text, or without elements, or of a type that no array has; or a
            part's key is none that a path can have.
    """
    for path, part in flatten_space(subject, space).items():
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise InvalidDataError(
                explain(
                    path,
                    got=describe_space(part),
                    allowed="Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them",
                    fix="leave this part out, or encode it as numbers",
                )
            )
        if np.dtype(part.dtype).name not in ALLOWED_DTYPES or 0 in (part.shape or ()):
            raise InvalidDataError(
                explain(
                    path, got=describe_space(part), allowed="at least one number, of at most 64 bits", fix="change it"
                )
            )


def _space_dtype(space: Space, column: Array) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, found = np.dtype(space.dtype), np.asarray(column).dtype
    if dtype.kind == found.kind == "f" and found.itemsize < dtype.itemsize:
        dtype = found
    return dtype, tuple(space.shape or ())


def _reward_dtype(rewards: Array) -> np.dtype[Any]:
    """Return the type of a float column; for whole numbers float32, if it holds those of the first episode."""
    dtype = rewards.dtype
    if dtype.kind in "iu" and not holds(rewards.astype(np.float32), rewards).all():
        return np.dtype(np.float64)
    return dtype if dtype.kind == "f" and dtype.itemsize <= 8 else np.dtype(np.float32)


def holds(cast: Array, column: Array) -> Array:
    """Return where the values of a column, all finite, are still there in another type: floats may be rounded."""
    if cast.dtype.kind != "f":
        return np.asarray(cast == column)
    if column.dtype.kind == "f":
        return np.isfinite(cast)
    with np.errstate(invalid="ignore"):
        return np.asarray(cast.astype(column.dtype) == column)


def _cast(column: Array, number: int, spec: ArraySpec) -> Array:
    if column.shape[1:] != spec.row_shape or column.dtype.kind not in "biuf":
        raise InvalidDataError(
            explain(
                f"episode {number}: {spec.path}",
                got=f"{column.dtype} of shape {column.shape[1:]}",
                allowed=f"{spec.dtype.name} of shape {spec.row_shape}",
                fix="reshape the source, or correct the space",
            )
        )
    if column.dtype.kind == "f" and not (finite := np.isfinite(column)).all():
        raise _invalid(finite, column, number, spec.path, "finite numbers")
    if column.dtype == spec.dtype:
        return column
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = column.astype(spec.dtype)
    if not (same := holds(cast, column)).all():
        raise _invalid(same, column, number, spec.path, f"values that {spec.dtype.name} can hold")
    return cast


def space_bounds(space: Space, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest element, to compare a column of this type with; for floats a little wider."""
    match space:
        case spaces.Box() if dtype.kind == "f":
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            low -= _TOLERANCE * np.maximum(np.abs(low), 1)
            high += _TOLERANCE * np.maximum(np.abs(high), 1)
            # In the column's own type: comparing with float64 would convert every row.
            with np.errstate(over="ignore"):
                return low.astype(dtype), high.astype(dtype)
        case spaces.Box():
            return space.low, space.high
        case spaces.Discrete():
            return space.start, space.start + space.n - 1
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
    return 0, 1


def _invalid(good: Array, column: Array, number: int, path: str, allowed: str) -> InvalidDataError:
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    element = f"[{', '.join(str(i) for i in at[1:])}]" if at[1:] else ""
    return InvalidDataError(
        explain(
            f"episode {number}, step {at[0]}: {path}{element}",
            got=column[at].item(),
            allowed=allowed,
            fix="repair the source, or leave the episode out",
        )
    )

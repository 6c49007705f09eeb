"""RLlib's packed episodes: Parquet files with a column `item`, each value one episode's state in msgpack.

The packing knows arrays of NumPy. One that holds objects would have to be unpickled: it is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, DaskRLError, SourceFormatError, explain
from dask_rl.storage.nested import Columns, map_columns

from .base import Array, RawEpisode, Source, flags_at_end
from .rllib_parquet import column_names, open_parquet, read_column

ITEM = "item"
_LOGP = "action_logp"
_RULE = (
    "episodes as packed, flags as stored; one without a flag, such as a chunk of a longer one, is truncated at its "
    "last observation"
)
_FIX = "write the data again, or with output_write_episodes=False"
# What msgpack and NumPy raise on bytes that make no sense.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError, RecursionError),
    SyntaxError,  # of np.dtype("(1,,2)i4")
)


@dataclass(frozen=True)
class _Part:
    path: Path
    group: int
    stop: int  # number of the first episode after it


def episode_source(files: Sequence[Path]) -> Source:
    """Return the source over packed episodes.

    Raises:
        SourceFormatError: a file is damaged, or there are no episodes.
        ConfigError: msgpack is not installed.
    """
    parts: list[_Part] = []
    num_episodes = 0
    for path in files:
        if ITEM not in column_names(path):
            got, fix = f"no column {ITEM}", "read files of one kind at a time"
            raise SourceFormatError(explain(str(path), got=got, allowed="packed episodes, as in the others", fix=fix))
        with open_parquet(path) as file:
            for group in range(file.num_row_groups):
                num_episodes += file.metadata.row_group(group).num_rows
                parts.append(_Part(path, group, num_episodes))
    first = next(_read_states(parts, 0, 1), None)
    if first is None:
        raise SourceFormatError(
            explain(str(files[0]), got="no episodes", allowed="at least one", fix="check the source")
        )
    extra = {str(name) for name in _extra(f"{first[0]}, item 0", first[1])}
    return Source(
        rule=_RULE,
        episodes=partial(_read_episodes, parts),
        num_episodes=num_episodes,
        left_out=("infos", *sorted(extra - {_LOGP})),
    )


def _read_episodes(parts: Sequence[_Part], start: int, stop: int | None) -> Iterator[RawEpisode]:
    numbers = range(parts[-1].stop)[start:stop]
    for number, (origin, state) in zip(numbers, _read_states(parts, numbers.start, numbers.stop), strict=True):
        try:
            yield _episode(f"{origin}, item {number}", number, state)
        except DaskRLError:
            raise
        except _UNREADABLE as error:
            raise _unreadable(f"{origin}, item {number}", error) from error


def _extra(origin: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the module put out besides actions."""
    extra = state.get("extra_model_outputs") or {}
    if not isinstance(extra, Mapping):
        raise _unreadable(origin, TypeError(f"extra_model_outputs are a {type(extra).__name__}"))
    return extra


def _read_states(parts: Sequence[_Part], start: int, stop: int) -> Iterator[tuple[str, dict[str, Any]]]:
    first = 0
    for part in parts:
        if part.stop > start and first < stop:
            wanted = range(max(start - first, 0), min(stop, part.stop) - first)
            num_rows = 0
            with open_parquet(part.path) as file:
                for at, value in enumerate(read_column(part.path, file, part.group, ITEM)):
                    num_rows += 1
                    if at in wanted:
                        yield str(part.path), _unpack(value.as_py(), f"{part.path}, item {first + at}")
                    if num_rows == wanted.stop:
                        break
            if num_rows != wanted.stop:
                got, allowed = f"{num_rows} rows", f"{part.stop - first}, as its metadata say"
                fix = "fetch it again: it is damaged or incomplete"
                raise SourceFormatError(
                    explain(f"{part.path}: row group {part.group}", got=got, allowed=allowed, fix=fix)
                )
        first = part.stop


def _episode(origin: str, number: int, state: Mapping[str, Any]) -> RawEpisode:
    rewards = np.asarray(_values(state["rewards"]))
    terminated, truncated = _flag(state["is_terminated"]), _flag(state["is_truncated"])
    observations = _values(state["observations"])
    extra = _extra(origin, state)
    return RawEpisode(
        origin=origin,
        id=number,
        observations=observations,
        actions=_values(state["actions"]),
        rewards=rewards,
        terminations=flags_at_end(len(rewards), terminated),
        truncations=flags_at_end(len(rewards), truncated or not terminated),
        infos={"behavior_logp": np.asarray(_values(extra[_LOGP])).reshape(len(rewards))} if _LOGP in extra else {},
    )


def _flag(value: Any) -> bool:
    flag = np.asarray(value)
    if flag.dtype.kind not in "biu" or flag.size != 1:
        raise TypeError(f"a flag that is a {type(value).__name__}")
    return bool(flag)


def _values(buffer: Mapping[str, Any]) -> Columns:
    """Return what a buffer holds after its lookback: rows, or rows by key."""
    data, lookback = buffer["data"], int(buffer.get("lookback") or 0)
    if lookback < 0:
        raise ValueError(f"a lookback of {lookback}")
    if isinstance(data, list):  # not finalized: one value a step
        data = _stacked(data)
    return map_columns(lambda column: column[lookback:], _as_columns(data))


def _stacked(values: Sequence[Any]) -> Any:
    if values and isinstance(values[0], Mapping):
        return {key: _stacked([value[key] for value in values]) for key in values[0]}
    if values and isinstance(values[0], tuple):
        return {str(at): _stacked(list(part)) for at, part in enumerate(zip(*values, strict=True))}
    return np.asarray(values)


def _as_columns(value: Any) -> Columns:
    if isinstance(value, Mapping):
        return {str(key): _as_columns(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return {str(at): _as_columns(part) for at, part in enumerate(value)}
    return np.asarray(value)


def _unpack(data: Any, origin: str) -> dict[str, Any]:
    try:
        import msgpack
    except ImportError as error:
        raise ConfigError(
            explain(origin, got="no msgpack to read packed episodes with", fix="pip install 'dask-rl[formats]'")
        ) from error
    try:
        state = msgpack.unpackb(data, object_hook=_restore, raw=False, strict_map_key=False, use_list=True)
    except (*_UNREADABLE, msgpack.UnpackException) as error:
        raise _unreadable(origin, error) from error
    if not isinstance(state, dict):
        raise _unreadable(origin, TypeError(f"a {type(state).__name__}"))
    return state


def _restore(value: dict[Any, Any]) -> Any:
    """Return the array that a mapping stands for, or the mapping."""
    fields = {key.decode() if isinstance(key, bytes) else key: item for key, item in value.items()}
    if "nd" not in fields:
        return value
    descr = fields["type"].decode() if isinstance(fields["type"], bytes) else fields["type"]
    if not isinstance(descr, str) or np.dtype(descr).hasobject:
        return None  # records, or objects that would have to be unpickled: infos can be such, and nobody reads them
    array: Array = np.frombuffer(fields["data"], np.dtype(descr))
    return array.reshape(fields["shape"]) if fields["nd"] else array[0]


def _unreadable(origin: str, error: Exception) -> SourceFormatError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
    return SourceFormatError(
        explain(origin, got=f"a packed episode that cannot be read ({reason})", allowed="an episode's state", fix=_FIX)
    )

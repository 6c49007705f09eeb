"""Episodes out of RLlib's rows: which rows belong together, in which order, and how each episode ends.

A first pass reads only the columns that number and order rows, and remembers where each episode lies. Then one id
is in memory at a time, besides the parts (row groups, lines) read last. The files may be in any order.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, RawEpisode, Source, Space, flags_at_end
from .ordering import order_episodes

_REQUIRED = ("eps_id", "obs", "actions", "rewards")
_OPTIONAL = ("new_obs", "dones", "terminateds", "truncateds", "t", "action_logp", "action_prob")
_FLAGS = ("dones", "terminateds", "truncateds")
_INFOS = "infos/"
_KEYS = ("eps_id", "agent_index")  # rows with the same values are of one episode
_Key = tuple[int | float | bool | str, ...]
_CACHE_BYTES = 2**27
_MAX_ID = np.iinfo(np.int64).max


class Table(Protocol):
    """Rows in parts that can be read one at a time, in any order."""

    @property
    def names(self) -> frozenset[str]:
        """Columns that all parts have."""

    @property
    def all_names(self) -> frozenset[str]:
        """Columns that any part has."""

    @property
    def num_parts(self) -> int:
        """How many parts there are."""

    def origin(self, part: int) -> str:
        """Return where a part lies, for messages."""

    def read(self, part: int, columns: Sequence[str]) -> dict[str, Array]:
        """Return some columns of a part, each (rows, …)."""


@dataclass(frozen=True)
class _Index:
    """Where the rows of each group lie, those that share an id. A group holds one episode or more."""

    ids: Array  # (groups,) int64: the source's number of the episode
    runs: Array  # (runs, 3) int64: part, start, stop of consecutive rows, in stored order
    run_ends: Array  # (groups,) int64: exclusive end of a group's runs
    episode_ends: Array  # (groups,) int64: exclusive end of a group's episodes

    def runs_of(self, group: int) -> Array:
        """Return a group's runs, (n, 3)."""
        return self.runs[self.run_ends[group - 1] if group else 0 : self.run_ends[group]]


def make_source(
    table: Table,
    name: str,
    infos: Sequence[str] = (),
    observation_space: Space | None = None,
    action_space: Space | None = None,
) -> Source:
    """Return the source over a table.

    Args:
        table: the rows.
        name: for messages.
        infos: names of infos, which the table has as `infos/NAME`.
        observation_space: if it is known.
        action_space: if it is known.

    Raises:
        SourceFormatError: a column is missing, or there are no rows, or nothing to order them by.
    """
    missing = [column for column in _REQUIRED if column not in table.names]
    if missing:
        got = f"no column {', '.join(missing)}"
        raise SourceFormatError(
            explain(name, got=got, allowed=f"columns {', '.join(_REQUIRED)}", fix="check that RLlib wrote these files")
        )
    columns = [*_REQUIRED, *(column for column in _OPTIONAL if column in table.names)]
    columns += [f"{_INFOS}{info}" for info in infos]
    index = _index(table, [key for key in _KEYS if key in table.names], columns)
    num_steps = int((index.runs[:, 2] - index.runs[:, 1]).sum())
    if not num_steps:
        raise SourceFormatError(explain(name, got="no rows", allowed="at least one step", fix="check the source"))
    return Source(
        rule=_rule(columns),
        episodes=partial(_read_episodes, table, index, columns),
        num_episodes=int(index.episode_ends[-1]),
        num_steps=num_steps,
        observation_space=observation_space,
        action_space=action_space,
        left_out=tuple(sorted(table.all_names - {*columns, *(table.names & {*_KEYS}), "type"})),
    )


def _rule(columns: Sequence[str]) -> str:
    order = "t" if "t" in columns else "continuity of obs and new_obs" if "new_obs" in columns else "stored order"
    if "terminateds" in columns:
        ends = "terminateds are terminations, every other end is a truncation"
    elif "dones" in columns:
        ends = "dones are taken as terminations, an end without one is a truncation"
    else:
        ends = "no column of flags: every end is a truncation"
    return f"episodes split by eps_id and flags, rows ordered by {order}; {ends}"


def _index(table: Table, keys: Sequence[str], columns: Sequence[str]) -> _Index:
    """Read what numbers and orders the rows, and return where each episode lies."""
    groups = _group(table, keys)
    runs = [np.array(found, np.int64) for found in groups.values()]
    ids = [
        key[0] if isinstance(key[0], int) and 0 <= key[0] <= _MAX_ID else number for number, key in enumerate(groups)
    ]
    index = _Index(
        ids=np.array(ids, np.int64),
        runs=np.concatenate([np.empty((0, 3), np.int64), *runs]),
        run_ends=np.cumsum([len(found) for found in runs], dtype=np.int64),
        episode_ends=np.empty(0, np.int64),
    )
    # Rows that share an id can be several episodes: how many only their order tells.
    cache = _PartCache(table, _ordering_columns(columns))
    counts = [len(_orders(table, index, group, cache)[1]) for group in range(len(ids))]
    return replace(index, episode_ends=np.cumsum(counts, dtype=np.int64))


def _group(table: Table, keys: Sequence[str]) -> dict[_Key, list[tuple[int, int, int]]]:
    """Return the runs (part, start, stop) of rows with the same values of the keys, in stored order."""
    groups: dict[_Key, list[tuple[int, int, int]]] = {}
    for part in range(table.num_parts):
        read = table.read(part, keys)
        _check_lengths(read, table.origin(part))
        first = next(iter(read.values()))
        num_rows = len(first) if first.ndim else 1
        for name, column in read.items():
            if column.size != num_rows:
                got, allowed = f"{name} of shape {column.shape}", f"{num_rows} numbers, one a row"
                raise SourceFormatError(explain(table.origin(part), got=got, allowed=allowed, fix="check the source"))
        columns = [column.reshape(-1) for column in read.values()]
        if not num_rows:
            continue
        changed = np.zeros(num_rows, dtype=bool)
        for column in columns:
            changed[1:] |= column[1:] != column[:-1]
        starts = [0, *np.flatnonzero(changed).tolist()]
        for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
            key = tuple(column[start].item() for column in columns)
            groups.setdefault(key, []).append((part, start, stop))
    return groups


def _ordering_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that order the rows and cut them into episodes."""
    order = ["t"] if "t" in columns else ["obs", "new_obs"] if "new_obs" in columns else []
    flags = [name for name in _FLAGS if name in columns]
    return order + flags or ["rewards"]  # something that tells how many rows there are


def _orders(table: Table, index: _Index, group: int, cache: "_PartCache") -> tuple[dict[str, Array], list[Array]]:
    """Return the rows of a group, and the row numbers of each episode in it."""
    runs = index.runs_of(group)
    rows = cache.gather(runs)
    num_rows = int((runs[:, 2] - runs[:, 1]).sum())
    flags = [rows[name].reshape(num_rows, -1).any(axis=1) for name in _FLAGS if name in rows]
    done = np.logical_or.reduce(flags) if flags else np.zeros(num_rows, dtype=bool)
    origin = table.origin(int(runs[0, 0]))
    return rows, order_episodes(rows.get("obs"), rows.get("new_obs"), rows.get("t"), done, origin)


def _read_episodes(
    table: Table, index: _Index, columns: Sequence[str], start: int, stop: int | None
) -> Iterator[RawEpisode]:
    cache = _PartCache(table, columns)
    wanted = range(int(index.episode_ends[-1]))[start:stop]
    first_group = int(np.searchsorted(index.episode_ends, wanted.start, side="right"))
    for group in range(first_group, len(index.ids)):
        number = int(index.episode_ends[group - 1]) if group else 0
        if number >= wanted.stop:
            return
        rows, orders = _orders(table, index, group, cache)
        origin = table.origin(int(index.runs_of(group)[0, 0]))
        for order in orders[max(0, wanted.start - number) : wanted.stop - number]:
            yield _episode(origin, int(index.ids[group]), {name: column[order] for name, column in rows.items()})


def _episode(origin: str, number: int, rows: Mapping[str, Array]) -> RawEpisode:
    num_steps = len(rows["rewards"])
    terminated_by = rows.get("terminateds", rows.get("dones"))
    terminated = terminated_by is not None and bool(terminated_by[-1].any())
    truncated = bool(rows["truncateds"][-1].any()) if "truncateds" in rows else False
    observations = rows["obs"]
    if "new_obs" in rows:
        observations = np.concatenate([observations, rows["new_obs"][-1:]])
    infos = {name.removeprefix(_INFOS): column for name, column in rows.items() if name.startswith(_INFOS)}
    if "action_logp" in rows:
        infos["behavior_logp"] = rows["action_logp"].reshape(num_steps)
    elif "action_prob" in rows:
        with np.errstate(divide="ignore", invalid="ignore"):  # the checks of the values report what is not finite
            infos["behavior_logp"] = np.log(rows["action_prob"].reshape(num_steps).astype(np.float64))
    return RawEpisode(
        origin=origin,
        id=number,
        observations=observations,
        actions=rows["actions"],
        rewards=rows["rewards"],
        terminations=flags_at_end(num_steps, terminated),
        truncations=flags_at_end(num_steps, truncated or not terminated),
        infos=infos,
        has_final_observation="new_obs" in rows,
    )


class _PartCache:
    """The parts read last, up to a number of bytes: an episode often goes on in the next part."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = columns
        self._parts: OrderedDict[int, dict[str, Array]] = OrderedDict()

    def gather(self, runs: Array) -> dict[str, Array]:
        """Return the rows of the runs, one array a column."""
        pieces = [
            {name: column[start:stop] for name, column in self._get(part).items()}
            for part, start, stop in runs.tolist()
        ]
        shapes = {name: {piece[name].shape[1:] for piece in pieces} for name in self._columns}
        for name, found in shapes.items():
            if len(found) > 1:
                origin = self._table.origin(int(runs[0, 0]))
                got = f"rows of shapes {sorted(found)} in one episode"
                fix = "repair the source"
                raise SourceFormatError(explain(f"{origin}: column '{name}'", got=got, allowed="one shape", fix=fix))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in self._columns}

    def _get(self, part: int) -> dict[str, Array]:
        if part in self._parts:
            self._parts.move_to_end(part)
            return self._parts[part]
        read = self._table.read(part, self._columns)
        _check_lengths(read, self._table.origin(part))
        self._parts[part] = read
        size = sum(column.nbytes for columns in self._parts.values() for column in columns.values())
        while size > _CACHE_BYTES and len(self._parts) > 1:
            _, oldest = self._parts.popitem(last=False)
            size -= sum(column.nbytes for column in oldest.values())
        return read


def _check_lengths(read: Mapping[str, Array], origin: str) -> None:
    lengths = {name: len(column) if column.ndim else 1 for name, column in read.items()}
    if len(set(lengths.values())) != 1:
        fix = "repair the source"
        raise SourceFormatError(explain(origin, got=f"columns of {lengths} rows", allowed="one length", fix=fix))

"""Episodes out of RLlib's rows: which rows belong together, in which order, and how each episode ends.

A first pass reads only the columns that number episodes and remembers where each lies, as runs of rows. Then one
episode is in memory at a time, besides the parts (row groups, lines) read last. The files may be in any order.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, RawEpisode, Source, flags_at_end
from .ordering import order_episodes

_REQUIRED = ("eps_id", "obs", "actions", "rewards")
_OPTIONAL = ("new_obs", "dones", "terminateds", "truncateds", "t", "action_logp", "action_prob")
_KEYS = ("eps_id", "agent_index")  # rows with the same values are of one episode
_Key = tuple[int | float | bool, ...]
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
class _Run:
    """Consecutive rows of one episode in one part."""

    part: int
    start: int
    stop: int


def make_source(table: Table, name: str) -> Source:
    """Return the source over a table; `name` is for messages.

    Raises:
        SourceFormatError: a column is missing, or there are no rows.
    """
    missing = [column for column in _REQUIRED if column not in table.names]
    if missing:
        got = f"no column {', '.join(missing)}"
        raise SourceFormatError(
            explain(name, got=got, allowed=f"columns {', '.join(_REQUIRED)}", fix="check that RLlib wrote these files")
        )
    columns = [*_REQUIRED, *(column for column in _OPTIONAL if column in table.names)]
    index = _index(table, [key for key in _KEYS if key in table.names])
    num_steps = sum(run.stop - run.start for runs in index.values() for run in runs)
    if not num_steps:
        raise SourceFormatError(explain(name, got="no rows", allowed="at least one step", fix="check the source"))
    return Source(
        rule=_rule(columns),
        episodes=partial(_read_episodes, table, index, columns),
        num_steps=num_steps,
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


def _index(table: Table, keys: Sequence[str]) -> dict[_Key, list[_Run]]:
    """Return the runs of each episode, in stored order."""
    index: dict[_Key, list[_Run]] = {}
    for part in range(table.num_parts):
        read = table.read(part, keys)
        _check_lengths(read, table.origin(part))
        columns = [column.reshape(-1) for column in read.values()]
        num_rows = len(columns[0])
        if not num_rows:
            continue
        changed = np.zeros(num_rows, dtype=bool)
        for column in columns:
            changed[1:] |= column[1:] != column[:-1]
        starts = [0, *np.flatnonzero(changed).tolist()]
        for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
            key = tuple(column[start].item() for column in columns)
            index.setdefault(key, []).append(_Run(part, start, stop))
    return index


def _read_episodes(table: Table, index: Mapping[_Key, Sequence[_Run]], columns: Sequence[str]) -> Iterator[RawEpisode]:
    cache = _PartCache(table, columns)
    for number, (key, runs) in enumerate(index.items()):
        rows = cache.gather(runs)
        origin = table.origin(runs[0].part)
        flags = [rows[name].reshape(-1).astype(bool) for name in ("dones", "terminateds", "truncateds") if name in rows]
        done = np.logical_or.reduce(flags) if flags else np.zeros(len(rows["rewards"]), dtype=bool)
        eps_id = key[0] if isinstance(key[0], int) and 0 <= key[0] <= _MAX_ID else number
        for order in order_episodes(rows["obs"], rows.get("new_obs"), rows.get("t"), done, origin):
            yield _episode(origin, int(eps_id), {name: column[order] for name, column in rows.items()})


def _episode(origin: str, number: int, rows: Mapping[str, Array]) -> RawEpisode:
    num_steps = len(rows["rewards"])
    terminated_by = rows.get("terminateds", rows.get("dones"))
    terminated = terminated_by is not None and bool(terminated_by[-1].any())
    truncated = bool(rows["truncateds"][-1].any()) if "truncateds" in rows else False
    observations = rows["obs"]
    if "new_obs" in rows:
        observations = np.concatenate([observations, rows["new_obs"][-1:]])
    infos = {}
    if "action_logp" in rows:
        infos["behavior_logp"] = rows["action_logp"].reshape(num_steps)
    elif "action_prob" in rows:
        with np.errstate(divide="ignore"):  # the checks of the values report what is not finite
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

    def gather(self, runs: Sequence[_Run]) -> dict[str, Array]:
        """Return the rows of the runs, one array a column."""
        pieces = [{name: column[run.start : run.stop] for name, column in self._get(run.part).items()} for run in runs]
        shapes = {name: {piece[name].shape[1:] for piece in pieces} for name in self._columns}
        for name, found in shapes.items():
            if len(found) > 1:
                origin = self._table.origin(runs[0].part)
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

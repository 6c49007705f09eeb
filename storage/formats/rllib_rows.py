"""Episodes out of RLlib's rows: which rows belong together, in which order, and how each episode ends.

A first pass reads only the columns that number and order rows, and remembers where each episode lies. Then one id
is in memory at a time, besides the parts (row groups, lines) read last. The files may be in any order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array, RawEpisode, Source, Space, flags_at_end
from .ordering import count_gaps, order_episodes
from .row_index import Index, group_rows
from .row_table import FLAGS, PartCache, Table

_REQUIRED = ("eps_id", "obs", "actions", "rewards")
_OPTIONAL = ("new_obs", *FLAGS, "t", "action_logp", "action_prob")
_INFOS = "infos/"
_KEYS = ("eps_id", "agent_index")  # rows with the same values are of one episode
_DECISIVE = (*_REQUIRED, "agent_index", "new_obs", *FLAGS, "t")


def make_source(
    table: Table,
    name: str,
    infos: Sequence[str] = (),
    observation_space: Space | None = None,
    action_space: Space | None = None,
    *,
    in_order: bool = False,
) -> Source:
    """Return the source over a table.

    Args:
        table: the rows.
        name: for messages.
        infos: names of infos, which the table has as `infos/NAME`.
        observation_space: if it is known.
        action_space: if it is known.
        in_order: the rows of an id are as they follow each other, unless there is a `t`.

    Raises:
        SourceFormatError: a column is missing, or there are no rows, or nothing to order them by.
    """
    _check_names(table, name)
    columns = [*_REQUIRED, *(column for column in _OPTIONAL if column in table.names)]
    columns += [f"{_INFOS}{info}" for info in infos]
    index, num_gaps = _index(table, columns, in_order)
    num_steps = int((index.runs[:, 2] - index.runs[:, 1]).sum())
    if not num_steps:
        raise SourceFormatError(explain(name, got="no rows", allowed="at least one step", fix="check the source"))
    gaps = (
        f"{num_gaps} episodes end where rows of their id do not follow each other, without a flag: rows may be "
        "missing there; they are taken as truncated"
    )
    return Source(
        rule=_rule(columns),
        episodes=partial(_read_episodes, table, index, columns),
        num_episodes=int(index.episode_ends[-1]),
        num_steps=num_steps,
        observation_space=observation_space,
        action_space=action_space,
        left_out=tuple(sorted(table.all_names - {*columns, *(table.names & {*_KEYS}), "type"})),
        notes=(gaps,) if num_gaps else (),
    )


def _check_names(table: Table, name: str) -> None:
    """Refuse a table without the columns that are needed, or of which parts lack one that decides what episodes are."""
    missing = [column for column in _REQUIRED if column not in table.all_names]
    if missing:
        got = f"no column {', '.join(missing)}"
        raise SourceFormatError(
            explain(name, got=got, allowed=f"columns {', '.join(_REQUIRED)}", fix="check that RLlib wrote these files")
        )
    for column in _DECISIVE:
        if column in table.lacking:
            got = f"no column {column}, or none of one value a row, which other parts of the source have"
            fix = "import such files one after the other (data append), or write them alike"
            raise SourceFormatError(
                explain(table.lacking[column], got=got, allowed="the same columns everywhere", fix=fix)
            )


def _rule(columns: Sequence[str]) -> str:
    order = "t" if "t" in columns else "continuity of obs and new_obs" if "new_obs" in columns else "stored order"
    if "terminateds" in columns:
        ends = "terminateds are terminations, every other end is a truncation"
    elif "dones" in columns:
        but = " unless they are truncateds" if "truncateds" in columns else ""
        ends = f"dones are taken as terminations{but}, an end without one is a truncation"
    else:
        ends = "no column of flags: every end is a truncation"
    return f"episodes split by eps_id and flags, rows ordered by {order}; {ends}"


def _index(table: Table, columns: Sequence[str], in_order: bool) -> tuple[Index, int]:
    """Read what numbers and orders the rows; return where each episode lies, and how many end at a gap."""
    ordered_by = ("t",) if "t" in columns else ("obs", "new_obs") if "new_obs" in columns and not in_order else ()
    index = group_rows(table, [key for key in _KEYS if key in table.names], ordered_by)
    # Rows that share an id can be several episodes: how many only their order tells.
    flags = [name for name in FLAGS if name in columns]
    cache = PartCache(table, ["eps_id", *ordered_by, *flags])  # the first: all are to have as many rows
    counts, num_gaps = [], 0
    for group in range(len(index.ids)):
        _, orders, gaps = _orders(table, index, group, cache)
        counts.append(len(orders))
        num_gaps += gaps
    return replace(index, episode_ends=np.cumsum(counts, dtype=np.int64)), num_gaps


def _orders(table: Table, index: Index, group: int, cache: PartCache) -> tuple[dict[str, Array], list[Array], int]:
    """Return the rows of a group, the row numbers of each episode in it, and how many end at a gap."""
    runs = index.runs_of(group)
    rows = cache.gather(runs)
    num_rows = int((runs[:, 2] - runs[:, 1]).sum())
    done = np.logical_or.reduce([np.zeros(num_rows, dtype=bool), *(rows[name] for name in FLAGS if name in rows)])
    observations, following, times = (
        rows[name] if name in index.ordered_by else None for name in ("obs", "new_obs", "t")
    )
    orders = order_episodes(observations, following, times, done, table.origin(int(runs[0, 0])))
    return rows, orders, count_gaps(orders, done)


def _read_episodes(
    table: Table, index: Index, columns: Sequence[str], start: int, stop: int | None
) -> Iterator[RawEpisode]:
    cache = PartCache(table, columns)
    wanted = range(int(index.episode_ends[-1]))[start:stop]
    first_group = int(np.searchsorted(index.episode_ends, wanted.start, side="right"))
    for group in range(first_group, len(index.ids)):
        number = int(index.episode_ends[group - 1]) if group else 0
        if number >= wanted.stop:
            return
        rows, orders, _ = _orders(table, index, group, cache)
        origin = table.origin(int(index.runs_of(group)[0, 0]))
        for order in orders[max(0, wanted.start - number) : wanted.stop - number]:
            yield _episode(origin, int(index.ids[group]), {name: column[order] for name, column in rows.items()})


def _episode(origin: str, number: int, rows: Mapping[str, Array]) -> RawEpisode:
    num_steps = len(rows["rewards"])
    truncated = "truncateds" in rows and bool(rows["truncateds"][-1])
    if "terminateds" in rows:
        terminated = bool(rows["terminateds"][-1])
    else:  # done says only that it ended
        terminated = "dones" in rows and bool(rows["dones"][-1]) and not truncated
    observations = rows["obs"]
    if "new_obs" in rows:
        observations = np.concatenate([observations, rows["new_obs"][-1:]])
    infos = {name.removeprefix(_INFOS): column for name, column in rows.items() if name.startswith(_INFOS)}
    if "action_logp" in rows:
        infos["behavior_logp"] = rows["action_logp"]
    elif "action_prob" in rows:
        with np.errstate(divide="ignore", invalid="ignore"):  # the checks of the values report what is not finite
            infos["behavior_logp"] = np.log(rows["action_prob"].astype(np.float64))
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

"""LiveRuns: the runs and learner groups of a cluster, as far as their messages and workers tell. No IO, no Dask.

Messages of the topic are mappings `{"kind": …, "run_id": …}`; kinds:
`begin`   group_id, name, path, host, pid, num_steps, modules, job, and `rows` of metrics.jsonl so far; also where a run
          goes on from a checkpoint: they replace those that came before
`row`     `row`: the next one of metrics.jsonl
`status`  `status` running | paused | evaluating | saving | complete | interrupted | failed, `step`, `reason`
`alive`   nothing else; every few seconds
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from .checks import mapping, text
from .group_record import GroupRecord
from .run_record import ENDED, RunRecord

VERSION = 1
"""Of the snapshot."""
MAX_RUNS, MAX_GROUPS = 20, 100
KEPT_GROUPS = 20
"""Groups without a learner that are remembered."""


class Entry(NamedTuple):
    """What one page shows: a run, the group that it trains, or a group that is driven by hand."""

    key: str
    run: RunRecord | None
    group: GroupRecord | None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.run.name if self.run else self.group.name if self.group else self.key


class LiveRuns:
    """Bounded: the newest runs and groups are kept. `now` is any clock that only goes on, in seconds."""

    def __init__(self) -> None:
        self.runs: dict[str, RunRecord] = {}
        self.groups: dict[str, GroupRecord] = {}
        self.num_refused = 0
        """Messages that were none."""

    def hear(self, message: object, now: float) -> None:
        """Take in a message of the topic; one that is of no known kind changes nothing."""
        said = mapping(message)
        kind, run_id = said.get("kind"), text(said.get("run_id"))
        run = self.runs.get(run_id)
        if not run_id or kind == "answer":
            self.num_refused += not run_id
        elif kind == "begin":
            self._begin(run, said, now)
        elif run is None:
            self.num_refused += 1  # of one that began before anybody listened
        elif kind == "row":
            self._add_row(run, said.get("row"), now)
        elif kind == "status":
            self._set_status(run, said, now)
        elif kind == "alive":
            run.hear_alive(said, now)
        else:
            self.num_refused += 1

    def _begin(self, run: RunRecord | None, message: Mapping[str, Any], now: float) -> None:
        if run is not None:
            run.begin(message, now)
            return
        run = RunRecord(message, now)
        for other in list(self.runs.values()):  # an earlier start of the same run, whose rows this one has
            is_same = run.path and (other.path, other.host) == (run.path, run.host)
            if is_same and other.status_at(now) in ENDED:
                del self.runs[other.run_id]
        self.runs[run.run_id] = run
        while len(self.runs) > MAX_RUNS:
            ended = [each for each in self.runs.values() if each is not run and each.status_at(now) in ENDED]
            del self.runs[(ended or list(self.runs.values()))[0].run_id]

    def _add_row(self, run: RunRecord, row: object, now: float) -> None:
        kept = run.add_row(row, now)
        group = self.groups.get(run.group_id)
        if kept is None:
            self.num_refused += 1
        elif kept["kind"] == "event" and group is not None:
            group.hear_event(kept, now)

    def _set_status(self, run: RunRecord, message: Mapping[str, Any], now: float) -> None:
        run.set_status(message, now)
        if run.status in ENDED and run.group_id in self.groups:
            self.groups[run.group_id].let_go()

    def see(self, published: Mapping[str, object], now: float) -> None:
        """Take in what the workers publish, by address."""
        by_group: dict[str, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
        for address, rows in published.items():
            for row in rows if isinstance(rows, list | tuple) else ():
                group_id = text(mapping(row).get("group_id"))
                if group_id in by_group or len(by_group) < MAX_GROUPS:
                    by_group[group_id].append((address, mapping(row)))
        for group_id in by_group:
            if group_id not in self.groups:
                self.groups[group_id] = GroupRecord(group_id, now)
        for group_id, group in self.groups.items():
            group.hear(by_group.get(group_id, ()), now)
        silent = [group_id for group_id, group in self.groups.items() if not group.is_alive]
        for group_id in silent[:-KEPT_GROUPS]:
            del self.groups[group_id]

    def lose_worker(self, address: str, now: float) -> None:
        """Note that a worker left the cluster: a loss to the groups that had a learner there and still train."""
        at_an_end = {run.group_id for run in self.runs.values() if run.status in ENDED}
        for group in self.groups.values():
            if group.group_id in at_an_end:
                group.let_go(address)
            else:
                group.lose_worker(address, now)

    def entries(self) -> list[Entry]:
        """Return what there is to show, the newest first."""
        entries = [Entry(run.run_id, run, self.groups.get(run.group_id)) for run in self.runs.values()]
        known = {run.group_id for run in self.runs.values()}
        entries += [Entry(group_id, None, group) for group_id, group in self.groups.items() if group_id not in known]
        return sorted(entries, key=_began, reverse=True)

    def snapshot(self, now: float, wall: float) -> dict[str, Any]:
        """Return JSON values: all but the rows. `wall` is the time in seconds since the epoch."""
        run_of = {run.group_id: run.run_id for run in self.runs.values()}
        entries = self.entries()
        return {
            "version": VERSION,
            "time": wall,
            "runs": [entry.run.summary(now) for entry in entries if entry.run],
            "groups": [group.summary(now, run_of.get(group.group_id)) for group in self.groups.values()],
        }

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Return a run's rows of metrics.jsonl, thinned where there are many; KeyError for one that is not known."""
        return self.runs[run_id].rows


def _began(entry: Entry) -> float:
    return entry.run.began if entry.run else entry.group.began if entry.group else 0.0

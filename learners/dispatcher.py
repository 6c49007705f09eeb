"""Dispatcher: carries admitted update requests to their end, through whatever befalls the learners meanwhile."""

import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from dask_rl.storage.errors import WaitTimeoutError, explain

from .config import LearnersConfig
from .crew import Crew
from .handles import LOST
from .manager import first_cause, is_application_error
from .metrics import Result
from .request import UpdateRequest
from .watch import WATCH_EVERY_SECONDS

MakeRequests = Callable[[int], Sequence[UpdateRequest]]
"""Returns one request for each of so many learners."""


@dataclass
class Admitted:
    """One update call, kept until all its results are in."""

    number: int
    make: MakeRequests
    is_async: bool = False
    is_wanted: bool = True
    """Whether somebody waits for it, or will collect it."""
    find_cancelled: Callable[[], str | None] = lambda: None
    """Returns the key of a Dask future that it needs and that was cancelled."""
    results: dict[int, Result] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    outcome: list[Result] | Exception | None = None


class Dispatcher:
    """Sends requests to all learners alike, in the order of their numbers, and collects results.

    Where a learner is lost or the exchange breaks, the crew is mended and every request that is still open is sent
    again, to all: a learner that has carried it out says so, one in the middle of it goes on there. An error of the
    application ends its own request only.
    """

    def __init__(self, crew: Crew, settings: LearnersConfig) -> None:
        self._crew = crew
        self._settings = settings
        self._open: dict[int, Admitted] = {}
        self._sent: set[Hashable] = set()
        """Tags of calls that may be under way."""
        self.num_lost = 0
        """Requests that were given up because the group could not be mended."""
        self._ended: list[Admitted] = []
        self._is_excused = False
        """Whether an error of the application has broken the generation."""

    @property
    def num_open(self) -> int:
        """Requests whose results are not all in."""
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """Whether every learner can take one more request."""
        waiting = [sum(rank not in entry.results for entry in self._open.values()) for rank in range(len(self._crew))]
        return max(waiting, default=0) < self._settings.max_requests_in_flight_per_learner

    def admit(self, entry: Admitted) -> None:
        """Take a request and send it to every learner."""
        self.make_whole()
        self._open[entry.number] = entry
        try:
            self._send(entry)
        except BaseException as error:
            del self._open[entry.number]
            self._sent.discard(entry.number)
            if not isinstance(error, Exception):  # an interrupt: it may have reached some learners only
                self._crew.is_broken = True
            raise

    def wait(self, entry: Admitted, timeout: float) -> list[Result]:
        """Return the results of a request, one per learner, or raise its error.

        Raises:
            WaitTimeoutError: it takes longer than `timeout` seconds; names the learners and what they do.
        """
        deadline = time.monotonic() + timeout
        try:
            while entry.outcome is None:
                self.advance(min(WATCH_EVERY_SECONDS, max(0.0, deadline - time.monotonic())))
                if entry.outcome is None and time.monotonic() >= deadline:
                    raise self._late(entry, timeout)
        except BaseException:
            entry.is_wanted = False
            raise
        if isinstance(entry.outcome, Exception):
            raise entry.outcome
        return entry.outcome

    def collect(self) -> list[list[Result]]:
        """Return the results of the asynchronous requests that have ended, one inner list each.

        Raises:
            Exception: that of one of them; the others are returned by the next call.
        """
        ended = [entry for entry in self._ended if entry.is_async]
        for entry in ended:
            if isinstance(entry.outcome, Exception):
                self._ended.remove(entry)
                raise entry.outcome
        self._ended = [entry for entry in self._ended if not entry.is_async]
        return [entry.outcome for entry in ended if isinstance(entry.outcome, list)]

    def drain(self, timeout: float) -> None:
        """Wait until no request is open, and the learners agree.

        Raises:
            WaitTimeoutError: they take longer than `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while self._open:
            self.advance(min(WATCH_EVERY_SECONDS, max(0.0, deadline - time.monotonic())))
            if self._open and time.monotonic() >= deadline:
                raise self._late(next(iter(self._open.values())), timeout)
        self.make_whole()

    def advance(self, timeout: float) -> None:
        """Take in what is ready, waiting for it at most `timeout` seconds; repair what is broken."""
        crew = self._crew
        self._take_in(timeout)
        crew.watch.look(has_broken=crew.is_broken)
        crew.is_broken = bool(crew.end_lost()) or crew.is_broken
        if crew.is_broken and self._is_settled:
            self._close_failed()
            if self._open:
                self.make_whole()

    def make_whole(self) -> None:
        """Mend the crew where it is broken, and send the open requests again."""
        crew = self._crew
        crew.is_broken = crew.is_broken or bool(crew.manager.lost)
        if not crew.is_broken:
            return
        self._settle()
        self._close_failed()
        size = len(crew)
        try:
            crew.mend(is_excused=self._is_excused)
            self._is_excused = False
            for entry in self._open.values():
                if len(crew) != size:
                    entry.results.clear()
                self._send(entry)
        except BaseException:
            self.drop_all()
            raise

    def drop_all(self) -> None:
        """Give up what is open, and count it."""
        self.num_lost += len(self._open)
        self._open.clear()
        self._crew.manager.forget(self._sent)
        self._sent.clear()

    @property
    def _is_settled(self) -> bool:
        """Whether no healthy learner works on a request any more."""
        in_flight = self._crew.manager.in_flight(self._sent)
        return not any(in_flight[actor_id] for actor_id in self._crew.manager.healthy_actor_ids)

    def _settle(self) -> None:
        """Wait until no healthy learner works on a request; each fails at its next exchange, or is lost."""
        timeout = self._settings.update_timeout_seconds
        deadline = time.monotonic() + timeout
        while not self._is_settled:
            self._take_in(WATCH_EVERY_SECONDS)
            self._crew.watch.look(has_broken=True)
            if time.monotonic() > deadline:
                for actor_id in self._crew.manager.in_flight(self._sent):
                    self._crew.manager.lose(actor_id, f"updating: no end in {timeout:g} s after a peer had failed")
            self._crew.end_lost()

    def _send(self, entry: Admitted) -> None:
        requests = entry.make(len(self._crew))
        self._sent.add(entry.number)
        self._crew.manager.submit("run", [(request,) for request in requests], tag=entry.number, stage="updating")

    def _take_in(self, timeout: float) -> None:
        self._forsake_cancelled()
        try:
            self._take_results(timeout)
        except BaseException:  # an interrupt: an answer may be lost, and is asked for again
            self._crew.is_broken = True
            raise

    def _forsake_cancelled(self) -> None:
        """Have learners that wait for a future which was cancelled give it up: they cannot tell it from a late one."""
        manager = self._crew.manager
        for entry in self._open.values():
            if (key := entry.find_cancelled()) is not None:
                for actor_id in set(manager.healthy_actor_ids) - set(entry.results):
                    with contextlib.suppress(*LOST):
                        manager.handles[actor_id].forsake(entry.number, key)

    def _take_results(self, timeout: float) -> None:
        for result in self._crew.manager.ready(self._sent, timeout=timeout):
            entry = self._open.get(result.tag) if isinstance(result.tag, int) else None
            if result.error is not None:
                self._crew.is_broken = True
            if entry is None:
                continue
            if result.error is not None:
                entry.errors[result.actor_id] = result.error
            else:
                entry.results.setdefault(result.actor_id, result.value)
            if len(entry.results) == len(self._crew):
                self._close(entry, [entry.results[rank] for rank in range(len(self._crew))])

    def _close_failed(self) -> None:
        """End the requests in which the application failed; the others will be sent again."""
        for entry in list(self._open.values()):
            errors = [error for error in entry.errors.values() if is_application_error(error)]
            entry.errors.clear()
            if errors:
                self._is_excused = True
                self._close(entry, first_cause(errors))

    def _close(self, entry: Admitted, outcome: list[Result] | Exception) -> None:
        del self._open[entry.number]
        self._sent.discard(entry.number)
        self._crew.manager.forget([entry.number])  # those that were sent again to learners whose results are in
        entry.outcome = outcome
        if entry.is_async and entry.is_wanted:
            self._ended.append(entry)

    def _late(self, entry: Admitted, timeout: float) -> WaitTimeoutError:
        rows = self._crew.watch.table.rows
        late = [rank for rank in range(len(self._crew)) if rank not in entry.results]
        doing = "; ".join(f"learner {rank}: {rows[rank].state} at step {rows[rank].step}" for rank in late)
        is_own = timeout == self._settings.update_timeout_seconds
        limit = "learners.update_timeout_seconds" if is_own else "timeout_seconds"  # which callers give by this name
        got, fix = f"no result in {timeout:g} s ({doing})", f"raise {limit}, or take fewer steps a call"
        return WaitTimeoutError(explain(f"update {entry.number}", got=got, fix=fix))

"""Crew: the actors of a group's learners, the generations that they form, and their repair."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dask_rl.storage.errors import GroupLostError, LearnerLostError, WaitTimeoutError, explain

from .calls import Membership
from .config import LearnersConfig
from .events import GroupEvent
from .handles import ActorHandle
from .hiring import Hiring
from .manager import ActorManager, CallResult, is_application_error, values
from .positions import most_advanced
from .recruiting import Recruiting
from .request import Position
from .restarts import RestartBudget
from .watch import WATCH_EVERY_SECONDS, Watch

_LEAVING = "leaving"


class Crew:
    """One learner in this process, or one an actor on workers of its own; every lost one is replaced.

    A generation is a set of ranks that can exchange. Whenever one is lost or fails, the generation is over: the
    others leave it, and all meet in the next one, where they take over the state of the most advanced learner.
    """

    def __init__(self, settings: LearnersConfig, handles: Sequence[ActorHandle], hiring: Hiring | None) -> None:
        """Take over actors that were constructed; `meet_first` makes them learners.

        Args:
            settings: of the learners.
            handles: the actors, by rank.
            hiring: where other ones come from; None: there is one learner, in this process.
        """
        self._settings = settings
        self._hiring = hiring
        self._budget = RestartBudget(settings.max_restarts, settings.restart_window_seconds)
        self._recruiting = None if hiring is None else Recruiting(settings, hiring)
        self._mourned: set[ActorHandle] = set()
        self._positions: dict[int, Position] = {}
        self._mended_at: int | None = None
        """The step at which the last repair found the most advanced learner."""
        self._enlist(handles)
        self.blueprint: Callable[[], Sequence[Any] | None] = lambda: None
        """Returns what learners are made of by now; None: of what their actors were constructed with."""
        self.generation = 0
        self.is_broken = False
        """Whether the ranks may disagree, so that they have to meet again before the next update."""
        self.events: list[GroupEvent] = []
        self.on_event: Callable[[GroupEvent], None] = lambda event: None
        """Told of every event at once."""

    def _enlist(self, handles: Sequence[ActorHandle]) -> None:
        self.manager = ActorManager(handles)
        self._mourned &= set(handles)
        self.watch = Watch(self._settings, self.manager)

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self.manager)

    @property
    def num_restarts(self) -> int:
        """Learners that were lost, meetings that failed, and repairs after which nobody made a step."""
        return self._budget.total

    @property
    def holder(self) -> int:
        """The healthy learner that knows the state best: rank 0, or after a failed repair the most advanced."""
        known = [actor_id for actor_id in self.manager.healthy_actor_ids if actor_id in self._positions]
        if not self.is_broken or not known:
            return 0
        return most_advanced({actor_id: self._positions[actor_id] for actor_id in known})

    def call(self, method: str, arguments: Sequence[Sequence[Any]], **options: Any) -> list[CallResult]:
        """Call learners and watch them meanwhile; options as of ActorManager.call."""
        return self.manager.call(method, arguments, watch=self.watch.look, **options)

    # -- meeting -------------------------------------------------------------------------------------------------

    def meet_first(self) -> None:
        """Build all learners and have them meet; one whose process dies meanwhile is replaced.

        Raises:
            WaitTimeoutError, LearnerError: a learner does not come up.
            RestartLimitError: one after the other dies.
        """
        while True:
            try:
                self._build(range(len(self)))
                self._meet({})
                return
            except (LearnerLostError, WaitTimeoutError):
                if not self.manager.lost or self._hiring is None:
                    raise
                self._mourn(self.end_lost())
                self._enlist_anew(self._hiring)

    def restart(self) -> None:
        """Begin anew with other actors, which know nothing: after a loss that nobody survived."""
        began = time.monotonic()
        self._enlist_anew(self._require_hiring())
        self.meet_first()
        self._log("restarted", num_learners=len(self), seconds=time.monotonic() - began)

    def _enlist_anew(self, hiring: Hiring) -> None:
        self.release()
        self._positions = {}
        self._enlist(hiring.replacements(max(1, self._settings.num_learners), (), self._budget))

    def close(self, timeout: float) -> None:
        """Have the learners end; those that do not in time lose their process."""
        healthy = self.manager.healthy_actor_ids
        results = self.manager.call("close", [()] * len(healthy), timeout=timeout, stage="closing", actor_ids=healthy)
        for result in results:
            if isinstance(result.error, WaitTimeoutError) and self._hiring is not None:
                self._hiring.end_process(self.manager.handles[result.actor_id])

    def release(self) -> None:
        """Let all actors go."""
        if self._recruiting is not None:
            self._recruiting.release()
        self.manager.release()

    def _require_hiring(self) -> Hiring:
        if self._hiring is None:
            raise LearnerLostError(explain("learner", got="a lost process", fix="run the same job again"))
        return self._hiring

    def _build(self, actor_ids: Collection[int]) -> None:
        """Build some of the learners; the others are given the modules that these have."""
        blueprint, timeout = self.blueprint(), self._settings.startup_timeout_seconds
        arguments = [(blueprint, actor_id in actor_ids) for actor_id in range(len(self))]
        built = self.call("build", arguments, timeout=timeout, stage="building")
        for handle, facts in zip(self.manager.handles, values(built), strict=True):
            handle.pid = facts["pid"]

    def _meet(self, positions: Mapping[int, Position]) -> None:
        """Form the next generation; all take over the state of the most advanced of `positions`."""
        size, timeout = len(self), self._settings.startup_timeout_seconds
        source = most_advanced(positions)
        rendezvous = None
        if size > 1:
            self.generation += 1
            opened = self.call("open_store", [(self.generation,)], timeout=timeout, stage="rendezvous", actor_ids=[0])
            rendezvous = values(opened)[0]
        places = [Membership(rank, size, rendezvous, source, positions.get(source)) for rank in range(size)]
        values(self.call("join", [(place,) for place in places], timeout=timeout, stage="joining"))
        self.is_broken = False

    def _leave(self) -> dict[int, Position]:
        """Have all healthy learners leave their generation; return where those stand that know the state.

        One that waits in an exchange is freed when its peers leave; one that computes or waits for data is given
        the time of that. Those that do not come back are lost then.
        """
        self.is_broken = True
        healthy = self.manager.healthy_actor_ids
        self.manager.submit("leave", [()] * len(healthy), tag=_LEAVING, stage=_LEAVING, actor_ids=healthy)
        left: dict[int, Position | None] = {}
        deadline = time.monotonic() + self._leaving_seconds
        while waited_for := set(self.manager.healthy_actor_ids) - set(left):
            for result in self.manager.ready([_LEAVING], timeout=WATCH_EVERY_SECONDS / 2):
                if result.ok:
                    left[result.actor_id] = result.value
                elif result.error is not None and is_application_error(result.error):
                    self.manager.lose(result.actor_id, f"{_LEAVING}: {result.error}")
            if late := waited_for - set(left):
                self.watch.look(has_broken=True)
                if time.monotonic() > deadline:
                    for actor_id in late:
                        self.manager.lose(actor_id, f"{_LEAVING}: no answer in {self._leaving_seconds:g} s")
                self.end_lost()
        self.manager.forget([_LEAVING])
        self._positions = {i: there for i in self.manager.healthy_actor_ids if (there := left[i]) is not None}
        return dict(self._positions)

    @property
    def _leaving_seconds(self) -> float:
        """The time of all that a learner may have to end before it leaves; a bound where its reports show nothing."""
        settings = self._settings
        limits = settings.startup_timeout_seconds, settings.data_timeout_seconds, settings.collective_timeout_seconds
        return sum(limits) + settings.health_timeout_seconds

    # -- repair --------------------------------------------------------------------------------------------------

    def mend(self, *, is_excused: bool = False) -> None:
        """Replace the lost learners, and have all meet again where the most advanced one stands.

        Args:
            is_excused: whether an error of the application broke the generation.

        Raises:
            GroupLostError: nobody is left who knows the state.
            WorkersMissingError: too few workers in time; those that are left have kept the state.
            RestartLimitError: this happens too often; likewise.
        """
        if self._hiring is None:
            self._build(())
            self.is_broken = False
            return
        began, size, restarts = time.monotonic(), len(self), self.num_restarts
        while not self._try_mend(self._hiring, is_excused):
            pass
        name = "rejoined" if len(self) == size else "resized"
        facts = {"num_learners": len(self), "generation": self.generation, "num_lost": self.num_restarts - restarts}
        self._log(name, **facts, seconds=time.monotonic() - began)

    def _try_mend(self, hiring: Hiring, is_excused: bool) -> bool:
        """Make one attempt; return False where another learner was lost on the way."""
        positions = self._leave()
        lost = self.end_lost()
        self._mourn(lost)
        if not positions or (lost and self._settings.transport == "nccl"):
            causes = "; ".join(f"learner {actor_id}: {cause}" for actor_id, cause in sorted(lost.items()))
            fix = "run the same job again: it goes on from its last checkpoint"
            raise GroupLostError(explain("learner group", got=f"nobody left ({causes})", fix=fix))
        step = max(position.step for position in positions.values())
        if not lost and not is_excused and step == self._mended_at:
            self._budget.spend(1, time.monotonic(), f"an exchange that fails again and again at step {step}")
        self._mended_at = step
        self._positions = positions = self._fill(hiring, lost, positions)
        return self._meet_again(positions)

    def _meet_again(self, positions: Mapping[int, Position]) -> bool:
        try:
            self._build([actor_id for actor_id in range(len(self)) if actor_id not in positions])
            self._meet(positions)
        except (LearnerLostError, WaitTimeoutError) as error:
            self.is_broken = True
            if not self.manager.lost:
                self._budget.spend(1, time.monotonic(), str(error))
            return False
        return True

    def end_lost(self) -> dict[int, str]:
        """Kill what is left of lost learners, which frees the peers that wait for them; return who they are."""
        lost = self.manager.lost
        for actor_id in lost:
            self._require_hiring().end_process(self.manager.handles[actor_id])
        return lost

    def _mourn(self, lost: Mapping[int, str]) -> None:
        """Log losses that are new, and bound their number."""
        now = time.monotonic()
        new = {i: cause for i, cause in lost.items() if self.manager.handles[i] not in self._mourned}
        for actor_id, cause in new.items():
            handle = self.manager.handles[actor_id]
            self._mourned.add(handle)
            self.watch.table.lose(actor_id, cause, now)
            self._log("learner_lost", learner=actor_id, address=handle.where, cause=cause)
        self._budget.spend(len(new), now, f"learner {max(new)}: {new[max(new)]}" if new else None)

    def _fill(self, hiring: Hiring, lost: Mapping[int, str], positions: Mapping[int, Position]) -> dict[int, Position]:
        """Put new actors in the places of lost ones; where there are fewer of them the others close ranks."""
        if not lost:
            return dict(positions)
        handles = self.manager.handles
        taken = {handle.where for actor_id, handle in enumerate(handles) if actor_id not in lost}
        if self._recruiting is not None:
            self._recruiting.release()
        fresh = iter(hiring.replacements(len(lost), taken, self._budget))
        ranks: list[tuple[ActorHandle, Position | None]] = []
        for actor_id, handle in enumerate(handles):
            if actor_id not in lost:
                ranks.append((handle, positions.get(actor_id)))
                continue
            handle.release()
            if (replacement := next(fresh, None)) is not None:
                ranks.append((replacement, None))
        self._enlist([handle for handle, _ in ranks])
        return {rank: position for rank, (_, position) in enumerate(ranks) if position is not None}

    # -- growth --------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Take in workers that came free, up to the number of learners asked for, where the group is elastic."""
        recruits = [] if self._recruiting is None or self.is_broken else self._recruiting.take(self.manager.handles)
        if not recruits:
            return
        began = time.monotonic()
        positions = self._leave()
        if self.manager.lost:
            for recruit in recruits:
                recruit.release()
            return  # the next update mends that
        self._enlist([*self.manager.handles, *recruits])
        if self._meet_again(positions):
            facts = {"num_learners": len(self), "generation": self.generation}
            self._log("resized", **facts, seconds=time.monotonic() - began)

    def _log(self, name: str, **details: Any) -> None:
        event = GroupEvent(name, time.time(), details)
        self.events.append(event)
        self.on_event(event)

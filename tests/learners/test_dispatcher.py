"""The dispatcher, with learners in this process whose calls are held up, fail and are lost on demand."""

import pytest
from crew_cases import SPEC, admit, make_crew, wait_in_process
from hypothesis import Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from learner_cases import make_batch

from dask_rl.learners import dispatcher as dispatcher_module
from dask_rl.learners import manager, watch
from dask_rl.learners.actor import LearnerActor
from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.crew import Crew
from dask_rl.learners.dispatcher import Admitted, Dispatcher
from dask_rl.learners.handles import LocalHandle
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import (
    ConfigError,
    LearnerError,
    PeersLostError,
    RestartLimitError,
    WaitTimeoutError,
    WorkersMissingError,
)

HELD = 1_000_000_000
# No shrinking: an example takes longer than its failure is worth.
MACHINE = settings(max_examples=30, stateful_step_count=20, deadline=None, phases=[Phase.explicit, Phase.generate])


@pytest.fixture(autouse=True, scope="module")
def in_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "wait_any", wait_in_process)
        yield


def make(num_learners=2, num_spares=0, **learners):
    crew, bench = make_crew(num_learners, num_spares, **learners)
    return Dispatcher(crew, crew._settings), crew, bench


def hold(crew, ranks=(0, 1)):
    """Have the calls that are sent from now on stay under way."""
    for rank in ranks:
        crew.manager.handles[rank].patience = HELD


def let_go(crew):
    for handle in crew.manager.handles:
        handle.patience = 0
        for call in handle.queue:
            call.patience = 0


def carried_out(crew):
    return [handle.actor.learner.carried_out for handle in crew.manager.handles]


def test_requests_go_to_all_learners_in_their_order():
    dispatcher, crew, _ = make()
    hold(crew)
    entries = [admit(dispatcher, number) for number in (1, 2, 3)]
    assert dispatcher.num_open == 3
    assert carried_out(crew) == [[], []]
    let_go(crew)
    assert [result["all_modules"]["step"] for result in dispatcher.wait(entries[2], 5)] == [3, 3]
    assert carried_out(crew) == [[1, 2, 3]] * 2
    assert [result["all_modules"]["step"] for result in dispatcher.wait(entries[0], 5)] == [1, 1]
    assert dispatcher.num_open == 0


def test_room_is_counted_per_learner():
    dispatcher, crew, _ = make(max_requests_in_flight_per_learner=2)
    hold(crew, [1])
    admit(dispatcher, 1, is_async=True)
    dispatcher.advance(0)
    assert dispatcher.has_room
    admit(dispatcher, 2, is_async=True)
    assert not dispatcher.has_room, "learner 1 has two"
    let_go(crew)
    dispatcher.advance(0)
    assert dispatcher.has_room


def test_what_was_open_is_sent_again_after_a_repair():
    dispatcher, crew, bench = make(num_spares=1)
    hold(crew)
    entries = [admit(dispatcher, number, is_async=True) for number in (1, 2, 3)]
    crew.manager.handles[1].troubles[2] = "killed"
    let_go(crew)
    dispatcher.drain(10)
    assert all(isinstance(entry.outcome, list) for entry in entries)
    assert bench.ended == ["place 1"]
    assert [handle.where for handle in crew.manager.handles] == ["place 0", "place 2"]
    assert crew.manager.handles[1].sent == [2, 3]
    assert carried_out(crew)[0] == [1, 2, 3], "once each, though sent twice"
    assert len(dispatcher.collect()) == 3
    assert dispatcher.collect() == []


def test_results_of_before_the_loss_are_kept():
    dispatcher, crew, _ = make(num_spares=1)
    hold(crew, [0])
    entry = admit(dispatcher, 1)
    dispatcher.advance(0)
    assert entry.results.keys() == {1}
    mine = entry.results[1]
    crew.manager.handles[0].loss = "killed"
    assert dispatcher.wait(entry, 10)[1] is mine


def test_an_error_of_the_application_ends_its_own_request_only():
    dispatcher, crew, _ = make()
    hold(crew)
    entries = [admit(dispatcher, number) for number in (1, 2, 3)]
    crew.manager.handles[0].troubles[2] = ZeroDivisionError("on purpose")
    crew.manager.handles[1].troubles[2] = PeersLostError("what the other says")
    let_go(crew)
    dispatcher.wait(entries[2], 10)
    assert isinstance(entries[0].outcome, list)
    with pytest.raises(LearnerError, match="learner 0, updating: got ZeroDivisionError: on purpose"):
        dispatcher.wait(entries[1], 10)
    assert carried_out(crew) == [[1, 3]] * 2
    assert crew.num_restarts == 0


def test_an_error_is_raised_before_the_repair():
    dispatcher, crew, _ = make()
    crew.manager.handles[0].troubles[1] = ZeroDivisionError("on purpose")
    with pytest.raises(LearnerError):
        dispatcher.wait(admit(dispatcher, 1), 10)
    assert crew.is_broken
    assert crew.generation == 1
    dispatcher.wait(admit(dispatcher, 2), 10)
    assert crew.generation == 2


def test_collect_gives_errors_one_by_one_and_the_others_after():
    dispatcher, crew, _ = make()
    hold(crew)
    for number in range(1, 5):
        admit(dispatcher, number, is_async=True)
    for number in (2, 4):
        crew.manager.handles[0].troubles[number] = ZeroDivisionError(f"in {number}")
    let_go(crew)
    dispatcher.drain(10)
    for number in (2, 4):
        with pytest.raises(LearnerError, match=f"in {number}"):
            dispatcher.collect()
    assert [results[0]["all_modules"]["weights_seq_no"] for results in dispatcher.collect()] == [1, 3]


def test_synchronous_results_are_not_collected():
    dispatcher, _, _ = make()
    entry = admit(dispatcher, 1)
    dispatcher.drain(10)
    assert dispatcher.collect() == []
    assert isinstance(entry.outcome, list)


def test_a_late_request_names_its_learners_and_what_they_do():
    dispatcher, crew, _ = make()
    hold(crew, [1])
    for wait in (lambda: dispatcher.wait(admit(dispatcher, 1), 0.05), lambda: dispatcher.drain(0.05)):
        with pytest.raises(WaitTimeoutError, match=r"update 1: got no result in 0.05 s \(learner 1: \w+ at step 0\)"):
            wait()
    let_go(crew)
    dispatcher.drain(10)
    assert dispatcher.num_open == 0
    dispatcher.wait(admit(dispatcher, 2), 10)


def test_nobody_waits_for_an_interrupted_request(monkeypatch):
    dispatcher, crew, _ = make()
    hold(crew)
    entry = admit(dispatcher, 1, is_async=True)

    def interrupt(calls, timeout):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manager, "wait_any", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dispatcher.wait(entry, 10)
    let_go(crew)
    dispatcher.wait(admit(dispatcher, 2), 10)
    assert dispatcher.num_open == 0
    assert dispatcher.collect() == [], "who would have waited for it is gone"
    assert carried_out(crew) == [[1, 2]] * 2


def test_an_interrupt_between_two_learners_leaves_none_behind():
    dispatcher, crew, _ = make()
    second = crew.manager.handles[1]
    prepare = second.prepare

    def interrupted(method, args):
        def start():
            second.prepare = prepare
            raise KeyboardInterrupt

        return start

    second.prepare = interrupted
    with pytest.raises(KeyboardInterrupt):
        admit(dispatcher, 1)
    assert dispatcher.num_open == 0
    assert crew.is_broken, "one learner has the request, the other has not"
    dispatcher.wait(admit(dispatcher, 2), 10)
    assert crew.manager.in_flight() == {}


@pytest.mark.parametrize("error", [ConfigError("no such data"), TypeError("cannot pickle")])
def test_a_request_that_cannot_be_made_leaves_no_trace(error):
    dispatcher, crew, _ = make()

    def fail(size):
        raise error

    with pytest.raises(type(error)):
        dispatcher.admit(Admitted(1, fail))
    assert (dispatcher.num_open, dispatcher._sent, crew.is_broken) == (0, set(), False)


def test_where_nobody_comes_what_is_open_is_dropped_and_the_rest_keeps_the_state():
    dispatcher, crew, bench = make(num_spares=0)
    dispatcher.wait(admit(dispatcher, 1), 10)
    crew.manager.handles[0].loss = "killed"
    entry = admit_unsent(dispatcher, crew, bench)
    assert entry.outcome is None
    assert dispatcher.num_open == 0
    assert crew.holder == 1, "rank 0 is gone"
    assert crew.manager.handles[1].actor.learner.step == 1


def admit_unsent(dispatcher, crew, bench):
    entry = Admitted(2, lambda size: [UpdateRequest(2, batch={"default_module": make_batch("continuous", 4)})] * size)
    with pytest.raises(WorkersMissingError):
        dispatcher.admit(entry)
    return entry


def test_an_exchange_that_fails_for_ever_ends_the_run():
    dispatcher, crew, _ = make(max_restarts=3)
    for handle in crew.manager.handles:
        handle.troubles = Forever(PeersLostError("cut"))
    with pytest.raises(RestartLimitError, match="an exchange that fails again and again at step 0"):
        dispatcher.wait(admit(dispatcher, 1), 20)
    assert crew.num_restarts == 4


class Forever(dict):
    """The same trouble in every request."""

    def __init__(self, trouble):
        self.trouble = trouble

    def pop(self, number, default=None):
        return self.trouble


def test_errors_of_the_application_are_not_counted_as_restarts():
    dispatcher, crew, _ = make(max_restarts=0)
    for number in range(1, 5):
        for handle in crew.manager.handles:  # both: nobody makes a step
            handle.troubles[number] = ZeroDivisionError("on purpose")
        with pytest.raises(LearnerError, match="on purpose"):
            dispatcher.wait(admit(dispatcher, number), 10)
    dispatcher.wait(admit(dispatcher, 5), 10)
    assert crew.num_restarts == 0


def test_a_learner_that_does_not_end_after_its_peer_failed_is_lost(monkeypatch):
    dispatcher, crew, bench = make(num_spares=1, update_timeout_seconds=0.2)
    monkeypatch.setattr(dispatcher_module, "WATCH_EVERY_SECONDS", 0.05)
    entry = admit(dispatcher, 1)
    hold(crew, [1])
    other = admit(dispatcher, 2)
    crew.manager.handles[0].troubles[2] = PeersLostError("cut")
    dispatcher.advance(0)
    assert isinstance(entry.outcome, list)
    dispatcher.make_whole()
    assert bench.ended[0] == "place 1"
    assert "updating: no end in 0.2 s" in crew.events[0].details["cause"]
    dispatcher.wait(other, 10)


def test_a_silent_learner_is_replaced(monkeypatch):
    dispatcher, crew, bench = make(num_spares=1, health_timeout_seconds=0.05)
    monkeypatch.setattr(watch, "WATCH_EVERY_SECONDS", 0.01)
    crew.manager.handles[1].is_silent = True
    hold(crew, [1])
    entry = admit(dispatcher, 1)
    dispatcher.wait(entry, 10)
    assert bench.ended[0] == "place 1"
    assert "no answer in" in crew.events[0].details["cause"]


def test_one_learner_in_this_process_needs_no_repair():
    config = LearnerGroupConfig(
        algorithm={"name": "bc", "hidden_sizes": [2]},
        learners=LearnersConfig(precision="fp64", compile="off", num_threads_per_learner=1),
    )
    crew = Crew(config.learners, [LocalHandle(LearnerActor(config, SPEC))], None)
    crew.meet_first()
    dispatcher = Dispatcher(crew, config.learners)
    with pytest.raises(LearnerError):
        dispatcher.wait(admit(dispatcher, 1, batch={"default_module": None}), 10)
    [result] = dispatcher.wait(admit(dispatcher, 2), 10)
    assert result["all_modules"]["step"] == 1


class AnyOrder(RuleBasedStateMachine):
    """Requests, delays, errors and losses in any order."""

    SIZE = 3

    def __init__(self):
        super().__init__()
        self.dispatcher, self.crew, self.bench = make(self.SIZE, num_spares=40, max_restarts=1000)
        self.entries = []
        self.failing = set()
        self.outcomes = {}
        self.collected = []

    ranks = strategies.integers(0, SIZE - 1)

    @rule(is_async=strategies.booleans(), delays=strategies.tuples(*[strategies.integers(0, 4)] * SIZE))
    def send(self, is_async, delays):
        for handle, delay in zip(self.crew.manager.handles, delays, strict=True):
            handle.patience = delay
        self.entries.append(admit(self.dispatcher, len(self.entries) + 1, is_async=is_async))

    @rule(rank=ranks, ahead=strategies.integers(1, 2))
    def fail_in_the_application(self, rank, ahead):
        number = len(self.entries) + ahead
        if not self.is_troubled(number):
            self.crew.manager.handles[rank].troubles[number] = ZeroDivisionError(f"in {number}")
            self.failing.add(number)

    @rule(rank=ranks, ahead=strategies.integers(1, 2))
    def fail_in_the_exchange(self, rank, ahead):
        number = len(self.entries) + ahead
        if not self.is_troubled(number):
            self.crew.manager.handles[rank].troubles[number] = PeersLostError("cut")

    @rule(rank=ranks, ahead=strategies.integers(1, 2))
    def be_lost_at_a_request(self, rank, ahead):
        number = len(self.entries) + ahead
        if self.num_left > 1 and not self.is_troubled(number):
            self.crew.manager.handles[rank].troubles[number] = "killed"

    def is_troubled(self, number):
        """One trouble a request: a learner that is lost takes those that it would have had later with it."""
        return any(handle.troubles for handle in self.crew.manager.handles) or number in self.failing

    @rule(rank=ranks)
    def be_lost_now(self, rank):
        if self.num_left > 1 and not self.is_troubled(0):  # its troubles would go with it
            self.crew.manager.handles[rank].loss = "killed"

    @property
    def num_left(self):
        return sum(handle.loss is None for handle in self.crew.manager.handles)

    @rule()
    def advance(self):
        self.dispatcher.advance(0)

    @rule()
    def collect(self):
        try:
            self.collected += self.dispatcher.collect()
        except LearnerError as error:
            self.collected.append(error)

    @rule(place=strategies.integers(0, 100))
    def wait(self, place):
        waiting = [entry for entry in self.entries if not entry.is_async and entry.number not in self.outcomes]
        if waiting:
            self.take(waiting[place % len(waiting)])

    def take(self, entry):
        try:
            self.outcomes[entry.number] = self.dispatcher.wait(entry, 20)
        except LearnerError as error:
            self.outcomes[entry.number] = error

    @invariant()
    def learners_have_the_requests_in_order(self):
        for learner in (handle.actor._learner for handle in self.crew.manager.handles):
            if learner is not None and hasattr(learner, "carried_out"):
                assert learner.carried_out == sorted(set(learner.carried_out))
                assert not self.failing & set(learner.carried_out) - self.not_yet_failed()

    def not_yet_failed(self):
        """Requests that one learner has carried out before another one fails in them."""
        return {entry.number for entry in self.entries if entry.outcome is None or entry.number in self.failing}

    def teardown(self):
        for entry in self.entries:
            if not entry.is_async and entry.number not in self.outcomes:
                self.take(entry)
        self.dispatcher.drain(20)
        while True:
            try:
                self.collected += self.dispatcher.collect()
                break
            except LearnerError as error:
                self.collected.append(error)
        asynchronous = [entry for entry in self.entries if entry.is_async]
        assert len(self.collected) == len(asynchronous), "one outcome each"
        assert all(entry.outcome is not None for entry in self.entries)
        for entry in self.entries:
            assert isinstance(entry.outcome, Exception) == (entry.number in self.failing)
            if isinstance(entry.outcome, list):
                assert len(entry.outcome) == self.SIZE
        assert self.dispatcher._sent == set()
        assert self.crew.manager.in_flight() == {}
        ends = {handle.actor.learner.weights_seq_no for handle in self.crew.manager.handles}
        steps = {handle.actor.learner.step for handle in self.crew.manager.handles}
        assert len(ends) == len(steps) == 1


def test_every_request_has_one_outcome_whatever_happens():
    run_state_machine_as_test(AnyOrder, settings=MACHINE)

"""Handles of actors on a Dask worker, here a thread of this process."""

import asyncio
import threading
import time

import pytest
import worker_code
from crew_cases import SPEC
from distributed import CancelledError, Client
from learner_cases import make_learner

from dask_rl.learners import dask_handle, recruiting, workers
from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.dask_handle import DaskHandle
from dask_rl.learners.hiring import Hiring
from dask_rl.learners.learner import Learner
from dask_rl.learners.manager import ActorManager
from dask_rl.learners.recruiting import Recruiting
from dask_rl.learners.restarts import RestartBudget
from dask_rl.learners.watch import Watch
from dask_rl.learners.workers import Occupancy, Place, WorkerPool, ask_scheduler, workers_of
from dask_rl.storage.errors import LearnerError, LearnerLostError, RestartLimitError, WorkersMissingError


@pytest.fixture(scope="module")
def client():
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with Client(set_as_default=False, **options) as client:
        yield client


def place_of(client):
    [place] = WorkerPool(client, LearnersConfig()).free(shared=True)
    return place


@pytest.fixture
def handle(client):
    config = make_learner({"name": "bc"}, num_threads_per_learner=1).config
    handle = DaskHandle(client, place_of(client), (config, SPEC, Learner, {}), {})
    handle.start(20)
    yield handle
    handle.release()


def call(handle, method, *args):
    return handle.prepare(method, args)()


def test_a_result_can_be_asked_for_again(handle):
    pending = call(handle, "build")
    first = pending.result(20)
    assert first.error is None
    assert pending.done()
    assert pending.result(0) is first
    assert handle._answers == {}
    assert handle.loss is None


def refuse_to_be_unpacked():
    raise ModuleNotFoundError("No module named 'there_only'")


class ThereOnly:
    def __reduce__(self):
        return refuse_to_be_unpacked, ()


def test_a_result_that_cannot_be_unpacked_is_an_error_and_no_lost_learner(handle):
    call(handle, "build").result(20)
    manager = ActorManager([handle])
    [result] = manager.call("apply", [(lambda learner: ThereOnly(), {})], timeout=20, stage="asking")
    assert isinstance(result.error, LearnerError)
    assert "a result that cannot be unpacked (ModuleNotFoundError: No module named 'there_only')" in str(result.error)
    assert manager.healthy_actor_ids == [0]
    assert manager.call("apply", [(lambda learner: 1, {})], timeout=20, stage="asking")[0].value == 1


def test_a_call_that_is_broken_off_loses_the_actor(handle, monkeypatch):
    call(handle, "build").result(20)

    class Interrupted:
        def call(self, *args):
            raise KeyboardInterrupt

    started = handle.prepare("position", ())
    with monkeypatch.context() as patch:
        patch.setattr(handle, "_actor", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            started()
    # A later one would wait for ever behind the number that never comes.
    assert handle.loss == "a call that was broken off (KeyboardInterrupt)"
    with pytest.raises(OSError, match="broken off"):
        call(handle, "build")


def test_an_answer_that_can_no_longer_come_is_not_waited_for(handle):
    pending = call(handle, "build")
    handle.open_calls.clear()
    assert pending.done()
    with pytest.raises(OSError, match="an answer that did not come"):
        pending.result(20)


def test_recruits_whose_worker_is_gone_are_let_go(client, handle):
    gone = DaskHandle(client, Place("tcp://127.0.0.1:1", "gone"), (None, SPEC), {})
    hiring = Hiring(client, LearnersConfig(), lambda: ())
    assert not gone.is_constructed
    assert hiring.keep([gone, handle]) == [handle]
    assert gone.loss == "released"
    assert handle.loss is None


async def sleep_long(dask_scheduler):
    await asyncio.sleep(5)


def test_a_scheduler_that_does_not_answer_is_named(client, monkeypatch):
    monkeypatch.setattr(workers, "_ANSWER_SECONDS", 0.1)
    with pytest.raises(LearnerLostError, match=r"Dask scheduler: got no answer in 0\.1 s"):
        ask_scheduler(client, sleep_long)


def test_a_question_to_a_silent_scheduler_about_its_workers_ends(client, monkeypatch):
    async def silent(**options):
        await asyncio.sleep(5)

    monkeypatch.setattr(workers, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(client, "_update_scheduler_info", silent)
    with pytest.raises(LearnerLostError, match=r"Dask scheduler: got no answer in 0\.1 s"):
        workers_of(client)


@pytest.fixture
def busy_loop(client, monkeypatch):
    """The client's event loop does something else for as long as it is told to."""
    monkeypatch.setattr(dask_handle, "_DONE_SECONDS", 0.05)
    begun, ended = threading.Event(), threading.Event()

    def be_busy():
        begun.set()
        ended.wait(60)

    def start():
        client.loop.add_callback(be_busy)
        begun.wait(60)
        return ended.set

    yield start
    ended.set()


def wait_until_done(question):
    deadline = time.monotonic() + 20
    while not question.done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_answer_that_a_busy_event_loop_does_not_hand_out_is_asked_for_again(handle, busy_loop):
    pending = call(handle, "build")
    wait_until_done(handle.open_calls[0])
    end = busy_loop()
    assert not pending.done()
    assert handle.loss is None
    end()
    assert pending.result(20).error is None


def test_a_report_that_a_busy_event_loop_does_not_hand_out_is_no_loss(handle, busy_loop):
    call(handle, "build").result(20)
    manager = ActorManager([handle])
    watch = Watch(LearnersConfig(), manager)
    look_again(watch)
    wait_until_done(watch._questions[0])
    end = busy_loop()
    look_again(watch)
    assert manager.lost == {}
    assert watch.table.rows[0].asked is None, "it is not silent"
    end()
    look_again(watch)
    assert watch.table.rows[0].heard is not None


def look_again(watch):
    watch._looked_at -= 2
    watch.look()


@pytest.fixture(scope="module")
def pair():
    """Two workers."""
    options = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with Client(set_as_default=False, **options) as client:
        yield client


@pytest.fixture
def held():
    """Whatever waits for `worker_code.HELD` goes on at the end."""
    worker_code.HELD.clear()
    yield
    worker_code.HELD.set()


def settings_of(**learners) -> LearnersConfig:
    return LearnersConfig(**{"num_learners": 2, "num_threads_per_learner": 1, **learners})


def blueprint():
    return make_learner({"name": "bc"}).config, SPEC, Learner, {}


def test_another_process_at_the_address_of_one_that_was_given_up_is_of_use(client):
    pool, place = WorkerPool(client, LearnersConfig()), place_of(client)
    pool.give_up(Place(place.address, "the one before"), None)
    assert pool.free(shared=True) == [place]
    pool.give_up(place, None)
    assert pool.free(shared=True) == []


def test_a_worker_that_left_while_it_was_given_up_is_no_error(client, monkeypatch):
    pool, gone = WorkerPool(client, LearnersConfig()), Place("tcp://127.0.0.1:1", "gone")
    monkeypatch.setattr(pool, "occupancy", lambda: {gone.address: Occupancy(gone.worker_id, [])})
    pool.give_up(gone, None)


def test_a_worker_that_hangs_while_it_constructs_is_not_chosen_again(pair, held):
    settings = settings_of(startup_timeout_seconds=2)
    stuck, well = WorkerPool(pair, settings).free()
    hiring = Hiring(pair, settings, lambda: (*blueprint(), worker_code.HoldsUp(stuck.address)))
    budget = RestartBudget(1, 600)
    [hired] = hiring.replacements(1, (), budget)
    hired.release()
    assert hired.where == well.address
    assert budget.total == 1


def test_a_recruit_that_hangs_holds_up_others_for_a_moment_and_is_given_up(pair, held, monkeypatch):
    monkeypatch.setattr(recruiting, "_TOGETHER_SECONDS", 0.5)
    monkeypatch.setattr(recruiting, "_LOOK_EVERY_SECONDS", 0.1)
    settings = settings_of(startup_timeout_seconds=3, elastic=True)
    wait_until(lambda: len(WorkerPool(pair, settings).free()) == 2)
    stuck, well = WorkerPool(pair, settings).free()
    recruits = Recruiting(settings, Hiring(pair, settings, lambda: (*blueprint(), worker_code.HoldsUp(stuck.address))))
    taken = []
    wait_until(lambda: taken.extend(recruits.take([])) or taken)
    assert [recruit.where for recruit in taken] == [well.address]
    assert [recruit.where for recruit in recruits._recruits] == [stuck.address]
    assert recruits.take(taken) == []
    wait_until(lambda: recruits.take(taken) or not recruits._recruits)
    assert recruits._hiring._pool.free() == []
    taken[0].release()


class LeftWithItsActor:
    """What Dask says of an actor whose worker left once it had constructed it."""

    key = "left"

    def __init__(self, error):
        self.error = error

    def result(self, timeout):
        raise self.error


@pytest.fixture
def leave_once(monkeypatch):
    """The first worker on which an actor starts leaves meanwhile; returns where actors were started."""
    tried, start = [], DaskHandle.start

    def leaving(handle, timeout):
        tried.append(handle.where)
        if len(tried) == 1:
            handle._future.release()
            handle._future = LeftWithItsActor(RuntimeError("Worker holding Actor was lost"))
        start(handle, timeout)

    monkeypatch.setattr(DaskHandle, "start", leaving)
    return tried


def test_a_worker_that_leaves_while_the_first_actor_starts_is_made_up_for(pair, leave_once):
    [hired] = Hiring(pair, settings_of(num_learners=1), blueprint).first()
    assert len(leave_once) == 2
    assert hired.is_constructed
    hired.release()


def test_a_worker_that_leaves_while_a_replacement_starts_counts_as_a_lost_one(pair, leave_once):
    budget = RestartBudget(1, 600)
    [hired] = Hiring(pair, settings_of(), blueprint).replacements(1, (), budget)
    assert (len(leave_once), budget.total) == (2, 1)
    hired.release()


def test_workers_that_leave_one_after_the_other_end_the_search(pair, leave_once):
    with pytest.raises(RestartLimitError, match=r"the last one: learner at .*, starting: got a lost worker process"):
        Hiring(pair, settings_of(num_learners=1, max_restarts=0), blueprint).first()


@pytest.mark.parametrize("error", [OSError("connection reset"), CancelledError("x"), RuntimeError("x")])
def test_an_error_of_a_worker_that_is_gone_is_its_loss(pair, error):
    hiring = Hiring(pair, settings_of(), blueprint)
    [handle] = hiring.submit((), 1)
    handle._future, handle.worker_id = LeftWithItsActor(error), "one before"
    with pytest.raises(LearnerLostError, match="starting: got a lost worker process"):
        hiring.await_start(handle, time.monotonic() + 20)


@pytest.mark.parametrize("is_busy", [False, True])
def test_who_comes_second_to_a_worker_makes_way(client, handle, held, monkeypatch, is_busy):
    call(handle, "build").result(20)
    pending = call(handle, "apply", worker_code.hold, {}) if is_busy else None
    settings = settings_of(replacement_timeout_seconds=0.2, startup_timeout_seconds=30)
    hiring, budget = Hiring(client, settings, blueprint), RestartBudget(0, 600)
    places = [[Place(handle.where, handle.worker_id)], []]  # it was free when both looked
    monkeypatch.setattr(hiring._pool, "wait_for", lambda *args: places.pop(0))
    with pytest.raises(WorkersMissingError):
        hiring.replacements(1, (), budget)
    assert budget.total == 0, "nobody was lost"
    assert handle.loss is None
    worker_code.HELD.set()
    assert pending is None or pending.result(20).error is None
    assert call(handle, "leave").result(20).error is None


def test_a_recruit_makes_way_too(client, handle):
    settings = settings_of()
    hiring = Hiring(client, settings, blueprint)
    second = DaskHandle(client, Place(handle.where, handle.worker_id), blueprint(), {})
    wait_until(lambda: second.is_constructed)
    assert not hiring.is_there(second)
    third = DaskHandle(client, Place(handle.where, handle.worker_id), blueprint(), {})
    wait_until(lambda: third.is_constructed)
    assert hiring.keep([third]) == []
    assert second.loss == third.loss == "released"
    assert handle.loss is None


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)

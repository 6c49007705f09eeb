"""Handles of actors on a Dask worker, here a thread of this process."""

import asyncio

import pytest
from crew_cases import SPEC
from distributed import Client
from learner_cases import make_learner

from dask_rl.learners import workers
from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.dask_handle import DaskHandle
from dask_rl.learners.hiring import Hiring
from dask_rl.learners.learner import Learner
from dask_rl.learners.manager import ActorManager
from dask_rl.learners.workers import ask_scheduler, workers_of
from dask_rl.storage.errors import LearnerError, LearnerLostError


@pytest.fixture(scope="module")
def client():
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with Client(set_as_default=False, **options) as client:
        yield client


@pytest.fixture
def handle(client):
    [address] = workers_of(client)
    config = make_learner({"name": "bc"}, num_threads_per_learner=1).config
    handle = DaskHandle(client, address, (config, SPEC, Learner, {}), {})
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
    gone = DaskHandle(client, "tcp://127.0.0.1:1", (None, SPEC), {})
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

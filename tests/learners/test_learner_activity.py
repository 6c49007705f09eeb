"""What others see of a learner while it runs, and how they stop it."""

import threading
from dataclasses import replace

import pytest
import torch
from learner_cases import ShardedSource, make_batch, make_learner

from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.collective import SingleProcess
from dask_rl.learners.learner import Learner
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import LearnerStoppedError

ITERATOR = UpdateRequest(1, source=ShardedSource("continuous", (0, 2)), num_iters=6)
MINIBATCHES = UpdateRequest(
    1, batch={DEFAULT_MODULE_ID: make_batch("continuous", 20)}, num_minibatches=6, minibatch_size=4, shuffle_seed=1
)


class Watched(Learner):
    """Notes its activity where a stage of its own runs."""

    def note(self):
        self.seen = [*getattr(self, "seen", []), self.activity.name]

    def before_gradient_based_update(self, timesteps, **kwargs):
        self.note()

    def compute_losses(self, module_id, batch, noise, phase):
        self.note()
        return super().compute_losses(module_id, batch, noise, phase)

    def after_gradient_based_update(self, timesteps, **kwargs):
        self.note()


class NotingSource(ShardedSource):
    learner = None

    def open(self, device, timeout_seconds):
        NotingSource.learner.note()
        iterator = super().open(device, timeout_seconds)
        plain = iterator.next_batch

        def next_batch():
            NotingSource.learner.note()
            return plain()

        iterator.next_batch = next_batch
        return iterator


class NotingCollective(SingleProcess):
    size = 2

    def __init__(self, learner):
        self.learner = learner

    def all_reduce_(self, tensor):
        self.learner.note()


def test_activity_says_what_a_learner_is_at():
    learner = make_learner({"name": "bc"}, learner_class=Watched)
    assert learner.activity.name == "idle"
    began = learner.activity.since
    learner.collective = NotingCollective(learner)
    NotingSource.learner = learner
    learner.run(UpdateRequest(1, source=NotingSource("continuous", (0,)), num_iters=2))
    step = ["waiting for data", "computing", "in the collective"]
    assert learner.seen == ["in a hook", "opening data", *step, *step, "in a hook"]
    assert learner.activity.name == "idle"
    assert learner.activity.since > began


def test_a_learner_is_idle_after_an_error():
    learner = make_learner({"name": "bc"})
    learner.apply_gradients = lambda keys: 1 / 0
    with pytest.raises(ZeroDivisionError):
        learner.run(ITERATOR)
    assert learner.activity.name == "idle"


class Stopping(Learner):
    def after_step(self):
        self.stop_requested = self.step == 1

    def apply_gradients(self, keys):
        super().apply_gradients(keys)
        self.after_step()


@pytest.mark.parametrize("request_", [ITERATOR, MINIBATCHES], ids=["iterator", "minibatches"])
def test_a_stop_ends_a_request_between_two_steps(request_):
    learner, other = make_learner({"name": "bc"}, learner_class=Stopping), make_learner({"name": "bc"})
    with pytest.raises(LearnerStoppedError, match="learner at step 2: got a request to stop"):
        learner.run(request_)
    assert learner.position().open_request == 1
    learner.join(SingleProcess(), position=learner.position())
    learner.run(request_)
    other.run(request_)
    assert torch.equal(learner.flat.data, other.flat.data)
    assert learner.position() == other.position()


def test_a_stop_from_another_thread_frees_the_learner():
    started = threading.Event()

    class Endless(Learner):
        def compute_losses(self, module_id, batch, noise, phase):
            started.set()
            return super().compute_losses(module_id, batch, noise, phase)

    learner, errors = make_learner({"name": "bc"}, learner_class=Endless), []

    def work():
        try:
            learner.run(replace(ITERATOR, num_iters=10**9))
        except LearnerStoppedError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(20)
    learner.stop_requested = True
    thread.join(20)
    assert len(errors) == 1
    assert torch.isfinite(learner.flat.data).all()

"""What befalls learners on purpose: their processes killed, stopped, cut off; seen from the driver's side."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from dask_rl.learners.config import LearnerGroupConfig, LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.iterator import BatchIterator, BatchSource, SharedData
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.training_data import TrainingData, open_training_data

ALGORITHM = {"name": "iql", "hidden_sizes": [32, 32], "dropout": 0.1, "update_order": "sequential"}


def make_group(dataset: Any, client: Any, num_steps: int = 600, **learners: Any) -> tuple[LearnerGroup, TrainingData]:
    """A group on a dataset, with a learning rate that ends with `num_steps`."""
    settings = LearnersConfig(**{"num_learners": 2, "compile": "off", "num_threads_per_learner": 1, **learners})
    sizes = {"num_steps": num_steps, "batch_size": 48, "num_shards": 12}
    job = TrainJob(dataset=str(dataset), algorithm=ALGORITHM, learners=settings, run="unused", **sizes)
    data = open_training_data(job)
    config = LearnerGroupConfig(algorithm=job.algorithm, learners=settings, num_steps=num_steps)
    return LearnerGroup(config, module_spec=data.module_spec, client=client), data


def flat_weights(group: LearnerGroup) -> np.ndarray:
    """All weights as one vector."""
    weights = group.get_weights()
    return np.concatenate([np.asarray(w).ravel() for m in sorted(weights) for _, w in sorted(weights[m].items())])


def pid_of(group: LearnerGroup, rank: int) -> int:
    """The process of a learner."""
    pid = group.manager.handles[rank].pid
    assert pid is not None
    return pid


class Disturbance:
    """Does something to a learner once it has come to a step, from a thread beside the update."""

    def __init__(self, group: LearnerGroup, step: int, act: Callable[[], None], rank: int = 0) -> None:
        self._handle, self._step, self._act = group.manager.handles[rank], step, act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.happened = threading.Event()

    def _run(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self._handle.ask_health().result(20).step >= self._step:
                self._act()
                self.happened.set()
                return

    def __enter__(self) -> "Disturbance":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(150)


def send_signal(pid: int, number: signal.Signals) -> Callable[[], None]:
    """Return what sends a signal to a process."""
    return lambda: os.kill(pid, number)


def hang_once(learner: Any, mark: str, step: int) -> None:
    """Make a learner's loss hang at a step, the first time that any process comes there."""
    compute = learner.compute_gradients

    def hanging(*args: Any) -> Any:
        if learner.step == step and not os.path.exists(mark):
            with open(mark, "w"):
                pass
            time.sleep(1000)
        return compute(*args)

    learner.compute_gradients = hanging


def cut_sockets(dask_worker: Any) -> int:
    """Shut down a worker's connections that are not Dask's, which are those to the other learners; count them."""
    dask_ports = {dask_worker.port, int(dask_worker.scheduler.address.rsplit(":", 1)[1])}
    cut = 0
    for connection in psutil.Process().net_connections():
        if connection.status != "ESTABLISHED" or {connection.laddr.port, connection.raddr.port} & dask_ports:
            continue
        with socket.socket(fileno=os.dup(connection.fd)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
        cut += 1
    return cut


async def leave(dask_worker: Any) -> None:
    """Close a worker without a restart."""
    await dask_worker.close(reason="leaving")


def fail_once(learner: Any, step: int) -> None:
    """Make a learner's loss fail at a step, once."""
    compute = learner.compute_gradients

    def failing(*args: Any) -> Any:
        if learner.step == step:
            learner.compute_gradients = compute
            raise ZeroDivisionError("on purpose")
        return compute(*args)

    learner.compute_gradients = failing


@dataclass(frozen=True)
class SlowData:
    """A dataset's batches of which one comes late, once."""

    data: SharedData
    step: int
    seconds: float
    mark: str

    def shares(self, num_learners: int) -> list["SlowSource"]:
        return [SlowSource(source, self, rank) for rank, source in enumerate(self.data.shares(num_learners))]

    def rows_per_batch(self) -> int:
        return self.data.rows_per_batch()


@dataclass(frozen=True)
class SlowSource:
    source: BatchSource
    data: SlowData
    rank: int

    @property
    def key(self) -> str:
        return self.source.key

    def continues(self, previous: BatchSource) -> bool:
        return isinstance(previous, SlowSource) and self.source.continues(previous.source)

    def count_rows(self, first: int, count: int) -> int:
        return self.source.count_rows(first, count)

    def open(self, device: Any, timeout_seconds: float) -> BatchIterator:
        iterator = self.source.open(device, timeout_seconds)
        next_batch = iterator.next_batch

        def late() -> Any:
            if self.rank == 1 and iterator.step == self.data.step and not os.path.exists(self.data.mark):
                with open(self.data.mark, "w"):
                    time.sleep(self.data.seconds)
            return next_batch()

        iterator.next_batch = late  # type: ignore[method-assign]
        return iterator


def devour_memory_once(learner: Any, mark: str, step: int) -> None:
    """Make a learner's loss take all memory at a step, the first time that any process comes there."""
    compute = learner.compute_gradients

    def greedy(*args: Any) -> Any:
        if learner.step == step and not os.path.exists(mark):
            with open(mark, "w"):
                eaten = []
                while True:  # until the nanny ends this process
                    eaten.append(np.ones(2**22))
                    time.sleep(0.05)
        return compute(*args)

    learner.compute_gradients = greedy


def exit_once(learner: Any, step: int, error: BaseException) -> None:
    """Make a learner's loss end its process, as it would if this went through, at a step, once."""
    compute = learner.compute_gradients

    def exiting(*args: Any) -> Any:
        if learner.step == step:
            learner.compute_gradients = compute
            raise error
        return compute(*args)

    learner.compute_gradients = exiting

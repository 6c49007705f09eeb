"""Spawned processes that run functions of tests, and groups of ranks in threads or in those processes."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from dask_rl.learners.collective import ProcessGroup, Rendezvous, RendezvousStore

HOST = "127.0.0.1"
_held: list[ProcessGroup] = []


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            function, args = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = (function(*args), None)
        except Exception as error:
            answer = (None, error)
        connection.send_bytes(cloudpickle.dumps(answer))


class Peers:
    """Processes that answer calls one after the other; a killed one is replaced at its next call."""

    def __init__(self, count: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._peers: list[Any] = [None] * count
        for index in range(count):  # all start at once
            self._start(index)

    def _start(self, index: int) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        there.close()
        self._peers[index] = process, here

    def send(self, index: int, function: Callable[..., Any], *args: Any) -> None:
        """Start a call; functions of test modules travel by value."""
        if not self._peers[index][0].is_alive():
            self._start(index)
        module = sys.modules.get(function.__module__)
        if module is not None and function.__module__ != __name__:
            cloudpickle.register_pickle_by_value(module)
        self._peers[index][1].send_bytes(cloudpickle.dumps((function, args)))

    def receive(self, index: int, timeout: float = 60) -> Any:
        """The answer of the oldest call."""
        connection = self._peers[index][1]
        if not connection.poll(timeout):
            raise TimeoutError(f"peer {index} does not answer")
        value, error = cloudpickle.loads(connection.recv_bytes())
        if error is not None:
            raise error
        return value

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call function(rank, *args) in every process at once."""
        for index in range(len(self._peers)):
            self.send(index, function, index, *args)
        return [self.receive(index) for index in range(len(self._peers))]

    def kill(self, index: int) -> None:
        """SIGKILL; returns once the process is gone."""
        process, connection = self._peers[index]
        process.kill()
        process.join(10)
        connection.close()

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self._peers:
            connection.close()
            process.join(10)
            process.close()


def join_group(rank: int, size: int, rendezvous: Rendezvous, timeout_seconds: float = 20, store=None) -> ProcessGroup:
    return ProcessGroup(rendezvous, rank, size, transport="gloo", timeout_seconds=timeout_seconds, store=store)


def join_and_hold(rank: int, rendezvous: Rendezvous) -> int:
    """Be one of two ranks that does nothing more; return the process's id."""
    _held.append(join_group(rank, 2, rendezvous))
    return os.getpid()


def leave() -> None:
    """Leave the group of `join_and_hold`."""
    _held.pop().close()


def run_in_threads(size: int, function: Callable[[ProcessGroup], Any]) -> list[Any]:
    """Call function(collective) on `size` ranks, each a thread with a gloo group of its own."""
    store = RendezvousStore(HOST, 1, 20)
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            collective = join_group(rank, size, store.rendezvous, store=store if rank == 0 else None)
            results[rank] = function(collective)
            collective.close()
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results

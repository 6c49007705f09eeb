"""The threads of one iterator, which no read that hangs can hold up."""

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
THREAD_NAME = "dask-rl-loader"

_Work = tuple["Future[Any]", Callable[[], Any]]


class LoaderThreads:
    """Runs calls in the order in which they come.

    Unlike those of an executor, its threads hold up neither the end of the process nor, for longer than is said, the
    closing. Nobody need close it: they end with it.

    Args:
        num_threads: how many calls run at once.
    """

    def __init__(self, num_threads: int) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._queue,), name=f"{THREAD_NAME}_{number}", daemon=True)
            for number in range(num_threads)
        ]
        self._end = weakref.finalize(self, _end, self._queue, num_threads)
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> "Future[T]":
        """Return the future of a call."""
        future: Future[T] = Future()
        self._queue.put((future, lambda: function(*arguments, **named)))
        return future

    def close(self, timeout_seconds: float) -> None:
        """Cancel the calls that wait, and wait for those under way, so long; one that hangs is left to itself."""
        while True:
            try:
                work = self._queue.get_nowait()
            except Empty:
                break
            if work is not None:
                work[0].cancel()
        self._end()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _work(queue: "SimpleQueue[_Work | None]") -> None:
    while (work := queue.get()) is not None:
        future, call = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del work, future, call  # while this thread waits, it holds nobody's buffers


def _end(queue: "SimpleQueue[_Work | None]", num_threads: int) -> None:
    for _ in range(num_threads):
        queue.put(None)

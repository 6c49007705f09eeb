"""Requests to a store: many in flight, each bounded, and tried again while that may help."""

import functools
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from dask_rl.storage.errors import DaskRLError

from .errors import Fault, classify, explain_fault

T = TypeVar("T")
S = TypeVar("S")

MAX_IN_FLIGHT = 32
"""Requests of this process at a time."""


@dataclass(frozen=True)
class RequestPolicy:
    """How long to try."""

    num_attempts: int = 8
    """Tries of one request."""
    first_delay_seconds: float = 0.1
    """Pause before the second try; it doubles each time, and is shortened at random by up to a half."""
    max_delay_seconds: float = 8.0
    """Longest pause."""
    timeout_seconds: float = 60.0
    """Bound on one try, where the protocol's package can be interrupted."""
    deadline_seconds: float = 180.0
    """No try begins later than this."""


def run_request(call: Callable[[], T], subject: str, policy: RequestPolicy) -> T:
    """Return what `call` returns, trying again after failures that may pass.

    Args:
        call: one request, bounded in time.
        subject: which object of which dataset, for messages.
        policy: how long to try.

    Raises:
        FileNotFoundError: there is no such object.
        FileExistsError: there is one already.
        StoreAccessError: credentials are missing or do not suffice.
        StoreUnreachableError: the store does not answer, or not so that it can be used.
        DatasetError: the store refuses.
    """
    began = time.monotonic()
    delay = policy.first_delay_seconds
    for attempt in range(1, policy.num_attempts + 1):
        try:
            return call()
        except DaskRLError:
            raise
        except Exception as error:  # whatever the protocol's package raises
            fault, elapsed = classify(error), time.monotonic() - began
            if fault is Fault.MISSING:
                raise FileNotFoundError(subject) from error
            if fault is Fault.EXISTS:
                raise FileExistsError(subject) from error
            over = attempt == policy.num_attempts or elapsed + delay > policy.deadline_seconds
            if fault is not Fault.TRANSIENT or over:
                tried = f"in {attempt} {'try' if attempt == 1 else 'tries'} within {elapsed:.0f} s"
                raise explain_fault(fault, subject, error, tried) from error
        # Whoever failed together shall not come again together.
        time.sleep(delay * random.uniform(0.5, 1))
        delay = min(2 * delay, policy.max_delay_seconds)
    raise AssertionError("unreachable")


def run_all(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Yield `function(item)` for each item in order, up to MAX_IN_FLIGHT under way at a time.

    After an error, or when the caller stops, nothing of it is under way any more: what the functions write to,
    the caller may use for something else.
    """
    pool, pending = _pool(os.getpid()), deque[Future[Any]]()
    try:
        for item in items:
            if len(pending) == MAX_IN_FLIGHT:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        wait(pending)


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process; a forked child gets its own."""
    return ThreadPoolExecutor(MAX_IN_FLIGHT, thread_name_prefix=f"dask-rl-requests-{process}")

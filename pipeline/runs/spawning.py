"""What a process that starts workers keeps: its signals, its environment, and nothing of a start that failed."""

import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SPAWN_ENVIRONMENT = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "PYTHONHASHSEED",
)
_END_SECONDS = 5.0


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold SIGINT back in this thread, and for good in all threads and processes started inside.

    The signal mask is inherited: neither the first workers nor those that a nanny starts later see a Ctrl-C
    before they reach their preload. One that comes meanwhile is delivered to this thread at the end.
    """
    multiprocessing.resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def environment_kept() -> Iterator[None]:
    """Undo what nannies write into this process for their workers to inherit, such as one maths thread.

    Learners set their number of threads themselves, at run time.
    """
    before = {name: os.environ.get(name) for name in _SPAWN_ENVIRONMENT}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def failed_children_ended() -> Iterator[None]:
    """Kill what was started inside where the block fails: a process that is stopped would hold up our own end."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
            _await_end(child.pid)
        raise


def _await_end(pid: int | None) -> None:
    """Wait until whoever watches a child has read how it ended; reading that here would take it from them."""
    deadline = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):
        while pid is not None and time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)

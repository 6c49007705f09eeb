"""Values of the driver's Dask futures, in a worker."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from distributed import CancelledError, Future, get_client, wait

from dask_rl.storage.errors import ConfigError, WaitTimeoutError, explain

from .workers import ask_scheduler, is_known

_LOOK_EVERY_SECONDS = 0.01
_LISTEN_SECONDS = 0.2
"""How soon it is noticed that a future which is waited for was cancelled."""


def fetch(key: str, timeout: float, find_cancelled: Callable[[], str | None] = lambda: None) -> Any:
    """Return the value of a Dask future of the driver's, which holds it meanwhile.

    Args:
        key: that of the future.
        timeout: seconds to wait for it.
        find_cancelled: returns the key of a future that was cancelled as soon as it is known, which ends the wait.

    Raises:
        WaitTimeoutError: it has no value in time.
        ConfigError: it was cancelled.
    """
    client, deadline = get_client(), time.monotonic() + timeout
    future: Any = Future(key, client)

    def seconds_left() -> float:
        if (found := find_cancelled()) is not None:
            raise cancelled(found)
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    try:
        # What the driver tells the scheduler of its futures may come later than its calls of actors.
        while not ask_scheduler(client, is_known, key=key):
            seconds_left()
            time.sleep(_LOOK_EVERY_SECONDS)
        # A future made of a key alone hears nothing of it until the scheduler knows that this client wants it.
        client._send_to_scheduler({"op": "client-desires-keys", "keys": [key]})
        while not future.done():
            with contextlib.suppress(TimeoutError):
                wait([future], timeout=min(seconds_left(), _LISTEN_SECONDS))
        return future.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        fix = "look at the task on the dashboard, or raise learners.data_timeout_seconds"
        raise WaitTimeoutError(explain(f"future {key}", got=f"no value in {timeout:g} s", fix=fix)) from None
    except CancelledError:
        raise cancelled(key) from None
    finally:
        future.release()


def cancelled(key: str) -> ConfigError:
    """Return the error for a future that was cancelled."""
    allowed, fix = "one that is kept until the update has ended", "give the data again"
    return ConfigError(explain(f"future {key}", got="a cancelled one", allowed=allowed, fix=fix))

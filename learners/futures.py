"""Values of the driver's Dask futures, in a worker."""

import time
from typing import Any

from distributed import Future, get_client

from dask_rl.storage.errors import WaitTimeoutError, explain

from .workers import ask_scheduler, is_known

_LOOK_EVERY_SECONDS = 0.01


def fetch(key: str, timeout: float) -> Any:
    """Return the value of a Dask future of the driver's, which holds it meanwhile; raises WaitTimeoutError."""
    client, deadline = get_client(), time.monotonic() + timeout
    future: Any = Future(key, client)
    try:
        # What the driver tells the scheduler of its futures may come later than its calls of actors.
        while not ask_scheduler(client, is_known, key=key):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_LOOK_EVERY_SECONDS)
        # A future made of a key alone hears nothing of it until the scheduler knows that this client wants it.
        client._send_to_scheduler({"op": "client-desires-keys", "keys": [key]})
        return future.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        fix = "look at the task on the dashboard, or raise learners.data_timeout_seconds"
        raise WaitTimeoutError(explain(f"future {key}", got=f"no value in {timeout:g} s", fix=fix)) from None
    finally:
        future.release()

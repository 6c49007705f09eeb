"""The client that Dask takes for the current one, in one thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client
from distributed.client import _current_client


@contextmanager
def current_here(client: Client | None) -> Iterator[None]:
    """Make a client the current one in this thread alone: Dask's actors belong to that.

    `Client.as_current` would change Dask's scheduler for all threads besides, also for those that have no client.
    """
    if client is None:
        yield
        return
    token = _current_client.set(client)
    try:
        yield
    finally:
        _current_client.reset(token)

"""Whether the rows of a learner stay in memory, or are streamed through it."""

from contextlib import suppress

import psutil
from distributed import get_worker
from distributed.system import MEMORY_LIMIT

from dask_rl.storage.errors import ConfigError, explain

from .config import FeedConfig
from .gather import BUDGET_SHARE

RESIDENT_FRACTION = 0.25
"""Of the available memory: what is kept resident where no budget is set."""


def available_bytes() -> int:
    """Return the memory that is free, and no more than the container or the Dask worker around this process may have.

    Workers of one host share it out among them by these limits; each learner has a worker of its own.
    """
    limits = [psutil.virtual_memory().available, MEMORY_LIMIT]
    with suppress(ValueError):  # no worker
        limits.append(get_worker().memory_manager.memory_limit or MEMORY_LIMIT)
    return min(limits)


def choose_resident(config: FeedConfig, resident_bytes: int, streaming_bytes: int) -> bool:
    """Tell whether to keep all rows in memory, from the bytes that each way takes.

    Raises:
        ConfigError: the memory is too small for either, or for the one that was asked for.
    """
    budget, available = config.memory_budget_bytes, available_bytes()
    limit = RESIDENT_FRACTION * available if budget is None else budget
    if config.resident is not False and (resident_bytes <= limit or (config.resident and budget is None)):
        return True
    needed = resident_bytes if config.resident else streaming_bytes
    limit = available if budget is None else budget
    if needed > limit:
        if budget is not None:
            needed += needed // (BUDGET_SHARE - 1) + 1  # the larger budget gathers more batches at once
        mode = "keeping all rows resident" if config.resident else "streaming"
        raise ConfigError(
            explain(
                "memory_budget_bytes",
                got=f"{int(limit)}" if budget is not None else f"none, and {int(limit)} bytes available",
                allowed=f"at least {needed} for {mode}",
                fix="raise it, or start a run with smaller window_rows, block_rows or batch_size, or more learners",
            )
        )
    return False

"""Splits a feed over learners, and opens each learner's part."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch

from dask_rl.learners.iterator import BatchSource
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain

from .blocks import BlockRecipe, plan_block
from .config import Feed, FeedConfig, resolve_feed
from .derived import derive_columns
from .gather import Gatherer
from .iterator import DatasetIterator
from .layout import plan_layout
from .loaders import BlockLoader, choose_loader
from .order import ShardOrder
from .partition import IntArray, check_split, shards_of
from .sampling import Halo
from .threads import LoaderThreads
from .windows import BlockStore, ResidentWindows, StreamingWindows, Waiter, Windows, num_slots

RESIDENT_FRACTION = 0.25
"""Of the available memory: what is kept resident where no budget is set."""
NUM_THREADS = 2
CLOSE_SECONDS = 5.0
"""For a read under way, which is short; one that hangs is left alone with its buffers."""

LoaderFactory = Callable[[str, BlockRecipe], BlockLoader]


@dataclass(frozen=True)
class DatasetSource:
    """The recipe of one learner's iterator: small and picklable."""

    feed: FeedConfig
    shards: tuple[int, ...]
    """The data shards of this learner, ascending."""
    name: str = "train"
    """What the batches are for."""

    @property
    def key(self) -> str:
        """Name under which a learner keeps it: the same on all learners, whatever their shards."""
        return self.name

    def open(self, device: torch.device, timeout_seconds: float) -> DatasetIterator:
        """Open the dataset; in resident mode also load it."""
        return open_iterator(self, device, timeout_seconds)

    def continues(self, previous: BatchSource) -> bool:
        """Tell whether it is the same feed, whatever the shards."""
        return isinstance(previous, DatasetSource) and replace(previous, shards=self.shards) == self

    def count_rows(self, first: int, count: int) -> int:
        """Return the rows of so many batches; all are equal."""
        return count * len(self.shards) * self.feed.batch_size // self.feed.num_shards


@dataclass(frozen=True)
class FeedPlan:
    """A feed worked out on its dataset, to be shared out among any number of learners."""

    feed: FeedConfig
    """Complete settings, to be recorded with the run."""
    num_positions: int
    """Usable transitions."""
    num_episodes: int
    """Episodes selected."""
    steps_per_epoch: int

    def shares(self, num_learners: int) -> tuple[DatasetSource, ...]:
        """Return a source for each learner; together they give the same global batches for any number.

        Raises:
            ConfigError: there are more learners than data shards, or none.
        """
        num_shards = self.feed.num_shards
        check_split(self.num_positions, self.feed.batch_size, num_shards, num_learners)
        return tuple(
            DatasetSource(self.feed, shards_of(learner, num_learners, num_shards)) for learner in range(num_learners)
        )

    def rows_per_batch(self) -> int:
        """Return the rows of a global batch."""
        return self.feed.batch_size


def plan_feed(config: FeedConfig) -> FeedPlan:
    """Check a feed against its dataset.

    Raises:
        ConfigError: the settings do not fit the dataset.
        DatasetError: it is another dataset than the one that they name.
    """
    with OfflineDataset.open(config.dataset, content_hash=config.content_hash) as dataset:
        layout = plan_layout(config, dataset)
        feed = resolve_feed(config, dataset, row_bytes=layout.row_bytes, halo=layout.halo)
    return FeedPlan(
        feed=feed.config,
        num_positions=feed.transitions.num_positions,
        num_episodes=feed.num_episodes,
        steps_per_epoch=feed.steps_per_epoch,
    )


def open_iterator(
    source: DatasetSource,
    device: torch.device,
    timeout_seconds: float,
    loader_factory: LoaderFactory = choose_loader,
) -> DatasetIterator:
    """Open a source; `loader_factory` makes the block loader from its name in the settings.

    Raises:
        ConfigError: the memory budget is below what streaming needs; the message names that minimum.
        WaitTimeoutError: a block took longer than `timeout_seconds` to load.
    """
    config = source.feed
    with OfflineDataset.open(config.dataset, content_hash=config.content_hash) as dataset:
        layout = plan_layout(config, dataset)
        feed = resolve_feed(config, dataset, row_bytes=layout.row_bytes, halo=layout.halo)
        derived = derive_columns(feed, layout, dataset, source.shards)
    orders = [feed.order(shard) for shard in source.shards]
    sizes = [_block_sizes(feed, order, layout.halo) for order in orders]
    slot_rows = max(int(item.max()) for item in sizes)
    resident = _choose_resident(
        config,
        sum(int(item.sum()) for item in sizes) * layout.row_bytes + derived.num_bytes,
        num_slots(orders) * slot_rows * layout.row_bytes + derived.num_bytes,
    )
    recipe = BlockRecipe(config.dataset, str(feed.config.content_hash), layout.stored)
    with ExitStack() as undo:
        loader = loader_factory(config.loader, recipe)
        pool = LoaderThreads(NUM_THREADS)
        undo.callback(_shut, loader, pool, timeout_seconds)
        waiter = Waiter(f"dataset {config.dataset}", timeout_seconds)
        store = BlockStore(feed, layout, loader, derived)
        windows: Windows
        if resident:
            windows = ResidentWindows(store, orders, pool, waiter, sizes)
        else:
            windows = StreamingWindows(store, orders, pool, waiter, slot_rows, feed.rows_per_shard)
        gatherer = Gatherer(store.columns, layout, len(orders), feed.rows_per_shard, device)
        on_close = undo.pop_all().close
    return DatasetIterator(feed, source.shards, windows, gatherer, waiter, on_close)


def _shut(loader: BlockLoader, pool: LoaderThreads, timeout_seconds: float) -> None:
    loader.cancel()
    pool.close(min(timeout_seconds, CLOSE_SECONDS))
    loader.close()


def _block_sizes(feed: Feed, order: ShardOrder, halo: Halo) -> IntArray:
    """Return the rows that each block of a shard takes in memory."""
    return np.array(
        [plan_block(feed, order.shard, order.block_part(block), halo).num_rows for block in range(order.num_blocks)],
        np.int64,
    )


def _choose_resident(config: FeedConfig, resident_bytes: int, streaming_bytes: int) -> bool:
    budget, available = config.memory_budget_bytes, psutil.virtual_memory().available
    limit = RESIDENT_FRACTION * available if budget is None else budget
    if config.resident is not False and (resident_bytes <= limit or (config.resident and budget is None)):
        return True
    needed = resident_bytes if config.resident else streaming_bytes
    limit = available if budget is None else budget
    if needed > limit:
        mode = "keeping all rows resident" if config.resident else "streaming"
        raise ConfigError(
            explain(
                "memory_budget_bytes",
                got=f"{int(limit)}" if budget is not None else f"none, and {int(limit)} bytes available",
                allowed=f"at least {needed} for {mode}",
                fix="raise it, or start a run with smaller window_rows and block_rows, or with more learners",
            )
        )
    return False

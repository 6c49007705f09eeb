"""Splits a feed over learners, and opens each learner's part."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch

from dask_rl.learners.iterator import BatchSource
from dask_rl.storage.dataset import OfflineDataset

from .blocks import BlockRecipe, plan_block
from .config import NUM_THREADS, Feed, FeedConfig, resolve_feed, work_bytes
from .derived import derive_columns
from .gather import Gatherer, batch_bytes
from .iterator import DatasetIterator
from .layout import Layout, plan_layout
from .loaders import BlockLoader, choose_loader
from .order import ShardOrder
from .partition import IntArray, check_split, shards_of
from .residence import choose_resident
from .sampling import Halo
from .threads import LoaderThreads
from .windows import BlockStore, ResidentWindows, StreamingWindows, Waiter, Windows, num_slots

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
        _, feed = _work_out(config, dataset)
    return FeedPlan(
        feed=feed.config,
        num_positions=feed.transitions.num_positions,
        num_episodes=feed.num_episodes,
        steps_per_epoch=feed.steps_per_epoch,
    )


def _work_out(config: FeedConfig, dataset: OfflineDataset) -> tuple[Layout, Feed]:
    layout = plan_layout(config, dataset)
    batches = batch_bytes(layout, config.batch_size, config.memory_budget_bytes)
    return layout, resolve_feed(config, dataset, row_bytes=layout.row_bytes, halo=layout.halo, batch_bytes=batches)


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
        layout, feed = _work_out(config, dataset)
        derived = derive_columns(feed, layout, dataset, source.shards)
    orders = [feed.order(shard) for shard in source.shards]
    sizes = [_block_sizes(feed, order, layout.halo) for order in orders]
    slot_rows = max(int(item.max()) for item in sizes)
    beside = (  # the rows
        derived.num_bytes
        + batch_bytes(layout, len(orders) * feed.rows_per_shard, config.memory_budget_bytes)
        + work_bytes(slot_rows, max(min(order.window_rows, order.num_positions) for order in orders), layout.row_bytes)
    )
    resident = choose_resident(
        config,
        sum(int(item.sum()) for item in sizes) * layout.row_bytes + beside,
        num_slots(orders) * slot_rows * layout.row_bytes + beside,
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
        gatherer = Gatherer(store.columns, layout, len(orders), feed.rows_per_shard, device, config.memory_budget_bytes)
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

"""What a feed delivers, worked out from its definition."""

import numpy as np

from dask_rl.pipeline.feed.config import Feed
from dask_rl.pipeline.feed.order import shard_order


def stream_rows(feed: Feed, shard: int, step: int) -> np.ndarray:
    """Return the dataset's rows that a data shard gives to a step: of whole epochs laid end to end."""
    per_step, edges = feed.rows_per_shard, feed.shard_edges
    size = int(edges[shard + 1] - edges[shard])
    order = feed.order(shard)
    epochs = range(step * per_step // size, (step + 1) * per_step // size + 1)
    stream = np.concatenate([shard_order(order, epoch) for epoch in epochs])
    first = step * per_step - epochs[0] * size
    return feed.transitions.rows(edges[shard] + stream[first : first + per_step])

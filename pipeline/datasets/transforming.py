"""Datasets made of others, by this process or by the workers of a cluster: the same dataset."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dask_rl.storage.transforming import TransformConfig, TransformSummary, transform_datasets

if TYPE_CHECKING:
    from distributed import Client

Progress = Callable[[int, int | None], None]
Path = str | os.PathLike[str]


def transform_dataset(
    sources: Path | Sequence[Path],
    dest: Path,
    *,
    config: TransformConfig | None = None,
    validation: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    client: "Client | None" = None,
    num_workers: int = 0,
) -> TransformSummary:
    """Write a new dataset from episodes of others: chosen, changed, merged, split, in other shards.

    With workers, whole shards are the unit of work, as for `import_dataset`: a worker that dies costs the shard under
    way, and where the transform itself dies the same one again keeps what is finished. The datasets, and their
    content hashes, are the same for any number of workers.

    Args:
        sources: one or several datasets, whose spaces and fields fit each other; workers must see them too.
        dest: the new dataset, on a file system that workers share, or a URL.
        config: what to do; None copies, with what was appended in one piece.
        validation: the second dataset of a split, which gets the share `validation_fraction` of the episodes.
        overwrite: replace datasets that are there.
        progress: called with the number of steps that were gone through in all passes, and their total.
        client: of the cluster whose workers write; each takes the memory of one shard.
        num_workers: worker processes to start here for it; 0 and no client: one stream, in this process.

    Raises:
        DatasetNotFoundError: a source is not there.
        ConfigError: sources that do not fit, or a config that does not fit them; or no episode is left.
        InvalidDataError: rewards outgrow their type.
        DatasetError: a destination exists or cannot be written.
    """
    if client is None and not num_workers:
        return transform_datasets(
            sources, dest, config=config, validation=validation, overwrite=overwrite, progress=progress
        )
    # distributed takes a second to load, which a transform by this process alone need not wait for.
    from .tasks import open_runner

    with open_runner(client, num_workers) as run:
        return transform_datasets(
            sources, dest, config=config, validation=validation, overwrite=overwrite, progress=progress, run=run
        )

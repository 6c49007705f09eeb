"""Foreign datasets in, by this process or by the workers of a cluster: the same dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dask_rl.storage import formats
from dask_rl.storage.formats import ImportOptions, ImportSummary

if TYPE_CHECKING:
    from distributed import Client

Progress = Callable[[int, int | None], None]


def import_dataset(
    source: str | Path,
    dest: str | Path,
    *,
    format: str | None = None,
    options: ImportOptions | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress | None = None,
    client: "Client | None" = None,
    num_workers: int = 0,
) -> ImportSummary:
    """Import a foreign dataset into a new dask-rl dataset at `dest`, or append it to one that is there.

    With workers, whole shards are the unit of work: each is written by a task that runs again where its worker
    died. When the import itself dies, the same import again keeps the shards that are finished. The dataset, and its
    content hash, is the same for any number of workers.

    Args:
        source: a file or directory; workers must see it too.
        dest: the dataset, on a file system that workers share, or a URL.
        format: name of the importer; found out by default.
        options: what the user knows about the source.
        overwrite: replace a dataset at `dest`.
        append: add the episodes to the dataset at `dest`, whose spaces they must fit. Who has it open goes on reading
            it as it was.
        progress: called with the number of steps read in all passes and their total, if it is known.
        client: of the cluster whose workers write; each takes the memory of one shard.
        num_workers: worker processes to start here for it; 0 and no client: one stream, in this process.

    Raises:
        DatasetNotFoundError: there is no such source.
        SourceFormatError: the source is of no known format, or damaged.
        InvalidDataError: the source holds what no learner may see; naming file, episode, step and field.
        DatasetError: `dest` exists or cannot be written.
        ConfigError: an option does not fit.
    """
    if client is None and not num_workers:
        return formats.import_dataset(
            source, dest, format=format, options=options, overwrite=overwrite, append=append, progress=progress
        )
    # distributed takes a second to load, which an import by this process alone need not wait for.
    from .tasks import open_runner

    with open_runner(client, num_workers) as run:
        return formats.import_dataset(
            Path(source).absolute(),  # workers may have another working directory
            dest,
            format=format,
            options=options,
            overwrite=overwrite,
            append=append,
            progress=progress,
            run=run,
        )

"""A dataset in, a file or directory of another library out: complete or not there at all."""

import os
import shutil
import tempfile
from pathlib import Path

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.files import check_local, exchange, fsync_path

from .base import ExportSummary, Progress
from .registry import get_exporter
from .target import check_target


def export_dataset(
    dataset: str | os.PathLike[str] | OfflineDataset,
    dest: str | os.PathLike[str],
    *,
    format: str,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportSummary:
    """Write a dataset in the format of another library.

    It is built in a hidden sibling of `dest` and renamed when it is complete and on the disk.

    Args:
        dataset: a dataset, or where one is.
        dest: the new file or directory.
        format: name of the exporter.
        overwrite: replace an earlier export of the same kind at `dest`; anything else is refused.
        progress: called with the number of episodes written and their total.

    Raises:
        DatasetError: the dataset cannot be read, or `dest` exists or cannot be written.
        ConfigError: there is no such format, or it has no place for the dataset's spaces; or `dest` is the dataset
            itself, holds it or lies in it.
    """
    exporter = get_exporter(format)
    check_local("dest", dest)
    target = Path(os.path.abspath(dest))
    source = dataset.path if isinstance(dataset, OfflineDataset) else os.fspath(dataset)
    check_target(target, source, exporter, overwrite)
    opened = dataset if isinstance(dataset, OfflineDataset) else OfflineDataset.open(dataset)
    try:
        exporter.check(opened)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            made = Path(folder) / "new"
            lost = exporter.write(opened, made, target.name, progress or (lambda done, total: None))
            num_bytes = _flush(made)
            check_target(target, source, exporter, overwrite)  # again: what lies there now goes
            _move(made, target, Path(folder) / "old")
            fsync_path(target.parent)
        return ExportSummary(str(target), format, opened.num_steps, opened.num_episodes, num_bytes, lost)
    except OSError as error:
        got, fix = error.strerror or str(error), "free some space, or choose a place that you can write to"
        raise DatasetError(explain(str(target), got=got, allowed="room in a writable directory", fix=fix)) from error
    finally:
        if opened is not dataset:
            opened.close()


def _flush(made: Path) -> int:
    """Bring what was made to the disk, and return its size."""
    paths = [made, *(made.rglob("*") if made.is_dir() else ())]
    for path in paths:
        fsync_path(path)
    return sum(path.stat().st_size for path in paths if path.is_file())


def _move(made: Path, target: Path, old: Path) -> None:
    """Give what was made its name; what had it before goes only then."""
    if os.path.lexists(target):
        if exchange(made, target):  # what was there is removed with the folder
            return
        os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        if os.path.lexists(old):
            os.rename(old, target)
        raise
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old)

"""Where an export goes: never over its own source, nor over anything but an earlier export of the same kind."""

import os
from pathlib import Path

from dask_rl.storage.errors import ConfigError, DatasetError, explain
from dask_rl.storage.locate import local_path

from .base import Exporter


def check_target(target: Path, source: str, exporter: Exporter, overwrite: bool) -> None:
    """Refuse a place that holds what an export must not replace.

    Args:
        target: where the export goes, absolute.
        source: path or URL of the dataset that is exported.
        exporter: knows what it writes when it sees it.
        overwrite: whether an earlier export may be replaced.

    Raises:
        ConfigError: the target is the source, holds it or lies in it.
        DatasetError: something is there, and may not be replaced.
    """
    local = local_path(source)
    if local is not None:
        real, own = Path(os.path.realpath(target)), Path(os.path.realpath(local))
        if real.is_relative_to(own) or own.is_relative_to(real):
            allowed = "a place apart from the dataset that is exported"
            raise ConfigError(
                explain(str(target), got=f"the place of the source {own}", allowed=allowed, fix="choose another path")
            )
    if not os.path.lexists(target):
        return
    if not overwrite:
        fix = "choose another path, or overwrite it (overwrite=True, --overwrite)"
        raise DatasetError(explain(str(target), got="a path that exists already", allowed="a new path", fix=fix))
    if target.is_symlink() or not exporter.is_export(target):
        got, allowed = f"something that is no export of format {exporter.name}", "an export to overwrite"
        fix = "choose another path; nothing was removed"
        raise DatasetError(explain(str(target), got=got, allowed=allowed, fix=fix))

"""Where a transform writes: one dataset or, of a split, two."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.building.taken import refuse_if_taken
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, DatasetError, DatasetNotFoundError, explain
from dask_rl.storage.locate import local_path, locate

from .config import TransformConfig
from .sources import SourcePart

Path = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Target:
    """A dataset to be."""

    path: Path
    part: str
    """all, training or validation."""
    kept: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Which episodes of all sources it gets."""


def plan_targets(dest: Path, validation: Path | None, config: TransformConfig) -> list[Target]:
    """Return where to write; which episodes go there is not known as yet.

    Raises:
        ConfigError: a fraction without a second dataset, or one without the other, or the same twice.
    """
    if (validation is None) != (config.validation_fraction is None):
        got = "a fraction and no dataset" if validation is None else "a dataset and no fraction"
        allowed = "both: where to (validation, --validation), and how much (validation_fraction)"
        raise ConfigError(explain("validation", got=got, allowed=allowed, fix="give both, or none"))
    if validation is None:
        return [Target(dest, "all")]
    if locate(dest).url == locate(validation).url:
        got = f"the path of the training data, {os.fspath(dest)}"
        raise ConfigError(explain("validation", got=got, allowed="another path", fix="choose one"))
    return [Target(dest, "training"), Target(validation, "validation")]


def check_targets(targets: Iterable[Target], parts: Iterable[SourcePart], overwrite: bool) -> None:
    """Refuse early what a writer would refuse after hours.

    Raises:
        ConfigError: a target is a source.
        DatasetError: there is something at its path.
    """
    sources = {_real(part.path) for part in parts}
    for target in targets:
        if _real(target.path) in sources:
            got, fix = "the path of a source", "choose another path"
            raise ConfigError(explain(f"dataset {os.fspath(target.path)}", got=got, allowed="a new path", fix=fix))
        refuse_if_taken(target.path, overwrite)


def is_written(target: Target, provenance: Mapping[str, Any]) -> bool:
    """Tell whether an earlier run of the same transform has written this dataset, and died before the other one."""
    try:
        with OfflineDataset.open(target.path) as dataset:
            return dataset.generation == 1 and dataset.provenance.get("transform") == provenance["transform"]
    except DatasetNotFoundError:
        return False
    except DatasetError:  # something else, which check_targets or the writer will refuse
        return False


def _real(path: Path) -> str:
    local = local_path(path)
    return locate(path).url if local is None else os.path.realpath(local)

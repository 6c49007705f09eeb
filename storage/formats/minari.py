"""Minari datasets: `<name>-vN/data/metadata.json` and the episodes in HDF5, Arrow or Parquet."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.storage.errors import DatasetError, SourceFormatError, explain
from dask_rl.storage.nested import subspaces
from dask_rl.storage.spaces import describe_space, space_from_json

from .base import ImportOptions, RawEpisode, Source, Space
from .minari_arrow import arrow_table
from .minari_episode import EpisodeTable
from .minari_hdf5 import MAIN_FILE, hdf5_table

_METADATA = "metadata.json"
_FORMATS = ("hdf5", "arrow", "parquet")
_RULE = "episodes and flags as stored; an episode that ends without a flag is truncated"
_REPAIR = "fetch the dataset again"


class MinariImporter:
    """Reads a Minari dataset directory, its `data` directory, or `main_data.hdf5` in it."""

    name = "minari"

    def detect(self, path: Path) -> bool:
        """Whether the directory has Minari's metadata."""
        folder = _data_folder(path)
        return folder is not None and (folder / _METADATA).is_file()

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open the dataset; see `Importer`."""
        folder = _data_folder(path)
        if folder is None or not (folder / _METADATA).is_file():
            allowed = f"a directory with data/{_METADATA}"
            raise SourceFormatError(explain(str(path), got="no Minari dataset", allowed=allowed, fix="check the path"))
        metadata = _read_metadata(folder / _METADATA)
        observations, texts = _space(folder, metadata, "observation_space")
        actions, _ = _space(folder, metadata, "action_space")
        table = _table(folder, metadata, {"observations": observations, "actions": actions})
        wanted = metadata.get("total_episodes", len(table.numbers))
        if len(table.numbers) != wanted or not table.numbers:
            got = f"{len(table.numbers)} episodes"
            raise SourceFormatError(explain(table.origin, got=got, allowed=f"{wanted}, at least 1", fix=_REPAIR))
        minimum, maximum = _number(metadata.get("ref_min_score")), _number(metadata.get("ref_max_score"))
        return Source(
            rule=_RULE,
            episodes=partial(_read_episodes, table),
            num_episodes=len(table.numbers),
            num_steps=_integer(metadata.get("total_steps")),
            observation_space=observations,
            action_space=actions,
            environment=_environment(metadata),
            ref_scores=(minimum, maximum) if minimum is not None and maximum is not None else None,
            left_out=(*table.left_out, *sorted(texts)),
            notes=table.notes,
        )


def _table(folder: Path, metadata: Mapping[str, Any], declared: Mapping[str, Space | None]) -> EpisodeTable:
    kind = metadata.get("data_format", "hdf5")
    known = {name: space for name, space in declared.items() if space is not None}
    if kind == "hdf5":
        return hdf5_table(folder, known)
    if kind not in _FORMATS:
        got, fix = f"data_format {kind!r}", "export the dataset as one of these"
        raise SourceFormatError(explain(str(folder), got=got, allowed=", ".join(_FORMATS), fix=fix))
    if len(known) < len(declared):
        fix = "add them to the metadata: without them the shapes of the values are unknown"
        raise SourceFormatError(explain(str(folder / _METADATA), got="no spaces", allowed="both spaces", fix=fix))
    return arrow_table(folder, kind, known)


def _read_episodes(table: EpisodeTable, start: int, stop: int | None) -> Iterator[RawEpisode]:
    return table.read(table.numbers[start:stop])


def _data_folder(path: Path) -> Path | None:
    if path.is_file():
        return path.parent if path.name == MAIN_FILE else None
    return next((folder for folder in (path / "data", path) if (folder / _METADATA).is_file()), None)


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SourceFormatError(
            explain(str(path), got=f"unreadable JSON ({error})", allowed="Minari's metadata", fix=_REPAIR)
        ) from error
    if not isinstance(metadata, dict):
        raise SourceFormatError(explain(str(path), got="no JSON object", allowed="Minari's metadata", fix=_REPAIR))
    return metadata


def _json_field(metadata: Mapping[str, Any], key: str) -> Any:
    """Return a field that Minari stores as a JSON string inside the JSON."""
    value = metadata.get(key)
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise SourceFormatError(
            explain(f"Minari metadata, {key}", got=f"unreadable JSON ({error})", fix=_REPAIR)
        ) from error


def _space(folder: Path, metadata: Mapping[str, Any], key: str) -> tuple[Space | None, frozenset[str]]:
    """Return a declared space without text in it, and the paths of that text, such as `observations/mission`."""
    described = _json_field(metadata, key)
    if described is None:
        return None, frozenset()
    field = f"{key.removesuffix('_space')}s"
    try:
        space = space_from_json(described)
    except DatasetError as error:
        raise SourceFormatError(f"{folder / _METADATA}: {key}: {error}") from error
    texts = frozenset(_texts(field, space))
    kept = _without(field, space, texts)
    if kept is None or (texts and key == "action_space"):
        raise SourceFormatError(
            explain(
                f"{folder / _METADATA}: {key}",
                got=describe_space(space),
                allowed="numbers: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them",
                fix="encode the text first",
            )
        )
    return kept, texts


def _texts(path: str, space: Space) -> Iterator[str]:
    if isinstance(space, spaces.Text):
        yield path
    for key, part in (subspaces(space) or {}).items():
        yield from _texts(f"{path}/{key}", part)


def _without(path: str, space: Space, texts: frozenset[str]) -> Space | None:
    """Return a space without some of its parts; None if nothing is left."""
    if path in texts:
        return None
    parts = subspaces(space)
    if parts is None or not any(text.startswith(f"{path}/") for text in texts):
        return space
    kept = {key: _without(f"{path}/{key}", part, texts) for key, part in parts.items()}
    left = {key: part for key, part in kept.items() if part is not None}
    return spaces.Dict(left) if left else None


def _environment(metadata: Mapping[str, Any]) -> str | None:
    spec = _json_field(metadata, "env_spec")
    name = spec.get("id") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else None


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    if not isinstance(value, int | float) or abs(value) > sys.float_info.max:
        return None
    return float(value) if math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    """Return a whole number, None for anything else: Minari also writes the text "None"."""
    return int(value) if isinstance(value, int | np.integer) else None

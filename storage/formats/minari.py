"""Minari datasets in HDF5: `<name>-vN/data/{metadata.json, main_data.hdf5}`, one group an episode."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dask_rl.storage.errors import DatasetError, SourceFormatError, explain
from dask_rl.storage.schema import INFO_NAME
from dask_rl.storage.spaces import describe_space, space_from_json

from .base import Array, ImportOptions, RawEpisode, Source, Space, flags_at_end
from .hdf5 import open_hdf5, read_dataset

_FILE = "main_data.hdf5"
_METADATA = "metadata.json"
_GROUP = re.compile(r"episode_(\d+)")
_MAX_SEED = np.iinfo(np.int64).max
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
        if metadata.get("data_format", "hdf5") != "hdf5":
            got = f"data_format {metadata['data_format']!r}"
            raise SourceFormatError(explain(str(folder), got=got, allowed="hdf5", fix="export the dataset as hdf5"))
        file_path = folder / _FILE
        if not file_path.is_file():
            raise SourceFormatError(explain(str(file_path), got="no such file", fix=_REPAIR))
        names, infos, left_out = _list_episodes(file_path, metadata)
        minimum, maximum = _number(metadata.get("ref_min_score")), _number(metadata.get("ref_max_score"))
        return Source(
            rule=_RULE,
            episodes=partial(_read_episodes, file_path, names, infos),
            num_episodes=len(names),
            num_steps=_integer(metadata.get("total_steps")),
            observation_space=_space(folder, metadata, "observation_space"),
            action_space=_space(folder, metadata, "action_space"),
            environment=_environment(metadata),
            ref_scores=(minimum, maximum) if minimum is not None and maximum is not None else None,
            left_out=left_out,
        )


def _data_folder(path: Path) -> Path | None:
    if path.is_file():
        return path.parent if path.name == _FILE else None
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


def _space(folder: Path, metadata: Mapping[str, Any], key: str) -> Space | None:
    described = _json_field(metadata, key)
    if described is None:
        return None
    try:
        space = space_from_json(described)
    except DatasetError as error:
        raise SourceFormatError(f"{folder / _METADATA}: {key}: {error}") from error
    if isinstance(space, spaces.Dict | spaces.Tuple | spaces.Text):
        raise SourceFormatError(
            explain(
                f"{folder / _METADATA}: {key}",
                got=describe_space(space),
                allowed="Box, Discrete, MultiDiscrete, MultiBinary",
                fix="flatten the source first: nested observations and actions are not supported yet",
            )
        )
    return space


def _environment(metadata: Mapping[str, Any]) -> str | None:
    spec = _json_field(metadata, "env_spec")
    name = spec.get("id") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else None


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    """Return a whole number, None for anything else: Minari also writes the text "None"."""
    return int(value) if isinstance(value, int | np.integer) else None


def _list_episodes(path: Path, metadata: Mapping[str, Any]) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """Return the episodes' groups in the order of their numbers, {name: path} of the infos, and those left out.

    Only numeric infos that all episodes have, in one shape and type, can be kept.
    """
    with open_hdf5(path) as file:
        numbered = sorted((int(match[1]), name) for name in file if (match := _GROUP.fullmatch(name)))
        names = [name for _, name in numbered]
        wanted = metadata.get("total_episodes", len(names))
        if len(names) != wanted or not names:
            got = f"{len(names)} episodes"
            raise SourceFormatError(explain(str(path), got=got, allowed=f"{wanted}, at least 1", fix=_REPAIR))
        infos = _infos(file[names[0]])
        seen = set(infos)
        for name in names[1:]:
            other = _infos(file[name])
            seen |= other.keys()
            infos = {key: kind for key, kind in infos.items() if other.get(key) == kind}
        kept = {key: kind.path for key, kind in infos.items() if kind.usable}
        return names, kept, tuple(sorted(f"infos/{key}" for key in seen - kept.keys()))


class _Info(NamedTuple):
    path: str
    row_shape: tuple[int, ...]
    dtype: str
    usable: bool
    """Whether it holds numbers, one or more a row, under a name that a dataset can have."""


def _infos(group: Any) -> dict[str, _Info]:
    """Return an episode's infos by name; nested names are joined by dots."""
    found: dict[str, _Info] = {}

    def visit(path: str, item: Any) -> None:
        name, shape = path.replace("/", "."), getattr(item, "shape", None)
        if hasattr(item, "dtype"):
            usable = bool(shape) and item.dtype.kind in "biuf" and INFO_NAME.fullmatch(name) is not None
            found[name] = _Info(f"infos/{path}", tuple(shape or ())[1:], item.dtype.str, usable)

    if "infos" in group:
        group["infos"].visititems(visit)
    return found


def _read_episodes(
    path: Path, names: list[str], infos: Mapping[str, str], start: int, stop: int | None
) -> Iterator[RawEpisode]:
    with open_hdf5(path) as file:
        for name in names[start:stop]:
            group = file[name]
            columns = {
                key: read_dataset(group, key, str(path))[()]
                for key in ("observations", "actions", "rewards", "terminations", "truncations")
            }
            yield _episode(
                path, group, columns, {key: read_dataset(group, where, str(path))[()] for key, where in infos.items()}
            )


def _episode(path: Path, group: Any, columns: Mapping[str, Array], infos: Mapping[str, Array]) -> RawEpisode:
    num_steps = len(columns["rewards"])
    terminations = columns["terminations"].astype(bool)
    truncations = columns["truncations"].astype(bool)
    if len(terminations) == len(truncations) == num_steps and not (terminations | truncations).any():
        truncations = flags_at_end(num_steps, True)
    seed = _integer(group.attrs.get("seed"))
    return RawEpisode(
        origin=str(path),
        id=int(group.name.rpartition("_")[2]),
        observations=columns["observations"],
        actions=columns["actions"],
        rewards=columns["rewards"],
        terminations=terminations,
        truncations=truncations,
        # T+1 rows: the first came from the reset, row t+1 belongs to step t
        infos={key: column[max(0, len(column) - num_steps) :] for key, column in infos.items()},
        has_final_observation=len(columns["observations"]) != num_steps,
        seed=seed if seed is not None and 0 <= seed <= _MAX_SEED else None,
    )

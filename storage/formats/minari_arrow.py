"""Minari's episodes in Arrow or Parquet: a folder each with `metadata.json` and the rows in parts.

Arrays of a row are stored flat, their shape is that of the space. Actions, rewards and flags have one row more than
there are steps, to match the observations. Images may be encoded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import Columns, subspaces

from .arrow_columns import guarded, to_array
from .base import Array, RawEpisode, Space
from .minari_episode import EpisodeTable, make_episode
from .minari_images import NOTE, decode_images, may_be_encoded
from .minari_infos import common_infos, describe, from_json, last_rows

_METADATA = "metadata.json"
_COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")
_REPAIR = "fetch the dataset again"


@dataclass(frozen=True)
class _Storage:
    folder: Path
    kind: str  # arrow or parquet
    spaces: Mapping[str, Space]  # of observations and actions


def arrow_table(folder: Path, kind: str, declared: Mapping[str, Space]) -> EpisodeTable:
    """Return where the episodes are.

    Args:
        folder: the `data` folder.
        kind: `arrow` or `parquet`.
        declared: the spaces of `observations` and `actions`: the files do not tell the shapes; what they lack is not
            read.

    Raises:
        SourceFormatError: a file is missing or damaged.
    """
    return guarded(folder, kind, partial(_table, _Storage(folder, kind, declared)))


def _table(storage: _Storage) -> EpisodeTable:
    folder = storage.folder
    numbers = sorted(int(item.name) for item in folder.iterdir() if item.name.isdecimal() and item.is_dir())
    tables = ((number, _load(storage, number, ["infos"])) for number in numbers)
    kept, left_out = common_infos(
        {name: describe(column) for name, column in _infos(storage, number, table).items()} for number, table in tables
    )
    notes: tuple[str, ...] = ()
    if numbers and _is_encoded(_load(storage, numbers[0], ["observations"])):
        notes = (NOTE,)
    return EpisodeTable(str(folder), numbers, partial(_read, storage, kept), left_out, notes)


def _read(storage: _Storage, infos: frozenset[str], numbers: list[int]) -> Iterator[RawEpisode]:
    for number in numbers:
        yield guarded(storage.folder / str(number), storage.kind, partial(_episode, storage, infos, number))


def _episode(storage: _Storage, infos: frozenset[str], number: int) -> RawEpisode:
    table = _load(storage, number, [*_COLUMNS, *(["infos"] if infos else [])])
    missing = [name for name in _COLUMNS if name not in table.column_names]
    path = storage.folder / str(number)
    if missing:
        got, allowed = f"no column {', '.join(missing)}", ", ".join(_COLUMNS)
        raise SourceFormatError(explain(str(path), got=got, allowed=allowed, fix=_REPAIR))
    metadata = _metadata(path)
    num_steps = metadata.get("total_steps")
    if not isinstance(num_steps, int) or num_steps not in (len(table) - 1, len(table)):
        num_steps = len(table) - 1
    table_steps = table.slice(0, num_steps)
    observations, actions = (
        _decode(path, name, rows.column(name).combine_chunks(), storage.spaces[name])
        for name, rows in (("observations", table), ("actions", table_steps))
    )
    flags = {name: to_array(path, name, table_steps.column(name)) for name in _COLUMNS[2:]}
    found = {name: column for name, column in _infos(storage, number, table).items() if name in infos}
    return make_episode(
        str(path),
        number,
        observations,
        actions,
        flags,
        {name: last_rows(column, num_steps) for name, column in found.items() if column is not None},
        metadata,
    )


def _load(storage: _Storage, number: int, columns: list[str]) -> Any:
    """Return some columns of an episode; those that it has not are missing."""
    folder = storage.folder / str(number)
    parts = sorted(
        (file for file in folder.iterdir() if file.is_file() and file.name != _METADATA and file.name[0] not in "_."),
        key=lambda file: (len(file.name), file.name),  # part-10 after part-2
    )
    if not parts:
        raise SourceFormatError(explain(str(folder), got=f"no {storage.kind} files", allowed="at least 1", fix=_REPAIR))
    tables = [guarded(part, storage.kind, partial(_open, part, storage.kind, columns)) for part in parts]
    import pyarrow

    return guarded(folder, storage.kind, partial(pyarrow.concat_tables, tables))


def _open(path: Path, kind: str, columns: list[str]) -> Any:
    import pyarrow.ipc
    import pyarrow.parquet as pq

    if kind == "parquet":
        file = pq.ParquetFile(path)
        return file.read([name for name in columns if name in file.schema_arrow.names])
    with pyarrow.OSFile(str(path)) as source:
        table = pyarrow.ipc.open_file(source).read_all()
    return table.select([name for name in columns if name in table.column_names])


def _metadata(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _METADATA).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise SourceFormatError(
            explain(str(folder / _METADATA), got=f"unreadable JSON ({error})", allowed="an object", fix=_REPAIR)
        ) from error
    return found if isinstance(found, dict) else {}


def _decode(path: Path, name: str, column: Any, space: Space) -> Columns:
    """Return the rows of a value of a space."""
    parts = subspaces(space)
    if parts is not None:
        return {
            key: _decode(path, f"{name}/{key}", _field(path, name, column, key), part) for key, part in parts.items()
        }
    import pyarrow

    is_encoded = pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)
    if is_encoded and may_be_encoded(space):
        return decode_images((item.as_py() for item in column), space, f"{path}: column '{name}'")
    rows = to_array(path, name, column)
    shape = tuple(space.shape or ())
    if rows[:1].size != int(np.prod(shape)):
        got, allowed = f"rows of {rows[:1].size} numbers", f"rows of shape {shape}"
        raise SourceFormatError(explain(f"{path}: column '{name}'", got=got, allowed=allowed, fix=_REPAIR))
    return rows.reshape(len(rows), *shape)


def _field(path: Path, name: str, column: Any, key: str) -> Any:
    try:
        return column.field(key)
    except (AttributeError, KeyError) as error:
        fix = _REPAIR
        raise SourceFormatError(
            explain(f"{path}: column '{name}'", got=f"no part {key!r}", allowed="the parts of its space", fix=fix)
        ) from error


def _is_encoded(table: Any) -> bool:
    """Whether any part of the observations is encoded images."""
    kinds = [table.schema.field("observations").type] if "observations" in table.column_names else []
    while kinds:
        kind = kinds.pop()
        if str(kind) in ("binary", "large_binary"):
            return True
        if str(kind).startswith("struct"):
            kinds += [kind.field(i).type for i in range(kind.num_fields)]
    return False


def _infos(storage: _Storage, number: int, table: Any) -> dict[str, Array | None]:
    """Return the infos of an episode by name, None for what holds no numbers; nested names are joined by dots."""
    if "infos" not in table.column_names:
        return {}
    path, column = storage.folder / str(number), table.column("infos").combine_chunks()
    if str(column.type) in ("string", "large_string"):
        return from_json(column.to_pylist(), len(column) - 1, str(path))
    return dict(_struct_infos(path, column, ""))


def _struct_infos(path: Path, column: Any, prefix: str) -> Iterator[tuple[str, Array | None]]:
    if not str(column.type).startswith("struct"):
        return
    for at in range(column.type.num_fields):
        field, values = column.type.field(at), column.field(at)
        name = f"{prefix}{field.name}"
        if str(field.type).startswith("struct"):
            yield from _struct_infos(path, values, f"{name}.")
            continue
        try:
            array = to_array(path, name, values)
            shape = [int(n) for n in (field.metadata or {}).get(b"shape", b"").split(b",") if n]
            array = array.reshape(len(array), *shape) if shape else array
        except (SourceFormatError, ValueError):
            yield name, None
        else:
            yield name, array

"""SampleBatch JSON lines: one batch of steps a line, plain or packed columns."""

import gzip
import io
import json
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from dask_rl.storage.errors import SourceFormatError, explain

from .base import Array
from .row_table import ColumnNames
from .unpack import is_packed, unpack_array

JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".json.zip")
_NEEDED = ("obs", "actions", "rewards")
_DAMAGED = "fetch it again: it is damaged or incomplete"
_MAX_LINE_BYTES = 2**28


def looks_like_sample_batches(path: Path) -> bool:
    """Whether the first line of the file is a SampleBatch.

    Raises:
        SourceFormatError: the file is a damaged archive.
    """
    with _explained(path), _open(path) as file:
        line = file.readline(_MAX_LINE_BYTES)
    try:
        batch = _parse(line, str(path))
    except SourceFormatError:  # not JSON, or not RLlib's
        return False
    return all(name in batch for name in _NEEDED)


@dataclass(frozen=True)
class _Line:
    path: Path
    number: int  # from 1
    offset: int  # bytes, after decompression


class JsonTable:
    """A `Table` (see rllib_rows) whose parts are the lines of the files.

    Raises:
        SourceFormatError: a line is no SampleBatch.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._parts: list[_Line] = []
        self._lines = _LineReader()
        columns = ColumnNames()
        for path in files:
            for part, batch in _scan(path):
                names = frozenset(name for name, value in batch.items() if isinstance(value, list | str))
                self._parts.append(part)
                columns.add(names, self.origin(-1), unusable=batch.keys() - names)
        if not self._parts:
            raise SourceFormatError(explain(str(files[0]), got="no lines", allowed="SampleBatches", fix=_DAMAGED))
        self.names, self.all_names, self.lacking = columns.common, columns.every, columns.lacking

    @property
    def num_parts(self) -> int:
        """Lines in all files."""
        return len(self._parts)

    def origin(self, part: int) -> str:
        """Return the file and line of a part."""
        line = self._parts[part]
        return f"{line.path}, line {line.number}"

    def read(self, part: int, columns: Sequence[str]) -> dict[str, Array]:
        """Return some columns of a part, each (rows, …).

        Raises:
            SourceFormatError: the line is damaged, or a column holds no numbers.
        """
        batch = _parse(self._lines.read(self._parts[part]), self.origin(part))
        return {name: _column(batch[name], f"{self.origin(part)}, column '{name}'") for name in columns}


class _LineReader:
    """Reads lines at their offsets. The last file stays open: to seek in a compressed one from its start takes long."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: BinaryIO = io.BytesIO()
        self._open_files = ExitStack()
        weakref.finalize(self, self._open_files.close)

    def __reduce__(self) -> tuple[type["_LineReader"], tuple[()]]:
        return _LineReader, ()  # another process opens the files itself

    def read(self, line: _Line) -> bytes:
        """Return one line."""
        with _explained(line.path):
            if line.path != self._path:
                self._open_files.close()
                self._file, self._path = self._open_files.enter_context(_open(line.path)), line.path
            self._file.seek(line.offset)
            return self._file.readline()


def _scan(path: Path) -> Iterator[tuple[_Line, Mapping[str, Any]]]:
    with _explained(path), _open(path) as file:
        number, offset = 0, 0
        while text := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(text) > _MAX_LINE_BYTES:
                allowed, fix = f"at most {_MAX_LINE_BYTES}", "write smaller batches"
                raise SourceFormatError(
                    explain(
                        f"{path}, line {number}", got=f"more than {_MAX_LINE_BYTES} bytes", allowed=allowed, fix=fix
                    )
                )
            if text.strip():
                yield _Line(path, number, offset), _parse(text, f"{path}, line {number}")
            offset += len(text)


def _parse(text: bytes, origin: str) -> Mapping[str, Any]:
    return _batch(_loads(text, origin), origin)


def _loads(text: bytes | str, origin: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceFormatError(
            explain(origin, got=f"unreadable JSON ({error})", allowed="one SampleBatch a line", fix=_DAMAGED)
        ) from error


def _batch(value: Any, origin: str) -> Mapping[str, Any]:
    """Return the columns of one line, out of the wrappings that RLlib and pandas put around them."""
    if isinstance(value, dict) and value.keys() == {"value"}:
        value = value["value"]
        value = _loads(value, origin) if isinstance(value, str) else value
    if isinstance(value, dict) and value.get("type") == "MultiAgentBatch":
        policies = value.get("policy_batches")
        if not isinstance(policies, dict) or len(policies) != 1:
            got = f"policies {sorted(policies)}" if isinstance(policies, dict) else "no policies"
            fix = "write one file for each policy"
            raise SourceFormatError(explain(origin, got=got, allowed="one policy", fix=fix))
        value = next(iter(policies.values()))
    if not isinstance(value, dict):
        got = type(value).__name__
        raise SourceFormatError(explain(origin, got=got, allowed="one SampleBatch a line", fix=_DAMAGED))
    return value


def _column(value: Any, origin: str) -> Array:
    if is_packed(value):
        value = unpack_array(value, origin)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.asarray([None])  # ragged
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise SourceFormatError(
            explain(origin, got="values that form no array of numbers", allowed="numbers", fix="flatten the source")
        )
    return array


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or compressed file."""
    name = path.name.lower()
    if name.endswith(".gz"):
        with gzip.open(path, "rb") as file:
            yield cast(BinaryIO, file)
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive, archive.open(_only_member(archive, path)) as file:
            yield cast(BinaryIO, file)
    else:
        with path.open("rb") as file:
            yield file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file's bytes, or a password on them, into a SourceFormatError."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise SourceFormatError(
            explain(str(path), got=f"unreadable ({error})", allowed="a complete file", fix=_DAMAGED)
        ) from error


def _only_member(archive: zipfile.ZipFile, path: Path) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if len(names) != 1:
        raise SourceFormatError(explain(str(path), got=f"{len(names)} files", allowed="one", fix="unpack it first"))
    return names[0]

"""RLlib's recorded experiences: SampleBatch JSON lines, and Parquet with one row a step or one packed episode a row."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dask_rl.storage.errors import SourceFormatError, explain

from .base import ImportOptions, Source
from .rllib_episodes import ITEM, episode_source
from .rllib_json import JSON_SUFFIXES, JsonTable, looks_like_sample_batches
from .rllib_parquet import PARQUET_SUFFIXES, ParquetTable, column_names
from .rllib_rows import make_source
from .row_table import Table


class RllibImporter:
    """Reads a file, or all files of a directory: `.json`, `.json.gz`, `.json.zip` or `.parquet`."""

    name = "rllib"

    def detect(self, path: Path) -> bool:
        """Whether there are Parquet files, or JSON lines that look like SampleBatches."""
        parquet, json_files = _find(path, PARQUET_SUFFIXES), _find(path, JSON_SUFFIXES)
        return bool(parquet) or any(looks_like_sample_batches(file) for file in json_files[:1])

    def read(self, path: Path, options: ImportOptions) -> Source:
        """Open the files; see `Importer`."""
        parquet, json_files = _find(path, PARQUET_SUFFIXES), _find(path, JSON_SUFFIXES)
        if bool(parquet) == bool(json_files):
            got = f"{len(parquet)} Parquet and {len(json_files)} JSON files"
            raise SourceFormatError(
                explain(str(path), got=got, allowed="files of one kind", fix="name the file or directory to read")
            )
        if parquet and ITEM in column_names(parquet[0]):
            return episode_source(parquet)
        table: Table = ParquetTable(parquet) if parquet else JsonTable(json_files)
        return make_source(table, str(path))


def _find(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files with one of the suffixes, in order of their names."""
    candidates: Iterator[Path] = path.iterdir() if path.is_dir() else iter([path])
    return sorted(
        file
        for file in candidates
        if file.name.lower().endswith(tuple(suffixes)) and file.is_file() and not file.name.startswith((".", "_"))
    )

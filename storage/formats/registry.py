"""Which importers there are, and which of them reads a path."""

from pathlib import Path

from dask_rl.storage.errors import ConfigError, DatasetNotFoundError, SourceFormatError, explain

from .base import Importer
from .d3rlpy import D3rlpyImporter
from .d4rl import D4rlImporter
from .minari import MinariImporter
from .npz import NpzImporter
from .replay_buffer import ReplayBufferImporter
from .rllib import RllibImporter

IMPORTERS: dict[str, Importer] = {
    importer.name: importer
    for importer in (
        *(MinariImporter(), D3rlpyImporter(), D4rlImporter()),
        *(ReplayBufferImporter(), NpzImporter(), RllibImporter()),
    )
}


def get_importer(name: str) -> Importer:
    """Return the importer of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in IMPORTERS:
        raise ConfigError(explain("format", got=repr(name), allowed=", ".join(IMPORTERS), fix="name one of these"))
    return IMPORTERS[name]


def detect_format(path: str | Path) -> str:
    """Return the name of the format of what lies at `path`.

    Raises:
        DatasetNotFoundError: nothing lies there.
        SourceFormatError: no importer knows it, or it is damaged.
    """
    path = Path(path)
    check_exists(path)
    if path.is_dir() and not any(path.iterdir()):
        raise SourceFormatError(explain(str(path), got="an empty directory", allowed=_KNOWN, fix="check the path"))
    if path.is_file() and path.stat().st_size == 0:
        raise SourceFormatError(explain(str(path), got="an empty file", allowed=_KNOWN, fix="fetch it again"))
    for name, importer in IMPORTERS.items():
        if importer.detect(path):
            return name
    raise SourceFormatError(
        explain(str(path), got="no known format", allowed=_KNOWN, fix="check the path, or convert the data first")
    )


def check_exists(path: Path) -> None:
    """Raise DatasetNotFoundError if nothing lies at `path`."""
    if not path.exists():
        raise DatasetNotFoundError(
            explain(str(path), got="no such file or directory", allowed=_KNOWN, fix="check the path")
        )


_KNOWN = f"a source of one of the formats {', '.join(IMPORTERS)}"

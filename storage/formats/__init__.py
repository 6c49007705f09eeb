"""Foreign datasets in: one importer a file, one registry, one driver."""

from .arrays import import_arrays
from .base import Importer, ImportOptions, ImportSummary, RawEpisode, Source
from .driver import import_dataset
from .frames import import_frame
from .registry import IMPORTERS, detect_format, get_importer

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "ImportSummary",
    "Importer",
    "RawEpisode",
    "Source",
    "detect_format",
    "get_importer",
    "import_arrays",
    "import_dataset",
    "import_frame",
]

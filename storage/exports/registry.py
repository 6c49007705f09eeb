"""Which exporters there are."""

from dask_rl.storage.errors import ConfigError, explain

from .base import Exporter
from .minari import MinariExporter
from .replay_buffer import ReplayBufferExporter

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        *(MinariExporter("minari", "hdf5"), MinariExporter("minari-arrow", "arrow")),
        *(MinariExporter("minari-parquet", "parquet"), ReplayBufferExporter()),
    )
}


def get_exporter(name: str) -> Exporter:
    """Return the exporter of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in EXPORTERS:
        raise ConfigError(explain("format", got=repr(name), allowed=", ".join(EXPORTERS), fix="name one of these"))
    return EXPORTERS[name]

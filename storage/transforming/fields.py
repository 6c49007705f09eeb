"""Which fields a transformed dataset gets, and under which names."""

from collections.abc import Mapping

from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import INFOS_PREFIX, ArraySpec

from .config import TransformConfig


def choose_fields(path: str, arrays: Mapping[str, ArraySpec], config: TransformConfig) -> dict[str, str]:
    """Return the names of the fields in the source, by those that they get.

    Args:
        path: the source, for messages.
        arrays: of the source, by field.
        config: what the user wants.

    Raises:
        ConfigError: there is no such info, or two would have the same name.
    """
    there = [field.removeprefix(INFOS_PREFIX) for field in arrays if field.startswith(INFOS_PREFIX)]
    wanted = there if config.infos is None else list(dict.fromkeys(config.infos))
    for name in (*wanted, *config.rename_infos):
        if name not in there:
            allowed = ", ".join(there) or "none: it has no infos"
            raise ConfigError(explain(f"infos of {path}", got=repr(name), allowed=allowed, fix="choose one of them"))
    fields = {field: field for field in arrays if not field.startswith(INFOS_PREFIX)}
    for name in there:
        if name not in wanted:
            continue
        new = INFOS_PREFIX + config.rename_infos.get(name, name)
        if new in fields:
            got = f"{fields[new].removeprefix(INFOS_PREFIX)!r} and {name!r}"
            raise ConfigError(explain(new, got=got, allowed="one info of a name", fix="choose another name"))
        fields[new] = INFOS_PREFIX + name
    return fields

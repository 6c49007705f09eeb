"""Which module of a run is meant."""

from collections.abc import Iterable

from dask_rl.learners.batch import ModuleID
from dask_rl.storage.errors import ConfigError, explain


def choose_module(module_id: ModuleID | None, known: Iterable[ModuleID], subject: str = "module_id") -> ModuleID:
    """Return the module that was named; without a name the only one.

    Args:
        module_id: what was named, or None.
        known: the modules that there are.
        subject: how the setting is called where it was, or should have been, given.

    Raises:
        ConfigError: there is no such module, or none was named where there are several.
    """
    ids = sorted(known)
    if module_id is None and len(ids) == 1:
        return ids[0]
    if module_id not in ids:
        got = "nothing, with several modules" if module_id is None else repr(module_id)
        raise ConfigError(explain(subject, got=got, allowed=", ".join(ids), fix="name one of these"))
    return module_id

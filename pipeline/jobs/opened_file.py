"""Whether a file that is held open is still the one of its name."""

from pathlib import Path

from dask_rl.storage.errors import RunStateError, explain


class OpenedFile:
    """The file that has a name now. Connections to it stay with it, also where it is moved away or removed."""

    def __init__(self, path: Path) -> None:
        """Remember it; it must exist."""
        self._path = path
        self._identity = _identity(path)

    def check(self) -> None:
        """Raise RunStateError where the name means another file by now, or none."""
        try:
            is_same = _identity(self._path) == self._identity
        except FileNotFoundError:
            is_same = False
        except OSError:  # a disk that is not there for a while
            return
        if not is_same:
            got, allowed = "another file, or none: it was moved away or removed", "the one that was there at the start"
            fix = "start `dask-rl jobs serve` again"
            raise RunStateError(explain(str(self._path), got=got, allowed=allowed, fix=fix))


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino

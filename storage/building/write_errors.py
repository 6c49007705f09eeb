"""What the operating system says when it refuses to write, as errors that say what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dask_rl.storage.errors import DatasetError, explain

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.EEXIST)


@contextmanager
def explained_write_errors(target: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do.

    Raises:
        DatasetError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in _NO_SPACE:
            fix = "free some space and run the same again: finished shards are kept"
            allowed = "room for the whole dataset"
        elif error.errno in _NOT_WRITABLE:
            fix, allowed = "choose a directory that you can write to", "a writable directory"
        else:
            fix, allowed = "check the disk and run the same again: finished shards are kept", "a working disk"
        raise DatasetError(
            explain(f"cannot write dataset {target}", got=f"{reason}{where}", allowed=allowed, fix=fix)
        ) from error

"""DroppedRows: the rows of update calls for which there was no room, counted when somebody asks."""

import time
from collections.abc import Iterator
from typing import TypeAlias

from distributed import Future

RowCount: TypeAlias = "int | Future | Iterator[int]"
"""A number of rows, a Dask future of it, or numbers to add up, each of which takes a moment."""

_FETCHING_SECONDS = 5.0


class DroppedRows:
    """Adds up rows without holding anybody up for long: what is not known yet is left for the next time."""

    def __init__(self) -> None:
        self._total = 0
        self._open: list[Future | Iterator[int]] = []

    def add(self, count: RowCount) -> None:
        """Take the rows of one more call."""
        if isinstance(count, int):
            self._total += count
        else:
            self._open.append(count)

    def count(self, timeout: float) -> tuple[int, int]:
        """Return the rows that are known by now, and the number of calls of which they are not.

        Where data have failed, nobody could have trained on them: they count as no rows.

        Args:
            timeout: seconds for going through the batches of iterables.
        """
        deadline = time.monotonic() + timeout
        self._open = [count for count in self._open if not self._is_counted(count, deadline)]
        return self._total, len(self._open)

    def _is_counted(self, count: Future | Iterator[int], deadline: float) -> bool:
        try:
            if isinstance(count, Future):
                if count.status != "pending":
                    self._total += count.result(_FETCHING_SECONDS)
                return bool(count.status != "pending")
            while time.monotonic() < deadline:
                self._total += next(count)
        except TimeoutError:
            return False
        except Exception:  # the end of the batches, or an error of the caller's data, whatever it is
            return True
        return False

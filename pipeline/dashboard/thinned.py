"""Thinned: a history of bounded length, however long it goes on."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Keeps at most `limit` of the items that came, evenly spread; the first and the newest are always among them."""

    def __init__(self, limit: int) -> None:
        """Take the limit, at least 3."""
        self._limit = limit
        self._items: list[T] = []
        self._stride = 1
        self._count = 0

    def add(self, item: T) -> None:
        """Take in the newest item."""
        if self._count and (self._count - 1) % self._stride:
            self._items.pop()  # it was there as the newest one only
        self._items.append(item)
        self._count += 1
        if len(self._items) > self._limit:
            self._items, self._stride = self._items[::2], 2 * self._stride
            if self._items[-1] is not item:
                self._items.append(item)

    def __len__(self) -> int:
        """Return the number of items that are kept."""
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """Yield them in order."""
        return iter(self._items)

    def latest(self) -> T | None:
        """Return the newest."""
        return self._items[-1] if self._items else None

"""Values out of messages, which anybody who reaches the scheduler may send: of the right type and size, or nothing."""

import math
from collections.abc import Mapping
from typing import Any

MAX_LETTERS = 500
"""Of a text that is shown."""
MAX_PATH_LETTERS = 4096
"""Of a path: what Linux takes."""
MAX_KEYS, MAX_ITEMS, MAX_DEPTH = 500, 200, 4
"""Of a mapping, of a list, and of either in another."""


def text(value: object, default: str = "") -> str:
    """Return a string in one line of bounded length."""
    if not isinstance(value, str):
        return default
    line = " ".join(value[: 4 * MAX_LETTERS].split())
    return line if len(line) <= MAX_LETTERS else line[: MAX_LETTERS - 1] + "…"


def path(value: object) -> str:
    """Return a path as it is: another spelling would be another place, so one that is too long is none."""
    return value if isinstance(value, str) and len(value) <= MAX_PATH_LETTERS else ""


def number(value: object) -> float | None:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def integer(value: object, default: int = 0) -> int:
    """Return a whole number that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return value if abs(value) < 2**63 else default


def texts(value: object) -> list[str]:
    """Return the strings of a list."""
    items = value[:MAX_ITEMS] if isinstance(value, list | tuple) else ()
    return [text(item) for item in items if isinstance(item, str)]


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping as it is; anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}


def plain(value: object, depth: int = 0) -> Any:
    """Return a JSON value of bounded size: what is too deep, too long or of another type becomes None or is cut off."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    if isinstance(value, float):
        return number(value)
    if depth >= MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_KEYS]
        return {text(key): plain(item, depth + 1) for key, item in items if isinstance(key, str)}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value[:MAX_ITEMS]]
    return None

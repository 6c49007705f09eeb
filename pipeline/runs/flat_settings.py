"""Nested settings as one level of dotted keys."""

from collections.abc import Mapping
from typing import Any


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `{"a.b": c}` of `{"a": {"b": c}}`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat

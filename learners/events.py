"""GroupEvent: something that befell a learner group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GroupEvent:
    """Something that befell a group."""

    name: str
    """learner_lost | rejoined | resized | restarted"""
    time: float
    """Seconds since the epoch."""
    details: Mapping[str, Any]

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

    def __str__(self) -> str:
        """Return it as a sentence for whoever watches the run."""
        size, seconds = self.details.get("num_learners"), self.details.get("seconds", 0.0)
        sentences = {
            "learner_lost": f"learner {self.details.get('learner')} was lost ({self.details.get('cause')})",
            "rejoined": f"the learners go on after {seconds:.1f} s",
            "resized": f"{size} learners go on after {seconds:.1f} s",
            "restarted": f"{size} new learners after {seconds:.1f} s; they begin at the last checkpoint",
        }
        return sentences.get(self.name, self.name)

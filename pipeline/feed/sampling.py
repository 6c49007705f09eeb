"""What one sample of a batch is made of: a step, n steps, a sequence of steps, with stacked frames. Pure: no IO."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import ArraySpec

from .partition import IntArray

Sampler = Literal["epoch", "uniform", "sequences"]
Padding = Literal["left", "right"]

MAX_SEQUENCE_LENGTH, MAX_N_STEP, MAX_FRAME_STACK = 100_000, 10_000, 1_000
"""Beyond these a batch or a block could not be held anyway."""


class Halo(NamedTuple):
    """Rows around a transition that its sample reads, as far as the episode goes."""

    before: int = 0
    """Steps before it."""
    after: int = 0
    """Steps after it."""
    next: int = 0
    """1 where the row behind the last of these steps is read too: its next observation."""


@dataclass(frozen=True)
class Sampling:
    """The settings of the sampler. The defaults give single transitions, each once an epoch.

    A *step* is a usable transition: where next observations are delivered, the last transition of a truncated
    episode without a final observation is none. t counts them from the episode's first, 0; T is their number.
    """

    sampler: Sampler = "epoch"
    """epoch: each step once, in the order of the shard. uniform: windows as for epoch, but the rows of a window
    are drawn with replacement, as many as it holds; where a shard is one window these are independent uniform
    draws from the shard. sequences: each step once, and with it those before or after it."""
    sequence_length: int | None = None
    """L, of sequences alone: every field is (B, L, …), beside `sequence_mask` (B, L) bool, which elements are
    steps, and `timesteps` (B, L) int64, their t. The other elements are zeros."""
    padding: Padding = "left"
    """left: the steps t-L+1 … t, zeros before the episode's first. right: t … t+L-1, zeros behind its last."""
    n_step: int = 1
    """n > 1: with m = min(n, T-t), rewards are Σ γ^i r_{t+i} over i < m, next_observations those of t+m,
    terminations, truncations and next_valid those of t+m-1, and `discounts` (B,) are γ^m, which stand in for γ."""
    frame_stack: int = 1
    """k > 1: observations and next_observations of the stacked fields are (B, k, …), the frames t-k+1 … t, with
    the episode's first frame in place of those before it."""
    frame_stack_fields: tuple[str, ...] | None = None
    """Names of the arrays that are stacked, such as observations/image; None: images of bytes."""

    def __post_init__(self) -> None:
        """Check what needs no dataset."""
        length, is_sequence = self.sequence_length, self.sampler == "sequences"
        rules = {
            "sampler": (self.sampler in ("epoch", "uniform", "sequences"), "epoch, uniform, sequences"),
            "padding": (self.padding in ("left", "right"), "left, right"),
            "sequence_length": (
                length is None if not is_sequence else length is not None and 1 <= length <= MAX_SEQUENCE_LENGTH,
                f"1 to {MAX_SEQUENCE_LENGTH} with sampler=sequences, none without",
            ),
            "n_step": (
                self.n_step == 1 or (1 <= self.n_step <= MAX_N_STEP and not is_sequence),
                f"1 to {MAX_N_STEP}, 1 with sampler=sequences",
            ),
            "frame_stack": (1 <= self.frame_stack <= MAX_FRAME_STACK, f"1 to {MAX_FRAME_STACK}"),
            "frame_stack_fields": (
                self.frame_stack_fields is None or self.frame_stack > 1,
                "names of observations, with frame_stack of 2 or more",
            ),
        }
        for name, (holds, allowed) in rules.items():
            if not holds:
                got = f"{getattr(self, name)}, with sampler={self.sampler}"
                raise ConfigError(explain(name, got=got, allowed=allowed, fix=f"correct {name} or the sampler"))

    @property
    def is_plain(self) -> bool:
        """Whether samples are single transitions, of rows as they are stored."""
        return self.sampler != "sequences" and self.n_step == 1 and self.frame_stack == 1

    @property
    def replacement(self) -> bool:
        """Whether rows are drawn with replacement."""
        return self.sampler == "uniform"

    @property
    def offsets(self) -> IntArray | None:
        """The steps of a sequence, relative to its own, (L,); None for single transitions."""
        if self.sequence_length is None:
            return None
        return np.arange(self.sequence_length) - (self.sequence_length - 1 if self.padding == "left" else 0)

    def halo(self, *, reads_next: bool, stacks: bool) -> Halo:
        """Return the rows around a transition that are read; `stacks`: whether any field is stacked."""
        others = (self.sequence_length or 1) - 1
        is_left = self.padding == "left"
        return Halo(
            before=(others if is_left else 0) + (self.frame_stack - 1 if stacks else 0),
            after=(0 if is_left else others) + self.n_step - 1,
            next=int(reads_next),
        )

    def stacked_fields(self, observations: Iterable[ArraySpec]) -> frozenset[str]:
        """Return which of the arrays of observations are stacked.

        Raises:
            ConfigError: names that are none of them, or no image where none is named.
        """
        if self.frame_stack == 1:
            return frozenset()
        specs = list(observations)
        known = [spec.path for spec in specs]
        if self.frame_stack_fields is None:
            chosen = {spec.path for spec in specs if spec.dtype == np.uint8 and len(spec.row_shape) >= 2}
        else:
            chosen = set(self.frame_stack_fields)
        if not chosen or chosen - set(known):
            raise ConfigError(
                explain(
                    "frame_stack_fields",
                    got=sorted(chosen - set(known)) or "none, and no image of bytes among the observations",
                    allowed=known,
                    fix="name the observations to stack, or set frame_stack to 1",
                )
            )
        return frozenset(chosen)

    def changes(self) -> dict[str, Any]:
        """Return the settings that are not the defaults, as JSON values: what a run records."""
        defaults = Sampling()
        changed = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in changed.items()
            if value != getattr(defaults, name)
        }

"""What a transform of datasets is told."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dask_rl.storage.blocking import check_shard_rows
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import INFO_NAME

from .condition import Condition


class TransformConfig(BaseModel):
    """Which episodes, and what becomes of them; with all defaults the dataset stays as it is.

    Episodes are chosen first, by the returns and lengths that they have in their source: by the bounds, by `where`,
    of those that are left by `top_fraction`; then they are split, then changed. Rewards are replaced, scaled, shifted
    and clipped, in this order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    min_return: float | None = None
    """Smallest undiscounted return of an episode."""
    max_return: float | None = None
    """Largest undiscounted return of an episode."""
    min_length: int | None = Field(default=None, ge=1)
    """Fewest steps of an episode."""
    max_length: int | None = Field(default=None, ge=1)
    """Most steps of an episode."""
    where: str | None = None
    """Condition on an episode, such as "return_ > 100 and not truncated": see `condition.py`."""
    top_fraction: float | None = Field(default=None, gt=0, le=1)
    """Share of what the other filters leave, the largest returns, rounded, at least one; of equal ones the earlier."""
    step_reward: float | None = None
    """What every reward becomes."""
    termination_reward: float | None = None
    """What the reward of a step becomes that terminates its episode."""
    reward_scale: float = 1.0
    """Factor of all rewards."""
    reward_shift: float = 0.0
    """Added to all rewards, once they are scaled."""
    min_reward: float | None = None
    """Lower bound of the rewards that come out; smaller ones become it."""
    max_reward: float | None = None
    """Upper bound of the rewards that come out; larger ones become it."""
    normalize: bool = False
    """Observations that are numbers get mean 0 and standard deviation 1, over the steps that are kept (of a split:
    those for training). The statistics stay in the provenance."""
    denormalize: bool = False
    """Observations that were standardised so become what they were, but for rounding."""
    infos: tuple[str, ...] | None = None
    """Infos to keep, by their names in the source; None keeps all."""
    rename_infos: Mapping[str, str] = Field(default_factory=dict)
    """New names of infos, by the old ones."""
    ids: Literal["keep", "renumber"] = "keep"
    """Episodes keep their ids, which may then occur in several sources, or get 0, 1, … in their order."""
    validation_fraction: float | None = Field(default=None, gt=0, lt=1)
    """Share of the episodes that go to a second dataset, rounded, at least one, and never all."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the choice of those for validation."""
    shard_rows: int | None = Field(default=None, ge=1)
    """Rows of one shard, a power of two; by default chosen by size."""

    @cached_property
    def changes_rewards(self) -> bool:
        """Whether rewards come out other than they were."""
        names = ("step_reward", "termination_reward", "reward_scale", "reward_shift", "min_reward", "max_reward")
        return any(getattr(self, name) != type(self).model_fields[name].default for name in names)

    @property
    def condition(self) -> Condition | None:
        """The condition of `where`."""
        return None if self.where is None else Condition(self.where)

    @field_validator("where")
    @classmethod
    def _check_where(cls, value: str | None) -> str | None:
        if value is not None:
            Condition(value)
        return value

    @field_validator("shard_rows")
    @classmethod
    def _check_rows(cls, value: int | None) -> int | None:
        if value is not None:
            check_shard_rows(value)
        return value

    @field_validator("rename_infos")
    @classmethod
    def _check_names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for old, new in value.items():
            if not INFO_NAME.fullmatch(new):
                allowed = "letters, digits, '_', '.' and '-', beginning with no '.' or '-'"
                raise ConfigError(explain(f"new name of info {old!r}", got=repr(new), allowed=allowed, fix="choose it"))
        return value

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.normalize and self.denormalize:
            raise ConfigError(
                explain("normalize", got="with denormalize", allowed="one of both", fix="leave one of them out")
            )
        for kind in ("return", "length", "reward"):
            low, high = getattr(self, f"min_{kind}"), getattr(self, f"max_{kind}")
            if low is not None and high is not None and low > high:
                allowed = f"at most max_{kind}, {high}"
                raise ConfigError(explain(f"min_{kind}", got=low, allowed=allowed, fix="correct one of them"))
        return self

"""The Algorithm contract: settings, networks, optimizers, ordered phases, pure losses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field

from .batch import Batch
from .images import ImageConfig
from .module import RLModule, RLModuleSpec
from .schedules import Constant, Schedule

OptimizerFactory = Callable[..., torch.optim.Optimizer]


class AlgorithmConfig(BaseModel):
    """Settings that all algorithms share; each algorithm adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    name: str
    """The algorithm's registered name."""
    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((256, 256), max_length=100)
    """Widths of the hidden layers of every network."""
    images: ImageConfig = ImageConfig()
    """Layers in front of them, for observations that are images."""
    learning_rate: float = Field(3e-4, gt=0)
    """Step size of Adam, for networks without a rate of their own."""
    discount: float = Field(0.99, ge=0, le=1)
    """γ, per step."""
    grad_clip: float | None = Field(None, gt=0)
    """Bound on the gradient; None: no clipping."""
    grad_clip_by: Literal["value", "norm", "global_norm"] = "global_norm"
    """Bound each entry, the norm of each tensor, or the norm of all tensors of an optimizer together."""
    normalize_observations: bool = False
    """Whether observations that are numbers are standardised by the dataset's mean and standard deviation."""
    top_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the episodes with the best returns to learn from; 0.1 with BC is 10%BC."""


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer over the parameters whose names begin with one of `prefixes`."""

    prefixes: tuple[str, ...]
    learning_rate: float | Sequence[tuple[int, float]] | Schedule
    """A number, (step, value) points, or a function of the step."""
    factory: OptimizerFactory = torch.optim.Adam
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetUpdate:
    """Move the parameters under `target` towards those under `source` by `rate`, every `every` steps."""

    target: str
    source: str
    rate: float
    every: int = 1


@dataclass(frozen=True)
class Phase:
    """One forward, one backward, one all-reduce, then a step of `optimizers` and the target updates."""

    name: str
    optimizers: tuple[str, ...]
    targets: tuple[TargetUpdate, ...] = ()


C = TypeVar("C", bound=AlgorithmConfig)


class Algorithm(ABC, Generic[C]):
    """One method: stateless, all that it learns lives in the module.

    A subclass sets `name`, `Config` and `required_fields` and gives `module_class` and `losses`; and `optimizers`,
    `phases` and `noise_shapes` where it needs others than the defaults.
    """

    name: ClassVar[str]
    Config: ClassVar[type[AlgorithmConfig]]
    required_fields: ClassVar[tuple[str, ...]]
    """Names of the batch's tensors that `losses` reads."""
    takes_sequences: ClassVar[bool] = False
    """Whether it learns from `sampler: sequences`: fields (B, L, …), with `sequence_mask` and `timesteps` (B, L)."""
    takes_n_step: ClassVar[bool] = False
    """Whether its targets read `discounts` (B,), γ^m after m steps, in place of γ where the batch has them."""

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def module_class(self, spec: RLModuleSpec) -> type[RLModule]:
        """Return the module class for these spaces; raise ConfigError where there is none."""

    @abstractmethod
    def losses(
        self, module: Any, batch: Batch, noise: Mapping[str, torch.Tensor], phase: Phase
    ) -> dict[str, torch.Tensor]:
        """Return the phase's losses by name, each *summed* over the rows that count.

        Pure: no randomness but `noise`, no state but the module's parameters and buffers, no exchange. Each loss
        reaches only the parameters of its own optimizer. Buffers that it writes to, such as moving norms, are of
        this learner's own rows; see `Learner.compute_losses`.
        """

    def optimizers(self, num_steps: int) -> dict[str, OptimizerSpec]:
        """Return the optimizers by name; `num_steps` is the planned length of the run, 0 if open-ended."""
        return {"default": OptimizerSpec(prefixes=("",), learning_rate=Constant(self.config.learning_rate))}

    def phases(self) -> tuple[Phase, ...]:
        """Return the ordered phases of one step; by default one, which steps every optimizer."""
        return (Phase("step", tuple(self.optimizers(0))),)

    def noise_shapes(self, module: Any) -> dict[str, tuple[int, ...]]:
        """Return the shape per row of each tensor of uniform [0, 1) noise that `losses` reads."""
        return {}

    def build_module(self, spec: RLModuleSpec) -> RLModule:
        """Build the module of a spec: the spec's own class, or the algorithm's."""
        cls = spec.module_class or self.module_class(spec)
        return cls(spec.observation_space, spec.action_space, self.config)


def select_parameters(module: RLModule, prefixes: Iterable[str]) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the trainable parameters under the prefixes, in the module's order."""
    wanted = tuple(prefixes)
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad and name.startswith(wanted)]

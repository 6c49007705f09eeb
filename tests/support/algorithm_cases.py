"""The variants of every algorithm that the conformance suite runs over."""

from dataclasses import dataclass, field
from typing import Any

import torch
from beartype import beartype
from jaxtyping import Bool, Float, Shaped, jaxtyped

from dask_rl.learners.batch import DEFAULT_MODULE_ID


@dataclass(frozen=True)
class Case:
    """One variant of an algorithm for one kind of action space."""

    settings: dict[str, Any]
    kind: str
    smooth: dict[str, Any] = field(default_factory=dict)
    """Settings under which the losses of the toy problem fall in every step."""

    def __str__(self) -> str:
        return "-".join([*(str(value) for value in self.settings.values()), self.kind])


OTHERS = ("continuous-nested", "discrete-images")
"""Kinds whose observations are more than one Box of numbers."""
CASES = [
    Case({"name": "bc"}, "continuous"),
    Case({"name": "bc", "policy": "deterministic"}, "continuous"),
    Case({"name": "bc"}, "discrete"),
    *(
        Case({"name": "iql", "update_order": order}, kind, {"temperature": 0.0})
        for order in ("simultaneous", "sequential")
        for kind in ("continuous", "discrete")
    ),
    Case({"name": "iql", "dropout": 0.2}, "continuous", {"temperature": 0.0, "dropout": 0.0}),
    *(
        Case({"name": name}, kind, smooth)
        for name, smooth in (("bc", {}), ("iql", {"temperature": 0.0}))
        for kind in OTHERS
    ),
]
COMPILED = [Case({"name": "bc"}, "discrete"), Case({"name": "iql", "dropout": 0.2}, "continuous")]
"""One variant of each algorithm: compilation takes long."""
COMPILED_OTHERS = [Case({"name": "iql"}, kind) for kind in OTHERS]
UNSUPPORTED: dict[str, tuple[str, ...]] = {"bc": (), "iql": ()}
"""Kinds of action space that an algorithm has no meaning for."""


def noise_for(learner, rows):
    return {name: t.clone() for name, t in learner._noise[DEFAULT_MODULE_ID].draw(0, (0,), rows).items()}


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


# Aliases: in an annotation linters take the shapes for types.
Rows, Flags = Float[torch.Tensor, "B"], Bool[torch.Tensor, "B"]
Observations, Actions = Float[torch.Tensor, "B obs"], Shaped[torch.Tensor, "B *act"]
Part = Shaped[torch.Tensor, "B ..."]
Scalar = Float[torch.Tensor, ""]


@jaxtyped(typechecker=beartype)
def checked_losses(
    algorithm: Any,
    module: Any,
    noise: Any,
    phase: Any,
    batch: dict[str, Part],
    observations: Observations | None,
    actions: Actions,
    rewards: Rows,
    terminations: Rows,
    next_observations: Observations | None,
    next_valid: Flags,
) -> dict[str, Scalar]:
    """The losses of a batch, whose fields are given one by one too, for their shapes."""
    return algorithm.losses(module, batch, noise, phase)

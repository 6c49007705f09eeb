"""An algorithm whose loss ends its own process at a step, every time."""

import os
import signal
from collections.abc import Mapping
from typing import Any, Literal

import torch

from dask_rl.learners.algorithm import Phase
from dask_rl.learners.algorithms.bc import BC, BCConfig
from dask_rl.learners.algorithms.registry import register_algorithm
from dask_rl.learners.batch import Batch

NAME: Any = "deadly"
LAST_STEP = 60


class DeadlyConfig(BCConfig):
    """Settings."""

    name: Literal[NAME] = NAME


@register_algorithm
class Deadly(BC):
    """Behaviour cloning to the death."""

    name = NAME
    Config = DeadlyConfig

    def losses(
        self, module: Any, batch: Batch, noise: Mapping[str, torch.Tensor], phase: Phase
    ) -> dict[str, torch.Tensor]:
        self.num_calls = getattr(self, "num_calls", 0) + 1
        if self.num_calls > LAST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().losses(module, batch, noise, phase)

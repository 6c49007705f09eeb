"""A learner group that starts workers of its own, in a process that has no Dask client."""

import os
import signal
import warnings
from typing import Any

from faults import pid_of
from group_cases import SPEC, group_config, rows_of
from leftovers import Leftovers

from dask_rl.learners.group import LearnerGroup


def begun(num_learners: int) -> LearnerGroup:
    """Return a group that has made a step."""
    group = LearnerGroup(group_config(num_learners), module_spec=SPEC)
    group.update_from_batch(rows_of(8))
    return group


def whole_life(fate: str) -> dict[str, Any]:
    """Train two learners, have something happen to them, shut down; return what is left of it all."""
    warnings.simplefilter("error")
    begun(0).shutdown()  # torch's pools of threads are there from now on
    left = Leftovers(None)
    group = begun(2)
    if fate in ("killed", "replaced"):
        os.kill(pid_of(group, 1), signal.SIGKILL)
    if fate == "replaced":
        group.update_from_batch(rows_of(8))
    group.shutdown()
    found: dict[str, Any] = left.now()
    return found

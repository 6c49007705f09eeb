"""Learners that do not come about, and data that end in an error."""

import os
import signal
import time

from group_cases import rows_of

from dask_rl.learners.learner import Learner


class FailsToBuild(Learner):
    """A bug in a user's own stage."""

    def build(self) -> None:
        super().build()
        raise ZeroDivisionError("no build")


class FailsToJoin(Learner):
    """Rank 1 fails when the group meets, and rank 0 waits for it meanwhile."""

    def join(self, collective, **options) -> None:
        super().join(collective, **options)
        if collective.rank == 1:
            raise ZeroDivisionError("no meeting")
        collective.barrier()


class HangsWhileItBuilds(Learner):
    """Longer than anybody waits."""

    def build(self) -> None:
        time.sleep(1000)


class DiesWhileItBuilds(Learner):
    """As when its memory runs out."""

    def build(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingBatches:
    def __iter__(self):
        yield rows_of(4)
        raise ZeroDivisionError("on purpose")


def step_of_learner(learner: Learner) -> int:
    return learner.step

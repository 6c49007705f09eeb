"""The manager, on handles that need no cluster."""

import pytest

from dask_rl.learners.actor import Outcome, pack
from dask_rl.learners.manager import ActorManager, CallResult, values
from dask_rl.storage.errors import LearnerError, LearnerLostError, PeersLostError, WaitTimeoutError


class Handle:
    """Answers with what it was given, and remembers that it was called."""

    def __init__(self):
        self.called = False

    def prepare(self, method, args):
        packed = pack(args)

        def start():
            self.called = True
            return self

        self.outcome = Outcome(value=(method, packed))
        return start

    loss = None

    def done(self):
        return True

    def result(self, timeout):
        return self.outcome

    def release(self):
        pass


def test_nobody_begins_where_one_call_cannot_be_packed():
    handles = [Handle(), Handle()]
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        ActorManager(handles).call("run", [(1,), ((i for i in "x"),)], timeout=1, stage="updating")
    assert not any(handle.called for handle in handles)


APPLICATION = LearnerError("learner 0, updating: got ZeroDivisionError: division by zero; mend it.")
LOST = LearnerLostError("learner 0: got a lost worker process (Unable to contact Actor's worker); look.")
NO_DATA = WaitTimeoutError("dataset x.zarr, block 3 of shard 0: got no data after 120 seconds; look.")
PEER_LOST = PeersLostError("learner 1 of 2, exchanging gradients: got a lost connection (reset); look.")
PEER_SILENT = PeersLostError("learner 1 of 2, exchanging gradients: got no answer from its peers in 30 s; look.")


@pytest.mark.parametrize("cause", [APPLICATION, LOST, NO_DATA])
@pytest.mark.parametrize("consequence", [PEER_LOST, PEER_SILENT])
def test_the_cause_is_raised_and_not_what_its_peers_saw(cause, consequence):
    for errors in ([cause, consequence], [consequence, cause]):
        with pytest.raises(type(cause)) as caught:
            values([CallResult(rank, error=error) for rank, error in enumerate(errors)])
        assert caught.value is cause

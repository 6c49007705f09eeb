"""RemoteLearnerActor: a learner's actor where Dask runs it."""

from distributed import get_worker

from .actor import LearnerActor
from .calls import unpack
from .published import publish


class RemoteLearnerActor(LearnerActor):
    """A LearnerActor on a Dask worker.

    What a worker cannot unpack, such as a class that it cannot import, fails here; among Dask's own messages it would
    cost the worker its connection to the scheduler.
    """

    # Not one of them comes from a user who wants to end the process: signals are for its main thread, and Dask ends a
    # worker in which sys.exit() or a KeyboardInterrupt goes through.
    _told = (BaseException,)

    def __init__(self, arguments: bytes) -> None:
        """Take the packed arguments of a LearnerActor."""
        try:
            given = unpack(arguments)
        except (SystemExit, KeyboardInterrupt) as error:  # a module that is imported for it, and is a script
            raise ImportError(f"{type(error).__name__}: {error}") from None
        super().__init__(*given)
        publish(self, get_worker())

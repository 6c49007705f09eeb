"""The exceptions a user can meet.

DaskRLError
├── ConfigError          a setting, a job file or a command line option
├── DatasetError         a dataset on disk
│   ├── DatasetNotFoundError
│   ├── StoreAccessError     no permission for a store elsewhere
│   ├── StoreUnreachableError  a store elsewhere does not answer
│   ├── CorruptDataError     bytes that are not what was committed
│   └── InvalidDataError     values that no learner may see: non-finite, outside their space
├── SourceFormatError    a foreign file that no importer can read
├── CheckpointError      a checkpoint that is missing, foreign or damaged
├── LearnerError         a learner failed; carries the remote traceback
│   ├── LearnerLostError     its process is gone, or does not move any more
│   │   ├── PeersLostError       what the others say then: a consequence, not the cause
│   │   ├── GroupLostError       nobody is left who knows the state; a checkpoint takes over
│   │   ├── WorkersMissingError  too few workers to go on; the learners that are left still hold the state
│   │   └── RestartLimitError    learners were lost again and again
│   ├── LearnerStoppedError  it was told to stop
│   └── NonFiniteGradientError
├── WaitTimeoutError     a wait took too long; names what it waited for
└── RunStateError        a run directory that is locked, complete or belongs to another job
"""

from typing import Any


class DaskRLError(ValueError):
    """Base of all errors whose message is meant for the user: got what, allowed what, do what."""


class ConfigError(DaskRLError):
    """A setting, a job file or a command line option is wrong."""


class DatasetError(DaskRLError):
    """A dataset on disk cannot be used."""


class DatasetNotFoundError(DatasetError):
    """There is no dataset at this path."""


class StoreAccessError(DatasetError):
    """Credentials for a store elsewhere are missing or do not suffice."""


class StoreUnreachableError(DatasetError):
    """A store elsewhere does not answer, or not so that it can be used."""


class CorruptDataError(DatasetError):
    """Stored bytes are not what was committed."""


class InvalidDataError(DatasetError):
    """Values that no learner may see: non-finite numbers, actions outside their space."""


class SourceFormatError(DaskRLError):
    """A foreign file that no importer can read."""


class CheckpointError(DaskRLError):
    """A checkpoint is missing, foreign or damaged."""


class LearnerError(DaskRLError):
    """A learner raised; the message carries the remote traceback."""


class LearnerLostError(LearnerError):
    """The process of a learner is gone."""


class PeersLostError(LearnerLostError):
    """A learner's peers are gone or silent: a consequence of what befell one of them."""


class GroupLostError(LearnerLostError):
    """No learner is left that knows the state; the last checkpoint takes over."""


class WorkersMissingError(LearnerLostError):
    """No worker came in place of a lost one in time; the learners that are left still hold the state."""


class RestartLimitError(LearnerLostError):
    """Learners were lost more often than `learners.max_restarts` allows; the message names the last cause."""


class LearnerStoppedError(LearnerError):
    """A learner was told to stop between two steps."""


class NonFiniteGradientError(LearnerError):
    """A gradient was not finite and the run asked to stop there."""


class WaitTimeoutError(DaskRLError):
    """A wait took too long; the message names what it waited for and for how long."""


class RunStateError(DaskRLError):
    """A run directory is locked by a live run, or belongs to another job."""


def explain(subject: str, *, got: Any, allowed: Any = None, fix: str) -> str:
    """Format one line for the user: what is wrong, what was got, what is allowed, what to do.

    >>> explain("batch_size", got=100, allowed="a multiple of num_shards=8", fix="use 96 or 104")
    'batch_size: got 100; allowed: a multiple of num_shards=8; use 96 or 104.'
    """
    middle = "" if allowed is None else f"; allowed: {allowed}"
    end = "" if fix.endswith("?") else "."
    line = f"{subject}: got {got}{middle}; {fix.rstrip('.')}{end}"
    line = " ".join(line.splitlines())  # a name or a foreign message may hold line breaks
    # and so may it hold what a terminal would obey
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def taken_by_another_writer(target: object, place: str) -> DatasetError:
    """Return the refusal of a second writer.

    Args:
        target: the dataset.
        place: what it lies at, for the remedy: path or URL.
    """
    got, fix = "another process that writes it now", f"wait for it, or choose another {place}"
    return DatasetError(explain(f"dataset {target}", got=got, allowed="one writer at a time", fix=fix))

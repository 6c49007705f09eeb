"""Learner groups whose learners live in threads of this process, exchange for real, and can be lost."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from crew_cases import Bench, MeetingActor, ThreadHandle

from dask_rl.learners.config import LearnerGroupConfig
from dask_rl.learners.crew import Crew
from dask_rl.learners.group import LearnerGroup


class Late(Bench):
    """Its spares are constructed when they are needed, as actors on free workers are."""

    def __init__(self, spares: Sequence[ThreadHandle], blueprint: Callable[[], Sequence[Any]]) -> None:
        super().__init__(spares)
        self._blueprint = blueprint

    def replacements(self, count: int, taken: Collection[str], budget: Any) -> list[Any]:
        found = super().replacements(count, taken, budget)
        for handle in found:
            handle.actor = MeetingActor(*self._blueprint())
        return found


class ThreadedGroup(LearnerGroup):
    """A group with spare actors, which are constructed with it or when they are needed."""

    def __init__(self, config: LearnerGroupConfig, *, num_spares: int = 0, is_early: bool = False, **options: Any):
        self._num_spares, self._is_early = num_spares, is_early
        super().__init__(config, **options)

    def _enlist(self, client: Any) -> Crew:
        size = self.config.learners.num_learners
        handles = [
            ThreadHandle(MeetingActor(*self._blueprint()), f"place {place}") for place in range(size + self._num_spares)
        ]
        self.bench = Bench(handles[size:]) if self._is_early else Late(handles[size:], self._blueprint)
        return Crew(self.config.learners, handles[:size], self.bench)  # type: ignore[arg-type]

    def shutdown(self) -> None:
        """Also of the spares."""
        super().shutdown()
        for handle in self.bench.spares:
            handle.release()


def before_next(handle: ThreadHandle, method: str, act: Callable[[], None]) -> None:
    """Do something just before the next call of a method is started."""
    prepare = handle.prepare

    def preparing(name: str, args: Any) -> Any:
        start = prepare(name, args)
        if name != method:
            return start

        def starting() -> Any:
            handle.prepare = prepare  # type: ignore[method-assign]
            act()
            return start()

        return starting

    handle.prepare = preparing  # type: ignore[method-assign]


def fail_next(learner: Any, name: str, error: BaseException) -> None:
    """Have the next call of a learner's method raise, once."""

    def failing(*args: Any, **kwargs: Any) -> None:
        delattr(learner, name)
        raise error

    setattr(learner, name, failing)

"""LearnerGroup: one or many learners that take every step together."""

import atexit
import contextlib
import os
import sys
import types
import uuid
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distributed import Client, get_client

from dask_rl.storage.checkpoints.store import load_checkpoint, load_metadata
from dask_rl.storage.errors import CheckpointError, ConfigError, DaskRLError, LearnerLostError, explain
from dask_rl.storage.html import html_table

from .actor import LearnerActor
from .agreement import ShouldBeUpdated
from .algorithms.registry import parse_algorithm
from .config import LearnerGroupConfig
from .crew import Crew
from .dispatcher import Dispatcher
from .dropped_rows import DroppedRows
from .group_modules import GroupModules
from .handles import LOST, LocalHandle
from .hiring import Hiring
from .iterator import Iterables
from .learner import Learner
from .module import MultiRLModuleSpec, RLModuleSpec
from .own_cluster import open_own_cluster
from .published import GroupIdentity
from .saved_module import check_weights, reading

_CLOSE_SECONDS = 10.0
_LIVE: "weakref.WeakSet[LearnerGroup]" = weakref.WeakSet()
"""Groups that are shut down at the end of the process, where nobody did before."""
MIN_OWN_WORKERS, OWN_WORKERS_PER_CORE = 8, 4
"""Bounds on the workers that a group starts by itself."""


class LearnerGroup(GroupModules):
    """A group of learners with equal weights, each on its own worker, or one in this process.

    A learner that is lost or hangs is replaced, and the updates under way go on where they were: their outcome does
    not change by a bit. An error of a loss or of data is raised here, and leaves the group usable.

    Args:
        config: the algorithm, the learners, the seed; copied.
        module_spec: the spaces (and module class) of each module.
        client: the Dask client to use. None: the current default client, else workers of the group's own.
        learner_class: a subclass of Learner with stages of your own.
        should_module_be_updated: which modules updates train, as ids or as a function of (module id, batch) that is
            asked on every learner in every step; None: those of the config.
        name: what the group is called on the dashboard; need not be the only one of that name.

    Raises:
        ConfigError: no module, or not enough workers or GPUs.
        WaitTimeoutError: the learners do not come up in time.
    """

    def __init__(
        self,
        config: LearnerGroupConfig,
        *,
        module_spec: MultiRLModuleSpec | RLModuleSpec,
        client: Client | None = None,
        learner_class: type[Learner] = Learner,
        should_module_be_updated: ShouldBeUpdated = None,
        name: str = "group",
    ) -> None:
        self.identity = GroupIdentity(uuid.uuid4().hex[:12], name)
        self._owned = ExitStack()
        _LIVE.add(self)
        self._crew: Crew | None = None
        self._dispatcher: Dispatcher | None = None
        self.module_spec = MultiRLModuleSpec.of(module_spec)
        if not self.module_spec.modules:
            raise ConfigError(explain("module_spec", got="no module", allowed="at least one", fix="give it a module"))
        resolved = config.learners.resolved(config.num_steps)
        self.config = config.model_copy(update={"learners": resolved}, deep=True)
        self._learner_class = learner_class
        self._should_module_be_updated = self._choose_modules(should_module_be_updated)
        self._module_states = {}
        self._iterables = Iterables()
        self._num_requests = self._num_dropped_requests = 0
        self._dropped_rows = DroppedRows()
        try:
            self._crew = self._assemble(client)
            self._dispatcher = Dispatcher(self._crew, resolved)
            self._crew.meet_first()
        except BaseException:
            self.shutdown()
            raise

    def _assemble(self, client: Client | None) -> Crew:
        crew = self._enlist(client)
        crew.blueprint = self._blueprint
        return crew

    def _enlist(self, client: Client | None) -> Crew:
        settings = self.config.learners
        if self.is_local:
            return Crew(settings, [LocalHandle(LearnerActor(*self._blueprint()))], None)
        hiring = Hiring(client or self._find_client(), settings, self._blueprint)
        return Crew(settings, hiring.first(), hiring)

    def _find_client(self) -> Client:
        try:
            return get_client()
        except ValueError:
            _refuse_a_crowd(self.config.learners.num_learners)
            return self._owned.enter_context(open_own_cluster(self.config.learners))

    @property
    def crew(self) -> Crew:
        """The learners' actors; raises ConfigError after `shutdown`."""
        if self._crew is None:
            raise _shut_down()
        return self._crew

    @property
    def dispatcher(self) -> Dispatcher:
        """The update requests under way; raises ConfigError after `shutdown`."""
        if self._dispatcher is None:
            raise _shut_down()
        return self._dispatcher

    def restart(self) -> None:
        """Begin anew with other learners and initial weights, after a GroupLostError; set a saved state then."""
        self.dispatcher.drop_all()
        self.crew.restart()
        self._iterables = Iterables()
        self._num_requests = 0

    @classmethod
    def from_checkpoint(cls, path: str | Path, **overrides: Any) -> "LearnerGroup":
        """Build a group from a checkpoint; `overrides` replace arguments of the constructor.

        Raises:
            CheckpointError: it is missing, damaged or foreign.
            ConfigError: it names an algorithm or module class that is not registered.
        """
        metadata = load_metadata(path)
        if metadata.get("class_name") != "LearnerGroup":
            got = f"a checkpoint of {metadata.get('class_name')!r}"
            raise CheckpointError(explain(str(path), got=got, allowed="one of a LearnerGroup", fix="choose another"))
        with reading(path):
            constructor = metadata["constructor"]
            if "config" not in overrides:
                overrides["config"] = _config_from_json(constructor["config"])
            if "module_spec" not in overrides:
                overrides["module_spec"] = MultiRLModuleSpec.from_json(constructor["module_spec"])
            weights, _ = load_checkpoint(path, component="learner/rl_module")
            for module_id, spec in MultiRLModuleSpec.of(overrides["module_spec"]).modules.items():
                check_weights(spec, overrides["config"].algorithm_of(module_id), weights.get(module_id, {}), path)
        group = cls(overrides.pop("config"), **overrides)
        try:
            group.restore_from_path(path)
        except BaseException:
            group.shutdown()
            raise
        return group

    def shutdown(self) -> None:
        """End learners, updates under way and owned workers; nothing stays behind. May be called again."""
        crew, self._crew, self._dispatcher = self._crew, None, None
        with self._owned:  # let go of, whatever becomes of the calls
            if crew is None:
                return
            try:
                for actor_id in crew.manager.healthy_actor_ids:
                    with contextlib.suppress(*LOST):
                        crew.manager.handles[actor_id].stop()
                with contextlib.suppress(LearnerLostError):  # a scheduler that is gone ends nobody's process any more
                    crew.close(_CLOSE_SECONDS)
            finally:
                crew.release()

    def __enter__(self) -> "LearnerGroup":
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()

    def __repr__(self) -> str:
        return f"LearnerGroup({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table(f"learner group {self.identity.name}", self._facts())

    def _facts(self) -> dict[str, Any]:
        """Return what this process knows of the group; asks no learner, which may be busy."""
        modules = self.module_spec.modules
        facts: dict[str, Any] = {
            "modules": ", ".join(f"{id_} ({self.config.algorithm_of(id_).name})" for id_ in sorted(modules))
        }
        if self._crew is None:
            return facts | {"state": "shut down"}
        return facts | {
            "learners": f"{len(self)}, {len(self._crew.manager.healthy_actor_ids)} healthy",
            "update_calls": self._num_requests,
            "generation": self._crew.generation,
            "restarts": self._crew.num_restarts,
        }

    def __del__(self) -> None:
        """Shut down a group that was let go of; at the end of the process `_shut_down_all` has done so."""
        if getattr(self, "_crew", None) is not None and not sys.is_finalizing():
            with contextlib.suppress(DaskRLError, *LOST):
                self.shutdown()


@atexit.register  # runs before Dask's own, which closes clients and clusters: without their loop a call never ends
def _shut_down_all() -> None:
    for group in list(_LIVE):
        with contextlib.suppress(DaskRLError, *LOST):
            group.shutdown()


def _shut_down() -> ConfigError:
    return ConfigError(explain("learner group", got="a call after shutdown", fix="make a new LearnerGroup"))


def _refuse_a_crowd(num_learners: int) -> None:
    """Refuse to start many more workers than there are cores: a checkpoint may ask for any number of learners."""
    allowed = max(MIN_OWN_WORKERS, OWN_WORKERS_PER_CORE * len(os.sched_getaffinity(0)))
    if num_learners > allowed:
        fix = "pass the client of a cluster that is large enough, or a config with fewer learners"
        raise ConfigError(explain("learners.num_learners", got=num_learners, allowed=f"{allowed} here", fix=fix))


def _config_from_json(config: dict[str, Any]) -> LearnerGroupConfig:
    """Build the config of a checkpoint; its errors are ConfigErrors, which pydantic would wrap."""
    modules = config.get("module_algorithms", {})
    parsed = {
        "algorithm": parse_algorithm(config["algorithm"]),
        "module_algorithms": {module_id: parse_algorithm(settings) for module_id, settings in modules.items()},
    }
    return LearnerGroupConfig.model_validate(config | parsed)

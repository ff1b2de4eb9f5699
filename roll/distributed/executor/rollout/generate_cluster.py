"""The rollout engines, as the driver and the clients in other processes reach them."""

from __future__ import annotations

from collections.abc import Sequence

from roll.distributed.executor.placement import Claim
from roll.distributed.executor.processes.cluster import Calls, Cluster
from roll.distributed.executor.processes.resource_manager import devices_of
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS, EngineClient
from roll.distributed.executor.rollout.engines import EngineRecovery
from roll.distributed.strategy.base import State
from roll.errors import RollError, WorkerError, describe
from roll.types.rollout import GenerationRequest


class GenerateCluster(EngineClient):
    """The workers of a role that samples. `generate` is called on one event loop; the other methods from the driver's
    thread. With `recovery`, engines that die are restarted, and only `heal` waits for them; without, the others go on
    alone."""

    stores_answers = True
    takes_cut = True

    def __init__(
        self,
        cluster: Cluster,
        recovery: EngineRecovery | None = None,
        room: int | None = None,
        leaves_whole: bool = False,
    ):
        """`room`: answers that an engine works on at once. With `leaves_whole` all engines leave their devices where
        one has to."""
        super().__init__(cluster.workers, room=room)
        self.cluster = cluster
        self.recovery = recovery
        self._room = room
        ranks = range(len(cluster))
        self._ranks_of_part = [list(ranks)] if leaves_whole else [[rank] for rank in ranks]

    @property
    def role(self) -> str:
        return self.cluster.role

    @property
    def parts(self) -> list[frozenset[int]]:
        """Engines come and go one by one."""
        seats = self.cluster.seats
        return [devices_of(seats[rank] for rank in ranks) for ranks in self._ranks_of_part]

    @property
    def ready(self) -> Calls:
        return self.cluster.ready

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("offload_states", states, parts)

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("load_states", states, parts)

    def hand_over(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("hand_over", states, parts)

    @property
    def everything(self) -> Claim:
        return Claim(self)

    @property
    def weights(self) -> Claim:
        return Claim(self, frozenset({State.WEIGHTS}))

    def client(self, name: str = "") -> EngineClient:
        """Another way to the engines, to be sent to another process. Each needs a name of its own."""
        return EngineClient(self.cluster.workers, name, self._room)

    def forget_client(self, name: str) -> None:
        """The process of this client is gone: the engines drop its requests. Does not wait."""
        self.cluster.workers.start("forget_client", dict.fromkeys(range(len(self.cluster)), (name,)))

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """These requests (None: all) end early, with what was sampled."""
        self._tell("abort", request_ids)

    def probe(self, request: GenerationRequest) -> Calls:
        """Asks every engine that serves for one answer, beside the requests of all clients. Does not wait."""
        serving = range(len(self.cluster)) if self.recovery is None else self.recovery.serving()
        return self.cluster.workers.start("probe", dict.fromkeys(serving, (request,)))

    def heal(self) -> bool:
        """Waits before a weight update until all engines can take part in it. True if some were restarted."""
        return self.recovery is not None and self.recovery.finish()

    @property
    def waits_for_weights(self) -> bool:
        """True if some engine died, and serves again after the next weight update only."""
        return self.recovery is not None and bool(self.recovery.under_way())

    def metrics(self) -> dict[str, float]:
        """What replicas cost the run so far; nothing for an engine that cannot be replaced."""
        if self.recovery is None:
            return {}
        return {
            "rollout/restarted_engines": float(self.recovery.num_restarts),
            RETRIED_REQUESTS: float(self.num_retries),
        }

    def _move(self, method: str, states: frozenset[State], parts: Sequence[int]) -> Calls:
        """An engine that is being restarted, also one that dies of it, comes back with all its states."""
        ranks, recovery = [rank for part in parts for rank in self._ranks_of_part[part]], self.recovery
        if recovery is None:
            return self.cluster.workers.start(method, dict.fromkeys(ranks, (states,)))
        recovery.notice()
        serving = {*recovery.serving()}
        calls = self.cluster.workers.start(method, {rank: (states,) for rank in ranks if rank in serving})
        calls.forgives = recovery.replaces
        return calls

    def _tell(self, method: str, *arguments: object) -> None:
        if self.recovery is None:
            self.cluster.call_all(method, *arguments)
        else:
            self.recovery.tell(method, *arguments)

    def _lost(self, rank: int, error: RollError) -> None:
        super()._lost(rank, error)
        if self.recovery is not None:
            self.recovery.lost(rank)

    def start_setup(self) -> Calls:
        return self.cluster.start_all("setup")


class ApartCluster(GenerateCluster):
    """Engines that stand apart from the run's rows and weights, as a judge's: answers come with their tokens, and an
    engine that was restarted serves at once. Meanwhile requests wait for it where there is no other."""

    stores_answers = False
    takes_cut = False
    waits = True

    def _lost_for_good(self, rank: int, error: RollError) -> RollError | None:
        if self.recovery is None:
            return error
        failure = self.recovery.failure(rank)
        return failure if isinstance(failure, RollError) or failure is None else WorkerError(describe(failure))

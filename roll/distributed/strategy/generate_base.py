"""Interface of rollout engines."""

from abc import abstractmethod
from collections.abc import Sequence

from roll.distributed.strategy.base import Strategy
from roll.distributed.weights.bucket import BucketSource, GroupSpec
from roll.types.rollout import Answered, Generation, GenerationRequest


class GenerateStrategy(Strategy):
    """A rollout engine. All methods are called from one event loop; many `generate` calls are in flight at once. But
    `offload_states` and `load_states` block: they are called from another thread.

    Between the two nothing is sampled, on a CPU either, and requests in flight are kept: they go on when all states are
    back, with keys and values computed anew by the weights of then."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """Version of the weights in use; 0 before the first update."""

    @abstractmethod
    async def start(self) -> None:
        """Finishes what needs a running event loop. Called once after `setup`."""

    @abstractmethod
    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        """`request.num_samples` answers; `answered` is told of each on the event loop, before this returns.
        Raises StrategyError when the request cannot be served (over-long prompt), EngineDied when no request can."""

    @abstractmethod
    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Ends these requests (None: all); their `generate` calls return what was sampled, with finish reason
        "abort"."""

    async def check_health(self) -> None:
        """Raises EngineDied if the engine can serve no more requests."""

    async def heartbeat(self) -> None:
        """Returns as soon as the engine comes by, between two of its steps: a sign that it does not hang."""

    @property
    def num_weight_receivers(self) -> int:
        """How many processes of this engine read weights (its tensor-parallel ranks)."""
        return 1

    @property
    def takes_parts(self) -> bool:
        """True if weight updates may leave out what did not change; asked for once it is started."""
        return True

    @abstractmethod
    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        """Joins a broadcast group with `num_weight_receivers` ranks from `first_rank` on. Returns when all members are
        in."""

    @abstractmethod
    async def begin_weight_update(self, whole: bool = True) -> None:
        """Prepares for the first bucket of weights. Nothing is sampled until `finish_weight_update`; requests in flight
        are kept, and new ones wait. Called again after an interrupted update. Unless the update is `whole`, weights
        that are not sent keep their values: there was a whole update before."""

    @abstractmethod
    async def import_weights(self, source: BucketSource) -> None:
        """One bucket of new weights, from where `source` says. When it returns, the source may be overwritten."""

    @abstractmethod
    async def finish_weight_update(self, version: int) -> None:
        """Finishes the update after the last bucket. `policy_version` becomes `version`, and no new request uses keys
        and values of older weights. Those of requests in flight are recomputed, unless the engine `keeps_kv`."""

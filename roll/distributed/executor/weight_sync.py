"""actor_train -> actor_infer: has the trainer send its weights to all engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from roll.distributed.executor.cluster import Cluster
from roll.distributed.executor.weight_routes import RouteKey, plan_send
from roll.errors import WorkerError

logger = logging.getLogger(__name__)


class WeightSync:
    """Publishes the trainer's weights to all engines. The buckets go from the sending rank to the engines directly."""

    def __init__(
        self,
        trainer: Cluster,
        sender_rank: int,
        engines: Cluster,
        num_ranks: Sequence[int],
        bucket_bytes: int,
        route: RouteKey = "auto",
        directory: Path | None = None,
    ):
        self._trainer = trainer
        self._engines = engines
        self._bucket_bytes = bucket_bytes
        self._sender_rank = sender_rank
        self.plan = plan_send(trainer.seats, sender_rank, engines.seats, num_ranks, route, directory)

    def renew(self) -> None:
        """Called when an engine was restarted: buffers and groups that it had joined are of no use to it."""
        self.plan = replace(self.plan, generation=self.plan.generation + 1)

    def publish_healing(self, version: int, heal: Callable[[], bool]) -> None:
        """`publish` to engines that may die on the way: `heal` brings dead ones back and says whether there were any.
        Raises what `publish` raises if no engine died of it."""
        while True:
            try:
                self.publish(version)
                return
            except WorkerError as error:
                if not heal():
                    raise
                logger.warning("the weights are sent again, since an engine died meanwhile: %s", error)
                self.renew()

    def publish(self, version: int) -> None:
        """Returns when every engine uses the weights under this version. Engines must be paused or idle."""
        replies = self._trainer.call_all(
            "publish_weights", self._engines.workers, self.plan, self._bucket_bytes, version
        )
        versions = replies[self._sender_rank]
        if versions != [version] * len(self._engines):
            raise WorkerError(
                f"after the weight update to version {version} the engines of {self._engines.role} report {versions}"
            )

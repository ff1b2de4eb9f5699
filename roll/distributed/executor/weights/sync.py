"""actor_train -> actor_infer: has the trainer send its weights to all engines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.weights.send_plan import SendPlan
from roll.errors import WorkerError

logger = logging.getLogger(__name__)


class WeightSync:
    """Publishes the trainer's weights to all engines. The buckets go from the sending ranks to the engines directly."""

    def __init__(self, trainer: Cluster, engines: Cluster, bucket_bytes: int, plan: SendPlan):
        self._trainer = trainer
        self._engines = engines
        self._bucket_bytes = bucket_bytes
        self._plan = plan
        logger.info("the weights of %s go to %s", trainer.role, _summary(plan))

    def renew(self) -> None:
        """Called when an engine was restarted: buffers and groups that it had joined are of no use to it."""
        self._plan = replace(self._plan, generation=self._plan.generation + 1)

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
        """Returns when every engine uses the weights under this version."""
        replies = self._trainer.call_all(
            "publish_weights", self._engines.workers, self._plan, self._bucket_bytes, version
        )
        versions = replies[self._plan.lead]
        if versions != [version] * len(self._engines):
            raise WorkerError(
                f"after the weight update to version {version} the engines of {self._engines.role} report {versions}"
            )


def _summary(plan: SendPlan) -> str:
    """Example: 2 engines by cuda_ipc from ranks 0 1 2 3, 1 engine by broadcast from rank 0."""
    parts = []
    for route in dict.fromkeys(way.route for way in plan.ways):
        ways = [way for way in plan.ways if way.route == route]
        ranks = sorted({rank for way in ways for rank in way.senders})
        engines = f"{len(ways)} engine{'s' if len(ways) > 1 else ''}"
        parts.append(f"{engines} by {route} from rank{'s' if len(ranks) > 1 else ''} {' '.join(map(str, ranks))}")
    return ", ".join(parts)

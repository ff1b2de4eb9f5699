"""actor_train -> actor_infer: has the trainer send its weights to all engines."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.weights.send_plan import SendPlan, Sent
from roll.errors import WorkerError

logger = logging.getLogger(__name__)

_GENERATIONS = itertools.count(1)  # one trainer may send to several roles, one after another


class WeightSync:
    """Publishes the trainer's weights to all engines. The buckets go from the sending ranks to the engines directly."""

    def __init__(self, trainer: Cluster, engines: Cluster, bucket_bytes: int, plan: SendPlan):
        self._trainer = trainer
        self._engines = engines
        self._bucket_bytes = bucket_bytes
        self._plan = plan
        self.renew()
        self._whole_at: int | None = None  # the generation of receivers that have had all weights
        self.sent_bytes = 0  # in the last update, to each engine
        logger.info("the weights of %s go to %s", trainer.role, _summary(plan))

    def renew(self) -> None:
        """Called when an engine was restarted: buffers and groups that it had joined are of no use to it."""
        self._plan = replace(self._plan, generation=next(_GENERATIONS))

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
                logger.warning("sending the weights again, since an engine died: %s", error)
                self.renew()

    def publish(self, version: int) -> None:
        """Returns when every engine uses the weights under this version. Engines that have had all weights once get
        those that training changes."""
        whole, self._whole_at = self._whole_at != self._plan.generation, None  # unless it succeeds
        replies: list[Sent | None] = self._trainer.call_all(
            "publish_weights", self._engines.workers, self._plan, self._bucket_bytes, version, whole
        )
        sent = replies[self._plan.lead]
        versions = None if sent is None else sent.versions
        if sent is None or versions != [version] * len(self._engines):
            raise WorkerError(
                f"after the weight update to version {version} the engines of {self._engines.role} report {versions}"
            )
        self.sent_bytes = sent.num_bytes
        if not whole or all(self._engines.call_all("takes_parts")):
            self._whole_at = self._plan.generation


def _summary(plan: SendPlan) -> str:
    """Example: 2 engines by cuda_ipc from ranks 0 1 2 3, 1 engine by broadcast from rank 0."""
    parts = []
    for route in dict.fromkeys(way.route for way in plan.ways):
        ways = [way for way in plan.ways if way.route == route]
        ranks = sorted({rank for way in ways for rank in way.senders})
        engines = f"{len(ways)} engine{'s' if len(ways) > 1 else ''}"
        parts.append(f"{engines} by {route} from rank{'s' if len(ranks) > 1 else ''} {' '.join(map(str, ranks))}")
    return ", ".join(parts)

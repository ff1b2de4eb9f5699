"""Publishing of the trained weights to the engines: when and how."""

import logging

from roll.distributed.executor.clusters import RLClusters
from roll.rl.parts import GroupSource

logger = logging.getLogger(__name__)


class Publisher:
    """Brings the trained weights to the engines, and knows which they have."""

    def __init__(self, frequency: int, runs_ahead: bool = False):
        """`is_async`: groups of later steps may be under way meanwhile."""
        self.engine_version = 0  # the steps behind the weights that the engines have
        self.version = 0  # the steps behind the weights that learn
        self._frequency, self._is_async = frequency, runs_ahead

    def publish(self, clusters: RLClusters, scheduler: GroupSource, version: int, is_last: bool) -> dict[str, float]:
        """Brings the trained weights to the engines, in steps that model_update_frequency names, in the last one, and
        where an engine that died has none. Groups that are under way stand still for as long as their engine reads,
        and go on with the new weights. Returns metrics."""
        self.version = version
        is_due = version % self._frequency == 0 or is_last or self.engines_paused(clusters)
        metrics = {"sync/sent_bytes": float(self.send(clusters, version))} if is_due else {}
        if is_due or not self._is_async:  # else the step has learnt: its groups give their room back in any case
            scheduler.published(version)
        return metrics

    def engines_paused(self, clusters: RLClusters) -> bool:
        """True if an engine waits for an update before it samples again."""
        return clusters.actor_infer.waits_for_weights

    def send(self, clusters: RLClusters, version: int) -> int:
        """Returns how many bytes of weights each engine got."""
        with clusters.placement.hold(clusters.actor_train.weights, clusters.actor_infer.weights):
            sent_bytes = clusters.publish_weights(version)
        self.engine_version = self.version = version
        return sent_bytes

    def revive(self, clusters: RLClusters, scheduler: GroupSource) -> None:
        """Brings all weights of now to the engines that took the place of those that died."""
        engines = clusters.actor_infer
        logger.warning("all engines of %s died: the new ones get the weights of step %d", engines.role, self.version)
        is_newer = self.version > self.engine_version
        self.send(clusters, self.version)
        if is_newer:
            scheduler.published(self.version)
        with clusters.placement.hold(engines.everything):  # as it was before the weights were sent
            pass

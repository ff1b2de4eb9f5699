"""When the trained weights go to the engines."""

from __future__ import annotations

from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler


class Publisher:
    """Brings the trained weights to the engines, and knows which they have."""

    def __init__(self, frequency: int):
        self.engine_version = 0  # the steps behind the weights that the engines have
        self._frequency = frequency

    def publish(self, clusters: RLClusters, scheduler: RolloutScheduler, version: int, is_last: bool) -> None:
        """Brings the trained weights to the engines, in steps that model_update_frequency names, in the last one, and
        where an engine that died has none. Nothing is sampled meanwhile."""
        if version % self._frequency == 0 or is_last or clusters.actor_infer.waits_for_weights:
            self.send(clusters, scheduler, version)
        scheduler.published(version)  # the step has learnt in any case: its groups give their room back

    def send(self, clusters: RLClusters, scheduler: RolloutScheduler, version: int) -> None:
        with clusters.placement.hold(clusters.actor_train.weights, clusters.actor_infer.weights):
            clusters.publish_weights(version, pause=scheduler.num_running > 0)
        self.engine_version = version

"""Publishing of the trained weights to the engines: when and how."""

from __future__ import annotations

from typing import Protocol

from roll.distributed.executor.rl_clusters import RLClusters


class Published(Protocol):
    """Who has groups under way (`RolloutScheduler`)."""

    def trained(self) -> None: ...

    def published(self, version: int) -> None: ...


class Publisher:
    """Brings the trained weights to the engines, and knows which they have."""

    def __init__(self, frequency: int, runs_ahead: bool = False):
        """`runs_ahead`: groups of later steps may be under way meanwhile."""
        self.engine_version = 0  # the steps behind the weights that the engines have
        self._frequency, self._runs_ahead = frequency, runs_ahead

    def publish(self, clusters: RLClusters, scheduler: Published, version: int, is_last: bool) -> dict[str, float]:
        """Brings the trained weights to the engines, in steps that model_update_frequency names, in the last one, and
        where an engine that died has none. Groups that are under way stand still for as long as their engine reads,
        and go on with the new weights. Returns metrics."""
        scheduler.trained()
        is_due = version % self._frequency == 0 or is_last or self.engines_wait(clusters)
        metrics = {"sync/sent_bytes": float(self.send(clusters, version))} if is_due else {}
        if is_due or not self._runs_ahead:  # else the step has learnt: its groups give their room back in any case
            scheduler.published(version)
        return metrics

    def engines_wait(self, clusters: RLClusters) -> bool:
        """True if some engine serves again only after an update."""
        return clusters.actor_infer.waits_for_weights

    def send(self, clusters: RLClusters, version: int) -> int:
        """Returns how many bytes of weights each engine got."""
        with clusters.placement.hold(clusters.actor_train.weights, clusters.actor_infer.weights):
            sent_bytes = clusters.publish_weights(version)
        self.engine_version = version
        return sent_bytes

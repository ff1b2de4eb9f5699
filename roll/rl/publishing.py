"""Weights on their way from a trainer to an explorer: models in a folder, each published whole or not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.clusters import RLClusters
from roll.errors import ConfigError
from roll.run.interrupts import StepAbandoned
from roll.run.saving.checkpoint import HF_MODEL, CheckpointStore
from roll.run.saving.manifest import read_manifest

# Publishing of the trained weights to the engines: when and how.


class Published(Protocol):
    """Holder of groups in flight, which hears of new weights (`RolloutScheduler`)."""

    def trained(self) -> None: ...

    def published(self, version: int) -> None: ...


class Publisher:
    """Brings the trained weights to the engines, and knows which they have."""

    def __init__(self, frequency: int, runs_ahead: bool = False):
        """`is_async`: groups of later steps may be under way meanwhile."""
        self.engine_version = 0  # the steps behind the weights that the engines have
        self.version = 0  # the steps behind the weights that learn
        self._frequency, self._is_async = frequency, runs_ahead

    def publish(self, clusters: RLClusters, scheduler: Published, version: int, is_last: bool) -> dict[str, float]:
        """Brings the trained weights to the engines, in steps that model_update_frequency names, in the last one, and
        where an engine that died has none. Groups that are under way stand still for as long as their engine reads,
        and go on with the new weights. Returns metrics."""
        scheduler.trained()
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

    def revive(self, clusters: RLClusters, scheduler: Published) -> None:
        """Brings the weights of now to the engines that took the place of those that died: all of them. Requests wait
        for it."""
        engines = clusters.actor_infer
        logger.warning("all engines of %s died: the new ones get the weights of step %d", engines.role, self.version)
        is_newer = self.version > self.engine_version
        self.send(clusters, self.version)
        if is_newer:
            scheduler.published(self.version)
        with clusters.placement.hold(engines.everything):  # as it was before the weights were sent
            pass


logger = logging.getLogger(__name__)

_POLL_S = 0.5
_SAY_S = 60.0


class WeightFolder:
    """`<experience.dir>/weights/step_000012/hf_model`: the policy of version 12, published whole or not at all."""

    def __init__(self, config: AlgorithmConfig):
        directory = Path(config.experience_dir) / "weights"
        self._store = CheckpointStore(directory, config.experience.keep_weights)

    def write(self, version: int, save: Callable[[Path], object]) -> None:
        with self._store.writing(version) as directory:
            save(directory / HF_MODEL)

    def newest(self, at_least: int) -> tuple[int, Path] | None:
        """(version, directory of the model): the newest that is whole and no older than this version."""
        for path in self._store.newest_first():
            try:
                version = read_manifest(path).step
            except ConfigError:  # it was removed meanwhile
                continue
            if version >= at_least:
                return version, path / HF_MODEL
        return None

    def wait(self, at_least: int, is_stopped: Callable[[], bool]) -> tuple[int, Path]:
        """Wait until `newest` has one, and return it. Raises StepGivenUp when the run is to end meanwhile."""
        said = time.monotonic()
        while (version := self.newest(at_least)) is None:
            if is_stopped():
                raise StepAbandoned
            if time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                logger.info("waiting for weights of version %d from the trainer (mode: train)", at_least)
            time.sleep(_POLL_S)
        return version


class FolderPublisher(Publisher):
    """Publishes the trainer's weights to the folder, where the explorer finds them."""

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config.actor_train.model_update_frequency, config.is_async)
        self._folder = WeightFolder(config)

    def engines_paused(self, clusters: RLClusters) -> bool:
        return False

    def send(self, clusters: RLClusters, version: int) -> int:
        with clusters.placement.hold(clusters.actor_train.everything):
            self._folder.write(version, clusters.actor_train.save_hf_model)
        self.engine_version = version
        return 0


class FolderReader(Publisher):
    """Reads the trainer's weights from the folder for the explorer. The engines get the version that one process would
    have sent by then, or a newer one."""

    def __init__(self, config: AlgorithmConfig, is_stopped: Callable[[], bool]):
        super().__init__(config.actor_train.model_update_frequency, config.is_async)
        self._folder, self._is_stopped = WeightFolder(config), is_stopped
        self._last = config.max_steps

    def send(self, clusters: RLClusters, version: int) -> int:
        """Version 0 is what the engines start with. Theirs never goes back, also where the trainer has gone on from an
        earlier checkpoint and writes versions again that there have been."""
        needed = version if version == self._last else version // self._frequency * self._frequency
        lasts = self.engine_version >= needed and not self.engines_paused(clusters)
        newer = self._folder.newest(max(needed, self.engine_version + lasts))
        if newer is None and lasts:
            return 0
        newest_version, model = newer or self._folder.wait(max(needed, self.engine_version), self._is_stopped)
        with clusters.placement.hold(clusters.actor_infer.weights):
            sent_bytes = clusters.read_weights(model, newest_version)
        self.engine_version = newest_version
        return sent_bytes

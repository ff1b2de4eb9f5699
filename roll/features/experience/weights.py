"""Weights on their way from a trainer to an explorer: models in a folder, each published whole or not at all."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.clusters import RLClusters
from roll.errors import ConfigError
from roll.rl.publishing import Publisher
from roll.run.interrupts import StepAbandoned
from roll.run.saving.checkpoint import HF_MODEL, CheckpointStore
from roll.run.saving.manifest import read_manifest

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

"""A saved model -> actor_infer: the engines read its files, which all of them see; no trainer takes part."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.weights.bucket import FileBucket
from roll.errors import StorageError, WorkerError

logger = logging.getLogger(__name__)


class FileWeights:
    """Brings the weights of a directory with safetensors to all engines."""

    def __init__(self, engines: Cluster):
        self._engines = engines

    def publish_healing(self, directory: Path, version: int, heal: Callable[[], bool]) -> int:
        """`publish` to engines that may die on the way, as `WeightSync.publish_healing`."""
        while True:
            try:
                return self.publish(directory, version)
            except WorkerError as error:
                if not heal():
                    raise
                logger.warning("reading the weights again, since an engine died: %s", error)

    def publish(self, directory: Path, version: int) -> int:
        """Returns when every engine uses these weights under this version: how many bytes they are. Raises StorageError
        where there are none."""
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise StorageError(f"{directory} holds no safetensors")
        versions: list[int] = []
        for number, path in enumerate(files):
            last = version if path is files[-1] else None
            versions = self._engines.call_all("receive_weights", FileBucket(path), number == 0, last, True)
        if versions != [version] * len(self._engines):
            raise WorkerError(f"after the weights of version {version} were read the engines report {versions}")
        return sum(path.stat().st_size for path in files)

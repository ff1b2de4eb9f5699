"""Engines read a saved model file by file, and all of them say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.weights.sync import FileWeights
from roll.distributed.weights.bucket import FileBucket
from roll.errors import StorageError, WorkerError


class Engines:
    """Two engines that report what they are told, or something else; one that is dead fails its calls."""

    role = "actor_infer"

    def __init__(self, reports: int | None = None, dies_at: int | None = None):
        self.calls: list[tuple[Any, ...]] = []
        self._reports, self._dies_at = reports, dies_at

    def __len__(self) -> int:
        return 2

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        self.calls.append((method, *arguments))
        if len(self.calls) == self._dies_at:
            raise WorkerError("an engine died")
        return [arguments[2] if self._reports is None else self._reports] * 2


def saved(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).write_bytes(b"four")
    (directory / "config.json").write_text("{}")
    return directory


def weights_of(engines: Engines) -> FileWeights:
    return FileWeights(cast(Cluster, engines))


def test_every_file_is_read_and_the_last_one_brings_the_version(tmp_path: Path) -> None:
    engines = Engines()
    directory = saved(tmp_path, "model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors")
    assert weights_of(engines).publish(directory, 7) == 8
    first, second = sorted(directory.glob("*.safetensors"))
    assert engines.calls == [
        ("receive_weights", FileBucket(first), True, None, True),
        ("receive_weights", FileBucket(second), False, 7, True),
    ]


def test_what_is_no_model_and_engines_that_say_otherwise_are_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no safetensors"):
        weights_of(Engines()).publish(saved(tmp_path), 1)
    with pytest.raises(WorkerError, match="version 2 were read the engines report"):
        weights_of(Engines(reports=1)).publish(saved(tmp_path, "model.safetensors"), 2)


def test_all_is_read_again_when_an_engine_that_died_is_back(tmp_path: Path) -> None:
    engines = Engines(dies_at=2)
    directory = saved(tmp_path, "a.safetensors", "b.safetensors")
    assert weights_of(engines).publish_healing(directory, 3, lambda: True) == 8
    assert [call[2:4] for call in engines.calls] == [(True, None), (False, 3), (True, None), (False, 3)]
    with pytest.raises(WorkerError, match="an engine died"):
        weights_of(Engines(dies_at=1)).publish_healing(directory, 3, lambda: False)

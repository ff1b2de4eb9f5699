"""The index of a checkpoint says what it holds; nothing in it is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from roll.errors import StrategyError
from roll.models.weight_files import PlainReader


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def index() -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))
    dtypes = (torch.float32, torch.bfloat16, torch.uint8)
    tensors: Any = {
        str(dtype): TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size([4]), [chunk]) for dtype in dtypes
    }
    place = _StorageInfo("__0_0.distcp", 0, 16)
    return Metadata(
        tensors | {"a": BytesStorageMetadata()}, None, {MetadataIndex("a"): place}, StorageMeta(Path("/a"), "b")
    )


def test_an_index_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index()))
    assert PlainReader(tmp_path).read_metadata() == index()


def test_an_index_that_wants_something_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    problem = rf"{tmp_path}/\.metadata cannot be read: it asks for pathlib\.Path\.touch"
    with pytest.raises(StrategyError, match=problem):
        PlainReader(tmp_path).read_metadata()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", pickle.dumps(index())[:-40], b"\xff" * 40, pickle.dumps({"a": 1})])
def test_a_damaged_index_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(StrategyError, match=rf"{tmp_path}/\.metadata (cannot be read|is not the index)"):
        PlainReader(tmp_path).read_metadata()

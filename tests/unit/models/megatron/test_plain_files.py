"""A checkpoint says what it holds; nothing in it is run."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.errors import StrategyError

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from torch.distributed.checkpoint.metadata import MetadataIndex

from roll.models.megatron.dist_files import PlainPlanner, plain_files


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_megatron_reads_no_index_that_wants_something_run(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    problem = rf"{tmp_path}/\.metadata cannot be read: it asks for pathlib\.Path\.touch"
    with pytest.raises(StrategyError, match=problem), plain_files(tmp_path):
        pass
    assert not (tmp_path / "ran").exists()


def written(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_what_is_no_tensor_is_a_plain_value_or_refused(tmp_path: Path) -> None:
    item: Any = type("Item", (), {"storage_index": MetadataIndex("extra"), "dest_index": MetadataIndex("extra")})
    planner = PlainPlanner(flatten_state_dict=False)
    planner.state_dict = {}
    planner.load_bytes(item, written({"a": [1, 2.0, None]}))
    assert planner.state_dict == {"extra": {"a": [1, 2.0, None]}}
    with pytest.raises(StrategyError, match="extra of a checkpoint is more than plain values"):
        planner.load_bytes(item, written(Touch(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()

"""Megatron's checkpoints, read without running what they say: torch's own reader unpickles whatever they hold."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import torch as megatron_files
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from roll.errors import StrategyError
from roll.utils.replaced import replaced

_INDEX = ".metadata"
_OF_TORCH = "torch.distributed.checkpoint"
_KNOWN = {
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13's
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (f"{_OF_TORCH}.filesystem", "_StorageInfo"),
    (f"{_OF_TORCH}.metadata", "BytesStorageMetadata"),
    (f"{_OF_TORCH}.metadata", "ChunkStorageMetadata"),
    (f"{_OF_TORCH}.metadata", "Metadata"),
    (f"{_OF_TORCH}.metadata", "MetadataIndex"),
    (f"{_OF_TORCH}.metadata", "StorageMeta"),
    (f"{_OF_TORCH}.metadata", "TensorProperties"),
    (f"{_OF_TORCH}.metadata", "TensorStorageMetadata"),
    (f"{_OF_TORCH}.metadata", "_MEM_FORMAT_ENCODING"),
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _KNOWN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which the index of a checkpoint has no use for")


class PlainReader(FileSystemReader):
    """Reads the index once, and takes shapes, places and dtypes from it."""

    _index: Metadata | None = None

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        if self._index is None:
            path = Path(self.path) / _INDEX
            try:
                with path.open("rb") as file:
                    self._index = _IndexUnpickler(file).load()
            except Exception as error:  # a damaged one fails in any way
                raise StrategyError(f"{path} cannot be read: {error}") from error
            if not isinstance(self._index, Metadata):
                raise StrategyError(f"{path} is not the index of a checkpoint")
        return self._index


class PlainPlanner(megatron_files.MCoreLoadPlanner):
    """Of what is no tensor, takes plain values only."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.storage_index.fqn
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise StrategyError(f"{name} of a checkpoint is more than plain values: {error}") from error
        value.seek(0)
        super().load_bytes(read_item, value)


@contextmanager
def plain_files(directory: Path) -> Iterator[None]:
    """Inside, Megatron reads this checkpoint with the two above; it has no argument for them."""
    reader = PlainReader(directory)
    reader.read_metadata()  # what is wrong with it would be an AssertionError of torch's later
    with (
        replaced(megatron_files, "_get_filesystem_reader", lambda *_, **__: reader),
        replaced(megatron_files, "MCoreLoadPlanner", PlainPlanner),
    ):
        yield

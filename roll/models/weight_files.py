"""The files of torch.distributed.checkpoint: written one tensor at a time, read without running what they say."""

import json
import os
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from transformers.utils.hub import cached_file

from roll.errors import StrategyError

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


class OneByOne(FileSystemWriter):
    """A file per rank, with one tensor at a time in host memory. torch 2.13's own write_data keeps the copies of all of
    them until the file is done."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        name = f"{plan.storage_data.prefix}0{DEFAULT_SUFFIX}"
        with (Path(self.path) / name).open("wb") as file:
            written = [_append(file, name, item, planner) for item in plan.items]
            file.flush()
            os.fsync(file.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done


def _append(file: BinaryIO, name: str, item: WriteItem, planner: SavePlanner) -> WriteResult:
    start = file.tell()
    data: Any = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        file.write(data.getbuffer())
    else:
        tensor = data.detach().cpu()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        torch.save(tensor if whole else tensor.clone(), file)  # a view is saved with all that it is a view of
    length = file.tell() - start
    return WriteResult(item.index, length, _StorageInfo(name, start, length))


# Finds the safetensors file of each tensor of a Hugging Face model.

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def tensor_files(model: str) -> dict[str, str]:
    """Path by name, of a model directory or hub id; nothing where it has other files than safetensors."""
    whole = cached_file(model, WHOLE, _raise_exceptions_for_missing_entries=False)
    if whole is not None:
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)
    index = cached_file(model, INDEX, _raise_exceptions_for_missing_entries=False)
    if index is None:
        return {}
    names: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
    paths = {file: cached_file(model, file) for file in set(names.values())}
    return {name: str(paths[file]) for name, file in names.items()}

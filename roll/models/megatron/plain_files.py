"""Megatron's checkpoints, read without running what they say: torch's own reader unpickles whatever they hold."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from megatron.core.dist_checkpointing.strategies import torch as megatron_files
from torch.distributed.checkpoint.planner import ReadItem

from roll.errors import StrategyError
from roll.models.weight_files import PlainReader
from roll.utils.replaced import replaced


class PlainPlanner(megatron_files.MCoreLoadPlanner):
    """Loads tensors, and accepts only plain values for everything else."""

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

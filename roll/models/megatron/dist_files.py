"""Megatron's dist_checkpointing format: written and read under any parallel sizes, without helper processes."""

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies import torch as megatron_files
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_saver import save as write_checkpoint

from roll.errors import StrategyError
from roll.models.weight_files import OneByOne, PlainReader
from roll.platforms.cpu_stand_ins.megatron import cuda_method_stays
from roll.utils.imports import replaced

# Megatron's checkpoints, read without running what they say: torch's own reader unpickles whatever they hold.


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


class SynchronousWriter(TorchDistSaveShardedStrategy):
    """Megatron's format, written in this process. Megatron's writer starts a manager process that stays, forks
    writers from a process full of threads, cannot run in a daemonic worker, and hangs where psutil is missing."""

    def save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> None:
        renamed, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        state = mcore_to_pyt_state_dict(renamed, False)
        write_checkpoint(state, storage_writer=OneByOne(checkpoint_dir), planner=planner)


def layout_metadata() -> dict[str, Any]:
    """How the state is laid out: so that other parallel sizes can read it. The optimizer's is another one with and
    without use_distributed_optimizer, and without it with and without expert parallel."""
    return {
        "distrib_optim_sharding_type": "fully_reshardable",  # names and shapes; the blocks are each rank's own
        "chained_optim_avoid_prefix": True,
        "singleton_local_shards": False,
        # Otherwise a parameter of all layers is one tensor, which is not whole when some of them are frozen.
        "non_homogeneous_layers": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


def write(state: dict[str, Any], directory: Path, metadata: dict[str, Any]) -> None:
    """Collective; `directory` exists and all ranks see it."""
    content = {key: value for key, value in metadata.items() if key != "dp_cp_group"}
    dist_checkpointing.save(state, str(directory), SynchronousWriter("torch_dist", 1), content_metadata=content)


def refuse_adapters(directory: Path) -> None:
    """StrategyError for what a trainer of adapters wrote: there is no whole model in it."""
    if any(".lora_A." in name for name in PlainReader(directory).read_metadata().state_dict_metadata):
        raise StrategyError(
            f"{directory} holds adapters alone. The merged model is in the folder hf_model that the trainer saved, and "
            "adapters that peft loads in hf_model/adapter."
        )


def has_prediction_head(directory: Path) -> bool:
    """Whether an MTP head was trained with the model."""
    return any("prediction_head." in name for name in PlainReader(directory).read_metadata().state_dict_metadata)


def read(state: dict[str, Any], directory: Path) -> dict[str, Any]:
    """`state` says which parts this rank wants. Collective. Nothing that the files say is run; StrategyError where they
    want it."""
    with cuda_method_stays(), plain_files(directory):
        loaded: Any = dist_checkpointing.load(state, str(directory), get_default_load_sharded_strategy(str(directory)))
    return loaded

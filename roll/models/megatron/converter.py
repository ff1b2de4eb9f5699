"""Converts between a Hugging Face directory and a Megatron checkpoint, in one process. Import it after the CPU's
stand-ins are installed, like everything that imports megatron.core."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch._C._distributed_c10d import HashStore
from transformers import PretrainedConfig

from roll.configs.sections.model import Head, ModelArgs
from roll.configs.strategies.megatron_config import MegatronSettings
from roll.models.megatron import dist_files
from roll.models.megatron.config import Numbers, check_sizes, shapes_of, transformer_config
from roll.models.megatron.families import family_of
from roll.models.megatron.family import WeightMap
from roll.models.megatron.hf_files import CHECKPOINT_FOLDER, HfReader, write_model
from roll.models.megatron.model import Blueprint, TokenModel, build_chunks
from roll.models.megatron.mtp_head import HeadPlan
from roll.models.megatron.weights import Exporter, global_parameters, load, untied


@contextmanager
def one_rank() -> Iterator[None]:
    """Megatron's groups, of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(0)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


class Converter:
    """A whole model in one process, without its top: between the two kinds of files."""

    def __init__(
        self, model: str, hf: PretrainedConfig, head: Head, dtype: torch.dtype, checkpoint: Path | None = None
    ):
        """Build the model. `checkpoint`: the folder that `to_hf` converts, which has an MTP head if one was trained.
        `to_megatron` needs none, and writes no MTP head."""
        self.hf, self.model = hf, model
        self.head: Head = head
        family, settings = family_of(self.hf), MegatronSettings()
        check_sizes(self.hf, settings)
        numbers = Numbers(dtype, torch.device("cpu"))
        config, plan = transformer_config(self.hf, family, settings, {}, numbers), None
        if checkpoint is not None and dist_files.has_prediction_head(checkpoint / CHECKPOINT_FOLDER):
            plan = HeadPlan.of(hf, HfReader(model), trains_trunk=True)
        blueprint = Blueprint(self.hf, family, config, head, torch.device("cpu"), plan)
        self.chunk: TokenModel = build_chunks(blueprint, _no_top)[0]
        self.ties_head = blueprint.ties_head
        self.weights, self.shapes = WeightMap(family, head), shapes_of(self.hf)

    def to_megatron(self, out: Path) -> None:
        load([self.chunk], HfReader(self.model), self.weights, self.shapes, self.ties_head)
        target = out / CHECKPOINT_FOLDER
        target.mkdir(parents=True, exist_ok=True)
        metadata = dist_files.layout_metadata()
        dist_files.write({"model": self.chunk.sharded_state_dict(metadata=metadata)}, target, metadata)

    def to_hf(self, checkpoint: Path, out: Path) -> None:
        source = checkpoint / CHECKPOINT_FOLDER
        dist_files.refuse_adapters(source)
        state: dict[str, Any] = {"model": self.chunk.sharded_state_dict(metadata=dist_files.layout_metadata())}
        self.chunk.load_state_dict(dist_files.read(state, source)["model"])
        out.mkdir(parents=True, exist_ok=True)
        parameters = untied(global_parameters([self.chunk]), self.ties_head)
        exporter = Exporter(parameters, self.weights.entry, self.shapes, torch.device("cpu"))
        write_model(out, ModelArgs(model_name_or_path=self.model), self.hf, self.head, exporter.tensors())


def _no_top(model: Any, hidden: torch.Tensor, mtp_hidden: torch.Tensor | None, request: Any) -> torch.Tensor:
    return hidden

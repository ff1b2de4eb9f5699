"""Hugging Face directories to Megatron checkpoints and back.

    roll convert to_hf --checkpoint <trainer's checkpoint> --model <its HF model> --out <directory>
    roll convert to_megatron --model <HF model> --out <directory>

`--model` gives the architecture, and with to_megatron the weights; `--head value` is for a critic, `--head reward` for
a reward model. The checkpoint may come from any parallel layout. One process, on the CPU; it needs memory for the model
once.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from transformers import AutoTokenizer, PretrainedConfig

from roll.configs.model import ModelArgs
from roll.configs.roles import Head
from roll.configs.strategies.megatron_config import MegatronSettings
from roll.errors import RollError
from roll.models.loading import model_config
from roll.models.megatron.hf_files import CHECKPOINT_FOLDER as _FOLDER
from roll.platforms.cpu_stand_ins import megatron as megatron_cpu

if TYPE_CHECKING:
    from roll.models.megatron.model import TokenModel

logger = logging.getLogger("roll.models.convert")


class Converter:
    """A whole model in one process, without its top: between the two kinds of files."""

    def __init__(self, model: str, hf: PretrainedConfig, head: Head, dtype: torch.dtype):
        from roll.models.megatron.config import Numbers, check_sizes, shapes_of, transformer_config
        from roll.models.megatron.family import WeightMap, family_of
        from roll.models.megatron.model import Blueprint, build_chunks

        self.hf, self.model = hf, model
        self.head: Head = head
        family, settings = family_of(self.hf), MegatronSettings()
        check_sizes(self.hf, settings)
        numbers = Numbers(dtype, torch.device("cpu"))
        blueprint = Blueprint(
            self.hf, transformer_config(self.hf, family, settings, {}, numbers), head, torch.device("cpu")
        )
        self.chunk: TokenModel = build_chunks(blueprint, _no_top)[0]
        self.ties_head = blueprint.ties_head
        self.weights, self.shapes = WeightMap(family, head), shapes_of(self.hf)

    def to_megatron(self, out: Path) -> None:
        from roll.models.megatron import dist_files
        from roll.models.megatron.hf_files import HfReader
        from roll.models.megatron.weights import load

        with HfReader(self.model) as reader:
            load([self.chunk], reader, self.weights, self.shapes, self.ties_head)
        target = out / _FOLDER
        target.mkdir(parents=True, exist_ok=True)
        metadata = dist_files.layout_metadata()
        dist_files.write({"model": self.chunk.sharded_state_dict(metadata=metadata)}, target, metadata)

    def to_hf(self, checkpoint: Path, out: Path) -> None:
        from roll.models.megatron import dist_files
        from roll.models.megatron.hf_files import write_model
        from roll.models.megatron.weights import Exporter, global_parameters, untied

        source = checkpoint / _FOLDER
        dist_files.refuse_adapters(source)
        state: dict[str, Any] = {"model": self.chunk.sharded_state_dict(metadata=dist_files.layout_metadata())}
        self.chunk.load_state_dict(dist_files.read(state, source)["model"])
        out.mkdir(parents=True, exist_ok=True)
        parameters = untied(global_parameters([self.chunk]), self.ties_head)
        exporter = Exporter(parameters, self.weights.entry, self.shapes, torch.device("cpu"))
        write_model(out, self.model, self.hf, self.head, exporter.tensors())
        AutoTokenizer.from_pretrained(self.model).save_pretrained(out)


def _no_top(model: Any, hidden: torch.Tensor, request: Any) -> torch.Tensor:
    return hidden


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # Megatron's, about packages that it does without
    if given.direction == "to_hf" and not (given.checkpoint / _FOLDER).is_dir():
        logger.error("%s holds no checkpoint of megatron_train: %s/ is missing", given.checkpoint, _FOLDER)
        return 1
    try:
        args = ModelArgs(model_name_or_path=given.model)
        _convert(given, model_config(args, num_labels=1) if given.head != "lm" else model_config(args))
    except RollError as error:
        logger.error("%s", error)
        return 1
    except OSError as error:  # transformers: no such model; or files that cannot be read or written
        logger.error("--model %s, --out %s: %s", given.model, given.out, error)
        return 1
    logger.info("written to %s", given.out)
    return 0


def _convert(given: argparse.Namespace, hf: PretrainedConfig) -> None:
    megatron_cpu.install()
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(0)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[given.dtype]
        converter = Converter(given.model, hf, given.head, dtype)
        if given.direction == "to_hf":
            converter.to_hf(given.checkpoint, given.out)
        else:
            converter.to_megatron(given.out)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="roll convert", description=(__doc__ or "").partition("\n")[0])
    directions = parser.add_subparsers(dest="direction", required=True)
    for name, help in (("to_hf", "a trainer's checkpoint to a directory that from_pretrained loads"),
                       ("to_megatron", "a Hugging Face model to a checkpoint's weights")):  # fmt: skip
        direction = directions.add_parser(name, help=help)
        if name == "to_hf":
            direction.add_argument("--checkpoint", type=Path, required=True, help="what save_checkpoint wrote")
        direction.add_argument("--model", required=True, help="directory or hub id of the Hugging Face model")
        direction.add_argument("--out", type=Path, required=True, help="folder to fill")
        direction.add_argument("--head", choices=("lm", "value", "reward"), default="lm", help="lm; value: a critic")
        direction.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="number format of the weights")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

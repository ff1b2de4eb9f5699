"""What training and scoring share: the rank's part of the role's model, and passes through it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from transformers import PretrainedConfig

from roll.distributed.strategy.megatron.last_stage import answer
from roll.distributed.strategy.megatron.rank import MegatronRank
from roll.errors import StrategyError
from roll.models.loading import DTYPES, model_config
from roll.models.megatron.config import Numbers, check_sizes, shapes_of, transformer_config
from roll.models.megatron.family import EMBEDDING, HEAD, Shapes, WeightMap, family_of
from roll.models.megatron.hf_files import HfReader
from roll.models.megatron.lora import Base, MegatronAdapters
from roll.models.megatron.model import Blueprint, TokenModel, build_chunks, embeddings_of_pipeline
from roll.models.megatron.mtp_head import HeadPlan
from roll.models.megatron.weights import Exporter, global_parameters, load, untied

_SINGLE_EXPERTS = re.compile(r"\.experts\.\d")


@dataclass(frozen=True)
class Model:
    """`chunks` are bare modules; `hf` is the model's config.json."""

    chunks: list[TokenModel]
    config: TransformerConfig
    hf: PretrainedConfig
    weights: WeightMap
    shapes: Shapes
    ties_head: bool
    adapters: MegatronAdapters | None = None
    head_plan: HeadPlan | None = None  # of the head for further tokens, where that is trained

    @property
    def head_is_apart(self) -> bool:
        """The loss of the head for further tokens has a gradient for nothing else."""
        return self.head_plan is not None and not self.head_plan.trains_trunk

    @property
    def apart(self) -> list[nn.Parameter]:
        """What this rank has of such a head: no part of the policy's gradient."""
        heads = [chunk.prediction_head for chunk in self.chunks] if self.head_is_apart else []
        return [p for head in heads if head is not None for p in head.parameters()]

    @property
    def twins(self) -> list[nn.Parameter]:
        return [] if self.head_plan is None else embeddings_of_pipeline(self.chunks)

    def exporter(self) -> Exporter:
        """Exports the model in Hugging Face's form, with merged adapters. Collective."""
        if self.adapters is not None:
            return self.adapters.merged_exporter()
        device = next(self.chunks[0].parameters()).device
        return Exporter(untied(global_parameters(self.chunks), self.ties_head), self.weights.entry, self.shapes, device)


def load_model(rank: MegatronRank, trains: bool = False) -> Model:
    """Builds this rank's part and fills it from the model's files; if it `trains`, with the role's adapters, the
    load-balancing loss and the head for further tokens. Collective."""
    args = rank.role.model_args
    hf = model_config(args, num_labels=1) if rank.gives_values else model_config(args)
    family = family_of(hf)
    check_sizes(hf, rank.settings)
    balances = trains and bool(args.moe_aux_loss_coef)
    numbers = Numbers(DTYPES[args.dtype], rank.device, not args.disable_gradient_checkpointing, balances)
    config = transformer_config(hf, family, rank.settings, rank.passed_on, numbers)
    weights, shapes = WeightMap(family, rank.context.head), shapes_of(hf)
    with HfReader(str(args.model_name_or_path)) as reader:
        head_plan = None
        if trains and rank.context.head == "lm" and rank.role.trains_prediction_head:
            trains_trunk, stages = rank.role.mtp_training_mode == "joint", config.pipeline_model_parallel_size
            head_plan = HeadPlan.of(hf, reader, trains_trunk, stages)
        blueprint = Blueprint(hf, family, config, rank.context.head, rank.device, head_plan)
        chunks = build_chunks(blueprint, answer)
        load(chunks, reader, weights, shapes, blueprint.ties_head)
    for chunk in chunks:
        chunk.to(rank.device)
    adapters = None
    if trains and args.has_lora:
        base = Base(chunks, weights, shapes, blueprint.ties_head, rank.context.head, rank.device, hf.model_type)
        adapters = MegatronAdapters(base, args, rank.context.seed)
    else:
        freeze(chunks, weights, args.freeze_module_prefix, blueprint.ties_head)
    if adapters is not None or args.freeze_module_prefix:
        begin_graphs(chunks)
    return Model(chunks, config, hf, weights, shapes, blueprint.ties_head, adapters, head_plan)


def for_scoring(model: Model) -> Sequence[nn.Module]:
    """The chunks without gradient, in the model's number format."""
    for chunk in model.chunks:
        chunk.requires_grad_(False)
    config: Any = model.config
    return [Float16Module(config, chunk) if config.bf16 else chunk for chunk in model.chunks]


def freeze(chunks: Sequence[TokenModel], weights: WeightMap, prefixes: str | None, ties_head: bool) -> None:
    """Parameters whose Hugging Face names begin with one of the comma-separated prefixes are not trained. A tied head
    goes by the embedding's name, also where the last stage holds a copy of it."""
    for prefix in filter(None, (part.strip() for part in (prefixes or "").split(","))):
        if _SINGLE_EXPERTS.search(prefix):
            raise StrategyError(
                f"model_args.freeze_module_prefix: {prefix!r} names single experts, but a checkpoint of Megatron holds "
                "all experts of a layer as one tensor. Freeze them all (end the prefix with `experts.`), or none."
            )
        found = torch.zeros(1, device=next(chunks[0].parameters()).device)
        for name, parameter in global_parameters(chunks):
            hf_names = weights.entry(EMBEDDING if name == HEAD and ties_head else name).hf_names
            hit = [hf_name.startswith(prefix) for hf_name in hf_names]
            if any(hit) and not all(hit):
                raise StrategyError(
                    f"model_args.freeze_module_prefix: {prefix!r} names only a part of one Megatron parameter "
                    f"({', '.join(hf_names)})"
                )
            if all(hit):
                parameter.requires_grad_(False)
                found += 1
        torch.distributed.all_reduce(found)
        if not found:
            raise StrategyError(f"model_args.freeze_module_prefix: no parameter's name begins with {prefix!r}")


def begin_graphs(chunks: Sequence[TokenModel]) -> None:
    """Layers that are recomputed get no gradient unless their input wants one, which that of a frozen embedding does
    not: Megatron's checkpoint is a reentrant autograd function, and a stage without a gradient stops its pipeline."""
    for chunk in chunks:
        if chunk.pre_process:
            chunk.embedding.register_forward_hook(_begin_graph)


def _begin_graph(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    wants = torch.is_grad_enabled() and not output.requires_grad
    return output.requires_grad_() if wants else output

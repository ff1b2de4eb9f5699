"""One rank of a role that runs on Megatron: its place in the parallel groups, and its part of the model."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from transformers import PretrainedConfig

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.megatron_config import MegatronSettings, split_settings
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.megatron.last_stage import answer
from roll.errors import StrategyError
from roll.features.lora.megatron import Base, MegatronAdapters
from roll.models.loading import DTYPES, model_config
from roll.models.megatron.config import Numbers, check_sizes, shapes_of, transformer_config
from roll.models.megatron.families import family_of
from roll.models.megatron.family import EMBEDDING, HEAD, Shapes, WeightMap
from roll.models.megatron.hf_files import HfReader
from roll.models.megatron.model import Blueprint, TokenModel, build_chunks, embeddings_of_pipeline
from roll.models.megatron.mtp_head import HeadPlan
from roll.models.megatron.weights import Exporter, global_parameters, load, untied
from roll.platforms.cpu_stand_ins import megatron as megatron_cpu
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.network import LOOPBACK


class MegatronRank:
    """Starts this rank's process groups. Megatron keeps them in module globals, so there is one such rank in a
    process."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        self.platform = platform_of(context.device)
        self.settings: MegatronSettings
        self.passed_on: dict[str, Any]
        self.settings, self.passed_on = split_settings(role.strategy_config)
        self._started = False

    @property
    def gives_values(self) -> bool:
        """True for a critic, and for a reward model in training, whose reward is the value of the last token."""
        return self.context.head != "lm"

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def model_parallel_size(self) -> int:
        s = self.settings
        return s.tensor_model_parallel_size * s.pipeline_model_parallel_size * s.context_parallel_size

    @property
    def dp_size(self) -> int:
        return self.context.world_size // self.model_parallel_size

    @property
    def dp_rank(self) -> int:
        """Ranks count through tensor, context, data, pipeline, in this order, as Megatron orders them."""
        inner = self.settings.tensor_model_parallel_size * self.settings.context_parallel_size
        return self.context.rank // inner % self.dp_size

    def start(self) -> None:
        """Joins the role's process group and divides it. A rank that does not come is an error after backend_timeout,
        not a hang."""
        self.platform.set_device(self.device)
        megatron_cpu.install()
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        timeout = timedelta(minutes=self.role.backend_timeout)
        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", LOOPBACK)
            bind_stores()
            dist.init_process_group(self.platform.communication_backend, timeout=timeout)
        if parallel_state.model_parallel_is_initialized():
            raise StrategyError("this process runs a megatron strategy already; each needs a process of its own")
        s, stages = self.settings, self.settings.virtual_pipeline_model_parallel_size
        parallel_state.initialize_model_parallel(
            s.tensor_model_parallel_size,
            s.pipeline_model_parallel_size,
            stages if stages is not None and stages > 1 else None,
            context_parallel_size=s.context_parallel_size,
            expert_model_parallel_size=s.expert_model_parallel_size,
            expert_tensor_parallel_size=s.expert_tensor_size,
            distributed_timeout_minutes=self.role.backend_timeout,
        )
        self._started = True
        torch.manual_seed(self.context.seed)
        model_parallel_cuda_manual_seed(self.context.seed, force_reset_rng=True)

    def draw_apart(self) -> None:
        """Makes ranks draw different random numbers for dropout, except tensor-parallel ranks that hold the same
        inputs. Called once all weights exist, since all ranks must draw those alike."""
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        size = self.settings.tensor_model_parallel_size
        seed = self.context.seed + self.context.rank // size * size  # the tracker adds the tensor-parallel rank
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)

    def all_reduce_data(self, values: Sequence[float], op: Any = dist.ReduceOp.SUM) -> list[float]:
        """Elementwise over the data-parallel ranks, in float64."""
        from megatron.core import parallel_state

        if self.dp_size == 1:
            return [float(value) for value in values]
        total = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(total, op, group=parallel_state.get_data_parallel_group())
        return total.tolist()

    def check_head(self, *, values: bool) -> None:
        """StrategyError when a critic is asked for log-probs, or a policy for values."""
        if values and not self.gives_values:
            raise StrategyError(f"{self.context.role} has no value head; values come from the critic role")
        if self.gives_values and not values:
            raise StrategyError(f"{self.context.role} has a value head, so it computes no log-probs")

    def stop(self) -> None:
        if self._started:
            from megatron.core import parallel_state

            parallel_state.destroy_model_parallel()
            self._started = False
        self.platform.empty_cache()


# What training and scoring share: the rank's part of the role's model, and passes through it.

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
    head_plan: HeadPlan | None = None  # of the MTP head, where that is trained

    @property
    def head_is_apart(self) -> bool:
        """The loss of the MTP head has a gradient for nothing else."""
        return self.head_plan is not None and not self.head_plan.trains_trunk

    @property
    def apart(self) -> list[nn.Parameter]:
        """Parameters of a separate prediction head on this rank: they are not part of the policy's gradient."""
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
    load-balancing loss and the MTP head. Collective."""
    args = rank.role.model_args
    hf = model_config(args, num_labels=1) if rank.gives_values else model_config(args)
    family = family_of(hf)
    check_sizes(hf, rank.settings)
    trains_aux_loss = trains and bool(args.moe_aux_loss_coef)
    numbers = Numbers(DTYPES[args.dtype], rank.device, not args.disable_gradient_checkpointing, trains_aux_loss)
    config = transformer_config(hf, family, rank.settings, rank.passed_on, numbers)
    weights, shapes = WeightMap(family, rank.context.head), shapes_of(hf)
    reader, head_plan = HfReader(str(args.model_name_or_path)), None
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
        count = torch.zeros(1, device=next(chunks[0].parameters()).device)
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
                count += 1
        torch.distributed.all_reduce(count)
        if not count:
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

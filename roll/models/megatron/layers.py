"""Modules given to megatron-core through its ModuleSpecs, because its own local ones refuse what is needed here: `Norm`
may stand under sequence parallelism, `CoreAttention` takes packed rows and shares a sequence among context-parallel
ranks, with torch's fused attention on every device. And the router of router.py."""

import copy
import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, get_transformer_layer_offset
from megatron.core.transformer.utils import (
    ensure_metadata_has_dp_cp_group,
    is_layer_window_attention,
    make_sharded_tensors_for_checkpoint,
)
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from roll.models.megatron.attention import LatentAttention, LatentNorm, Norm, attend_with_sinks
from roll.models.megatron.router import BalancingRouter
from roll.models.sequences.packed_attention import attend_by_kernel
from roll.platforms.table import platform_of

# Experts: what those with biases need beyond Megatron's own layers, and all of a rank in one product.


class ExpertOutput(RowParallelLinear):
    """The last matrix of an expert that no tensor-parallel ranks divide. They may hold other experts, or other tokens
    of the same; Megatron (0.16) would sum the gradients of these biases over them under sequence parallelism, and count
    those of the first rank alone in the gradient's norm."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        bias: Any = self.bias
        bias.sequence_parallel = False
        set_tensor_model_parallel_attributes(bias, True, 0, 1)

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.nn.Parameter | None]:
        """A tensor of its own: Megatron adds the bias to it in place, which autograd forbids where it is a view."""
        output, bias = super().forward(input_)
        return output.clone(), bias


class GroupedExperts(SequentialMLP):
    """The experts of a rank, gated and without biases, by two of torch's grouped products where Megatron's runs each of
    them in turn. Weights lie as Megatron has them: one matrix for each expert, under the same name."""

    def forward(
        self,
        permuted_local_hidden_states: torch.Tensor,
        tokens_per_expert: torch.Tensor,
        permuted_probs: torch.Tensor,
    ) -> tuple[torch.Tensor, None]:
        """Hidden states [T, H], those of each expert behind those of the one before, and the weight of each [T] ->
        [T, H]: the rank's part of the sum, where ranks divide the experts."""
        hidden = permuted_local_hidden_states
        ends = tokens_per_expert.to(hidden.device).cumsum(0).to(torch.int32)
        experts: list[Any] = list(self.local_experts)
        gates, ups = grouped_product(hidden, ends, [expert.linear_fc1.weight for expert in experts]).chunk(2, -1)
        weighted = self.config.activation_func(gates) * ups * permuted_probs[:, None]
        return grouped_product(weighted.to(hidden.dtype), ends, [expert.linear_fc2.weight for expert in experts]), None


def grouped_product(states: torch.Tensor, ends: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """States [T, in] of which those before ends[0] meet the first weight [out, in], those up to ends[1] the second, and
    so on -> [T, out]. ends: int32 [experts], the last is T, which is 0 on a rank whose experts no token chose."""
    return _GroupedProduct.apply(states, ends, *weights)  # type: ignore[no-any-return]


class _GroupedProduct(torch.autograd.Function):
    """Weights are laid together for each product and thrown away: to keep them for the backward pass would take as much
    memory as all experts."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, ends: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(states, ends, *weights)
        if len(states) == 0:  # there are no kernels for that on GPUs to rely on
            return states.new_zeros(0, len(weights[0]))
        return functional.grouped_mm(states, torch.stack(weights).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        states, ends, *weights = ctx.saved_tensors
        if len(states) == 0:
            return torch.zeros_like(states), None, *(torch.zeros_like(weight) for weight in weights)
        gradient = gradient.contiguous()
        of_states = functional.grouped_mm(gradient, torch.stack(weights), offs=ends)
        of_weights = functional.grouped_mm(gradient.T, states, offs=ends)
        return of_states, None, *of_weights.unbind()


# Layers that norm what attention and MLP give, as well as what they take (GLM-4-0414's dense models).


class NormedLayer(TransformerLayer):
    """A layer without experts and without biases behind attention and MLP."""

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        self.post_self_attn_layernorm = _norm_behind(self.self_attention, config)
        self.post_mlp_layernorm = _norm_behind(self.mlp, config)


def _norm_behind(part: Any, config: TransformerConfig) -> Norm:
    norm = Norm(config, config.hidden_size, config.layernorm_epsilon)

    def normed(part: nn.Module, inputs: Any, outputs: tuple[torch.Tensor, None]) -> tuple[torch.Tensor, None]:
        return norm(outputs[0]), None

    part.register_forward_hook(normed)
    return norm


class GatherPositions(torch.autograd.Function):
    """[s, ...] of every rank of the group -> [ranks, s, ...]. The gradient of a part is the sum over all ranks."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:  # type: ignore[override]
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[ctx.group.rank()].contiguous(), None


def zigzag(length: int, size: int, rank: int, device: torch.device | None = None) -> torch.Tensor:
    """Positions of one sequence that a context-parallel rank holds: the rank-th chunk from the front and from the back,
    so that all ranks have the same work under a causal mask. `length` is a multiple of 2 * size.

    Example: 8 positions on 2 ranks: 0 1 6 7 and 2 3 4 5.
    """
    chunks = torch.arange(length, device=device).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def last_positions_mask(num_queries: int, num_keys: int, device: torch.device) -> torch.Tensor:
    """The causal mask of the last `num_queries` of `num_keys` positions. On a GPU as the mask without elements that
    torch's flash attention knows, which shares key-value heads among query heads; with one of bools it would take the
    kernel that keeps all scores in memory.

    Example: 2 of 3: [[1, 1, 0], [1, 1, 1]].
    """
    if platform_of(device).has_flash_attention:
        return causal_lower_right(num_queries, num_keys)
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


class CoreAttention(MegatronModule):
    """Causal attention of [s, b, heads, d], or of packed rows [t, heads, d]."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **channels: int,
    ):
        """`channels`: of keys and of values, where they are given; tensors say so themselves."""
        super().__init__(config=config)
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self.context_group: dist.ProcessGroup = groups.cp
        self.scale = softmax_scale or 1.0 / math.sqrt(int(config.kv_channels or 0))
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        if attention_mask is not None or attention_bias is not None:
            raise NotImplementedError("rows are right padded or packed: attention is causal and takes no mask")
        size = self.context_group.size()
        keys, values = key[None], value[None]
        if size > 1:
            keys, values = (GatherPositions.apply(tensor, self.context_group) for tensor in (key, value))
        if packed_seq_params is None:
            return self._attend(query, keys, values).flatten(2)
        if size == 1 and self._packs_by_kernel(query, value):
            starts, longest = packed_seq_params.cu_seqlens_q, packed_seq_params.max_seqlen_q
            assert starts is not None
            assert longest is not None
            return attend_by_kernel(query, key, value, starts, int(longest), self.scale).flatten(1)
        ends = packed_seq_params.cu_seqlens_q_padded  # the same, on the host
        assert ends is not None
        lengths = (ends.diff() // size).tolist()
        rows = zip(query.split(lengths), keys.split(lengths, 1), values.split(lengths, 1), strict=True)
        # A row at a time: no mask over the whole pack is ever built. A pack is [t, 1, heads * d] again at its end.
        return torch.cat([self._attend(q[:, None], k[:, :, None], v[:, :, None]) for q, k, v in rows]).flatten(2)[:, 0]

    def _packs_by_kernel(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether all rows of a pack go through one kernel: on a GPU, in fp16 or bf16, without dropout. It knows no
        values of another width than that of keys, as latent attention has them."""
        dropout = self.dropout if self.training else 0.0
        fits = query.dtype != torch.float32 and query.shape[2] == value.shape[2] and not dropout
        return fits and platform_of(query.device).has_flash_attention

    def _attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """query [s, b, h, d]; keys and values [ranks, s, b, g, d] -> [s, b, h, d]."""
        size, local = keys.shape[:2]
        if size == 1:
            return self._kernel(query, keys[0], values[0], None)
        order = torch.cat([zigzag(local * size, size, rank) for rank in range(size)]).argsort().to(keys.device)
        keys, values = (tensor.flatten(0, 1).index_select(0, order) for tensor in (keys, values))
        mine = zigzag(local * size, size, self.context_group.rank(), keys.device)
        half = local // 2
        outputs = []
        for positions, part in ((mine[:half], query[:half]), (mine[half:], query[half:])):
            num_visible = int(positions[-1]) + 1  # keys beyond it are masked for all of this chunk
            mask = last_positions_mask(half, num_visible, keys.device)
            outputs.append(self._kernel(part, keys[:num_visible], values[:num_visible], mask))
        return torch.cat(outputs)

    def _kernel(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = functional.scaled_dot_product_attention(
            q, k, v,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return out.permute(2, 0, 1, 3)


class SinkAttention(CoreAttention):
    """Attention of which a part goes nowhere, by a learned logit of each head, and in some layers sees the last
    positions alone (gpt-oss). Its parameter is called as in Megatron's own attention."""

    def __init__(self, config: TransformerConfig, layer_number: int, *args: Any, **options: Any):
        super().__init__(config, layer_number, *args, **options)
        groups = options.get("pg_collection") or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp"])
        self.tensor_group: dist.ProcessGroup = groups.tp
        heads = config.num_attention_heads // self.tensor_group.size()
        device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
        self.softmax_offset = nn.Parameter(torch.zeros(heads, dtype=config.params_dtype, device=device))
        set_tensor_model_parallel_attributes(self.softmax_offset, True, 0, 1)  # the gradient's norm counts all parts
        slides = is_layer_window_attention(config.window_size, config.window_attn_skip_freq or 0, layer_number)
        self.window = config.window_size[0] + 1 if slides and config.window_size else None

    def _packs_by_kernel(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        return False  # it knows no sinks

    def _kernel(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """`mask` says what is so of all calls: queries are the last positions of the keys."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        return attend_with_sinks(q, k, v, self.softmax_offset, self.window, self.scale, dropout).permute(2, 0, 1, 3)

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[tuple[int, int, int], ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> ShardedStateDict:
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self.tensor_group,
            dp_cp_group=ensure_metadata_has_dp_cp_group(metadata)["dp_cp_group"],
        )


def block_spec(
    config: TransformerConfig, vp_stage: int | None, norms_outputs: bool = False
) -> TransformerBlockSubmodules:
    """The layers of one stage, of the implementation that the settings choose."""
    kinds, norm = _kinds(config)
    if norms_outputs:
        kinds[0].module = NormedLayer
    everywhere = [int(bool(config.num_moe_experts))] * config.num_layers
    pattern = config.moe_layer_freq if isinstance(config.moe_layer_freq, list) else everywhere
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    stage_pattern = pattern[first : first + get_num_layers_to_build(config, vp_stage=vp_stage)]
    return TransformerBlockSubmodules(layer_specs=[kinds[kind] for kind in stage_pattern], layer_norm=norm)  # type: ignore[arg-type]


def layer_spec(config: TransformerConfig, is_sparse: bool) -> ModuleSpec:
    """One layer, with experts or without."""
    return _kinds(config)[0][int(is_sparse)]


def _kinds(config: TransformerConfig) -> tuple[dict[int, ModuleSpec], Any]:
    """Layers without experts (0) and with them (1), and the norm behind the last."""
    build = _engine_layer if config.transformer_impl == "transformer_engine" else _local_layer
    dense, norm = build(config, None)
    kinds = {0: dense}
    if config.num_moe_experts:
        kinds[1], _ = build(config, config.num_moe_experts)
        parts: Any = kinds[1].submodules
        parts.mlp.submodules.router = BalancingRouter
        if config.add_bias_linear:
            parts.mlp.submodules.experts.submodules.linear_fc2 = ExpertOutput
        if config.moe_grouped_gemm and config.transformer_impl == "local":
            parts.mlp.submodules.experts.module = GroupedExperts
    return kinds, norm


def _engine_layer(config: TransformerConfig, num_experts: int | None) -> tuple[ModuleSpec, Any]:
    """transformer-engine's layer as it is: its norm and attention take what ours do."""
    from megatron.core.extensions.transformer_engine import TENorm
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

    layer = get_gpt_layer_with_transformer_engine_spec(
        num_experts=num_experts,
        moe_grouped_gemm=config.moe_grouped_gemm and num_experts is not None,
        qk_layernorm=config.qk_layernorm,
    )
    return layer, TENorm


def _local_layer(config: TransformerConfig, num_experts: int | None) -> tuple[ModuleSpec, Any]:
    """Megatron's local layer with the two modules above."""
    layer: ModuleSpec = copy.deepcopy(
        get_gpt_layer_local_spec(
            num_experts=num_experts,
            qk_layernorm=config.qk_layernorm,
            multi_latent_attention=config.multi_latent_attention,
            normalization="RMSNorm",
        )
    )
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    attention = parts.self_attention.submodules
    attention.core_attention = SinkAttention if config.softmax_type == "learnable" else CoreAttention
    if config.multi_latent_attention:
        parts.self_attention.module = LatentAttention
        attention.q_layernorm = attention.kv_layernorm = LatentNorm
    elif config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    return layer, Norm

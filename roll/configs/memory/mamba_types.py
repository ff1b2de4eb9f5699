"""Weights and layers of types with Mamba or Mamba-2, beside attention or in its place: as transformers 5.19 builds
them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.memory.layer_shape import Attention, LayerShape, Recurrence
from roll.configs.memory.reader import (
    GRANITE_FILES,
    TODAY,
    Form,
    HeadSizes,
    LayerWeights,
    Reader,
    UnreadableModel,
    add_decays,
    head_sizes,
    is_attention,
    kinds_of,
)
from roll.configs.memory.recurrence import mamba, mamba2

# Mamba-2: Bamba, Falcon-H1, Granite-4, Nemotron-H, Mamba-2 alone.


@dataclass(frozen=True)
class _Mamba2:
    """Sizes of one mixer. `has_norm`: between the scan and the projection behind it."""

    heads: int
    size: int
    groups: int
    state: int
    kernel: int
    chunk: int
    bias: bool
    output_bias: bool
    conv_bias: bool
    has_norm: bool = True

    def add(self, hidden: int, add: LayerWeights, at: str) -> Recurrence:
        inner = self.heads * self.size
        convolved = inner + 2 * self.groups * self.state
        add_decays(add, at, self.heads)
        add.tensor(f"{at}.D", self.heads, cut="tensor")
        add.tensor(f"{at}.conv1d.weight", convolved, 1, self.kernel, cut="tensor")
        if self.conv_bias:
            add.tensor(f"{at}.conv1d.bias", convolved, cut="tensor")
        add.linear(f"{at}.in_proj", inner + convolved + self.heads, hidden, self.bias)
        if self.has_norm:
            add.norm(f"{at}.norm", inner)
        add.linear(f"{at}.out_proj", hidden, inner, self.output_bias)
        return mamba2(self.heads, self.size, self.groups, self.state, self.kernel, self.chunk, self.has_norm)


def _mamba_sizes(model: Reader, inner: int, projectors: str = "mamba_proj_bias", has_norm: bool = True) -> _Mamba2:
    """Sizes by the keys that begin with mamba_."""
    heads = model.size("mamba_n_heads", default=128)
    size = None if model.model.get("mamba_d_head") == "auto" else model.size("mamba_d_head", default=inner // heads)
    bias = model.flag("mamba_proj_bias")
    return _Mamba2(
        heads=heads,
        size=size or max(1, inner // heads),
        groups=model.size("mamba_n_groups", default=1),
        state=model.size("mamba_d_state", default=256),
        kernel=model.size("mamba_d_conv", default=4),
        chunk=model.size("mamba_chunk_size", default=256),
        bias=bias,
        output_bias=model.flag(projectors),
        conv_bias=model.flag("mamba_conv_bias", default=True),
        has_norm=has_norm,
    )


def _expanded(model: Reader) -> int:
    return model.size("mamba_expand", default=2) * model.hidden


def _bamba(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, width = model.hidden, model.size("intermediate_size")
    add.gated("feed_forward", hidden, width, model.flag("mlp_bias"))
    add.norm("input_layernorm", hidden)
    add.norm("pre_ff_layernorm", hidden)
    if layer in model.numbers("attn_layer_indices"):
        bias = model.flag("attention_bias")
        return LayerShape(add.attention(hidden, head_sizes(model), bias, bias), ffn_width=width)
    return LayerShape(recurrence=_mamba_sizes(model, _expanded(model)).add(hidden, add, "mamba"), ffn_width=width)


def _falcon_h1(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, width, bias = model.hidden, model.size("intermediate_size"), model.flag("attention_bias")
    add.gated("feed_forward", hidden, width, model.flag("mlp_bias"))
    inner = model.size("mamba_d_ssm", default=_expanded(model))
    sizes = _mamba_sizes(model, inner, "projectors_bias", has_norm=model.flag("mamba_rms_norm"))
    recurrence = sizes.add(hidden, add, "mamba")
    attention = add.attention(hidden, head_sizes(model), bias, bias)
    add.norm("input_layernorm", hidden)
    add.norm("pre_ff_layernorm", hidden)
    return LayerShape(attention, recurrence, width)


def _granite(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, width, shared = (
        model.hidden,
        model.size("intermediate_size"),
        model.size("shared_intermediate_size", default=1024, least=0),
    )
    add.norm("input_layernorm", hidden)
    add.norm("post_attention_layernorm", hidden)
    count = model.size("num_local_experts", default=8, least=0)
    per_token = model.size("num_experts_per_tok", default=2, least=0) if count else 0
    if count:
        add.linear("block_sparse_moe.router", count, hidden, cut="whole")
        add.stacked_experts("block_sparse_moe.experts", count, hidden, width, GRANITE_FILES)
    add.linear("shared_mlp.input_linear", 2 * shared, hidden)
    add.linear("shared_mlp.output_linear", hidden, shared)
    ffn = per_token * width + shared
    kinds = kinds_of(model, lambda _: "linear_attention", "layers_block_type")
    if is_attention(kinds[layer], "linear_attention"):
        bias = model.flag("attention_bias")
        attention = add.attention(hidden, head_sizes(model), bias, bias)
        return LayerShape(attention, ffn_width=ffn, experts_per_token=per_token, has_shared=count > 0)
    recurrence = _mamba_sizes(model, _expanded(model)).add(hidden, add, "mamba")
    return LayerShape(recurrence=recurrence, ffn_width=ffn, experts_per_token=per_token, has_shared=count > 0)


_NEMOTRON = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def _nemotron_kinds(model: Reader) -> list[str]:
    pattern = model.model.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [_NEMOTRON.get(each, each) for each in pattern]
    for name in ("layers_block_type", "layer_types"):
        kinds = model.model.get(name)
        if isinstance(kinds, list) and kinds:
            return [TODAY.get(str(kind), str(kind)) for kind in kinds]
    raise UnreadableModel("config.json lacks hybrid_override_pattern")


def _nemotron(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, at, bias = model.hidden, "mixer", model.flag("mlp_bias")
    kind = _nemotron_kinds(model)[layer]
    add.norm("norm", hidden)
    if kind == "mlp":
        width = model.size("intermediate_size")
        add.linear(f"{at}.up_proj", width, hidden, bias)
        add.linear(f"{at}.down_proj", hidden, width, bias)
        return LayerShape(ffn_width=width, is_gated=False, num_norms=1, num_inputs=1)
    if kind == "moe":
        return _nemotron_experts(model, add, bias)
    if is_attention(kind, "linear_attention"):
        return LayerShape(add.attention(hidden, head_sizes(model, 128), at=at), num_norms=1, num_inputs=1)
    bias = model.flag("use_bias")
    sizes = _Mamba2(
        heads=model.size("mamba_num_heads"),
        size=model.size("mamba_head_dim"),
        groups=model.size("n_groups", "mamba_n_groups", default=8),
        state=model.size("ssm_state_size", default=128),
        kernel=model.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=model.size("chunk_size", "mamba_chunk_size", default=128),
        bias=bias,
        output_bias=bias,
        conv_bias=model.flag("use_conv_bias", model.flag("mamba_conv_bias", True)),
    )
    in_fp32 = model.model.get("mamba_ssm_cache_dtype", "float32") == "float32"
    return LayerShape(recurrence=replace(sizes.add(hidden, add, at), in_fp32=in_fp32), num_norms=1, num_inputs=1)


def _nemotron_experts(model: Reader, add: LayerWeights, bias: bool) -> LayerShape:
    hidden, at, count = model.hidden, "mixer", model.size("n_routed_experts", "num_local_experts")
    latent = model.size("moe_latent_size", default=0, least=0)
    width, per_token = model.size("moe_intermediate_size"), model.size("num_experts_per_tok")
    shared = model.size("moe_shared_expert_intermediate_size", default=0, least=0)
    add.experts(f"{at}.experts", count, latent or hidden, width, is_gated=False)
    add.linear(f"{at}.gate", count, hidden, cut="whole")
    if latent:
        add.linear(f"{at}.fc1_latent_proj", latent, hidden, bias)
        add.linear(f"{at}.fc2_latent_proj", hidden, latent, bias)
    add.linear(f"{at}.shared_experts.up_proj", shared, hidden, bias)
    add.linear(f"{at}.shared_experts.down_proj", hidden, shared, bias)
    ffn = per_token * width + shared
    return LayerShape(ffn_width=ffn, is_gated=False, experts_per_token=per_token, num_norms=1, num_inputs=1)


def _mamba2_alone(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    bias = model.flag("use_bias")
    sizes = _Mamba2(
        heads=model.size("num_heads"),
        size=model.size("head_dim"),
        groups=model.size("n_groups", default=8),
        state=model.size("state_size", default=128),
        kernel=model.size("conv_kernel", default=4),
        chunk=model.size("chunk_size", default=256),
        bias=bias,
        output_bias=bias,
        conv_bias=model.flag("use_conv_bias", True),
    )
    add.norm("norm", model.hidden)
    return LayerShape(recurrence=sizes.add(model.hidden, add, "mixer"), num_norms=1, num_inputs=1)


_ZAMBA = ["linear_attention"] * 6 + ["hybrid"]  # of the first layers, where config.json does not say


def _zamba(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """Zamba2 (arXiv 2411.15242): Mamba-2 in every layer, and before some of them one of a few transformer blocks, which
    take turns. A block is a weight of the first layer that has it; adapters of each of its places are beside it."""
    hidden, bias = model.hidden, model.flag("add_bias_linear")
    kinds = kinds_of(model, lambda place: _ZAMBA[place % 7], "layers_block_type")
    inner = _expanded(model)
    heads = model.size("n_mamba_heads", default=8)
    sizes = _Mamba2(
        heads=heads,
        size=max(1, inner // heads),
        groups=model.size("mamba_ngroups", default=1),
        state=model.size("mamba_d_state", default=64),
        kernel=model.size("mamba_d_conv", default=4),
        chunk=model.size("chunk_size", default=256),
        bias=bias,
        output_bias=bias,
        conv_bias=model.flag("use_conv_bias", True),
    )
    if kinds[layer] != "hybrid":
        is_attention(kinds[layer], "linear_attention")
        add.norm("input_layernorm", hidden)
        return LayerShape(recurrence=sizes.add(hidden, add, "mamba"), num_norms=1, num_inputs=1)
    add.linear("linear", hidden, hidden)
    add.norm("mamba_decoder.input_layernorm", hidden)
    recurrence = sizes.add(hidden, add, "mamba_decoder.mamba")
    places = [place for place, kind in enumerate(kinds) if kind == "hybrid"]
    mine, blocks = places.index(layer), model.size("num_mem_blocks", default=1)
    block = LayerWeights(f"{add.at}.shared_transformer", layer)
    attention, width = _zamba_block(model, block, [i for i in range(len(places)) if i % blocks == mine % blocks], bias)
    if mine < blocks:
        add.weights += block.weights
    else:  # multiplied with once more
        shared = sum(weight.num_elements for weight in block.weights if len(weight.shape) > 1)
        recurrence = replace(recurrence, products=recurrence.products + shared)
    return LayerShape(attention, recurrence, width, num_norms=4)


def _zamba_block(model: Reader, block: LayerWeights, places: list[int], bias: bool) -> tuple[Attention, int]:
    hidden, heads = model.hidden, model.size("num_attention_heads")
    width, rank = model.size("intermediate_size", default=4 * hidden), model.size("adapter_rank", default=128)
    sizes = HeadSizes(heads, model.size("num_key_value_heads", default=heads), max(1, 2 * hidden // heads))
    for name, rows in (("q", sizes.heads), ("k", sizes.kv_heads), ("v", sizes.kv_heads)):
        block.linear(f"self_attn.{name}_proj", rows * sizes.size, 2 * hidden, block="qkv")
    block.linear("self_attn.o_proj", hidden, sizes.heads * sizes.size)
    block.linear("feed_forward.gate_up_proj", 2 * width, hidden, bias)
    block.linear("feed_forward.down_proj", hidden, width, bias)
    block.norm("input_layernorm", 2 * hidden)
    block.norm("pre_ff_layernorm", hidden)
    adapted = {"feed_forward.gate_up_proj_adapter_list": (hidden, 2 * width)}
    if model.flag("use_shared_attention_adapter"):
        adapted |= {f"self_attn.linear_{name}_adapter_list": (2 * hidden, 2 * hidden) for name in "qkv"}
    for name, (columns, rows) in adapted.items():
        for place in places:
            block.linear(f"{name}.{place}.0", rank, columns)
            block.linear(f"{name}.{place}.1", rows, rank)
    return sizes.attention, width


# Mamba: Jamba, Mamba and Falcon-Mamba alone.


def _mamba_mixer(
    model: Reader, add: LayerWeights, at: str, inner: int, prefix: str, names: tuple[str, str, str], bias: bool
) -> tuple[int, int, int]:
    """Adds a mixer; returns the numbers of its state, of its steps and of its convolution."""
    hidden = model.hidden
    state_key, kernel_key, rank_key = names
    state, kernel = model.size(state_key, default=16), model.size(kernel_key, default=4)
    rank = -(-hidden // 16) if model.model.get(rank_key) == "auto" else model.size(rank_key, default=-(-hidden // 16))
    add.tensor(f"{at}.A_log", inner, state, cut="tensor")
    add.tensor(f"{at}.D", inner, cut="tensor")
    add.tensor(f"{at}.conv1d.weight", inner, 1, kernel, cut="tensor")
    if model.flag(f"{prefix}conv_bias", True):
        add.tensor(f"{at}.conv1d.bias", inner, cut="tensor")
    add.linear(f"{at}.in_proj", 2 * inner, hidden, bias)
    add.linear(f"{at}.x_proj", rank + 2 * state, inner)
    add.linear(f"{at}.dt_proj", inner, rank, True)
    add.linear(f"{at}.out_proj", hidden, inner, bias)
    return state, rank, kernel


def _mamba_alone(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    add.norm("norm", model.hidden)
    inner = model.size("intermediate_size", default=model.size("expand", default=2) * model.hidden)
    names = ("state_size", "conv_kernel", "time_step_rank")
    state, rank, kernel = _mamba_mixer(model, add, "mixer", inner, "use_", names, model.flag("use_bias"))
    return LayerShape(recurrence=mamba(inner, state, rank, kernel), num_norms=1, num_inputs=1)


def _jamba(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, width = model.hidden, model.size("intermediate_size")
    add.norm("input_layernorm", hidden)
    add.norm("pre_ff_layernorm", hidden)
    attention = recurrence = None
    if _falls_on(model, "attn_layer", layer, 8, 4):
        attention = add.attention(hidden, head_sizes(model))
    else:
        names = ("mamba_d_state", "mamba_d_conv", "mamba_dt_rank")
        inner, bias = _expanded(model), model.flag("mamba_proj_bias")
        state, rank, kernel = _mamba_mixer(model, add, "mamba", inner, "mamba_", names, bias)
        for name, size in (("dt", rank), ("b", state), ("c", state)):
            add.norm(f"mamba.{name}_layernorm", size)
        recurrence = mamba(inner, state, rank, kernel, is_fused=False)
    count = model.size("num_experts", "num_local_experts", default=16)
    if count == 1 or not _falls_on(model, "expert_layer", layer, 2, 1):
        add.gated("feed_forward", hidden, width)
        return LayerShape(attention, recurrence, width)
    per_token = model.size("num_experts_per_tok")
    add.linear("feed_forward.router", count, hidden)
    add.experts("feed_forward.experts", count, hidden, width)
    return LayerShape(attention, recurrence, per_token * width, per_token)


def _falls_on(model: Reader, name: str, layer: int, period: int, offset: int) -> bool:
    return layer % model.size(f"{name}_period", default=period) == model.size(f"{name}_offset", default=offset, least=0)


_ALONE: Mapping[str, Any] = {
    "embedding": "backbone.embeddings",
    "layers": "backbone.layers",
    "ends": ("backbone.norm_f.weight",),
}
_FINAL = ("model.final_layernorm.weight",)
MAMBA_TYPES: Mapping[str, Form] = {
    "bamba": Form(_bamba, ends=_FINAL),
    "falcon_h1": Form(_falcon_h1, ends=_FINAL),
    "granitemoehybrid": Form(_granite),
    "mamba": Form(_mamba_alone, ties_head=True, **_ALONE),
    "falcon_mamba": Form(_mamba_alone, ties_head=True, **_ALONE),
    "mamba2": Form(_mamba2_alone, **_ALONE),
    "jamba": Form(_jamba, ends=_FINAL),
    "zamba2": Form(_zamba, ends=_FINAL, ties_head=True),
    "nemotron_h": Form(
        _nemotron,
        embedding="model.embeddings",
        ends=("model.norm_f.weight",),
        norm="rms in fp32",
        ties_head=None,
        count=lambda model: len(_nemotron_kinds(model)),
    ),
}
"""Types by the model_type of config.json."""

"""Weights and layers of types with recurrences, beside attention or in its place: as transformers 5.19 builds them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.memory.layer_shape import SHARED_GATE, LayerShape, Recurrence
from roll.configs.memory.reader import Form, LayerWeights, Reader, UnreadableModel, head_sizes, latent_attention
from roll.configs.memory.recurrence import convolution, gated_delta, gated_linear, kimi_delta, lightning, mamba, mamba2


def _kinds(model: Reader, default: Callable[[int], str], *names: str) -> list[str]:
    """Kind of each layer, in today's words: as one of the keys says, or by its number."""
    for name in (*names, "layer_types"):
        if (kinds := model.texts(name, model.num_layers)) is not None:
            return [_TODAY.get(kind, kind) for kind in kinds]
    return [default(layer) for layer in range(model.num_layers)]


_TODAY = {"attention": "full_attention", "mamba": "linear_attention", "recurrent": "linear_attention"}


def _is_attention(kind: str, *others: str) -> bool:
    if kind == "full_attention":
        return True
    if kind not in others:
        raise UnreadableModel(f"config.json: the memory formulas know no layers of kind {kind}")
    return False


# Gated delta rules: Qwen3-Next, Qwen3.5, OLMo-hybrid, Kimi-Linear.


def _qwen(model: Reader, layer: int, add: LayerWeights, is_mixture: bool, is_old: bool) -> LayerShape:
    hidden = model.hidden
    add.norm("input_layernorm", hidden)
    add.norm("post_attention_layernorm", hidden)
    every = model.size("full_attention_interval", default=4)
    kind = _kinds(model, lambda place: "linear_attention" if (place + 1) % every else "full_attention")[layer]
    attention = recurrence = None
    if _is_attention(kind, "linear_attention"):
        sizes, bias = head_sizes(model, 256, has_gates=True), model.flag("attention_bias")
        attention = add.attention(hidden, sizes, bias, bias)
        add.norm("self_attn.q_norm", sizes.size)
        add.norm("self_attn.k_norm", sizes.size)
    else:
        recurrence = _qwen_delta(model, add, is_old)
    if not is_mixture or (is_old and _is_dense(model, layer)):
        width = model.size("intermediate_size")
        add.gated("mlp", hidden, width)
        return LayerShape(attention, recurrence, width)
    count, width, shared, per_token = (
        model.size(key)
        for key in ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok")
    )
    add.linear("mlp.gate", count, hidden, cut="whole")
    add.experts("mlp.experts", count, hidden, width)
    add.gated("mlp.shared_expert", hidden, shared)
    add.linear("mlp.shared_expert_gate", 1, hidden, cut="whole", block=SHARED_GATE)
    return LayerShape(attention, recurrence, per_token * width + shared, per_token)


def _is_dense(model: Reader, layer: int) -> bool:
    step = model.size("decoder_sparse_step", default=1)
    return layer in model.numbers("mlp_only_layers") or (layer + 1) % step != 0


def _qwen_delta(model: Reader, add: LayerWeights, is_old: bool) -> Recurrence:
    hidden, at = model.hidden, "linear_attn"
    key_heads, heads, key, value = (
        model.size(f"linear_{name}") for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    kernel = model.size("linear_conv_kernel_dim", default=4)
    keys, values = key_heads * key, heads * value
    _decays(add, at, heads)
    add.tensor(f"{at}.conv1d.weight", 2 * keys + values, 1, kernel, cut="tensor")
    if is_old:
        add.linear(f"{at}.in_proj_qkvz", 2 * keys + 2 * values, hidden)
        add.linear(f"{at}.in_proj_ba", 2 * heads, hidden)
    else:
        add.linear(f"{at}.in_proj_qkv", 2 * keys + values, hidden, block="in_proj_qkvz")
        add.linear(f"{at}.in_proj_z", values, hidden, block="in_proj_qkvz")
        for name in "ba":
            add.linear(f"{at}.in_proj_{name}", heads, hidden, block="in_proj_ba")
    add.norm(f"{at}.norm", value)
    add.linear(f"{at}.out_proj", hidden, values)
    in_fp32 = model.model.get("mamba_ssm_dtype") == "float32"
    return replace(gated_delta(key_heads, heads, key, value, kernel), in_fp32=in_fp32)


def _decays(add: LayerWeights, at: str, *shape: int) -> None:
    add.tensor(f"{at}.dt_bias", *shape, cut="tensor")
    add.tensor(f"{at}.A_log", *shape, cut="tensor")


def _olmo(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, width, heads = model.hidden, model.size("intermediate_size"), model.size("num_attention_heads")
    add.gated("mlp", hidden, width)
    add.norm("post_attention_layernorm", hidden)
    last = model.num_layers - 1
    kinds = _kinds(model, lambda place: "full_attention" if place % 4 == 3 or place == last < 3 else "linear_attention")
    if _is_attention(kinds[layer], "linear_attention"):
        add.norm("post_feedforward_layernorm", hidden)
        sizes, bias = head_sizes(model), model.flag("attention_bias")
        attention = add.attention(hidden, sizes, bias, bias)
        add.norm("self_attn.q_norm", sizes.heads * sizes.size)
        add.norm("self_attn.k_norm", sizes.kv_heads * sizes.size)
        return LayerShape(attention, ffn_width=width)
    add.norm("input_layernorm", hidden)
    at, kernel = "linear_attn", model.size("linear_conv_kernel_dim", default=4)
    key_heads, value_heads = (model.size(f"linear_num_{name}_heads", default=heads) for name in ("key", "value"))
    key = model.size("linear_key_head_dim", default=int(0.75 * hidden / key_heads))
    value = model.size("linear_value_head_dim", default=2 * key)
    keys, values = key_heads * key, value_heads * value
    _decays(add, at, value_heads)
    for name, rows in {"q": keys, "k": keys, "v": values, "a": value_heads, "b": value_heads, "g": values}.items():
        add.linear(f"{at}.{name}_proj", rows, hidden)
    add.linear(f"{at}.o_proj", hidden, values)
    add.tensor(f"{at}.conv1d.weight", 2 * keys + values, 1, kernel, cut="tensor")
    add.norm(f"{at}.o_norm", value)
    return LayerShape(recurrence=gated_delta(key_heads, value_heads, key, value, kernel), ffn_width=width)


def _kimi(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden = model.hidden
    linear = model.model.get("linear_attn_config")
    own = Reader(linear if isinstance(linear, Mapping) else {})
    add.norm("input_layernorm", hidden)
    add.norm("post_attention_layernorm", hidden)
    full = own.numbers("full_attn_layers")  # counted from 1

    def kind(place: int) -> str:
        is_full = place + 1 in full if full else place > 0 and place % 4 == 0
        return "full_attention" if is_full else "linear_attention"

    attention = recurrence = None
    if _is_attention(_kinds(model, kind)[layer], "linear_attention"):
        attention = latent_attention(add, model)
    else:
        recurrence = _kimi_delta(model, own, add)
    feeds = model.texts("mlp_layer_types", model.num_layers)
    dense = model.size("first_k_dense_replace", default=1, least=0)
    if (feeds[layer] == "dense") if feeds else layer < dense:
        width = model.size("intermediate_size")
        add.gated("mlp", hidden, width)
        return LayerShape(attention, recurrence, width)
    count = model.size("num_local_experts", "num_experts")
    width, per_token = model.size("moe_intermediate_size"), model.size("num_experts_per_tok", "num_experts_per_token")
    shared = width * model.size("n_shared_experts", "num_shared_experts", default=1, least=0)
    add.linear("mlp.gate", count, hidden, cut="whole")
    add.experts("mlp.experts", count, hidden, width)
    add.gated("mlp.shared_experts", hidden, shared)
    return LayerShape(attention, recurrence, per_token * width + shared, per_token)


def _kimi_delta(model: Reader, own: Reader, add: LayerWeights) -> Recurrence:
    hidden, at = model.hidden, "self_attn"
    heads = own.size("num_heads", default=model.size("linear_num_heads", default=32))
    size = own.size("head_dim", default=model.size("linear_head_dim", default=128))
    kernel = own.size("short_conv_kernel_size", default=model.size("linear_conv_kernel_dim", default=4))
    width = heads * size
    for name in "qkv":
        add.linear(f"{at}.{name}_proj", width, hidden, block="qkv")
    add.tensor(f"{at}.conv1d.weight", 3 * width, 1, kernel, cut="tensor")
    add.tensor(f"{at}.forget_gate.dt_bias", width, cut="tensor")
    add.tensor(f"{at}.forget_gate.A_log", 1, 1, heads, 1, cut="tensor")
    for name in ("forget_gate.f", "g"):
        add.linear(f"{at}.{name}_a_proj", size, hidden)
        add.linear(f"{at}.{name}_b_proj", width, size)
    add.linear(f"{at}.b_proj", heads, hidden)
    add.norm(f"{at}.o_norm", size)
    add.linear(f"{at}.o_proj", hidden, width)
    return kimi_delta(heads, size, kernel)


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
        _decays(add, at, self.heads)
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
        add.experts("block_sparse_moe.experts", count, hidden, width, are_linear=False)
    add.linear("shared_mlp.input_linear", 2 * shared, hidden)
    add.linear("shared_mlp.output_linear", hidden, shared)
    ffn = per_token * width + shared
    kinds = _kinds(model, lambda _: "linear_attention", "layers_block_type")
    if _is_attention(kinds[layer], "linear_attention"):
        bias = model.flag("attention_bias")
        attention = add.attention(hidden, head_sizes(model), bias, bias)
        return LayerShape(attention, ffn_width=ffn, experts_per_token=per_token)
    recurrence = _mamba_sizes(model, _expanded(model)).add(hidden, add, "mamba")
    return LayerShape(recurrence=recurrence, ffn_width=ffn, experts_per_token=per_token)


_NEMOTRON = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def _nemotron_kinds(model: Reader) -> list[str]:
    pattern = model.model.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [_NEMOTRON.get(each, each) for each in pattern]
    for name in ("layers_block_type", "layer_types"):
        kinds = model.model.get(name)
        if isinstance(kinds, list) and kinds:
            return [_TODAY.get(str(kind), str(kind)) for kind in kinds]
    raise UnreadableModel("config.json lacks hybrid_override_pattern")


def _nemotron(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, at, bias = model.hidden, "mixer", model.flag("mlp_bias")
    kind = _nemotron_kinds(model)[layer]
    add.norm("norm", hidden)
    if kind == "mlp":
        width = model.size("intermediate_size")
        add.linear(f"{at}.up_proj", width, hidden, bias)
        add.linear(f"{at}.down_proj", hidden, width, bias)
        return LayerShape(ffn_width=width, is_gated=False, num_norms=1)
    if kind == "moe":
        return _nemotron_experts(model, add, bias)
    if _is_attention(kind, "linear_attention"):
        return LayerShape(add.attention(hidden, head_sizes(model, 128), at=at), num_norms=1)
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
    return LayerShape(recurrence=replace(sizes.add(hidden, add, at), in_fp32=in_fp32), num_norms=1)


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
    return LayerShape(ffn_width=ffn, is_gated=False, experts_per_token=per_token, num_norms=1)


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
    return LayerShape(recurrence=sizes.add(model.hidden, add, "mixer"), num_norms=1)


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
    return LayerShape(recurrence=mamba(inner, state, rank, kernel), num_norms=1)


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


# Convolutions, gated linear recurrences, lightning attention.


def _lfm(model: Reader, layer: int, add: LayerWeights, is_mixture: bool) -> LayerShape:
    hidden = model.hidden
    full = model.numbers("full_attn_idxs") or range(model.num_layers)
    kind = _kinds(model, lambda place: "full_attention" if place in full else "conv")[layer]
    attention = recurrence = None
    if _is_attention(kind, "conv"):
        sizes = head_sizes(model)
        attention = add.attention(hidden, sizes, output="out_proj")
        add.norm("self_attn.q_layernorm", sizes.size)
        add.norm("self_attn.k_layernorm", sizes.size)
    else:
        kernel, bias = model.size("conv_L_cache", default=3), model.flag("conv_bias")
        add.tensor("conv.conv.weight", hidden, 1, kernel, cut="tensor")
        if bias:
            add.tensor("conv.conv.bias", hidden, cut="tensor")
        add.linear("conv.in_proj", 3 * hidden, hidden, bias)
        add.linear("conv.out_proj", hidden, hidden, bias)
        recurrence = convolution(hidden, kernel)
    add.norm("operator_norm", hidden)
    add.norm("ffn_norm", hidden)
    if is_mixture and layer >= model.size("num_dense_layers", default=2, least=0):
        count, width, per_token = (
            model.size(key) for key in ("num_experts", "moe_intermediate_size", "num_experts_per_tok")
        )
        add.linear("feed_forward.gate", count, hidden, cut="whole")
        add.experts("feed_forward.experts", count, hidden, width)
        return LayerShape(attention, recurrence, per_token * width, per_token)
    width = model.size("intermediate_size") if is_mixture else _lfm_width(model)
    for name in ("w1", "w3"):
        add.linear(f"feed_forward.{name}", width, hidden, block="gate and up")
    add.linear("feed_forward.w2", hidden, width)
    return LayerShape(attention, recurrence, width)


def _lfm_width(model: Reader) -> int:
    width = model.size("block_ff_dim", "intermediate_size")
    if not model.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    factor = model.model.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return width
    if not isinstance(factor, int | float) or not 0 < factor <= 1000:
        raise UnreadableModel("config.json: block_ffn_dim_multiplier is not a number above 0")
    step = model.size("block_multiple_of", default=256)
    return -(-int(factor * width) // step) * step


def _recurrent_gemma(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, at = model.hidden, "temporal_block"
    kinds = model.model.get("block_types") or model.model.get("_block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise UnreadableModel("config.json: block_types is not a list of texts")
    heads, inner = model.size("num_attention_heads"), model.size("lru_width", default=hidden)
    add.norm("temporal_pre_norm", hidden)
    attention = recurrence = None
    kind = kinds[layer % len(kinds)]
    if _is_attention(_TODAY.get(kind, kind), "linear_attention"):
        attention = add.attention(hidden, head_sizes(model), model.flag("attention_bias"), True, at)
    else:
        kernel = model.size("conv1d_width", default=4)
        for name in ("linear_y", "linear_x"):
            add.linear(f"{at}.{name}", inner, hidden, True)
        add.linear(f"{at}.linear_out", hidden, inner, True)
        add.tensor(f"{at}.conv_1d.weight", inner, 1, kernel, cut="tensor")
        add.tensor(f"{at}.conv_1d.bias", inner, cut="tensor")
        add.tensor(f"{at}.rg_lru.recurrent_param", inner, cut="tensor")
        for name in ("input", "recurrent"):
            add.tensor(f"{at}.rg_lru.{name}_gate_weight", heads, inner // heads, inner // heads, cut="tensor")
            add.tensor(f"{at}.rg_lru.{name}_gate_bias", heads, inner // heads, cut="tensor")
        recurrence = gated_linear(inner, kernel)
    width = model.size("intermediate_size") // 2
    add.norm("channel_pre_norm", hidden)
    add.gated("mlp_block", hidden, width, True)
    return LayerShape(attention, recurrence, width)


def _minimax(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, sizes, width = model.hidden, head_sizes(model), model.size("intermediate_size")
    count, per_token = model.size("num_local_experts", "num_experts"), model.size("num_experts_per_tok")
    add.norm("input_layernorm", hidden)
    add.norm("post_attention_layernorm", hidden)
    kinds = _kinds(model, lambda place: "linear_attention" if place % 2 else "full_attention")
    attention = recurrence = None
    if _is_attention(kinds[layer], "linear_attention"):
        attention = add.attention(hidden, sizes)
    else:
        inner = sizes.heads * sizes.size
        add.norm("self_attn.norm", inner)
        add.linear("self_attn.qkv_proj", 3 * inner, hidden)
        add.linear("self_attn.out_proj", hidden, inner)
        add.linear("self_attn.output_gate", inner, hidden)
        recurrence = lightning(sizes.heads, sizes.size, model.size("block_size", default=256))
    add.linear("mlp.gate", count, hidden, cut="whole")
    add.experts("mlp.experts", count, hidden, width)
    return LayerShape(attention, recurrence, per_token * width, per_token)


_ALONE: Mapping[str, Any] = {
    "embedding": "backbone.embeddings",
    "layers": "backbone.layers",
    "ends": ("backbone.norm_f.weight",),
}
_LFM: Mapping[str, Any] = {"ends": ("model.embedding_norm.weight",), "ties_head": True}
_FINAL = ("model.final_layernorm.weight",)
HYBRIDS: Mapping[str, Form] = {
    "qwen3_next": Form(lambda model, layer, add: _qwen(model, layer, add, is_mixture=True, is_old=True)),
    "qwen3_5_text": Form(lambda model, layer, add: _qwen(model, layer, add, is_mixture=False, is_old=False)),
    "qwen3_5_moe_text": Form(lambda model, layer, add: _qwen(model, layer, add, is_mixture=True, is_old=False)),
    "olmo_hybrid": Form(_olmo),
    "kimi_linear": Form(_kimi, ties_head=None),
    "bamba": Form(_bamba, ends=_FINAL),
    "falcon_h1": Form(_falcon_h1, ends=_FINAL),
    "granitemoehybrid": Form(_granite),
    "nemotron_h": Form(
        _nemotron,
        embedding="model.embeddings",
        ends=("model.norm_f.weight",),
        ties_head=None,
        count=lambda model: len(_nemotron_kinds(model)),
    ),
    "mamba": Form(_mamba_alone, ties_head=True, **_ALONE),
    "falcon_mamba": Form(_mamba_alone, ties_head=True, **_ALONE),
    "mamba2": Form(_mamba2_alone, **_ALONE),
    "jamba": Form(_jamba, ends=_FINAL),
    "lfm2": Form(
        lambda model, layer, add: _lfm(model, layer, add, False), ends=("model.embedding_norm.weight",), ties_head=True
    ),
    "lfm2_moe": Form(lambda model, layer, add: _lfm(model, layer, add, is_mixture=True), **_LFM),
    "recurrent_gemma": Form(_recurrent_gemma, ends=("model.final_norm.weight",), ties_head=True),
    "minimax": Form(_minimax),
}
"""Types by the model_type of config.json."""

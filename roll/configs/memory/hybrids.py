"""Weights and layers of types with recurrences other than Mamba, beside attention: as transformers 5.19 builds them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roll.configs.memory.layer_shape import SHARED_GATE, LayerShape, Recurrence
from roll.configs.memory.reader import (
    TODAY,
    Form,
    LayerWeights,
    Reader,
    UnreadableModel,
    add_decays,
    head_sizes,
    is_attention,
    kinds_of,
    latent_attention,
)
from roll.configs.memory.recurrence import convolution, gated_delta, gated_linear, kimi_delta, lightning

# Gated delta rules: Qwen3-Next, Qwen3.5, OLMo-hybrid, Kimi-Linear.


def _qwen(model: Reader, layer: int, add: LayerWeights, is_mixture: bool, is_old: bool) -> LayerShape:
    hidden = model.hidden
    add.norm("input_layernorm", hidden)
    add.norm("post_attention_layernorm", hidden)
    every = model.size("full_attention_interval", default=4)
    kind = kinds_of(model, lambda place: "linear_attention" if (place + 1) % every else "full_attention")[layer]
    attention = recurrence = None
    if is_attention(kind, "linear_attention"):
        sizes, bias = replace(head_sizes(model, 256, has_gates=True), has_norms=True), model.flag("attention_bias")
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
    return LayerShape(attention, recurrence, per_token * width + shared, per_token, num_inputs=3, has_shared=True)


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
    add_decays(add, at, heads)
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


def _olmo(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, width, heads = model.hidden, model.size("intermediate_size"), model.size("num_attention_heads")
    add.gated("mlp", hidden, width)
    add.norm("post_attention_layernorm", hidden)
    last = model.num_layers - 1
    kinds = kinds_of(
        model, lambda place: "full_attention" if place % 4 == 3 or place == last < 3 else "linear_attention"
    )
    if is_attention(kinds[layer], "linear_attention"):
        add.norm("post_feedforward_layernorm", hidden)
        sizes, bias = replace(head_sizes(model), has_norms=True), model.flag("attention_bias")
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
    add_decays(add, at, value_heads)
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
    if is_attention(kinds_of(model, kind)[layer], "linear_attention"):
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


# Convolutions, gated linear recurrences, lightning attention.


def _lfm(model: Reader, layer: int, add: LayerWeights, is_mixture: bool) -> LayerShape:
    hidden = model.hidden
    full = model.numbers("full_attn_idxs") or range(model.num_layers)
    kind = kinds_of(model, lambda place: "full_attention" if place in full else "conv")[layer]
    attention = recurrence = None
    if is_attention(kind, "conv"):
        sizes = replace(head_sizes(model), has_norms=True)
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
    if is_attention(TODAY.get(kind, kind), "linear_attention"):
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
    kinds = kinds_of(model, lambda place: "linear_attention" if place % 2 else "full_attention")
    attention = recurrence = None
    if is_attention(kinds[layer], "linear_attention"):
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


_LFM: Mapping[str, Any] = {"ends": ("model.embedding_norm.weight",), "ties_head": True}
HYBRIDS: Mapping[str, Form] = {
    "qwen3_next": Form(
        lambda model, layer, add: _qwen(model, layer, add, is_mixture=True, is_old=True), norm="rms in fp32"
    ),
    "qwen3_5_text": Form(
        lambda model, layer, add: _qwen(model, layer, add, is_mixture=False, is_old=False), norm="rms in fp32"
    ),
    "qwen3_5_moe_text": Form(
        lambda model, layer, add: _qwen(model, layer, add, is_mixture=True, is_old=False), norm="rms in fp32"
    ),
    "olmo_hybrid": Form(_olmo, norm="rms in fp32"),
    "kimi_linear": Form(_kimi, ties_head=None),
    "lfm2": Form(
        lambda model, layer, add: _lfm(model, layer, add, False), ends=("model.embedding_norm.weight",), ties_head=True
    ),
    "lfm2_moe": Form(lambda model, layer, add: _lfm(model, layer, add, is_mixture=True), **_LFM),
    "recurrent_gemma": Form(_recurrent_gemma, ends=("model.final_norm.weight",), ties_head=True, norm="rms in fp32"),
    "minimax": Form(_minimax),
}
"""Types by the model_type of config.json."""

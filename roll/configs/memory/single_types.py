"""Weights and layers of types whose attention or experts are like no other's."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from roll.configs.memory.decoders import (
    ATTENTION_BIAS,
    FOUR_NORMS,
    LATENT,
    MLP_BIAS,
    SHARED_EXPERTS,
    Mixture,
    Traits,
    attention_of,
    behind,
    experts_of,
    layer_of,
    numbered,
    sizes_of,
)
from roll.configs.memory.layer_shape import Attention, LayerShape
from roll.configs.memory.reader import (
    Form,
    HeadSizes,
    LayerWeights,
    Reader,
    UnreadableModel,
    head_sizes,
    latent_attention,
)

_FIRST = "first_k_dense_replace"
_SAME = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")  # names in files


def _llama4_layers(model: Reader) -> list[int]:
    named = model.numbers("moe_layers")
    step = model.size("interleave_moe_layer_step", default=1)
    return named or list(range(step - 1, model.num_layers, step))


def _afmoe_gate(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    traits = Traits(
        ATTENTION_BIAS, head_dim=128, normed="head", norm="rms in fp32",
        norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        mixture=Mixture(
            count=("num_experts",), router="router.gate", router_is_linear=True, shared="shared_experts",
            shared_width=numbered("num_shared_experts", default=2), vectors={"expert_bias": lambda count: (count,)},
            is_sparse=behind("num_dense_layers", 1, by_kind=False),
        ),
    )  # fmt: skip
    shape = layer_of(traits, model, layer, add)
    sizes = sizes_of(traits, model)
    add.linear("self_attn.gate_proj", sizes.heads * sizes.size, model.hidden)
    return replace(shape, attention=replace(sizes, has_gates=True, has_norms=True).attention)


def _axk1(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    traits = replace(
        LATENT, mixture=replace(SHARED_EXPERTS, is_sparse=behind("first_k_dense_replace", 1, by_kind=False))
    )
    shape = layer_of(traits, model, layer, add)
    if shape.experts_per_token:
        add.norm("mlp.post_mlp_layernorm", model.hidden)
        shape = replace(shape, num_norms=3)
    return shape


def _indexed(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """DeepSeek-V3.2: a small attention of its own chooses the tokens that a layer sees (arXiv 2512.02556)."""
    traits = replace(LATENT, mixture=replace(SHARED_EXPERTS, is_sparse=behind("first_k_dense_replace", 3)))
    shape = layer_of(traits, model, layer, add)
    kinds = model.texts("indexer_types", model.num_layers)
    if kinds is None or kinds[layer] != "shared":
        return _indexed_by(shape, model, add)
    return shape


def _indexed_by(shape: LayerShape, model: Reader, add: LayerWeights) -> LayerShape:
    """A layer with an attention that chooses tokens: it scores all pairs, without a backward pass."""
    heads, size, at = model.size("index_n_heads"), model.size("index_head_dim"), "self_attn.indexer"
    add.linear(f"{at}.wq_b", heads * size, model.size("q_lora_rank"))
    add.linear(f"{at}.wk", size, model.hidden)
    add.norm(f"{at}.k_norm", size, True)
    add.linear(f"{at}.weights_proj", heads, model.hidden)
    assert shape.attention is not None
    return replace(shape, attention=replace(shape.attention, products=shape.attention.products + heads * size))


def _longcat(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """LongCat-Flash: attention and MLP twice in a layer, and experts beside them. In transformers experts that do
    nothing have gate and up as well."""
    hidden, width, at = model.hidden, model.size("ffn_hidden_size", "intermediate_size"), "mlp.experts"
    count, idle = model.size("n_routed_experts"), model.size("zero_expert_num", default=0, least=0)
    per_token, inner = model.size("moe_topk", "num_experts_per_tok"), model.size("expert_ffn_hidden_size")
    add.stacked_experts(at, count, hidden, inner, None)
    if idle:
        add.tensor(f"{at}.idle_gate_and_up", idle * 2 * inner * hidden, cut="expert", block="of no use")
    add.linear("mlp.router.classifier", count + idle, hidden, model.flag("router_bias"))
    attention = None
    for part in range(2):
        attention = latent_attention(add, model, f"self_attn.{part}")
        add.gated(f"mlps.{part}", hidden, width)
        add.norm(f"input_layernorm.{part}", hidden)
        add.norm(f"post_attention_layernorm.{part}", hidden)
    assert attention is not None
    twice = Attention(**{name: 2 * value for name, value in asdict(attention).items()} | {"cache_cuts": 1})
    ffn_width = 2 * width + per_token * inner
    return LayerShape(
        twice, ffn_width=ffn_width, experts_per_token=per_token, num_norms=4, num_inputs=4, routes_in_fp32=True
    )


def _mimo(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, bias, at = model.hidden, model.flag("attention_bias"), "self_attn"
    kinds = model.texts("layer_types", model.num_layers)
    slides = kinds is not None and kinds[layer] == "sliding_attention"
    heads, kv_heads = model.size("num_attention_heads"), model.size("num_key_value_heads") * (2 if slides else 1)
    key, value = model.size("head_dim", default=192), model.size("v_head_dim", default=128)
    for norm in Traits.norms:
        add.norm(norm, hidden)
    if slides:
        add.tensor(f"{at}.sinks", heads)
    for name, rows in (("q", heads * key), ("k", kv_heads * key), ("v", kv_heads * value)):
        add.linear(f"{at}.{name}_proj", rows, hidden, bias, block="qkv")
    add.linear(f"{at}.o_proj", hidden, heads * value)
    cached = kv_heads * (key + value)
    own = Attention(
        projected=heads * key + cached,
        mixed=heads * value,
        cached=cached,
        cache_cuts=kv_heads,
        products=heads * (key + value),
        heads=heads,
        saved=heads * (key + value) + cached,
    )
    if behind("first_k_dense_replace", 1)(model, layer):
        return replace(experts_of(Mixture(in_fp32=True), model, add), attention=own)
    width = model.size("intermediate_size")
    add.gated("mlp", hidden, width)
    return LayerShape(own, ffn_width=width)


def _minimax_m3(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, sizes, at = model.hidden, head_sizes(model, 128), "mlp"
    for norm in Traits.norms:
        add.norm(norm, hidden)
    own = attention_of(Traits(normed="head"), model, add, sizes)
    if not behind("", 0)(model, layer):
        width = model.size("dense_intermediate_size", default=12_288)
        add.linear(f"{at}.gate_up_proj", 2 * width, hidden)
        add.linear(f"{at}.down_proj", hidden, width)
        return LayerShape(own, ffn_width=width)
    shape = experts_of(Mixture(width="intermediate_size", stored=_SAME), model, add)
    shared = model.size("shared_intermediate_size", default=3072)
    add.linear(f"{at}.shared_experts.gate_up_proj", 2 * shared, hidden)
    add.linear(f"{at}.shared_experts.down_proj", hidden, shared)
    return replace(shape, attention=own, ffn_width=shape.ffn_width + shared)


def _llama4(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    width = model.size("intermediate_size")
    mixture = Mixture(
        count=("num_local_experts",), width="intermediate_size", at="feed_forward", router="router",
        router_is_linear=True,
        shared="shared_expert", shared_width=lambda _: width, stored=None,
        is_sparse=lambda each, place: place in _llama4_layers(each),
    )  # fmt: skip
    traits = Traits(ATTENTION_BIAS, all_keys=False, head_dim=128, mixture=mixture, mlp_at="feed_forward")
    if mixture.is_sparse(model, layer):
        shape = layer_of(traits, model, layer, add)
        others = model.size("num_local_experts") - shape.experts_per_token  # which transformers computes, too
        return _saving(shape, others * (4 * width + 2 * model.hidden))
    dense = Reader({**model.model, "intermediate_size": model.size("intermediate_size_mlp")})
    return layer_of(traits, dense, layer, add)


def _longcat_layers(model: Reader) -> int:
    """Number of layers, each of which transformers counts as two."""
    if model.model.get("num_layers") is not None:
        return model.size("num_layers")
    return max(1, model.num_layers // 2)


def _axk2(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, heads, rank = model.hidden, model.size("num_attention_heads"), model.size("gated_norm_rank", default=16)
    key, value = model.size("qk_nope_head_dim") + model.size("qk_rope_head_dim"), model.size("v_head_dim")
    shape = layer_of(
        replace(LATENT, norms=(), mixture=replace(SHARED_EXPERTS, is_sparse=behind(_FIRST, 1))), model, layer, add
    )
    query = model.size("q_lora_rank")
    add.weights = [weight for weight in add.weights if ".q_b_proj." not in weight.name]
    add.linear("self_attn.q_gate_proj", heads * (key + value), 2 * query)
    shape = _indexed_by(shape, model, add)
    gated = ("input_layernorm", "post_attention_layernorm") if shape.experts_per_token else ("input_layernorm",)
    for name in gated:
        add.norm(f"{name}.norm", hidden)
        add.linear(f"{name}.mlp.fc1", rank, hidden)
        add.linear(f"{name}.mlp.fc2", hidden, rank)
    if not shape.experts_per_token:
        add.norm("post_attention_layernorm", hidden)
    assert shape.attention is not None
    return replace(
        shape, attention=replace(shape.attention, projected=shape.attention.projected + heads * value), num_norms=2
    )


def _hy_v4(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """Hidden states in several streams (hyper-connections), which each part of a layer reads and writes."""
    hidden, heads, streams = model.hidden, model.size("num_attention_heads"), model.size("hc_mult", default=4)
    mixture = replace(SHARED_EXPERTS, stored=_SAME, is_sparse=behind(_FIRST, 1))
    shape = layer_of(replace(LATENT, mixture=mixture), model, layer, add)
    kinds = model.texts("indexer_types", model.num_layers)
    if (kinds[layer] != "shared") if kinds else layer == 0 or (layer - 1) % 4 == 0:
        shape = _indexed_by(shape, model, add)
    add.tensor("self_attn.sinks", heads)
    add.linear("self_attn.gate_proj", heads * model.size("v_head_dim"), hidden)
    for part in ("attn_hc", "ffn_hc"):
        add.tensor(f"{part}.fn", 2 * streams, streams * hidden)
        add.tensor(f"{part}.base", 2 * streams)
        add.tensor(f"{part}.scale", 2)
    return replace(shape, num_norms=2 * streams)


def _hy_v4_head(model: Reader) -> Iterator[tuple[str, tuple[int, ...]]]:
    streams = model.size("hc_mult", default=4)
    yield "model.hc_head.hc_fn", (streams, streams * model.hidden)
    yield "model.hc_head.hc_base", (streams,)
    yield "model.hc_head.hc_scale", (1,)


def _laguna(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    numbers = model.numbers("num_attention_heads_per_layer")
    heads = numbers[layer] if len(numbers) == model.num_layers else model.size("num_attention_heads")
    mixture = Mixture(
        count=("num_experts",), shared="shared_experts", is_sparse=behind("", 1),
        shared_width=lambda each: each.size("shared_expert_intermediate_size"),
        vectors={"gate.e_score_correction_bias": lambda count: (count,)}, in_fp32=True,
    )  # fmt: skip
    traits = Traits(ATTENTION_BIAS, all_keys=False, head_dim=128, normed="head", mixture=mixture)
    mine = Reader({**model.model, "num_attention_heads": heads})
    shape, size = layer_of(traits, mine, layer, add), sizes_of(traits, mine).size
    by_head = model.model.get("gating", True) in (True, "per-head")
    add.linear("self_attn.g_proj", heads if by_head else heads * size, model.hidden)
    return shape


def _doge(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, traits = model.hidden, Traits(ATTENTION_BIAS, normed="head", mlp_bias=MLP_BIAS)
    shape, sizes = layer_of(traits, model, layer, add), sizes_of(traits, model)
    add.tensor("self_attn.A", sizes.kv_heads)
    add.linear("self_attn.dt_proj", sizes.kv_heads, sizes.kv_heads * sizes.size, model.flag("attention_bias"))
    for name in ("input_residual", "post_attention_residual"):
        add.tensor(name, hidden)
    shape = _saving(shape, 2 * hidden)  # residuals, which are multiplied
    if model.flag("is_moe"):
        count = model.size("num_experts")
        add.linear("mlp.router_gate", 2 * int(count**0.5), hidden)
        for name in ("down_embed", "up_embed"):
            add.tensor(f"mlp.{name}.weight", count, hidden, block="embedding")
    return shape


# Gemma-3n and Gemma-4: an embedding for each layer, and keys that layers share.


def _last_keys(model: Reader, default: int) -> int:
    """Number of layers with keys and values of their own."""
    return model.num_layers - model.size("num_kv_shared_layers", default=default, least=0, most=model.num_layers)


def _gemma_attention(model: Reader, add: LayerWeights, sizes: HeadSizes, has_keys: bool, has_values: bool) -> Attention:
    hidden, bias, at = model.hidden, model.flag("attention_bias"), "self_attn"
    width, keys = sizes.heads * sizes.size, sizes.kv_heads * sizes.size
    add.linear(f"{at}.q_proj", width, hidden, bias, block="qkv")
    add.norm(f"{at}.q_norm", sizes.size)
    if has_keys:
        add.norm(f"{at}.k_norm", sizes.size)
        for name in ("k", "v") if has_values else ("k",):
            add.linear(f"{at}.{name}_proj", keys, hidden, bias, block="qkv")
    add.linear(f"{at}.o_proj", hidden, width, bias)
    attention = replace(sizes, has_norms=True).attention
    if not has_keys:
        return replace(attention, projected=width, cached=0, saved=2 * width, normed=width)
    return replace(attention, normed=attention.normed + keys // 2)  # the norm of values has no weights


def _inputs_of_layers(model: Reader) -> Iterator[tuple[str, tuple[int, ...]]]:
    size = model.size("hidden_size_per_layer_input", default=256, least=0)
    if size:
        table = model.size("vocab_size_per_layer_input", default=262_144)
        yield "model.embed_tokens_per_layer.weight", (table, model.num_layers * size)
        yield "model.per_layer_model_projection.weight", (model.num_layers * size, model.hidden)
        yield "model.per_layer_projection_norm.weight", (size,)


def _input_of_layer(model: Reader, add: LayerWeights, shape: LayerShape) -> LayerShape:
    size = model.size("hidden_size_per_layer_input", default=256, least=0)
    if not size:
        return shape
    add.linear("per_layer_input_gate", size, model.hidden)
    add.linear("per_layer_projection", model.hidden, size)
    add.norm("post_per_layer_input_norm", model.hidden)
    shape = _saving(shape, 4 * size)  # as an MLP with gates
    return replace(shape, num_norms=shape.num_norms + 1, num_inputs=shape.num_inputs + 1)


def _saving(shape: LayerShape, more: int) -> LayerShape:
    """A layer that keeps this many elements more."""
    assert shape.attention is not None
    return replace(shape, attention=replace(shape.attention, saved=shape.attention.saved + more))


def _gemma4(model: Reader, layer: int, add: LayerWeights, has_inputs: bool) -> LayerShape:
    hidden, width, first = model.hidden, model.size("intermediate_size"), _last_keys(model, 0)
    kinds = model.texts("layer_types", model.num_layers)
    is_full = kinds[layer] == "full_attention" if kinds else (layer + 1) % 6 == 0
    is_full = is_full or layer == model.num_layers - 1
    sizes, joined = head_sizes(model, 256), model.flag("attention_k_eq_v") and is_full
    if is_full:
        named = model.model.get("per_layer_config")
        own = named.get(str(layer), named.get(layer)) if isinstance(named, Mapping) else None
        mine = Reader(own) if isinstance(own, Mapping) else Reader(model.model)
        size = mine.size("head_dim" if own else "global_head_dim", default=512)
        keys = mine.size("num_key_value_heads" if own else "num_global_key_value_heads", default=sizes.kv_heads)
        sizes = replace(sizes, size=size, kv_heads=keys if own or joined else sizes.kv_heads)
    attention = _gemma_attention(model, add, sizes, layer < first, not joined)
    is_wide = model.flag("use_double_wide_mlp") and layer >= first > 0
    add.gated("mlp", hidden, width * (2 if is_wide else 1))
    for norm in FOUR_NORMS:
        add.norm(norm, hidden)
    shape = LayerShape(attention, ffn_width=width * (2 if is_wide else 1), num_norms=4)
    if has_inputs:
        shape = _input_of_layer(model, add, shape)
    if not (has_inputs and model.flag("enable_moe_block")):
        return shape
    count, inner, per_token = (model.size(key) for key in ("num_experts", "moe_intermediate_size", "top_k_experts"))
    add.linear("router.proj", count, hidden, cut="whole")
    add.tensor("router.scale", hidden)
    add.tensor("router.per_expert_scale", count)
    add.stacked_experts("experts", count, hidden, inner, None)
    for norm in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        add.norm(norm, hidden)
    return replace(
        shape, ffn_width=shape.ffn_width + per_token * inner, experts_per_token=per_token, num_norms=shape.num_norms + 3
    )


def _gemma3n(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, first, inputs = model.hidden, _last_keys(model, 15), model.size("altup_num_inputs", default=4)
    widths, rank = model.model.get("intermediate_size"), model.size("laurel_rank", default=64)
    if isinstance(widths, list):
        widths = model.numbers("intermediate_size")
        if len(widths) != model.num_layers:
            raise UnreadableModel("config.json: intermediate_size is not a list with one number per layer")
        width = widths[layer]
    else:
        width = model.size("intermediate_size")
    attention = _gemma_attention(model, add, head_sizes(model, 256), layer < first or first <= 0, True)
    add.gated("mlp", hidden, width)
    for norm in (*FOUR_NORMS, "altup.router_norm", "laurel.post_laurel_norm"):
        add.norm(norm, hidden)
    add.tensor("altup.correct_output_scale", hidden)
    add.linear("altup.correction_coefs", inputs, inputs)
    add.linear("altup.prediction_coefs", inputs**2, inputs)
    add.linear("altup.modality_router", inputs, hidden)
    add.linear("laurel.linear_left", rank, hidden)
    add.linear("laurel.linear_right", hidden, rank)
    # Norm and router are there twice. Of the streams both the prediction and the correction are kept.
    shape = LayerShape(attention, ffn_width=width, num_norms=7, num_inputs=4 + 2 * inputs + 1)
    return _input_of_layer(model, add, _saving(shape, rank))


def _gemma3n_others(model: Reader) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _inputs_of_layers(model)
    for place in range(model.size("altup_num_inputs", default=4) - 1):
        for name in ("altup_projections", "altup_unembed_projections"):
            yield f"model.{name}.{place}.weight", (model.hidden, model.hidden)


def _hrm(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """HRM: two stacks of layers, through which a token goes several times. Keys of each pass are kept. Of the lower
    stack's passes only the last few of each turn have gradients."""
    stack = model.size("num_layers_per_stack", default=model.num_layers)
    traits = Traits(ATTENTION_BIAS, norm="without weights", head_dim=128, mlp_bias=MLP_BIAS)
    name = "L_module" if layer < stack else "H_module"
    mine = LayerWeights(f"model.{name}.layers.{layer % stack}", layer)
    shape, sizes = (
        layer_of(traits, Reader({**model.model, "num_key_value_heads": None}), layer, mine),
        head_sizes(model, 128),
    )
    mine.linear("self_attn.gate_proj", sizes.heads * sizes.size, model.hidden, model.flag("attention_bias"))
    add.weights += mine.weights
    high, low = model.size("H_cycles", default=2), model.size("L_cycles", default=3)
    passes = trained = high
    if name == "L_module":
        named = model.numbers("L_bp_cycles") or [2]
        passes, trained = high * low, sum(min(low, each) for each in ([1] * (high - len(named)) + named)[:high])
    own = replace(sizes, kv_heads=sizes.heads, has_gates=True).attention
    own = replace(own, cached=passes * own.cached)
    return replace(shape, attention=own, passes=passes, trained_passes=trained)


SINGLE_TYPES: Mapping[str, Form] = {
    "afmoe": Form(_afmoe_gate, norm="rms in fp32"),
    "axk1": Form(_axk1),
    "axk2": Form(_axk2),
    "deepseek_v32": Form(_indexed),
    "doge": Form(_doge),
    "gemma3n_text": Form(_gemma3n, ties_head=True, others=_gemma3n_others, norm="rms in fp32"),
    "gemma4_text": Form(
        lambda model, layer, add: _gemma4(model, layer, add, True),
        ties_head=True,
        others=_inputs_of_layers,
        norm="rms in fp32",
    ),
    "gemma4_unified_text": Form(
        lambda model, layer, add: _gemma4(model, layer, add, False), ties_head=True, norm="rms in fp32"
    ),
    "glm_moe_dsa": Form(_indexed),
    "hrm_text": Form(
        _hrm,
        ends=(),
        norm="without weights",
        count=lambda model: 2 * model.size("num_layers_per_stack", default=model.num_layers),
        others=lambda model: [("model.z_L_init", (model.hidden,))],
    ),
    "hy_v4": Form(_hy_v4, others=_hy_v4_head),
    "laguna": Form(_laguna),
    "llama4_text": Form(_llama4),
    "longcat_flash": Form(_longcat, count=_longcat_layers),
    "mimo_v2_flash": Form(_mimo),
    "minimax_m3_vl_text": Form(_minimax_m3, norm="rms in fp32"),
}
"""Types by the model_type of config.json."""

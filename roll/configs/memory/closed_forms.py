"""The shape of models of common families, from their config.json alone: exact numbers, without torch.

A layer keeps for the backward pass the inputs of its matrices, norms and activation functions (Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4), counted from the model's
widths; kernels of attention keep no scores. `tests/unit/configs/memory/test_measured.py` holds all of it against what
`roll.run.start.measure` says. Buffers are left out (GLM and DeepSeek have a number for each expert).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roll.configs.memory.layer_shape import SHARED_GATE, Cut, LayerShape, ModelShape, SavedElements, Weight
from roll.configs.tables.families import NUM_HEADS, Family, Model, Norm, family_of

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "decoder_sparse_step", "first_k_dense_replace", "q_lora_rank")
_EXPERTS = ("num_experts", "num_local_experts")  # transformers takes one for the other
_NORMS: Mapping[Norm, SavedElements] = {"rms": SavedElements(low=1, fp32=1), "rms in fp32": SavedElements(fp32=2)}
"""Numbers that a norm keeps for each of its own, beside its result, which is the input of another layer."""


def closed_form(model: Model) -> ModelShape | None:
    """The shape of a language model; None for other families, and for a config.json that leaves a number to
    transformers."""
    family = family_of(model)
    if family is None:
        return None
    if family.experts is not None and family.experts.number in _EXPERTS:
        model = {**model, family.experts.number: model.get(_EXPERTS[0]) or model.get(_EXPERTS[1])}
    numbers = [model.get(key) for key in (*_NEEDED, *family.needed)]
    numbers += [value for key in _OPTIONAL if (value := model.get(key)) is not None]
    if any(type(number) is not int for number in numbers) or any(key not in model for key in family.declared_keys):
        return None
    hidden, vocab, num_layers = model["hidden_size"], model["vocab_size"], model["num_hidden_layers"]
    in_layers = [weight for layer in range(num_layers) for weight in layer_weights(model, family, layer)]
    layers = tuple(_layer_shape(model, family, layer) for layer in range(num_layers))
    ties_head = bool(model.get("tie_word_embeddings", family.ties_head))
    head = () if ties_head else (Weight("lm_head.weight", (vocab, hidden), "vocabulary", num_layers, "head"),)
    products = sum(
        weight.num_elements * (layers[weight.layer].experts_per_token if weight.cut == "expert" else 1) // weight.count
        for weight in in_layers
        if len(weight.shape) > 1
    )
    return ModelShape(
        weights=(
            Weight("model.embed_tokens.weight", (vocab, hidden), "vocabulary", -1, "embedding"),
            *in_layers,
            Weight("model.norm.weight", (hidden,), "whole", num_layers, "norm"),
            *head,
        ),
        layers=layers,
        products=products,
        trained_products=products,
        ties_head=ties_head,
        hidden_size=hidden,
        vocab_size=vocab,
        mtp=tuple(_mtp(model, family)),
    )


def _layer_shape(model: Model, family: Family, layer: int) -> LayerShape:
    own, norm, hidden = _attention_of(model, family), _NORMS[family.norm], model["hidden_size"]
    heads, num_norms, num_inputs, per_token, shared = model["num_attention_heads"], 2 + len(family.more_norms), 2, 0, 0
    width, experts, in_fp32 = model["intermediate_size"], family.experts, False
    if experts is not None and family.is_sparse(model, layer):
        per_token, shared = model["num_experts_per_tok"], experts.shared_width(model)
        width, in_fp32 = per_token * model[experts.width] + shared, experts.routes_in_fp32
        num_inputs += experts.gates_shared
    # Of an MLP: its gates, what the activation function keeps for them, up, and their product.
    inside = 7 if experts is not None and experts.have_biases else 4
    return LayerShape(
        between=SavedElements(hidden * (num_norms * norm.low + num_inputs), hidden * num_norms * norm.fp32),
        inside=SavedElements(
            own.saved + own.normed * norm.low + inside * width + 2 * per_token * hidden,
            own.normed * norm.fp32 + heads + in_fp32 * hidden,
        ),
        products=(2 + max(1, per_token) + bool(shared)) * hidden + own.projected + own.mixed + 2 * width,
        widest=SavedElements(max(own.projected + own.mixed, 3 * width + 2 * per_token * hidden)),
        heads=heads,
        pair_products=own.products,
        cached=own.cached,
        cache_cuts=own.cache_cuts,
        experts_per_token=per_token,
    )


def head_dim(model: Model, family: Family) -> int:
    return model.get("head_dim") or family.head_dim or model["hidden_size"] // model["num_attention_heads"]


@dataclass(frozen=True)
class _Attention:
    """Elements per token: `projected` by all matrices before the scores, `mixed` into the matrix behind them, `saved`
    for a backward pass in the model's dtype, `normed` by norms of their own; the others as in `LayerShape`."""

    projected: int
    mixed: int
    saved: int
    normed: int
    cached: int
    cache_cuts: int
    products: int


def _attention_of(model: Model, family: Family) -> _Attention:
    heads, kv_heads = model["num_attention_heads"], model.get("num_key_value_heads") or model["num_attention_heads"]
    if not family.is_latent:
        size = head_dim(model, family)
        width, keys = heads * size, kv_heads * size
        normed = width + keys if family.has(model, family.norms_heads) else 0
        return _Attention(width + 2 * keys, width, 2 * (width + keys), normed, 2 * keys, kv_heads, 2 * width)
    plain, turned, value = (model[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    key, query, latent = plain + turned, model["q_lora_rank"] or 0, model["kv_lora_rank"]
    # A head's key is put together from one part of its own and one that all share. Where values are narrower, they are
    # padded, and so is their mixture; else they stay beside the head's own part.
    of_head = 2 * key + (2 * key + value if key > value else plain + 2 * value)
    return _Attention(
        projected=query + latent + turned + heads * (key + plain + value),
        mixed=heads * value,
        saved=query + latent + heads * of_head,
        normed=query + latent,
        cached=latent + turned,
        cache_cuts=1,
        products=heads * (key + value),
    )


def layer_weights(model: Model, family: Family, layer: int) -> Iterator[Weight]:
    """Every weight of a layer."""
    at, hidden = f"model.layers.{layer}", model["hidden_size"]
    for norm in ("input_layernorm", "post_attention_layernorm", *family.more_norms):
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    parts = _latent_attention if family.is_latent else _attention
    yield from parts(model, family, layer, f"{at}.self_attn")
    if not family.is_sparse(model, layer):
        yield from _mlp(model, family, layer, f"{at}.mlp", model["intermediate_size"])
    elif family.experts is not None and family.experts.have_biases:
        yield from _gpt_oss_experts(model, layer, f"{at}.mlp")
    else:
        yield from _experts(model, family, layer, f"{at}.mlp")


def _attention(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    hidden, width, heads = model["hidden_size"], head_dim(model, family), model["num_attention_heads"]
    kv_heads = model.get("num_key_value_heads") or heads
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield Weight(f"{at}.{name}_proj.weight", (rows * width, hidden), "tensor", layer, "qkv")
        if family.has(model, family.qkv_bias):
            yield Weight(f"{at}.{name}_proj.bias", (rows * width,), "tensor", layer, "bias of qkv")
    yield from _output(model, family, layer, at, heads * width)
    if family.has(model, family.norms_heads):
        for name in ("q", "k"):
            yield Weight(f"{at}.{name}_norm.weight", (width,), "whole", layer, f"norm of {name}")
    if family.has_sinks:
        yield Weight(f"{at}.sinks", (heads,), "tensor", layer, "sinks")


def _latent_attention(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    hidden, heads, query, latent = (
        model[key] for key in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank")
    )
    plain, turned, value = (model[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries = heads * (plain + turned)
    narrow = [("kv_a_proj_with_mqa", latent + turned)]
    if query:
        narrow.append(("q_a_proj", query))
        yield Weight(f"{at}.q_a_layernorm.weight", (query,), "whole", layer, "norm of q")
        yield Weight(f"{at}.q_b_proj.weight", (queries, query), "tensor", layer, "q")
    else:
        yield Weight(f"{at}.q_proj.weight", (queries, hidden), "tensor", layer, "q")
    for name, rows in narrow:
        yield Weight(f"{at}.{name}.weight", (rows, hidden), "tensor", layer, name)
        if family.has(model, family.qkv_bias):
            yield Weight(f"{at}.{name}.bias", (rows,), "tensor", layer, f"bias of {name}")
    yield Weight(f"{at}.kv_a_layernorm.weight", (latent,), "whole", layer, "norm of kv")
    yield Weight(f"{at}.kv_b_proj.weight", (heads * (plain + value), latent), "tensor", layer, "kv")
    yield from _output(model, family, layer, at, heads * value)


def _output(model: Model, family: Family, layer: int, at: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{at}.o_proj.weight", (model["hidden_size"], width), "tensor", layer, "output")
    if family.has(model, family.output_bias):
        yield Weight(f"{at}.o_proj.bias", (model["hidden_size"],), "whole", layer, "bias of output")


def _mlp(model: Model, family: Family, layer: int, at: str, width: int, of: str = "") -> Iterator[Weight]:
    """Weights of an MLP. `of` distinguishes its blocks from others of the layer."""
    matrices = _matrices(model["hidden_size"], width)
    if family.fuses_gate_up:
        matrices = {"gate_up": (2 * width, model["hidden_size"]), "down": matrices["down"]}
    for name, shape in matrices.items():
        block = f"{'down' if name == 'down' else 'gate and up'}{of}"
        yield Weight(f"{at}.{name}_proj.weight", shape, "tensor", layer, block)
        if family.has(model, family.mlp_bias):
            cut: Cut = "whole" if name == "down" else "tensor"
            yield Weight(f"{at}.{name}_proj.bias", shape[:1], cut, layer, f"bias of {block}")


def _experts(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    experts, hidden = family.experts, model["hidden_size"]
    assert experts is not None
    count = model[experts.number]
    yield Weight(f"{at}.gate.weight", (count, hidden), "whole", layer, "router")
    for name, shape in _matrices(hidden, model[experts.width]).items():
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj.weight", shape, "expert", layer, block, count)
    if width := experts.shared_width(model):
        shared = "shared_expert" if experts.gates_shared else "shared_experts"
        yield from _mlp(model, family, layer, f"{at}.{shared}", width, " of what every token meets")
        if experts.gates_shared:
            yield Weight(f"{at}.shared_expert_gate.weight", (1, hidden), "whole", layer, SHARED_GATE)


def _gpt_oss_experts(model: Model, layer: int, at: str) -> Iterator[Weight]:
    """Yield the router and experts of gpt-oss: no layers of their own, so that no expert's name ends in `.weight`."""
    count, hidden, width = (model[key] for key in ("num_local_experts", "hidden_size", "intermediate_size"))
    yield Weight(f"{at}.router.weight", (count, hidden), "whole", layer, "router")
    yield Weight(f"{at}.router.bias", (count,), "whole", layer, "bias of the router")
    for name, shape in (("gate_up", (hidden, 2 * width)), ("down", (width, hidden))):
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj", shape, "expert", layer, block, count)
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj_bias", shape[1:], "expert", layer, f"bias of {block}", count)


def _matrices(hidden: int, width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}


def _mtp(model: Model, family: Family) -> Iterator[Weight]:
    """Weights of the one MTP head that megatron_train supports (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
    if model.get(NUM_HEADS) != 1 or family.experts is None:
        return
    hidden, layer = model["hidden_size"], model["num_hidden_layers"]
    at = f"model.layers.{layer}"
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    yield Weight(f"{at}.eh_proj.weight", (hidden, 2 * hidden), "tensor", layer, "eh_proj")
    yield from layer_weights(model, family, layer)

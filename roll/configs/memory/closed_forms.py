"""The shape of models of common families, from their config.json alone: exact numbers, without torch.

A layer keeps for the backward pass the inputs of its matrices, norms and activation functions (Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4), counted from the model's
widths; kernels of attention keep no scores. `tests/unit/configs/memory/test_measured.py` holds all of it against what
`roll.run.start.measure` says. Buffers are left out (GLM has a number for each expert).
"""

from collections.abc import Iterator, Mapping

from roll.configs.memory.layer_shape import SHARED_GATE, Cut, LayerShape, ModelShape, SavedElements, Weight
from roll.configs.tables.families import Family, Model, Norm, family_of

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "decoder_sparse_step", "first_k_dense_replace")
_EXPERTS = ("num_experts", "num_local_experts")  # transformers takes one for the other
_NORMS: Mapping[Norm, SavedElements] = {"rms": SavedElements(low=1, fp32=1), "rms in fp32": SavedElements(fp32=2)}
"""Numbers that a norm keeps for each of its own, beside its result, which is the input of another layer."""


def closed_form(model: Model) -> ModelShape | None:
    """The shape of a language model; None for other families, and for a config.json that leaves a number to
    transformers."""
    family = family_of(model)
    if family is None or family.is_measured:
        return None
    if family.experts is not None and family.experts.number in _EXPERTS:
        model = {**model, family.experts.number: model.get(_EXPERTS[0]) or model.get(_EXPERTS[1])}
    numbers = [model.get(key) for key in (*_NEEDED, *(family.experts.needed if family.experts else ()))]
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
    )


def _layer_shape(model: Model, family: Family, layer: int) -> LayerShape:
    norm, hidden, heads = _NORMS[family.norm], model["hidden_size"], model["num_attention_heads"]
    width = heads * head_dim(model, family)
    keys = (model.get("num_key_value_heads") or heads) * head_dim(model, family)
    normed = width + keys if family.has(model, family.norms_heads) else 0
    num_norms, num_inputs, per_token, shared = 2 + len(family.more_norms), 2, 0, 0
    mlp, experts, in_fp32 = model["intermediate_size"], family.experts, False
    if experts is not None and family.is_sparse(model, layer):
        per_token, shared = model["num_experts_per_tok"], experts.shared_width(model)
        mlp, in_fp32 = per_token * model[experts.width] + shared, experts.routes_in_fp32
        num_inputs += experts.gates_shared
    # Attention keeps queries, keys, values and its result; an MLP its gates, what the activation function keeps for
    # them, up, and their product.
    projected, kept = width + 2 * keys, 2 * (width + keys) + 4 * mlp
    return LayerShape(
        between=SavedElements(hidden * (num_norms * norm.low + num_inputs), hidden * num_norms * norm.fp32),
        inside=SavedElements(
            kept + normed * norm.low + 2 * per_token * hidden, normed * norm.fp32 + heads + in_fp32 * hidden
        ),
        products=(2 + max(1, per_token) + bool(shared)) * hidden + projected + width + 2 * mlp,
        widest=SavedElements(max(projected + width, 3 * mlp + 2 * per_token * hidden)),
        heads=heads,
        pair_products=2 * width,
        cached=2 * keys,
        cache_cuts=model.get("num_key_value_heads") or heads,
        experts_per_token=per_token,
    )


def head_dim(model: Model, family: Family) -> int:
    return model.get("head_dim") or family.head_dim or model["hidden_size"] // model["num_attention_heads"]


def layer_weights(model: Model, family: Family, layer: int) -> Iterator[Weight]:
    """Every weight of a layer."""
    at, hidden = f"model.layers.{layer}", model["hidden_size"]
    for norm in ("input_layernorm", "post_attention_layernorm", *family.more_norms):
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    yield from _attention(model, family, layer, f"{at}.self_attn")
    if not family.is_sparse(model, layer):
        yield from _mlp(model, family, layer, f"{at}.mlp", model["intermediate_size"])
    else:
        yield from _experts(model, family, layer, f"{at}.mlp")


def _attention(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    hidden, width, heads = model["hidden_size"], head_dim(model, family), model["num_attention_heads"]
    kv_heads = model.get("num_key_value_heads") or heads
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield Weight(f"{at}.{name}_proj.weight", (rows * width, hidden), "tensor", layer, "qkv")
        if family.has(model, family.qkv_bias):
            yield Weight(f"{at}.{name}_proj.bias", (rows * width,), "tensor", layer, "bias of qkv")
    yield Weight(f"{at}.o_proj.weight", (hidden, heads * width), "tensor", layer, "output")
    if family.has(model, family.output_bias):
        yield Weight(f"{at}.o_proj.bias", (hidden,), "whole", layer, "bias of output")
    if family.has(model, family.norms_heads):
        for name in ("q", "k"):
            yield Weight(f"{at}.{name}_norm.weight", (width,), "whole", layer, f"norm of {name}")


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


def _matrices(hidden: int, width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}

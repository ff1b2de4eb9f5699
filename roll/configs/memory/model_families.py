"""What each architecture makes of its config.json: the weights of a layer, as transformers has them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from roll.configs.tables.families import Family, Model

Cut = Literal["whole", "tensor", "vocabulary", "expert"]
SHARED_GATE = "gate of the shared expert"  # a block


@dataclass(frozen=True)
class Weight:
    """A tensor of the model under the name that transformers has for it, or `count` equal ones (a layer's experts).

    `cut`: what divides it: nothing, tensor parallel, tensor parallel with padding (a row per token), or expert
    parallel. `layer`: -1 before the first, number of layers after the last. Weights of a layer with the same
    `block` are one tensor in engines that fuse them.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut
    layer: int
    block: str
    count: int = 1

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape) * self.count


@dataclass(frozen=True)
class Attention:
    """Elements per token of one layer. `projected`: of all that the projections before the scores put out. `mixed`: of
    what goes into the one behind them. `cached`: of what an engine keeps, which at most `cache_cuts` devices can
    share. `products`: multiplications for the scores of a pair of tokens and the sum over values."""

    projected: int
    mixed: int
    cached: int
    cache_cuts: int
    products: int


def head_dim(model: Model, family: Family) -> int:
    return model.get("head_dim") or family.head_dim or model["hidden_size"] // model["num_attention_heads"]


def attention(model: Model, family: Family) -> Attention:
    heads, kv_heads = model["num_attention_heads"], model.get("num_key_value_heads") or model["num_attention_heads"]
    if not family.is_latent:
        size = head_dim(model, family)
        return Attention((heads + 2 * kv_heads) * size, heads * size, 2 * kv_heads * size, kv_heads, 2 * heads * size)
    key, value = model["qk_nope_head_dim"] + model["qk_rope_head_dim"], model["v_head_dim"]
    latent = model["kv_lora_rank"] + model["qk_rope_head_dim"]
    projected = (model["q_lora_rank"] or 0) + latent + heads * (2 * key + value)
    return Attention(projected, heads * value, latent, 1, heads * (key + value))


def layer_weights(model: Model, family: Family, layer: int) -> Iterator[Weight]:
    """Every weight of a layer."""
    at, hidden = f"model.layers.{layer}", model["hidden_size"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family.norms_outputs:
        norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    for norm in norms:
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
        shared = "shared_experts" if experts.counts_shared else "shared_expert"
        yield from _mlp(model, family, layer, f"{at}.{shared}", width, " of what every token meets")
        if not experts.counts_shared:
            yield Weight(f"{at}.shared_expert_gate.weight", (1, hidden), "whole", layer, SHARED_GATE)


def _gpt_oss_experts(model: Model, layer: int, at: str) -> Iterator[Weight]:
    """No layers of their own in transformers, nor in files: no name ends in `.weight`."""
    count, hidden, width = (model[key] for key in ("num_local_experts", "hidden_size", "intermediate_size"))
    yield Weight(f"{at}.router.weight", (count, hidden), "whole", layer, "router")
    yield Weight(f"{at}.router.bias", (count,), "whole", layer, "bias of the router")
    for name, shape in (("gate_up", (hidden, 2 * width)), ("down", (width, hidden))):
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj", shape, "expert", layer, block, count)
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj_bias", shape[1:], "expert", layer, f"bias of {block}", count)


def _matrices(hidden: int, width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}

"""Weights and layers of OPT, BLOOM, Falcon, Phi, the GPTs and what followed them: biases everywhere, and names of their
own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roll.configs.memory.decoders import Flag, Traits, is_on, layer_of, sizes_of
from roll.configs.memory.layer_shape import LayerShape
from roll.configs.memory.reader import Form, HeadSizes, LayerWeights, Reader


@dataclass(frozen=True)
class GptLayer:
    """A layer as GPT-2 has it, in other words. `fused`: name of the projection of queries, keys and values, where they
    are one. `twice`: a backward pass keeps queries and keys as the projection puts them out as well, or in fp32; None:
    where they are one. `turned`: matrices are stored with columns first."""

    norms: tuple[str, ...] = ("ln_1", "ln_2")
    at: str = "attn"
    fused: str = ""
    twice: bool | None = None
    output: str = "out_proj"
    bias: Flag = True
    output_bias: Flag = True
    mlp: tuple[str, str] = ("mlp.fc_in", "mlp.fc_out")
    mlp_bias: Flag = True
    width: tuple[str, ...] = ("n_inner",)
    turned: bool = False
    one_key: str = ""  # key that says that all heads have one key and value
    head_norms: Flag = False


def _old(old: GptLayer, model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, bias = model.hidden, is_on(model, old.bias)
    heads = model.size("num_attention_heads", "n_head", "num_heads", "attention_heads")
    one_key = bool(old.one_key) and model.flag(old.one_key, True)
    has_norms = is_on(model, old.head_norms)  # which keep what the projection puts out
    twice = bool(old.fused) if old.twice is None else old.twice
    sizes = HeadSizes(
        heads, 1 if one_key else heads, max(1, hidden // heads),
        has_norms=has_norms, is_fused=twice and not has_norms,
    )  # fmt: skip
    for norm in old.norms:
        add.norm(norm, hidden, True)
    keys = sizes.kv_heads * sizes.size

    def linear(name: str, rows: int, columns: int, has_bias: bool) -> None:
        add.tensor(f"{name}.weight", *((columns, rows) if old.turned else (rows, columns)), cut="tensor")
        if has_bias:
            add.tensor(f"{name}.bias", rows, cut="tensor")

    if old.fused:
        linear(f"{old.at}.{old.fused}", hidden + 2 * keys, hidden, bias)
    else:
        for name in "kvq":
            linear(f"{old.at}.{name}_proj", hidden, hidden, bias)
    linear(f"{old.at}.{old.output}", hidden, hidden, is_on(model, old.output_bias))
    if has_norms:
        for name in ("q", "k"):
            add.norm(f"{old.at}.{name}_layernorm", sizes.size, True)
    width = model.size(*old.width, default=4 * hidden)
    linear(old.mlp[0], width, hidden, is_on(model, old.mlp_bias))
    linear(old.mlp[1], hidden, width, is_on(model, old.mlp_bias))
    return LayerShape(
        sizes.attention, ffn_width=width, is_gated=False, num_norms=len(old.norms), num_inputs=len(old.norms)
    )


def _falcon(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, heads, bias = model.hidden, model.size("num_attention_heads", "n_head"), model.flag("bias")
    size, is_new = max(1, hidden // heads), model.flag("new_decoder_architecture")
    kv_heads = heads
    if is_new:
        kv_heads = model.size("num_kv_heads", "n_head_kv", default=heads)
    elif model.flag("multi_query", True):
        kv_heads = 1
    at = "self_attention"
    add.linear(f"{at}.query_key_value", (heads + 2 * kv_heads) * size, hidden, bias)
    add.linear(f"{at}.dense", hidden, hidden, bias)
    width = model.size("ffn_hidden_size", default=4 * hidden)
    add.linear("mlp.dense_h_to_4h", width, hidden, bias)
    add.linear("mlp.dense_4h_to_h", hidden, width, bias)
    norms = ("input_layernorm",)
    if is_new and model.size("num_ln_in_parallel_attn", default=2) == 2:
        norms = ("ln_attn", "ln_mlp")
    elif not model.flag("parallel_attn", True):
        norms = ("input_layernorm", "post_attention_layernorm")
    for norm in norms:
        add.norm(norm, hidden, True)
    attention, count = HeadSizes(heads, kv_heads, size, is_fused=True).attention, len(norms)
    return LayerShape(attention, ffn_width=width, is_gated=False, num_norms=count, num_inputs=count)


def _phi(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    traits = Traits(
        True, norms=("input_layernorm",), norm="layer", mlp=("fc1", "fc2"), mlp_bias=True, output="dense"
    )  # fmt: skip
    shape = layer_of(traits, model, layer, add)
    if model.flag("qk_layernorm"):
        sizes = replace(sizes_of(traits, model), has_norms=True)
        for name in ("q", "k"):
            add.norm(f"self_attn.{name}_layernorm", sizes.size, True)
        shape = replace(shape, attention=sizes.attention)
    return shape


def _positions(name: str, key: str, more: int = 0) -> Callable[[Reader], Iterator[tuple[str, tuple[int, ...]]]]:
    def others(model: Reader) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield name, (model.size(key) + more, model.hidden)

    return others


def _bloom_norm(model: Reader) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in ("weight", "bias"):
        yield f"transformer.word_embeddings_layernorm.{part}", (model.hidden,)


_GPT: Mapping[str, Any] = {
    "embedding": "transformer.wte",
    "layers": "transformer.h",
    "ends": ("transformer.ln_f.weight", "transformer.ln_f.bias"),
}
_OPT_LAYER = GptLayer(
    norms=("self_attn_layer_norm", "final_layer_norm"), at="self_attn", mlp=("fc1", "fc2"), width=("ffn_dim",),
    bias=("enable_bias", True), output_bias=("enable_bias", True), mlp_bias=("enable_bias", True),
)  # fmt: skip
_OPT = "model.decoder"
_NEOX = GptLayer(
    norms=("input_layernorm", "post_attention_layernorm"), at="attention", fused="query_key_value", output="dense",
    mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), width=("intermediate_size",),
    bias=("attention_bias", True), output_bias=("attention_bias", True),
)  # fmt: skip
_XGLM = replace(_OPT_LAYER, bias=True, output_bias=True, mlp_bias=True, width=("ffn_dim",))
_FINAL = ("model.final_layernorm.weight", "model.final_layernorm.bias")


def _with_bias(_: Reader) -> bool:
    return True


_TYPES: Mapping[str, Form] = {
    "phi": Form(_phi, ends=_FINAL, head_bias=_with_bias),
    "biogpt": Form(
        partial(_old, replace(_OPT_LAYER, bias=True, output_bias=True, mlp_bias=True, width=("intermediate_size",))),
        head="output_projection", embedding="biogpt.embed_tokens", layers="biogpt.layers", ties_head=True,
        ends=("biogpt.layer_norm.weight", "biogpt.layer_norm.bias"),
        others=_positions("biogpt.embed_positions.weight", "max_position_embeddings", 2),
    ),
    "bloom": Form(
        partial(_old, replace(_NEOX, at="self_attention", twice=False, bias=True, output_bias=True, width=("never",))),
        embedding="transformer.word_embeddings", layers="transformer.h", ties_head=True, others=_bloom_norm,
        ends=("transformer.ln_f.weight", "transformer.ln_f.bias"),
    ),
    "codegen": Form(
        partial(_old, GptLayer(norms=("ln_1",), fused="qkv_proj", bias=False, output_bias=False)),
        head_bias=_with_bias, **_GPT,
    ),
    "gpt2": Form(
        partial(
            _old, GptLayer(fused="c_attn", twice=False, output="c_proj", mlp=("mlp.c_fc", "mlp.c_proj"), turned=True)
        ),
        ties_head=True, others=_positions("transformer.wpe.weight", "n_positions"), **_GPT,
    ),
    "gpt_bigcode": Form(
        partial(
            _old, GptLayer(
                fused="c_attn", twice=False, output="c_proj", mlp=("mlp.c_fc", "mlp.c_proj"), one_key="multi_query"
            ),
        ),
        ties_head=True, others=_positions("transformer.wpe.weight", "n_positions"), **_GPT,
    ),
    "gpt_neo": Form(
        partial(
            _old,
            GptLayer(
                at="attn.attention", twice=True, bias=False, mlp=("mlp.c_fc", "mlp.c_proj"),
                width=("intermediate_size",),
            ),
        ),
        ties_head=True, others=_positions("transformer.wpe.weight", "max_position_embeddings"), **_GPT,
    ),
    "gptj": Form(
        partial(_old, GptLayer(norms=("ln_1",), twice=True, bias=False, output_bias=False)),
        head_bias=_with_bias,
        **_GPT,
    ),
    "gpt_neox": Form(
        partial(_old, _NEOX), embedding="gpt_neox.embed_in", layers="gpt_neox.layers",
        ends=("gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias"),
    ),
    "falcon": Form(
        _falcon, embedding="transformer.word_embeddings", layers="transformer.h", ties_head=True,
        ends=("transformer.ln_f.weight", "transformer.ln_f.bias"),
    ),
    "persimmon": Form(
        partial(
            _old, replace(_NEOX, at="self_attn", bias=True, output_bias=True, head_norms=("qk_layernorm", True))
        ),
        ends=_FINAL,
    ),
    "opt": Form(
        partial(_old, _OPT_LAYER), embedding=f"{_OPT}.embed_tokens", layers=f"{_OPT}.layers", ties_head=True,
        ends=(f"{_OPT}.final_layer_norm.weight", f"{_OPT}.final_layer_norm.bias"),
        others=_positions(f"{_OPT}.embed_positions.weight", "max_position_embeddings", 2),
    ),
    "xglm": Form(
        partial(_old, _XGLM), ties_head=True, ends=("model.layer_norm.weight", "model.layer_norm.bias")
    ),
}  # fmt: skip
GPTS: Mapping[str, Form] = {kind: replace(form, norm="layer") for kind, form in _TYPES.items()}
"""Types by the model_type of config.json."""

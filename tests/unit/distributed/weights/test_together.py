"""Weights that are sent because one that an engine may hold in one piece with them has changed."""

from roll.distributed.weights.bucket import with_partners
from tests.helpers.cases import cases

LAYERS = [
    f"model.layers.{layer}.{name}"
    for layer in (0, 1, 11)
    for name in (
        "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
        "self_attn.o_proj.weight", "self_attn.q_norm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
        "mlp.down_proj.weight", "input_layernorm.weight", "post_attention_layernorm.weight",
    )
]  # fmt: skip
EXPERTS = [f"model.layers.2.mlp.experts.{expert}.{part}_proj.weight" for expert in (0, 1) for part in ("gate", "down")]
NAMES = ["model.embed_tokens.weight", *LAYERS, *EXPERTS, "model.layers.2.mlp.gate.weight", "model.norm.weight"]


@cases("changed, also")
def test_a_changed_weight_brings_along_what_may_be_fused_with_it(changed: str, also: list[str]) -> None:
    assert with_partners(NAMES, [changed]) == {changed, *also}


def test_nothing_goes_where_nothing_changed_and_all_where_all_did() -> None:
    assert with_partners(NAMES, []) == set()
    assert with_partners(NAMES, NAMES) == set(NAMES)

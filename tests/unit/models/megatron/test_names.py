"""The names of transformer-engine's layers stand for the same weights as those of Megatron's own."""

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from roll.models.megatron.families import mixtral, qwen3, qwen3_moe
from roll.models.megatron.family import WeightMap
from roll.models.megatron.weights import local_name


@pytest.mark.parametrize(
    ("name", "hf_names"),
    [
        ("self_attention.linear_qkv.layer_norm_weight", ("input_layernorm.weight",)),
        ("mlp.linear_fc1.layer_norm_weight", ("post_attention_layernorm.weight",)),
        ("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
        ("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",)),
    ],
)
def test_a_fused_norm_is_the_norm_before_its_matrix(name: str, hf_names: tuple[str, ...]) -> None:
    entry = WeightMap(qwen3.FAMILY, head="lm").entry(f"decoder.layers.7.{local_name(name)}")
    assert entry.hf_names == tuple(f"model.layers.7.{hf_name}" for hf_name in hf_names)


@pytest.mark.parametrize("family", [qwen3_moe, mixtral])
def test_every_weight_of_a_layer_with_grouped_experts_is_found_once(family: object) -> None:
    """What transformer-engine's layer holds with 3 experts on this rank, against what Hugging Face has."""
    own = family.FAMILY.layer_weights  # type: ignore[attr-defined]
    names = [n for n in own if "{expert}" not in n and n != "input_layernorm.weight"]
    names += ["self_attention.linear_qkv.layer_norm_weight"]
    names += [f"mlp.experts.{matrix}.weight{n}" for matrix in ("linear_fc1", "linear_fc2") for n in range(3)]
    weights = WeightMap(family.FAMILY, head="lm")  # type: ignore[attr-defined]
    found = [hf for name in names for hf in weights.entry(f"decoder.layers.0.{local_name(name)}").hf_names]
    want = [
        f"model.layers.0.{hf.format(expert=n)}"
        for name, rule in own.items()
        for hf in rule.names
        for n in (range(3) if "{expert}" in name else range(1))
    ]
    assert sorted(found) == sorted(want)

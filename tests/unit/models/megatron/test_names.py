"""The names of transformer-engine's layers stand for the same weights as those of Megatron's own."""

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from roll.models.megatron.families import FAMILIES
from roll.models.megatron.family import WeightMap
from roll.models.megatron.weights import local_name
from tests.helpers.cases import cases


@cases("name, hf_names")
def test_a_fused_norm_is_the_norm_before_its_matrix(name: str, hf_names: tuple[str, ...]) -> None:
    entry = WeightMap(FAMILIES["qwen3"], head="lm").entry(f"decoder.layers.7.{local_name(name)}")
    assert entry.hf_names == tuple(f"model.layers.7.{hf_name}" for hf_name in hf_names)


def test_an_expert_is_a_slice_of_a_tensor_of_all_where_their_files_have_such() -> None:
    """Those of one tensor stand together, in the order of their numbers."""
    weights = WeightMap(FAMILIES["gpt_oss"], head="lm")
    at = "decoder.layers.1.mlp.experts.local_experts.{}.linear_{}"
    entries = [weights.entry(at.format(n, part)) for part in ("fc1.weight", "fc1.bias") for n in (0, 2, 10)]
    prefix = "model.layers.1.mlp.experts.gate_up_proj"
    assert [(e.hf_names, e.expert) for e in entries] == [
        ((name,), n) for name in (prefix, f"{prefix}_bias") for n in (0, 2, 10)
    ]
    assert sorted(entries, key=lambda e: e.order) == entries
    assert len({e.order[:-1] for e in entries}) == 2
    apart = WeightMap(FAMILIES["mixtral"], head="lm").entry(at.format(2, "fc2.weight"))
    assert apart.expert is None and "experts.2.w2" in apart.hf_names[0]


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_every_weight_of_a_layer_with_grouped_experts_is_found_once(family: str) -> None:
    """What transformer-engine's layer holds with 3 experts on this rank, against what Hugging Face has."""
    own = FAMILIES[family].layer_weights
    names = [n for n in own if "{expert}" not in n and n != "input_layernorm.weight"]
    names += ["self_attention.linear_qkv.layer_norm_weight"]
    names += [f"mlp.experts.{matrix}.weight{n}" for matrix in ("linear_fc1", "linear_fc2") for n in range(3)]
    weights = WeightMap(FAMILIES[family], head="lm")
    found = [hf for name in names for hf in weights.entry(f"decoder.layers.0.{local_name(name)}").hf_names]
    want = [
        f"model.layers.0.{hf.format(expert=n)}"
        for name, rule in own.items()
        for hf in rule.names
        for n in (range(3) if "{expert}" in name else range(1))
    ]
    assert sorted(found) == sorted(want)

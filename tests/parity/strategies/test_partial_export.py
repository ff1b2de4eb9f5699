"""What a trainer sends to engines that have its weights already: what training changes, with what engines may have
fused with it. The rest is neither sent nor gathered."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from roll.distributed.weights.bucket import with_partners
from tests.helpers.processes import RankPool
from tests.parity.megatron import models
from tests.parity.strategies import partial
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
ENGINES: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "fsdp2": {"fsdp2": {}},
    "fsdp2-offloaded": {"fsdp2": {"param_offload": True}},
}
FROZEN = "model.embed_tokens, model.layers.0., model.layers.1.self_attn.q_proj"
LORA = {"lora_target": ["v_proj", "down_proj"], "lora_rank": 4}


@pytest.mark.gate("frozen-zero3", "lora-fsdp2")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [{"freeze_module_prefix": FROZEN}, LORA], ids=["frozen", "lora"])
def test_only_what_training_changes_is_gathered_and_sent_with_what_may_be_fused_with_it(
    engine: str, model: dict[str, Any], rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    run = Run(tiny_tied_model_dir, model=model, training={"learning_rate": 1e-2}, **ENGINES[engine])
    lead, other = rank_pool(2).run(partial.exports, run)
    if "lora_target" in model:  # A is random, B is 0: one update moves B alone, and so every one of its weights
        changed = {n for n in lead.before if n.endswith(("v_proj.weight", "down_proj.weight"))}
    else:
        changed = {n for n in lead.before if not n.startswith(tuple(FROZEN.split(", ")))}
    stayed = {name for name in lead.before if np.array_equal(lead.before[name], lead.after[name])}
    assert stayed == lead.before.keys() - changed
    assert lead.part.keys() == with_partners(lead.before, changed) < lead.before.keys()
    assert all(np.array_equal(lead.part[name], lead.after[name]) for name in lead.part)
    assert not other.part
    sent, whole = (sum(tensor.size for tensor in weights.values()) for weights in (lead.part, lead.after))
    adapters = lead.gathered - sent
    assert sent < whole / 2
    assert adapters == other.gathered - sent
    assert (0 < adapters < sent / 4) if "lora_target" in model else adapters == 0


@pytest.mark.gate("fsdp2")
@pytest.mark.parametrize("engine", ["zero3", "fsdp2"])
def test_where_all_is_trained_all_is_sent(engine: str, rank_pool: Pools, tiny_tied_model_dir: Path) -> None:
    lead, _ = rank_pool(2).run(partial.exports, Run(tiny_tied_model_dir, **ENGINES[engine]))
    assert lead.part.keys() == lead.after.keys()


@pytest.mark.gate("fsdp2")
@pytest.mark.parametrize("engine", ["zero2", "zero3", "fsdp2"])
def test_corrections_of_routers_go_with_their_weights(engine: str, rank_pool: Pools, tmp_path: Path) -> None:
    """vLLM counts them among the weights: without them it refuses the first update of DeepSeek-V3 and GLM-4.5, and
    later ones leave a layer half loaded. Updates that send no router send no correction."""
    model_dir = models.make(tmp_path, "glm4_moe", vocab_size=296)
    run = Run(model_dir, training={"learning_rate": 1e-2}, **ENGINES[engine])
    kept = models.corrections(model_dir)
    (lead, _), (adapted, _) = (
        rank_pool(2).run(partial.exports, replace(run, model=model)) for model in ({}, LORA | {"lora_target": "o_proj"})
    )
    assert kept
    for weights in (lead.before, lead.part, lead.after, adapted.before):
        assert all(np.array_equal(weights[name], values) for name, values in kept.items())
    assert not kept.keys() & adapted.part.keys()


@pytest.mark.gate("zero3")
@pytest.mark.parametrize("engine", ["zero2", "zero3", "fsdp2"])
def test_adapters_that_are_sent_by_themselves_are_a_and_s_b_beside_weights_that_stay(
    engine: str, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """s is alpha / r = 4. After the first time nothing else is gathered or sent."""
    model = LORA | {"lora_alpha": 16}
    run = Run(tiny_tied_model_dir, model=model, training={"learning_rate": 1e-2}, **ENGINES[engine])
    (first, later, gathered, own), (nothing, *_) = rank_pool(2).run(partial.apart, run)
    assert not nothing
    start = load_file(tiny_tied_model_dir / "model.safetensors")
    assert first.keys() == start.keys() | later.keys() and len(later) == 2 * 2 * 2
    assert all(np.array_equal(first[name], start[name].numpy()) for name in start)
    for name, tensor in later.items():
        layer, factor = name.removesuffix(".weight").rsplit(".", 1)
        kept = own[f"{layer}.{factor}.default.weight"]
        assert np.array_equal(tensor, kept * (4 if factor == "lora_B" else 1)) and np.abs(kept).max() > 1e-3
        assert np.array_equal(first[name], tensor)
    assert gathered == sum(tensor.size for tensor in later.values())

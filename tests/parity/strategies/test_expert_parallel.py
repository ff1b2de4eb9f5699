"""Training with the experts of a mixture divided over ranks against Hugging Face + torch.optim.AdamW in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion

from roll.configs.strategies.fsdp2_settings import DIVIDED_EXPERTS
from roll.configs.tables.families import EXPERTS
from tests.helpers.processes import RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.families.models import tiny_config
from tests.parity.megatron import models
from tests.parity.strategies import runs
from tests.parity.strategies.adapters import LORA, an_adapter
from tests.parity.strategies.models import save_critic
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    BentLoss,
    SquaredValueLoss,
    Trace,
    rows,
    train_reference,
)
from tests.parity.strategies.runs import Run

Pools = Callable[[int], RankPool]
Weights = dict[str, np.ndarray]
TWO = {"ep_size": 2}
LOSS, MAX_NORM, DECAY = BentLoss(entropy_coef=0.3), 0.05, 0.5
RECOMPUTED = {"disable_gradient_checkpointing": False}
AGAINST_TORCH = (*models.LATENT, *models.CORRECTED, "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe")
FIRST = ("gpt_oss", "qwen3_moe", "qwen3_next")
slow = pytest.mark.slow


def save_mixture(kind: str, directory: Path) -> Path:
    """A small model with eight experts or four, and weights, biases and norms that all matter."""
    if kind in AGAINST_TORCH:
        return models.make(directory, kind, vocab_size=296)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(tiny_config(kind, vocab_size=296), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    model.save_pretrained(directory)
    return directory


def as_saved(weights: Weights, model_dir: Path) -> Weights:
    """Weights by the names and in the shapes that transformers gives them in files."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    model._weight_conversions = get_model_conversion_mapping(model, add_legacy=False)
    tensors = {name: torch.from_numpy(weight) for name, weight in weights.items()}
    return {name: tensor.numpy() for name, tensor in revert_weight_conversion(model, tensors).items()}


def reference(model_dir: Path, updates: int = 3, **given: Any) -> Trace:
    want = train_reference(model_dir, rows(), LOSS, [LEARNING_RATE] * updates, max_norm=MAX_NORM, **given)
    kept = models.corrections(model_dir)
    return replace(want, parameters=[as_saved(each, model_dir) | kept for each in want.parameters])


def assert_same_on_every_rank(got: list[Trace], want: Trace) -> None:
    for trace in got:
        assert_same_training(trace if trace.parameters[0] else replace(trace, parameters=want.parameters), want)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixture("qwen3_moe", tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def want(mixture: Path) -> Trace:
    return reference(mixture, weight_decay=DECAY)


@pytest.mark.gate("x4-packed")
@pytest.mark.proof
@pytest.mark.parametrize(
    "world_size, settings, given",
    [
        (4, {}, {"split": (1, 1), "packs": True, "model": RECOMPUTED}),
        pytest.param(2, {}, {"split": (3, 1, 2)}, marks=slow),
        pytest.param(4, {"ep_size": 4}, {"model": RECOMPUTED}, marks=slow),
        pytest.param(4, {"fsdp_size": 2}, {"split": (1, 1)}, marks=slow),
        pytest.param(2, {"param_offload": True, "optimizer_offload": True}, {"packs": True}, marks=slow),
        pytest.param(2, {"offload_policy": True}, {"model": RECOMPUTED}, marks=slow),
        pytest.param(4, {"reshard_after_forward": False, "forward_prefetch": True}, {}, marks=slow),
        pytest.param(2, {"wrap_policy": {"transformer_layer_cls_to_wrap": ["Qwen3MoeAttention"]}}, {}, marks=slow),
        pytest.param(4, {}, {"sequence": 2, "split": (3, 1), "model": RECOMPUTED}, marks=slow),
        pytest.param(2, {}, {"model": RECOMPUTED | {"gradient_checkpointing_use_reentrant": True}}, marks=slow),
        pytest.param(2, {}, {"model": RECOMPUTED | {"enable_activation_offload": True}}, marks=slow),
    ],
    ids=[
        *("x4-packed", "x2", "alone-x4", "replicas", "waiting", "on-host", "gathered-once", "blocks", "sequences"),
        *("reentrant", "activations"),
    ],
)
def test_three_updates_with_divided_experts_equal_torch_adamw(
    world_size: int, settings: dict[str, Any], given: dict[str, Any], rank_pool: Pools, mixture: Path, want: Trace
) -> None:
    """Gradient of the first update, parameters and gradient norm of three on every rank: gradients clipped to a tenth,
    weight decay, a loss with entropy."""
    run = Run(
        mixture,
        fsdp2=TWO | settings,
        training={"weight_decay": DECAY},
        max_norm=MAX_NORM,
        loss=LOSS,
        **given,
    )
    assert_same_on_every_rank(rank_pool(world_size).run(runs.train, run), want)


@pytest.mark.gate("gpt_oss")
@pytest.mark.proof
@pytest.mark.parametrize(
    "kind", [kind if kind in FIRST else pytest.param(kind, marks=slow) for kind in DIVIDED_EXPERTS]
)
def test_every_type_trains_as_with_whole_experts(kind: str, rank_pool: Pools, tmp_path: Path) -> None:
    """As in one process, or, of types that have more of their own that rounds otherwise there, as on two ranks that
    have all experts."""
    model_dir = save_mixture(kind, tmp_path)
    run = Run(model_dir, fsdp2=TWO, updates=2, loss=LOSS, max_norm=MAX_NORM, model=RECOMPUTED)
    if kind in AGAINST_TORCH:
        want = reference(model_dir, 2)
    else:
        whole = rank_pool(2).run(runs.train, replace(run, fsdp2={}))
        want = replace(whole[0], scores=whole[0].scores | whole[1].scores)
    assert_same_on_every_rank(rank_pool(2).run(runs.train, run), want)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIVIDED_EXPERTS)
def test_the_number_of_experts_is_known_of_every_type(kind: str) -> None:
    """By which a plan refuses sizes that do not divide it."""
    config = tiny_config(kind).to_dict()
    assert [config[key] for key in EXPERTS if key in config] == [4]


@pytest.mark.proof
@pytest.mark.parametrize("packs", [pytest.param(False, marks=slow), True], ids=["padded", "packed"])
def test_ranks_whose_experts_no_token_chooses_learn_with_the_others(
    packs: bool, rank_pool: Pools, tmp_path: Path
) -> None:
    """The bias of the router sends every token to the first two of eight experts, on four ranks of which two and two
    have the same ones: half of them compute nothing. Their experts' gradients are 0."""
    model_dir = save_mixture("deepseek_v3", tmp_path)
    weights = load_file(model_dir / "model.safetensors")
    (name,) = [name for name in weights if name.endswith("e_score_correction_bias")]
    weights[name][:2] += 5
    save_file(weights, model_dir / "model.safetensors", {"format": "pt"})
    want = reference(model_dir, 2)
    experts = want.gradients["model.layers.1.mlp.experts.down_proj"]
    assert experts[:2].any(axis=(1, 2)).all() and not experts[2:].any()
    run = Run(model_dir, fsdp2=TWO, updates=2, loss=LOSS, max_norm=MAX_NORM, split=(1, 1), packs=packs)
    assert_same_on_every_rank(rank_pool(4).run(runs.train, run), want)


@pytest.mark.proof
@pytest.mark.slow
def test_a_critic_with_divided_experts_trains_as_torch_does(rank_pool: Pools, mixture: Path, tmp_path: Path) -> None:
    save_critic(mixture, tmp_path)
    loss = SquaredValueLoss()
    want = train_reference(tmp_path, rows(), loss, [LEARNING_RATE] * 3)
    got = rank_pool(2).run(runs.train, Run(tmp_path, fsdp2=TWO, role="critic", loss=loss))[0]
    named = [models.as_stored(each, "qwen3_moe") for each in want.parameters]
    assert_same_training(got, replace(want, parameters=named))


@pytest.mark.proof
@pytest.mark.slow
def test_adapters_learn_beside_divided_experts(rank_pool: Pools, mixture: Path, tmp_path: Path) -> None:
    """Of attention: experts are no linear layers in transformers, and have no adapters with or without ranks."""
    layers = ["q_proj", "k_proj", "v_proj", "o_proj"]
    plain = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    an_adapter(plain, tmp_path, target_modules=layers)
    want = reference(mixture, adapter=tmp_path)
    adapters = LORA | {"lora_target": layers, "adapter_name_or_path": str(tmp_path)}
    run = Run(mixture, fsdp2=TWO, loss=LOSS, max_norm=MAX_NORM, model=RECOMPUTED | adapters)
    assert_same_on_every_rank(rank_pool(2).run(runs.train, run), want)


@pytest.mark.gate("kept")
@pytest.mark.parametrize("settings", [TWO, TWO | {"param_offload": True}], ids=["kept", "waiting"])
def test_exported_weights_are_those_of_the_checkpoint(
    settings: dict[str, Any], rank_pool: Pools, mixture: Path
) -> None:
    got = rank_pool(4).run(runs.fresh_export, Run(mixture, fsdp2=settings))[0]
    stored = load_file(mixture / "model.safetensors")
    assert "model.layers.1.mlp.experts.2.up_proj.weight" in stored
    assert largest_difference(got, {name: weight.numpy() for name, weight in stored.items()}) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIVIDED_EXPERTS)
def test_every_type_is_saved_as_exported_and_goes_on_with_other_sizes(
    kind: str, rank_pool: Pools, tmp_path: Path
) -> None:
    """The saved model has the names of the first one and the values that engines get, and a trainer starts from it. The
    checkpoint of ranks that divide experts goes on where all have them, and one of such ranks where they are
    divided."""
    model_dir = save_mixture(kind, tmp_path / "start")
    divided = Run(model_dir, fsdp2=TWO, updates=1, loss=LOSS, max_norm=MAX_NORM)
    whole = replace(divided, fsdp2={})
    exported, after = rank_pool(2).run(runs.saved_both_ways, divided, tmp_path / "divided")[0]
    saved = tmp_path / "divided" / "model"
    stored = {name: weight.numpy() for name, weight in load_file(saved / "model.safetensors").items()}
    assert stored.keys() == load_file(model_dir / "model.safetensors").keys()
    assert largest_difference(exported, stored) == 0
    again = rank_pool(2).run(runs.fresh_export, replace(whole, model_dir=saved))[0]
    assert largest_difference(again, exported) == 0
    for world_size in (1, 2):
        found = rank_pool(world_size).run(runs.go_on, whole, tmp_path / "divided" / "checkpoint")[0].parameters[0]
        assert largest_difference(found, after) < 1e-6, world_size
    after = rank_pool(2).run(runs.saved_both_ways, whole, tmp_path / "whole")[0][1]
    found = rank_pool(2).run(runs.go_on, divided, tmp_path / "whole" / "checkpoint")[0].parameters[0]
    assert largest_difference(found, after) < 1e-6


@pytest.mark.slow
def test_a_checkpoint_resumes_on_another_layout(rank_pool: Pools, mixture: Path, tmp_path: Path) -> None:
    """Saved by four ranks in two pairs that divide experts; the next update is the same there, on other divisions of
    two ranks and four, with copies, and on one rank."""
    run = Run(mixture, fsdp2=TWO, loss=LOSS, max_norm=MAX_NORM)
    after = rank_pool(4).run(runs.save_after, run, tmp_path)[0]
    layouts = [(4, TWO), (4, {"ep_size": 4}), (4, TWO | {"fsdp_size": 2}), (4, {}), (2, TWO), (1, {})]
    for world_size, settings in layouts:
        one_more = replace(run, updates=1, fsdp2=settings)
        found = rank_pool(world_size).run(runs.go_on, one_more, tmp_path)[0].parameters[0]
        assert largest_difference(found, after) < 1e-6, (world_size, settings)

"""The head for the token after the next one under megatron_train, against Hugging Face's layer and AdamW in one
process."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.helpers.processes import RankPool
from tests.parity.megatron import models, prediction, ranks
from tests.parity.megatron.compare import assert_same_training
from tests.parity.megatron.layouts import BUCKETS, CP2, EP2, PP2, RECOMPUTE, SHARED, VPP2
from tests.parity.megatron.layouts import TP2_SP as TP2
from tests.parity.megatron.ranks import Run
from tests.parity.strategies.reference import Trace

Pools = Callable[[int], RankPool]
OVERLAP: dict[str, Any] = BUCKETS | {"overlap_param_gather": True}
LAYERS: dict[str, Any] = {"moe_layer_recompute": True}
YARN = {"rope_parameters": models.YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 1.0}}

CASES: dict[str, tuple[int, str, str, dict[str, Any], dict[str, Any]]] = {
    "joint": (1, "deepseek_v3", "joint", {}, {}),
    "standalone-packed": (1, "deepseek_v3", "standalone", {}, {"packs": True, "split": (3, 1)}),
    "dp2": (2, "glm4_moe", "joint", {}, {"split": (3, 1)}),
    "dp2-shared-standalone": (2, "deepseek_v3", "standalone", SHARED | BUCKETS, {}),
    "tp2": (2, "deepseek_v3", "joint", TP2, {"split": (3, 1)}),
    "tp2-standalone-shared": (2, "glm4_moe", "standalone", TP2 | SHARED, {"packs": True}),
    "ep2": (2, "glm4_moe", "joint", EP2 | SHARED, {"split": (3, 1)}),
    "cp2": (2, "deepseek_v3", "joint", CP2, {"split": (3, 1)}),
    "cp2-standalone-packed": (2, "glm4_moe", "standalone", CP2, {"packs": True}),
    "tp2-ep2-recompute": (4, "deepseek_v3", "joint", TP2 | EP2 | RECOMPUTE, {"packs": True}),
    "pp2": (2, "deepseek_v3", "joint", PP2, {"split": (3, 1)}),
    "pp2-standalone-overlap": (2, "glm4_moe", "standalone", PP2 | SHARED | BUCKETS, {"packs": True, "split": (3, 1)}),
    "vpp2": (2, "deepseek_v3", "joint", VPP2, {"split": (2, 1, 1)}),
    "vpp2-standalone": (2, "glm4_moe", "standalone", VPP2 | SHARED | BUCKETS, {"packs": True, "split": (3, 1)}),
    "pp2-tp2": (4, "glm4_moe", "joint", PP2 | TP2, {"packs": True}),
    "pp2-dp2-shared": (4, "deepseek_v3", "joint", PP2 | SHARED | OVERLAP, {"split": (3, 1)}),
    "ep2-overlap-recompute": (2, "deepseek_v3", "standalone", EP2 | SHARED | OVERLAP | LAYERS, {}),
}


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    @cache
    def made(family: str, layers: int = 2) -> Path:
        changes: dict[str, Any] = {"num_hidden_layers": layers} | (YARN if family == "deepseek_v3" else {})
        return prediction.make(tmp_path_factory.mktemp(family), family, **changes)

    return made


@pytest.fixture(scope="module")
def references(with_head: Callable[..., Path]) -> Callable[..., tuple[Trace, list[float]]]:
    @cache
    def made(family: str, mode: str, layers: int = 2) -> tuple[Trace, list[float]]:
        return prediction.train_reference(with_head(family, layers), mode, max_norm=0.5, weight_decay=0.1)

    return made


@pytest.mark.gate("joint", "tp2-standalone-shared")
@pytest.mark.proof
@pytest.mark.parametrize("name", list(CASES))
def test_the_head_and_the_policy_train_as_in_one_process(
    name: str,
    rank_pool: Pools,
    with_head: Callable[..., Path],
    references: Callable[..., tuple[Trace, list[float]]],
) -> None:
    world_size, family, mode, settings, options = CASES[name]
    layers, common = 4 if name.startswith("vpp") else 2, {"weight_decay": 0.1, "vocab_size": models.VOCAB_SIZE}
    run = Run(with_head(family, layers), settings, max_norm=0.5, head=mode, **common, **options)
    got, losses = rank_pool(world_size).run(prediction.train, run)[0]
    want, wanted = references(family, mode, layers)
    assert_same_training(got, want)
    assert losses == pytest.approx(wanted, rel=1e-5)


def test_alone_it_changes_no_bit_of_the_policy(rank_pool: Pools, with_head: Callable[[str], Path]) -> None:
    """Not of its gradient, its norm, or its weights: the gradient of the head is clipped by a norm of its own."""
    run = Run(with_head("glm4_moe"), {}, max_norm=0.1, vocab_size=models.VOCAB_SIZE, head="standalone")
    (got, losses), (want, _) = (
        rank_pool(1).run(prediction.train, each)[0] for each in (run, replace(run, head="disabled"))
    )
    assert losses[-1] < losses[0] and got.metrics == want.metrics
    for mine, other in ((got.gradients, want.gradients), *zip(got.parameters, want.parameters, strict=True)):
        assert all(np.array_equal(mine[name], other[name]) for name in other)
        assert {name for name in mine if name not in other} == {n for n in mine if n.startswith(prediction.AT)} != set()


@pytest.mark.gate("glm4_moe-layout1")
@pytest.mark.parametrize(
    ("family", "layout"), [("deepseek_v3", TP2), ("glm4_moe", TP2), ("glm4_moe_lite", TP2), ("glm4_moe", PP2)]
)
def test_a_head_is_saved_bit_by_bit_as_it_was_loaded_and_engines_do_not_get_it(
    family: str, layout: dict[str, Any], rank_pool: Pools, with_head: Callable[[str], Path], tmp_path: Path
) -> None:
    model_dir = with_head(family)
    run = Run(model_dir, layout, vocab_size=models.VOCAB_SIZE, head="joint")
    sent, _ = rank_pool(2).run(prediction.saved, run, tmp_path, 0)[0]
    stored, written = (load_file(path / "model.safetensors") for path in (model_dir, tmp_path))
    assert stored.keys() == written.keys()
    assert all(torch.equal(stored[name], written[name]) for name in stored)
    assert sent.keys() == {name for name in stored if not name.startswith(prediction.AT)}


def test_a_trained_head_is_saved_once_with_the_trained_model(
    rank_pool: Pools, with_head: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its files repeat the embedding and the output matrix as the model's are now."""
    run = Run(with_head("glm4_moe"), {}, vocab_size=models.VOCAB_SIZE, head="joint")
    _, trained = rank_pool(1).run(prediction.saved, run, tmp_path)[0]
    written, before = (load_file(path / "model.safetensors") for path in (tmp_path, run.model_dir))
    copies = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
    assert written.keys() == trained.keys() | {prediction.AT + name for name in copies}
    assert all(np.array_equal(written[name].numpy(), values) for name, values in trained.items())
    assert all(torch.equal(written[prediction.AT + name], written[own]) for name, own in copies.items())
    unmoved = {name for name in written if torch.equal(written[name], before[name])}
    assert unmoved and all(name.endswith("e_score_correction_bias") or ".experts." in name for name in unmoved)
    AutoModelForCausalLM.from_pretrained(tmp_path)


RESUMED: dict[str, tuple[dict[str, Any], int, dict[str, Any], int]] = {
    "same": (SHARED, 2, SHARED, 2),
    "tp2-to-dp2-ep2": (TP2 | SHARED, 2, EP2 | SHARED, 2),
    "pp2-to-tp2": (PP2 | SHARED, 2, TP2 | SHARED, 2),
    "dp2-to-pp2": (SHARED, 2, PP2 | SHARED, 2),
    "pp2": (PP2, 2, PP2, 2),
    "plain-to-tp2": ({}, 1, TP2 | {"expert_tensor_parallel_size": 2}, 2),
}


@pytest.mark.gate("pp2-to-tp2")
@pytest.mark.parametrize("name", list(RESUMED))
def test_a_run_goes_on_with_its_head(
    name: str, rank_pool: Pools, with_head: Callable[[str], Path], tmp_path: Path
) -> None:
    before, count, after, other_count = RESUMED[name]
    run = Run(with_head("deepseek_v3"), before, vocab_size=models.VOCAB_SIZE, head="joint")
    then, unbroken = rank_pool(count).run(prediction.save_and_go_on, run, tmp_path)[0]
    loaded, resumed = rank_pool(other_count).run(prediction.load_and_go_on, replace(run, megatron=after), tmp_path)[0]
    assert then.keys() == loaded.keys() == resumed.keys()
    assert all(np.array_equal(then[key], loaded[key]) for key in then)
    limit = 0.0 if before == after else 2e-5
    assert max(float(np.abs(unbroken[key] - resumed[key]).max()) for key in unbroken) <= limit


def test_a_checkpoint_goes_on_in_the_same_mode_alone(
    rank_pool: Pools, with_head: Callable[[str], Path], tmp_path: Path
) -> None:
    run = Run(with_head("glm4_moe"), {}, vocab_size=models.VOCAB_SIZE, head="standalone")
    said, is_untouched = rank_pool(1).run(ranks.resumed_otherwise, run, replace(run, head="disabled"), tmp_path)[0]
    assert "a head for further tokens that is trained (mtp_training_mode) True (now False)" in said and is_untouched


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({prediction.AT + "embed_tokens.weight": None}, "embed_tokens.weight of .* are not the model's own"),
        ({prediction.AT + "eh_proj.weight": ...}, "has no MTP head behind its 2 layers"),
        ({prediction.AT + "hnorm.weight": ...}, "has no tensor model.layers.2.hnorm.weight"),
    ],
)
def test_files_with_another_head_or_a_part_of_one_are_refused(
    changed: dict[str, Any], said: str, rank_pool: Pools, with_head: Callable[[str], Path], tmp_path: Path
) -> None:
    """None: other numbers; ...: missing."""
    shutil.copytree(with_head("glm4_moe"), tmp_path, dirs_exist_ok=True)
    stored = load_file(tmp_path / "model.safetensors")
    for name, change in changed.items():
        tensor = stored.pop(name)
        if change is None:
            stored[name] = tensor + 1
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    run = Run(tmp_path, {}, vocab_size=models.VOCAB_SIZE, head="joint")
    assert re.search(said, rank_pool(1).run(ranks.refusal, run)[0])

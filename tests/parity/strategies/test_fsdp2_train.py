"""What test_trainers.py leaves open: what fsdp2_train publishes, saves and goes on with, compiled models, and Muon."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.processes import RankError, RankPool
from tests.parity.compare import assert_same_training, largest_difference
from tests.parity.strategies import runs
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    BentLoss,
    SlowMuon,
    Trace,
    rows,
    train_reference,
)
from tests.parity.strategies.runs import Run

COMPILER_LIMIT_S = 1800  # two ranks compile at once, beside whatever else runs
Pools = Callable[[int], RankPool]

FULL: dict[str, Any] = {}
REPLICAS = {"fsdp_size": 1}  # of two ranks each holds the whole model
WAITING_ON_HOST = {"param_offload": True, "optimizer_offload": True}


def run_of(model_dir: Path, settings: dict[str, Any], **given: Any) -> Run:
    return Run(model_dir, fsdp2=settings, **given)


@pytest.fixture(scope="module")
def reference(tiny_tied_model_dir: Path) -> Trace:
    return train_reference(tiny_tied_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3)


def test_in_bf16_weights_are_published_and_saved_as_bf16(
    rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    """Rounded from the fp32 shards, under a config.json that says so."""
    from transformers import AutoModelForCausalLM

    run = run_of(tiny_tied_model_dir, FULL, model={"dtype": "bf16"})
    masters, published = rank_pool(2).run(runs.saved_as_hugging_face, run, tmp_path)[0]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == torch.bfloat16
    for name, weight in loaded.named_parameters():
        rounded = torch.from_numpy(masters[name]).to(torch.bfloat16)
        assert torch.equal(weight, rounded) and np.array_equal(published[name], rounded.float().numpy())
    assert any((masters[name] != published[name]).any() for name in masters)


def test_a_head_that_only_config_json_ties_is_refused(
    rank_pool: Pools, make_tiny_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """transformers leaves the two apart, with a warning; tied, every log-prob would be another one."""
    shutil.copytree(make_tiny_model_dir(tie_word_embeddings=False), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    said = "tie_word_embeddings is true in config.json, but the checkpoint has another lm_head.weight. Set it to"
    with pytest.raises(RankError, match=said):
        rank_pool(1).run(runs.fresh_export, run_of(tmp_path, FULL))
    run = run_of(tmp_path, FULL, model={"model_config_kwargs": {"tie_word_embeddings": False}})
    assert "lm_head.weight" in rank_pool(1).run(runs.fresh_export, run)[0]


@pytest.mark.gate("x1")
@pytest.mark.parametrize("settings, world_size", [(FULL, 1), (REPLICAS, 2), (FULL, 2)], ids=["x1", "replicas", "x2"])
def test_exported_weights_outlive_the_turn_of_weights_that_wait_on_the_host(
    settings: dict[str, Any], world_size: int, rank_pool: Pools, tiny_tied_model_dir: Path
) -> None:
    """A rank that holds a weight whole exports a copy, not the memory that it gives back."""
    run = run_of(tiny_tied_model_dir, settings | WAITING_ON_HOST)
    kept = rank_pool(world_size).run(runs.kept_export, run)[0]
    assert largest_difference(kept, rank_pool(world_size).run(runs.fresh_export, run)[0]) == 0


def test_a_frozen_part_stays_and_the_rest_learns_as_ever(
    rank_pool: Pools, tiny_tied_model_dir: Path, reference: Trace
) -> None:
    """The gradient of the rest is that of the whole model."""
    prefix = "model.layers.0."
    run = run_of(tiny_tied_model_dir, FULL, updates=1, model={"freeze_module_prefix": prefix})
    got = rank_pool(2).run(runs.train, run)[0]
    assert got.gradients.keys() == {name for name in reference.gradients if not name.startswith(prefix)}
    assert max(float(np.abs(got.gradients[n] - reference.gradients[n]).max()) for n in got.gradients) < 1e-6
    before = rank_pool(2).run(runs.fresh_export, run)[0]
    assert {n for n in before if (before[n] == got.parameters[0][n]).all()} == before.keys() - got.gradients.keys()


@pytest.mark.gate("full")
@pytest.mark.parametrize("settings", [FULL, WAITING_ON_HOST], ids=["full", "waiting-on-host"])
def test_a_checkpoint_goes_on_under_other_ranks(
    settings: dict[str, Any], rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    """Saved by two ranks after two updates, taken up by one. The third update differs by the order of sums alone."""
    run = run_of(tiny_tied_model_dir, settings, split=(1, 1), updates=2, training={"lr_scheduler_type": "linear"})
    want = rank_pool(2).run(runs.save_after, run, tmp_path)[0]
    got = rank_pool(1).run(runs.go_on, replace(run, updates=1, split=(1,)), tmp_path)[0]
    assert largest_difference(got.parameters[0], want) < 1e-6
    assert got.metrics[0]["learning_rate"] == pytest.approx(LEARNING_RATE * 0.98)


@pytest.mark.slow
def test_a_checkpoint_of_four_ranks_goes_on_with_two_that_hold_a_copy_each(
    rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    run = run_of(tiny_tied_model_dir, FULL, updates=2)
    want = rank_pool(4).run(runs.save_after, run, tmp_path)[0]
    got = rank_pool(2).run(runs.go_on, replace(run, updates=1, fsdp2=REPLICAS), tmp_path)[0]
    assert largest_difference(got.parameters[0], want) < 1e-6


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(COMPILER_LIMIT_S + 60)
@pytest.mark.parametrize("packs", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("settings", [FULL, None], ids=["fsdp2", "deepspeed"])
def test_a_compiled_model_learns_the_same(
    settings: dict[str, Any] | None, packs: bool, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """By inductor and the machine's C++ compiler, with recomputation, entropy and micro batches of other shapes. Its
    kernels round otherwise: gradients are as near as ever, and AdamW moves one weight of 250,000, whose gradient is
    1.7e-7, by 2.1e-5 more."""
    loss = BentLoss(entropy_coef=0.3)
    want = train_reference(tiny_model_dir, rows(), loss, [LEARNING_RATE] * 3)
    run = Run(
        tiny_model_dir,
        fsdp2=settings,
        stage=2,
        split=(3, 1, 2),
        model={"disable_gradient_checkpointing": False},
        loss=loss,
        packs=packs,
        compiled=True,
    )
    got = rank_pool(2).run(runs.train, run, timeout_s=COMPILER_LIMIT_S)[0]
    assert_same_training(got, want, parameter_tolerance=3e-5)


@pytest.mark.slow
@pytest.mark.timeout(COMPILER_LIMIT_S + 60)
@pytest.mark.parametrize("settings", [FULL, None], ids=["fsdp2", "deepspeed"])
def test_a_compiled_model_that_keeps_products_learns_the_same(
    settings: dict[str, Any] | None, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """The same in packs, with what the compiler computes again."""
    want = train_reference(tiny_model_dir, rows(), BentLoss(), [LEARNING_RATE] * 3)
    model = {"disable_gradient_checkpointing": False, "recompute_granularity": "selective"}
    run = Run(tiny_model_dir, fsdp2=settings, stage=2, split=(3, 1, 2), model=model, packs=True, compiled=True)
    got = rank_pool(2).run(runs.train, run, timeout_s=COMPILER_LIMIT_S)[0]
    assert_same_training(got, want, parameter_tolerance=3e-5)


@pytest.mark.gate("x2")
@pytest.mark.parametrize(
    "settings, world_size",
    [(FULL, 2), (REPLICAS, 2), (WAITING_ON_HOST, 2), (None, 2)],
    ids=["x2", "replicas", "waiting-on-host", "deepspeed"],
)
def test_an_update_of_muon_is_that_of_singular_values_in_float64(
    settings: dict[str, Any] | None, world_size: int, rank_pool: Pools, tiny_model_dir: Path
) -> None:
    """Matrices of the layers, divided among the ranks, from the gradients that the run itself recorded: where a
    gradient is nearly 0, as those of queries and keys are at the start, its rounding decides the update. Embedding,
    untied head and norms by torch's AdamW."""
    want = train_reference(tiny_model_dir, rows(), BentLoss(), [LEARNING_RATE], weight_decay=0.5)
    training = {"optim": "muon", "weight_decay": 0.5}
    run = Run(tiny_model_dir, fsdp2=settings, split=(3, 1, 2), training=training, updates=1)
    got = rank_pool(world_size).run(runs.train, run)[0]
    assert largest_difference(got.gradients, want.gradients) < 1e-5
    start = load_file(tiny_model_dir / "model.safetensors")
    for name, weight in got.parameters[0].items():
        wanted = want.parameters[0][name]
        if ".layers." in name and weight.ndim > 1:
            matrix = torch.nn.Parameter(start[name])
            matrix.grad = torch.from_numpy(got.gradients[name])
            SlowMuon([matrix], weight_decay=0.5).step(LEARNING_RATE)
            wanted = matrix.detach().numpy()
            assert np.abs(wanted - want.parameters[0][name]).max() > LEARNING_RATE / 10
        np.testing.assert_allclose(weight, wanted, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_a_checkpoint_of_muon_goes_on_under_other_ranks(rank_pool: Pools, tiny_model_dir: Path, tmp_path: Path) -> None:
    run = run_of(tiny_model_dir, FULL, updates=2, training={"optim": "muon"})
    want = rank_pool(2).run(runs.save_after, run, tmp_path)[0]
    got = rank_pool(1).run(runs.go_on, replace(run, updates=1), tmp_path)[0]
    assert largest_difference(got.parameters[0], want) < 1e-5

"""Whole runs of mixtures that only Megatron's own families know how to train so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from roll.models.weight_files import tensor_files
from tests.e2e.test_megatron import HF_SAMPLER, assert_engine_has_the_trainers_weights
from tests.helpers.runs import Run
from tests.parity.megatron import models, prediction

StartRun = Callable[..., Run]
STEPS = ("max_steps=3", "eval_steps=-1", "save_steps=3")
MEGATRON = "actor_train.strategy_args.strategy_config"
STAGES = (f"{MEGATRON}.tensor_model_parallel_size=1", f"+{MEGATRON}.pipeline_model_parallel_size=2")


def tensor(model: Path, name: str) -> torch.Tensor:
    with safe_open(tensor_files(str(model))[name], framework="pt") as file:
        return file.get_tensor(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "layout"), [("standalone", ()), ("joint", (*STAGES, "+actor_train.router_replay.mode=R2"))]
)
def test_a_head_for_further_tokens_learns_beside_the_policy(
    mode: str, layout: Sequence[str], sort_data: Path, start_run: StartRun, tmp_path: Path
) -> None:
    """On two tensor-parallel ranks, and on two stages beside recorded experts; the engine, which has no such head, gets
    the policy, the saved model both."""
    tokenizer = AutoTokenizer.from_pretrained(sort_data / "model")
    model = prediction.make(tmp_path / "model", "glm4_moe", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(model)
    asked = (f"actor_train.mtp_training_mode={mode}", "actor_train.mtp_loss_scaling_factor=1.0")
    run = start_run(
        sort_data, "tiny_sort_megatron", *STEPS, *HF_SAMPLER, f"pretrain={model}", *asked, *layout
    ).finished()
    losses = [run.metrics[step]["actor/mtp_loss"] for step in (1, 2, 3)]
    assert losses[2] < losses[0], losses
    assert_engine_has_the_trainers_weights(run)
    (saved,) = (path.parent for path in run.output_dir.rglob("config.json"))
    name = f"{prediction.AT}eh_proj.weight"
    assert not torch.equal(tensor(saved, name), tensor(model, name))
    shared = tensor(saved, f"{prediction.AT}shared_head.head.weight")
    assert torch.equal(shared, tensor(saved, "lm_head.weight"))


@pytest.mark.slow
def test_gpt_oss_learns_with_experts_on_two_ranks(sort_data: Path, start_run: StartRun, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(sort_data / "model")
    model = models.make(tmp_path / "model", "gpt_oss", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(model)
    layout = (f"{MEGATRON}.tensor_model_parallel_size=1", f"+{MEGATRON}.expert_model_parallel_size=2")
    batch = "actor_train.training_args.gradient_accumulation_steps=2"
    run = start_run(
        sort_data, "tiny_sort_megatron", *STEPS, *HF_SAMPLER, f"pretrain={model}", *layout, batch
    ).finished()
    assert_engine_has_the_trainers_weights(run)

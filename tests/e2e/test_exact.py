"""Whole runs in exact mode: engine and trainer give every sampled token the same log-prob, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.helpers.runs import Run
from tests.parity.megatron import models

StartRun = Callable[..., Run]
EXACT = ("+exact_log_probs=true", "eval_steps=-1")
BF16 = ("actor_train.model_args.dtype=bf16", "actor_infer.model_args.dtype=bf16")
ZERO3 = (
    "actor_train.strategy_args.strategy_config.zero_optimization.stage=3",
    "+actor_train.strategy_args.strategy_config.zero_optimization.memory_efficient_linear=false",
)
LORA = ("+actor_train.model_args.lora_target=all-linear", "actor_train.training_args.learning_rate=0.01")

REFERENCE = (
    "use_kl_loss=true", "kl_loss_coef=0.01", "reference.strategy_args.strategy_name=hf_infer",
    "reference.model_args.dtype=fp32", "reference.device_mapping=[0]",
)  # fmt: skip
GAP = "train_infer/log_prob_diff_max"


def assert_exact(run: Run, steps: list[int]) -> None:
    run.finished()
    assert sorted(step for step in run.metrics if step) == steps
    for step in steps:
        row = run.metrics[step]
        assert row[GAP] == 0.0, step
        assert row["actor/grad_norm"] > 0, "it did learn"
    assert run.metrics[steps[0]]["actor/ratio_max"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("tiny_sort",), id="deepspeed"),
        pytest.param(("tiny_sort_fsdp2",), id="fsdp2-two-ranks"),
        pytest.param(("tiny_sort", *BF16, *ZERO3), id="zero3-bf16"),
        pytest.param(("tiny_sort_fsdp2", *BF16), id="fsdp2-two-ranks-bf16"),
        pytest.param(("tiny_sort", *LORA), id="deepspeed-lora"),
        pytest.param(("tiny_sort_fsdp2", *BF16, *LORA), id="fsdp2-two-ranks-bf16-lora"),
    ],
)
def test_log_probs_are_equal_in_every_step_and_after_a_resume(
    sort_data: Path, start_run: StartRun, options: tuple[str, ...]
) -> None:
    """Five steps, the last two of them after a resume: weights have changed, rows have joined and left the batch."""
    name, *more = options
    run = start_run(sort_data, name, *EXACT, *more, "max_steps=3", "save_steps=3", name="exact")
    assert_exact(run, [1, 2, 3])
    later = ("max_steps=5", "save_steps=-1", "resume_from_checkpoint=true")
    assert_exact(start_run(sort_data, name, *EXACT, *more, *later, name="exact"), [1, 2, 3, 4, 5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("tiny_sort", *ZERO3), id="zero3"),
        pytest.param(("tiny_sort_fsdp2", *BF16), id="fsdp2-two-ranks-bf16"),
    ],
)
def test_experts_of_a_mixture_are_exact_in_every_step(
    sort_data: Path, start_run: StartRun, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Weights are drawn, so rewards say little: entropy and the load-balancing loss move them."""
    tokenizer = AutoTokenizer.from_pretrained(sort_data / "model")
    model = models.make(tmp_path / "mixture", "qwen3_moe", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(model)
    moved = ("entropy_loss_coef=0.1", "+actor_train.model_args.moe_aux_loss_coef=0.01", f"pretrain={model}")
    name, *more = options
    run = start_run(sort_data, name, *EXACT, *more, *moved, "max_steps=3", "save_steps=-1")
    assert_exact(run, [1, 2, 3])
    assert run.metrics[3]["actor/moe_aux_loss"] > 0


@pytest.mark.slow
def test_rows_that_begin_alike_are_exact_as_trees(sort_data: Path, start_run: StartRun) -> None:
    """On two ranks; the reference shares too, and its KL is exactly 0 while it has the policy's weights."""
    shares = [f"+{role}.use_prefix_sharing=on" for role in ("actor_train", "reference")]
    run = start_run(sort_data, "tiny_sort_fsdp2", *EXACT, *REFERENCE, *shares, "max_steps=3", "save_steps=-1")
    assert_exact(run, [1, 2, 3])
    assert run.metrics[1]["actor/kl_loss"] == 0.0 and run.metrics[2]["actor/kl_loss"] > 0
    assert min(run.metrics[step]["goodput/prefix_sharing_factor"] for step in (1, 2, 3)) > 1.2


@pytest.mark.slow
def test_two_engines_and_a_reference_give_the_trainers_numbers(sort_data: Path, start_run: StartRun) -> None:
    """Engines of two threads, a trainer of one, which packs; and one that scores in a pass of its own, since it makes
    two updates a step. While the policy has the weights of the reference, its KL is exactly 0."""
    engines = ("num_gpus_per_node=3", "actor_infer.device_mapping=[1,2]", "+actor_infer.system_envs.OMP_NUM_THREADS=2")
    packs, short = "+actor_train.use_sequence_packing=true", ("max_steps=2", "save_steps=-1")
    run = start_run(sort_data, "tiny_sort", *EXACT, *engines, *REFERENCE, packs, *short)
    assert_exact(run, [1, 2])
    assert run.metrics[1]["actor/kl_loss"] == 0.0 and run.metrics[2]["actor/kl_loss"] > 0
    twice = "actor_train.training_args.gradient_accumulation_steps=2"
    again = start_run(
        sort_data, "tiny_sort", *EXACT, packs, twice, "max_steps=1", "save_steps=-1", name="twice"
    ).finished()
    assert again.metrics[1][GAP] == 0.0 and again.metrics[1]["actor/num_updates"] == 2
    assert again.metrics[1]["actor/ratio_max"] > 1


@pytest.mark.slow
def test_rollouts_that_run_ahead_are_exact_where_the_learning_weights_sampled(
    sort_data: Path, start_run: StartRun
) -> None:
    """Tokens of older weights have other log-probs, which show as their lag's difference; those of the weights that
    learn, and the short responses that engines are asked for where there are none, have the trainer's."""
    run = start_run(sort_data, "tiny_sort_async", *EXACT, "max_steps=6", "save_steps=-1").finished()
    rows = [run.metrics[step] for step in range(1, 7)]
    assert rows[0][GAP] == 0.0 and rows[0]["actor/ratio_max"] == 1.0
    told = ("train_infer/log_prob_diff_max", "train_infer/log_prob_diff_mean")
    assert {row[name] for row in rows for name in told if name in row} == {0.0}
    assert any(row.get("train_infer/log_prob_diff_mean/lag_1", 0) > 0 for row in rows), "it did run ahead"


LAKE = """
defaults:
  - ../config/deepspeed_zero@_here_
exp_name: exact_lake
pretrain: MODEL
num_gpus_per_node: 2
max_steps: 2
eval_steps: -1
save_steps: -1
track_with: [jsonl]
exact_log_probs: true
skip_idle_rows: false  # rewards are all 0, and every turn is compared
rollout_batch_size: 8
prompt_length: 400
sequence_length: 700
adv_estimator: grpo
custom_envs:
  Whole: {env_type: frozen_lake, max_steps: 4, max_tokens_per_step: 6}
  Steps: {env_type: frozen_lake, max_steps: 3, env_manager_cls: step_concat, agent_template: "{history} {observation}"}
train_env_manager: {world_size: 2, num_env_groups: 4, group_size: 2, tags: [Whole, Steps]}
actor_train:
  model_args: {dtype: fp32}
  training_args: {per_device_train_batch_size: 8, gradient_accumulation_steps: 1}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero}"}
  device_mapping: [0]
actor_infer:
  model_args: {dtype: fp32}
  generating_args: {max_new_tokens: 6}
  strategy_args: {strategy_name: hf_infer}
  device_mapping: [1]
"""


@pytest.mark.slow
def test_turns_of_episodes_are_exact(tmp_path: Path, tiny_tied_model_dir: Path, start_run: StartRun) -> None:
    """Each turn goes on from the cache of the one before, or from a prompt of its own; the trainer sees whole rows."""
    (tmp_path / "lake.yaml").write_text(LAKE.replace("MODEL", str(tiny_tied_model_dir)))
    run = start_run(tmp_path, "lake", example=tmp_path, pipeline="agentic").finished()
    assert [run.metrics[step][GAP] for step in (1, 2)] == [0.0, 0.0]
    assert run.metrics[1]["env/Whole/num_turns_mean"] > 1

"""Trinity-RFT's data operators and DPO become ours, and of its stages the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read

FOLDER = Path(__file__).parents[2] / "importers"
TASK, SAMPLES = "data_processor.task_pipeline", "data_processor.experience_pipeline"


def imported(name: str, *words: str) -> Imported:
    path = FOLDER / f"trinity_{name}.yaml"
    return imported_from(read(path, words), source=path)


def entry(found: Imported, key: str) -> tuple[str, str]:
    return next((entry.outcome, entry.note) for entry in found.entries if entry.key == key)


def operators(*words: str) -> tuple[Imported, list[dict[str, Any]]]:
    """Of an experience pipeline in the words of a command line."""
    found = imported("ppo_megatron", *words)
    return found, found.tree.get("experience_operators", [])


def test_of_several_stages_the_last_is_imported_and_the_others_are_told() -> None:
    path = FOLDER / "guide_trinity_stages.yaml"
    found = imported_from(read(path), source=path)
    assert (found.pipeline, found.tree["adv_estimator"]) == ("rlvr", "grpo") and "stages" not in found.tree
    outcome, note = entry(found, "stages.0.algorithm.algorithm_type")
    assert outcome == "changes the run" and "import its keys as a YAML without stages" in note
    assert entry(found, "stages.1.stage_name")[0] == "asks for nothing"
    assert [each.key for each in found.entries] == [key for key, _ in read(path).keys]


def test_operators_on_tasks_run_by_data_juicers_own_package() -> None:
    words = (
        f"{TASK}.operators=[{{name: llm_difficulty_score_filter, args: {{text_key: q, min_score: 0.3, a: [b]}}}}]",
    )
    found = imported("ppo_megatron", *words)
    wanted = {"column": "q", "op_args": {"min_score": 0.3, "a": ["b"]}}
    made = found.tree["actor_train"]["data_args"]["operators"]
    assert made == [{"name": "data_juicer:llm_difficulty_score_filter", "args": wanted}]
    assert entry(found, f"{TASK}.operators.0.args.min_score")[0] == "mapped"


def test_the_least_deviation_is_that_of_a_sample() -> None:
    """Of 4 answers the deviation over n - 1 is sqrt(4 / 3) times that over n: .3 becomes .346."""
    _, made = operators(f"{SAMPLES}.operators=[{{name: reward_std_filter, args: {{threshold: 0.3}}}}]")
    assert made[0]["args"]["std_threshold"] == pytest.approx(0.34641, abs=1e-5)


def test_operators_that_are_not_here_are_told_one_by_one() -> None:
    names = ("reward_shaping_mapper", "dapo_dynamic_sampling", "invalid_reward_filter", "mask_response_truncated")
    found, made = operators(f"{SAMPLES}.operators=[{', '.join(f'{{name: {name}}}' for name in names)}]")
    assert made == [{"name": "mean_filter", "args": {"threshold_down": 0.0, "threshold_up": 1.0}}]
    told = [entry(found, f"{SAMPLES}.operators.{i}.name")[0] for i in range(4)]
    assert told == ["changes the run", "approximated", "approximated", "approximated"]
    assert found.tree["max_len_mask"] is True


def test_dpo_has_its_beta_its_pairs_and_a_reference_beside_the_learner() -> None:
    found = imported("dpo")
    tree = found.tree
    assert (found.pipeline, tree["beta"], tree["label_smoothing"]) == ("dpo", 0.2, 0.1)
    assert (tree["prompt_key"], tree["chosen_key"], tree["rejected_key"]) == ("question", "good", "bad")
    args = tree["actor_train"]["training_args"]
    assert args["per_device_train_batch_size"] == 4 and args["gradient_accumulation_steps"] == 4, "64 pairs on 4 ranks"
    assert (args["learning_rate"], args["weight_decay"], tree["max_grad_norm"]) == (5e-7, 0.05, 0.5)
    assert tree["reference"]["device_mapping"] == tree["actor_train"]["device_mapping"] == "list(range(0, 4))"
    assert tree["sequence_length"] == 1536 and tree["num_train_epochs"] == 2 and "sft_train" not in tree


def test_the_coefficient_of_a_kl_is_beta_only_where_no_beta_is_given() -> None:
    found = imported("dpo", "algorithm.policy_loss_fn_args.beta=0.5")
    assert found.tree["beta"] == 0.5
    assert entry(found, "algorithm.kl_loss_fn_args.kl_coef")[0] == "not available"
    assert imported("dpo", "algorithm.kl_loss_fn_args=null").tree["beta"] == 0.1


def test_pairs_share_sequences_and_fill_packs_as_they_say() -> None:
    """64 pairs on 4 / 2 ranks; packs of 2048 x 2 tokens."""
    words = ["trainer.ulysses_sequence_parallel_size=2", "trainer.use_dynamic_bsz=true"]
    role = imported("dpo", *words, "trainer.ppo_max_token_len_per_gpu=2048").tree["actor_train"]
    args = role["training_args"]
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 2 == 64
    assert (role["model_args"]["ulysses_size"], role["max_tokens_per_microbatch_in_train"]) == (2, 4096)


def test_rows_to_learn_from_have_trinitys_defaults_and_not_verls() -> None:
    tree = imported("sft", "buffer.trainer_input.experience_buffer.format={prompt_type: plaintext}").tree
    assert (tree["prompt_key"], tree["response_key"]) == ("prompt", "response")
    assert tree["sft_train"]["model_args"]["disable_gradient_checkpointing"] is False


@pytest.mark.parametrize("value, part", [("true", "all"), ("false", "last"), ("null", "last")])
def test_of_a_conversation_the_last_answer_is_learnt_unless_all_are_asked_for(value: str, part: str) -> None:
    key = "buffer.trainer_input.experience_buffer.format.enable_concatenated_multi_turn"
    found = imported(
        "sft", f"{key}={value}", "algorithm.optimizer.warmup_style=cosine", "algorithm.optimizer.min_lr_ratio=.1"
    )
    assert found.tree["train_on"] == part and entry(found, key)[0] == "mapped"
    assert found.tree["sft_train"]["training_args"]["lr_scheduler_kwargs"] == {"min_lr_ratio": 0.1}


def test_adapters_and_sampling_of_the_model_section_are_taken() -> None:
    words = [
        "model.lora_configs=[{name: lora, lora_rank: 16, lora_alpha: 8}]",
        "model.temperature=0.7",
        "model.top_k=20",
    ]
    words += ["buffer.explorer_input.taskset.rollout_args.top_k=5", "algorithm.policy_loss_fn_args.clip_ratio_c=4"]
    tree = imported("dapo", *words).tree
    args = tree["actor_train"]["model_args"]
    assert [args[f"lora_{key}"] for key in ("target", "rank", "alpha")] == ["all-linear", 16, 8]
    sampling = tree["actor_infer"]["generating_args"]
    assert sampling["top_k"] == 5 and tree["dual_clip_ratio_c"] == 4, "what the tasks say counts"
    assert sampling["temperature"] == 0.7


@pytest.mark.parametrize(("name", "role"), [("sft", "sft_train"), ("dpo", "actor_train")])
def test_rows_of_an_update_are_those_of_batch_size_where_train_batch_size_is_not_given(name: str, role: str) -> None:
    found = imported(name, "buffer.train_batch_size=null", "buffer.batch_size=24", "cluster.gpu_per_node=8")
    args = found.tree[role]["training_args"]
    ranks = found.tree["num_nodes"] * 8
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * ranks == 24
    assert entry(found, "buffer.batch_size")[0] in ("mapped", "approximated")
    both = imported(name, "buffer.train_batch_size=48", "buffer.batch_size=24")
    assert entry(both, "buffer.batch_size") == ("asks for nothing", "train_batch_size counts")
    neither = imported(name, "buffer.train_batch_size=null")
    assert any("buffer.train_batch_size is missing" in change for change in neither.changes)

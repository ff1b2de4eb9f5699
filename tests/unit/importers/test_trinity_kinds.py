"""Trinity-RFT's stages, data operators and DPO become ours."""

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


def test_what_all_stages_say_stands_once_and_the_rest_in_its_stage() -> None:
    tree = imported("stages").tree
    first, second = tree["stages"]
    assert (first["name"], first["pipeline"], second["name"], second["pipeline"]) == (
        "sft-warmup",
        "sft",
        "rft",
        "rlvr",
    )
    assert tree["pretrain"] == "org/model" and not {"pretrain", "exp_name", "save_steps"} & {*first, *second}
    assert first["sft_train"]["training_args"]["learning_rate"] == 1e-5 and first["max_steps"] == 20
    assert second["actor_train"]["training_args"]["learning_rate"] == 1e-6 and second["max_steps"] == 200
    assert "rollout_batch_size" not in first and second["rollout_batch_size"] == 16


def test_a_section_of_a_stage_replaces_that_of_all_stages_as_a_whole() -> None:
    found = imported("stages")
    assert entry(found, "algorithm.repeat_times")[0] == "mapped"
    both = {"stages.0.algorithm.algorithm_type": "sft", "stages.0.algorithm.optimizer.lr": 1e-5}
    assert both.items() <= {entry.key: entry.value for entry in found.entries}.items()
    args = found.tree["stages"][0]["sft_train"]["training_args"]
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 8 == 64


def test_a_key_that_two_stages_read_in_their_own_way_says_which_does_what() -> None:
    outcome, note = entry(imported("stages"), "model.max_prompt_tokens")
    assert (outcome, note) == ("mapped", "[sft-warmup] sequence_length: 1536. [rft] prompt_length: 512")


def test_a_stage_that_is_a_part_of_a_run_is_not_to_be_had() -> None:
    found = imported("stages", "mode=explore")
    assert entry(found, "mode") == ("not available", "a stage samples and trains in one process")
    assert entry(found, "stages.0.mode")[0] == "asks for nothing"
    assert all("mode" not in stage for stage in found.tree["stages"])


def test_stages_that_save_nothing_save_as_ours_do_since_they_hand_over_a_checkpoint() -> None:
    tree = imported("stages", "trainer.save_interval=0").tree
    assert not any("save_steps" in keys for keys in (tree, *tree["stages"]))


def test_operators_on_tasks_choose_rows() -> None:
    found = imported("stages")
    args = found.tree["stages"][1]["actor_train"]["data_args"]
    assert args["operators"] == [
        {"name": "deduplicate"},
        {"name": "length", "args": {"unit": "characters", "min": 10, "max": 2000}},
    ]
    assert args["file_name"] == ["data/sums.jsonl"], "what the task pipeline reads, not what it writes"
    assert entry(found, f"{TASK}.operators.1.args.max_len")[0] == "approximated"


def test_other_operators_on_tasks_run_by_data_juicers_own_package() -> None:
    words = (
        f"{TASK}.operators=[{{name: llm_difficulty_score_filter, args: {{text_key: q, min_score: 0.3, a: [b]}}}}]",
    )
    found = imported("ppo_megatron", *words)
    wanted = {"column": "q", "op_args": {"min_score": 0.3, "a": ["b"]}}
    made = found.tree["actor_train"]["data_args"]["operators"]
    assert made == [{"name": "data_juicer:llm_difficulty_score_filter", "args": wanted}]
    assert entry(found, f"{TASK}.operators.0.args.min_score")[0] == "mapped"


def test_a_file_of_operators_is_not_read_and_counts() -> None:
    found = imported("stages", f"{TASK}.config_path=dj.yaml")
    assert entry(found, f"{TASK}.config_path")[0] == "changes the run"
    assert entry(found, f"{TASK}.operators.0.name")[0] == "changes the run"
    assert "operators" not in found.tree["stages"][1]["actor_train"]["data_args"]


def test_shaping_of_rewards_is_one_operator_for_each_of_its_parts() -> None:
    shapes = "[{stats_key: a, op_type: SUB, weight: 2.0}, {stats_key: b, op_type: MUL}]"
    at = f"{SAMPLES}.operators=[{{name: reward_shaping_mapper, args: {{reward_shaping_configs: {shapes}}}}}]"
    found, made = operators(at)
    assert made == [
        {"name": "reward_shaping", "args": {"stat": "a", "op": "subtract", "weight": 2.0}},
        {"name": "reward_shaping", "args": {"stat": "b", "op": "multiply", "weight": 1.0}},
    ]
    outcome, note = entry(found, f"{SAMPLES}.operators.0.args.reward_shaping_configs.1.stats_key")
    assert outcome == "approximated" and "has to report a, b" in note


def test_the_least_deviation_is_that_of_a_sample() -> None:
    """Of 4 answers the deviation over n - 1 is sqrt(4 / 3) times that over n: .3 becomes .346."""
    _, made = operators(f"{SAMPLES}.operators=[{{name: reward_std_filter, args: {{threshold: 0.3}}}}]")
    assert made[0]["args"]["std_threshold"] == pytest.approx(0.34641, abs=1e-5)


def test_operators_that_are_not_here_are_told_one_by_one() -> None:
    names = ("reward_filter", "dapo_dynamic_sampling", "invalid_reward_filter", "mask_response_truncated")
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

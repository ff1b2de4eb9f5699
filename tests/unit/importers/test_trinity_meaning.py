"""What keys of Trinity-RFT mean there is what the YAML means here, or the report says by how much it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import at

FOLDER = Path(__file__).parents[2] / "importers"
GUIDE = "guide_trinity"
TASKS = "buffer.explorer_input.taskset"


def imported(*words: str, name: str = GUIDE) -> Imported:
    path = FOLDER / f"{name}.yaml"
    return imported_from(read(path, words), source=path)


# --- how long a run is, and where it goes on


def test_the_shorter_of_two_lengths_ends_a_run() -> None:
    outcome, note = entry(imported("buffer.total_steps=10"), "trainer.total_steps")
    assert outcome == "approximated" and "buffer.total_steps: 10 ends the run before" in note
    assert imported("buffer.total_steps=10").tree["max_steps"] == 10


def test_a_run_that_is_not_to_go_on_does_not() -> None:
    found = imported("continue_from_checkpoint=false")
    assert found.tree["resume_from_checkpoint"] is False
    assert entry(found, "continue_from_checkpoint")[0] == "approximated"
    assert imported().tree["resume_from_checkpoint"] is True
    sft = imported("continue_from_checkpoint=false", name="trinity_sft")
    assert sft.tree["resume_from_checkpoint"] is False


def test_a_run_that_only_trains_asks_for_its_steps_and_has_all_gpus() -> None:
    words = ("mode=train", "trainer.total_steps=null", "explorer.rollout_model.engine_num=4")
    found = imported(*words)
    assert found.unresolved == ("buffer.total_steps",) and "num_train_epochs" not in found.tree
    assert at(found, "actor_train.device_mapping") == "list(range(0, 8))"
    assert entry(found, "buffer.total_epochs")[0] == "not available"
    assert imported(*words, "buffer.total_steps=7").tree["max_steps"] == 7


# --- lengths


@cases("words, lengths")
def test_what_is_not_given_of_the_lengths_is_what_the_whole_leaves(words: list[str], lengths: list[int]) -> None:
    tree = imported(*words).tree
    assert [tree["prompt_length"], tree["response_length"]] == lengths


def test_lengths_that_nothing_says_are_asked_for() -> None:
    found = imported(*(f"model.max_{kind}=null" for kind in ("model_len", "prompt_tokens", "response_tokens")))
    assert found.unresolved == ("model.max_prompt_tokens", "model.max_response_tokens")
    assert not {"prompt_length", "response_length"} & found.tree.keys()


@pytest.mark.parametrize(("value", "rule"), [("true", "left"), ("false", "error"), ("null", "left")])
def test_prompts_that_are_too_long_are_cut_unless_they_are_not_to_be(value: str, rule: str) -> None:
    found = imported(f"model.enable_prompt_truncation={value}")
    assert [at(found, f"{part}.data_args.truncation") for part in ("actor_train", "validation")] == [rule, rule]
    assert value == "null" or entry(found, "model.enable_prompt_truncation")[0] == "approximated"


# --- steps, GPUs, rollouts


@cases("value, shuffle")
def test_tasks_come_in_their_order_unless_a_selector_shuffles(value: str, shuffle: bool) -> None:
    key = f"{TASKS}.task_selector.selector_type"
    assert at(imported(f"{key}={value}"), "actor_train.data_args.shuffle") is shuffle
    assert entry(imported(f"{key}=offline_easy2hard"), key)[0] == "changes the run"


def test_a_train_batch_of_several_exploring_steps_is_a_step() -> None:
    found = imported("buffer.batch_size=16", "buffer.train_batch_size=640", "explorer.rollout_model.engine_num=4")
    args = at(found, "actor_train.training_args")
    assert found.tree["rollout_batch_size"] == 80, "640 samples are 80 x 8"
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 4 == 640
    outcome, note = entry(found, "buffer.train_batch_size")
    assert outcome == "approximated" and "more than the 16 x 8 samples" in note


def test_the_trainer_has_as_many_gpus_as_share_an_update() -> None:
    """Of 8 GPUs an engine has 1; 256 samples split over 4 of the other 7."""
    found = imported()
    args = at(found, "actor_train.training_args")
    assert at(found, "actor_train.device_mapping") == "list(range(0, 4))"
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 4 == 256
    outcome, note = entry(found, "explorer.rollout_model.engine_num")
    assert outcome == "approximated" and "256 samples of an update do not split over the 7 GPUs" in note
    assert entry(imported("explorer.rollout_model.engine_num=4"), "cluster.node_num")[0] == "mapped"


def test_gpus_of_other_models_are_not_the_trainers() -> None:
    words = ("explorer.auxiliary_models=[{model_path: org/judge, engine_num: 1, tensor_parallel_size: 2}]",)
    found = imported(*words, "explorer.rollout_model.engine_num=2")
    places = [at(found, f"{role}.device_mapping") for role in ("actor_train", "actor_infer")]
    assert places == ["list(range(0, 4))", "list(range(4, 6))"]


@pytest.mark.parametrize(("words", "ahead"), [((), 2), (("explorer.max_inflight_batches=3",), 3)])
def test_batches_in_flight_are_steps_ahead_where_neither_side_waits(words: tuple[str, ...], ahead: int) -> None:
    found = imported("synchronizer.sync_style=fully_async", *words)
    assert found.is_as_meant and found.tree["async_generation_ratio"] == ahead
    fixed = imported("explorer.max_inflight_batches=3")
    assert entry(fixed, "explorer.max_inflight_batches") == ("asks for nothing", "of sync_style: fully_async")


@pytest.mark.parametrize("style", ["dynamic_by_explorer", "dynamic_by_trainer", "explorer_driven", "trainer_driven"])
def test_a_dynamic_style_runs_ahead_and_says_how_old_samples_get(style: str) -> None:
    found = imported(f"synchronizer.sync_style={style}", "synchronizer.sync_interval=4")
    assert (found.tree["async_generation_ratio"], at(found, "actor_train.model_update_frequency")) == (1.0, 4)
    outcome, note = entry(found, "synchronizer.sync_style")
    assert outcome == "approximated" and "none is more than 4 steps old" in note
    odd = imported("synchronizer.sync_style=never", "synchronizer.sync_interval=4")
    assert entry(odd, "synchronizer.sync_style")[0] == "changes the run"
    assert entry(odd, "synchronizer.sync_interval")[0] == "mapped" and not odd.is_as_meant


@pytest.mark.parametrize(("name", "discounts"), [("grpo", False), ("asymre", False), ("reinforceplusplus", True)])
def test_a_discount_is_told_where_the_advantage_has_one(name: str, discounts: bool) -> None:
    found = imported(f"algorithm.algorithm_type={name}", f"algorithm.advantage_fn={name}")
    assert ("gamma" in found.defaults) is discounts and found.tree.get("gamma", 1.0) == 1.0


def test_losses_without_a_ratio_get_no_weights_where_rollouts_run_ahead() -> None:
    weight, words = "train_infer_correction.is_weight.enabled", ("algorithm.algorithm_type=opmd",)
    ahead = imported(*words, "synchronizer.sync_style=dynamic_by_explorer")
    assert ahead.tree["async_generation_ratio"] == 1.0 and at(ahead, weight) is False
    asked = imported(*words, "synchronizer.sync_offset=1", "algorithm.rollout_correction.rollout_is=token")
    assert asked.tree["async_generation_ratio"] == 1.0 and at(asked, weight) is True
    assert at(imported(*words, "synchronizer.sync_offset=0"), weight) is None


def test_a_step_that_leaves_tasks_out_starts_as_many_as_there() -> None:
    words = ("buffer.batch_size=96", "buffer.train_batch_size=null", "synchronizer.sync_style=explorer_driven")
    found = imported(*words, "explorer.over_rollout.ratio=0.25", "explorer.rollout_model.engine_num=4")
    tree = found.tree
    assert (tree["rollout_batch_size"], tree["unfinished_groups"], tree["unfinished_grace_s"]) == (72, "drop", 30.0)
    assert tree["rollout_batch_size"] * (1 + tree["async_generation_ratio"]) == pytest.approx(96, abs=1e-9)
    assert entry(found, "explorer.over_rollout.ratio")[0] == "approximated"
    assert entry(found, "explorer.over_rollout.wait_after_min")[0] == "mapped"


# --- rewards and workflows


def rewards(*words: str) -> tuple[Imported, Any]:
    both = [f"{place}.default_reward_fn_type" for place in (TASKS, "buffer.explorer_input")]
    flows = [f"{place}.default_workflow_type" for place in (TASKS, "buffer.explorer_input")]
    first, flow, *more = words
    given = [*(f"{key}={first}" for key in both), *(f"{key}={flow}" for key in flows), *more]
    found = imported(*given)
    return found, at(found, "rewards.trinity")


@cases("name, reward, args")
def test_a_reward_by_name_or_path_is_one_of_here(name: str, reward: str, args: object) -> None:
    found, made = rewards(name, "math_workflow")
    assert (made["reward"], made.get("reward_args")) == (reward, args)
    assert found.changes == ()


def test_the_reward_of_mathematics_pays_for_its_form_as_there() -> None:
    found, made = rewards("math_reward", "math_workflow")
    (part,) = made["reward_manager_config"]
    assert (made["reward"], part["reward"], part["reward_args"]["otherwise"]) == ("math_rule", "regex", -0.1)
    assert "between <think> and </think>" in at(found, "actor_train.data_args.system_prompt")
    assert "system prompt is in words of ours" in entry(found, f"{TASKS}.default_reward_fn_type")[1]
    assert at(found, "validation.data_args.system_prompt") == at(found, "actor_train.data_args.system_prompt")
    own, _ = rewards("math_reward", "math_workflow", f"{TASKS}.format.system_prompt=Think.")
    assert at(own, "actor_train.data_args.system_prompt") == "Think."
    assert "words of ours" not in entry(own, f"{TASKS}.default_reward_fn_type")[1]
    assert at(rewards("countdown_reward", "math_workflow")[0], "actor_train.data_args.system_prompt") is None


def test_arguments_of_a_reward_of_ones_own_reach_it() -> None:
    _, made = rewards("my_rewards.Mine", "math_workflow", f"{TASKS}.reward_fn_args.bonus=2")
    assert made["reward_args"] == {"path": "my_rewards.Mine", "args": {"bonus": 2}}
    found, _ = rewards("countdown_reward", "math_workflow", f"{TASKS}.reward_fn_args.bonus=2")
    assert entry(found, f"{TASKS}.reward_fn_args.bonus") == ("changes the run", "countdown_reward has no such argument")


@cases("flow, nearest")
def test_a_workflow_that_is_not_here_makes_another_run(flow: str, nearest: str) -> None:
    found, _ = rewards("math_reward", flow)
    outcome, note = entry(found, f"{TASKS}.default_workflow_type")
    assert outcome == "changes the run" and nearest in note


@cases("words")
def test_what_is_lost_of_the_matter_makes_another_run(words: list[str]) -> None:
    found = imported(*words)
    assert any(change.startswith(words[0].partition("=")[0]) for change in found.changes), found.changes


# --- the rest of the guide


def test_none_as_a_text_and_empty_sections_ask_for_nothing() -> None:
    found = imported()
    keys = ("model.custom_chat_template", "model.chat_template_path", "trainer.trainer_config", "data_processor")
    assert [entry(found, key)[0] for key in keys] == ["asks for nothing"] * 4
    assert found.tree["global_template"] == "native_nonthinking", "not the text None"
    assert [one.key for one in found.entries if "does not know" in one.note] == []


def test_arguments_of_a_monitor_are_those_of_the_tracker() -> None:
    wandb = at(imported(), "tracker_kwargs.wandb")
    assert wandb["host"] == "http://localhost:8080" and wandb["project"] == "Trinity-RFT" and "api_key" in wandb
    args = "{uri: 'http://m', username: u, password: p, base_url: x}"
    found = imported("monitor.monitor_type=mlflow", "monitor.monitor_args=null", f"monitor.monitor_args={args}")
    assert at(found, "tracker_kwargs.mlflow.tracking_uri") == "http://m"
    assert found.tree["system_envs"] == {"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}
    assert entry(found, "monitor.monitor_args.base_url")[0] == "asks for nothing"


def test_a_pack_of_pairs_holds_a_pair() -> None:
    words = ("trainer.use_dynamic_bsz=true", "trainer.max_token_len_per_gpu=1000")
    found = imported(*words, name="trinity_dpo")
    assert at(found, "actor_train.max_tokens_per_microbatch_in_train") == 2 * 1536
    assert "the two rows of a pair, 3072" in entry(found, "trainer.max_token_len_per_gpu")[1]


def test_operators_of_dapo_tell_the_version_and_what_it_pays() -> None:
    at_ = "data_processor.experience_pipeline.operators"
    words = (f"{TASKS}.default_reward_fn_type=math_dapo_reward", f"{TASKS}.default_workflow_type=math_workflow")
    old = imported(*words)
    new = imported(*words, f"{at_}=[{{name: mask_response_truncated}}, {{name: dapo_dynamic_sampling}}]")
    assert "reward_args" not in at(old, "rewards.trinity") and at(new, "rewards.trinity.reward_args.wrong") == -1
    assert "max_len_mask" not in old.tree and new.tree["max_len_mask"] is True
    bounds = {"threshold_down": -1.0, "threshold_up": 1.0}
    assert new.tree["experience_operators"] == [{"name": "mean_filter", "args": bounds}]


@cases("kind, outcome, counts")
def test_a_kl_in_the_reward_counts_where_the_trainer_computes_advantages(kind: str, outcome: str, counts: bool) -> None:
    found = imported(f"algorithm.algorithm_type={kind}", "algorithm.kl_penalty_fn=k1")
    assert entry(found, "algorithm.kl_penalty_fn")[0] == outcome
    assert found.tree["add_token_level_kl"] == counts


def test_backticks_of_a_yaml_are_text() -> None:
    found = imported(f"{TASKS}.format.system_prompt=Put code in `code` tags")
    assert found.tree["actor_train"]["data_args"]["system_prompt"] == "Put code in `code` tags"
    assert not found.unresolved and entry(found, f"{TASKS}.format.system_prompt")[0] == "mapped"

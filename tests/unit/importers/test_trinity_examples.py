"""What YAMLs of Trinity-RFT's examples and of its newer versions say is not lost on the way, nor taken for lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.importers.command import imported_from
from roll.importers.convert import read
from roll.rewards.base import RewardInput
from roll.rewards.texts import Regex
from tests.helpers.cases import cases
from tests.unit.importers.test_trinity_meaning import FOLDER, at, entry, imported

TASKS, ENGINE = "buffer.explorer_input.taskset", "explorer.rollout_model"
SETS = "buffer.explorer_input.eval_tasksets"
ROWS = "buffer.trainer_input.experience_buffer"
FLOW = "buffer.explorer_input.default_workflow_type=math_boxed_workflow"
TRAIN_PROMPT, EVAL_PROMPT = "actor_train.data_args.system_prompt", "validation.data_args.system_prompt"


def test_a_boxed_workflow_that_thinks_asks_for_thinking() -> None:
    words = (FLOW, f"{TASKS}.workflow_args.with_think=true", f"{TASKS}.default_workflow_type=null")
    words += (f"{TASKS}.format.system_prompt=null", "buffer.explorer_input.system_prompt=null")
    words += (f"{SETS}=[{{path: data/test, workflow_args: {{with_think: true}}}}, {{path: data/other, name: other}}]",)
    found = imported(*words)
    assert "Think the problem through first" in at(found, TRAIN_PROMPT)
    assert at(found, EVAL_PROMPT) == at(found, TRAIN_PROMPT)
    assert at(found, "eval_sets.other.data_args.system_prompt").startswith("Reason step by step")
    assert entry(found, f"{SETS}.0.workflow_args.with_think")[0] != "changes the run"


@cases("answer, fits")
def test_thinking_is_begun_and_ended_once(answer: str, fits: bool) -> None:
    words = (FLOW, f"{TASKS}.default_workflow_type=null", f"{TASKS}.workflow_args.with_think=true")
    found = imported(*words, f"{TASKS}.default_reward_fn_type=math_boxed_reward")
    (form,) = at(found, "rewards.trinity.reward_manager_config")
    sample = RewardInput("2 + 2?", answer, ground_truth="4")
    assert Regex(**form["reward_args"])(sample) == pytest.approx(0.0 if fits else -0.1)


@cases("selector, shuffles")
def test_the_newer_name_of_the_order_of_tasks_is_known(selector: str, shuffles: bool | None) -> None:
    found = imported(f"{TASKS}.task_selector=null", f"{TASKS}.data_selector={{selector_type: {selector}}}")
    outcome, _ = entry(found, f"{TASKS}.data_selector.selector_type")
    if shuffles is None:
        assert outcome == "changes the run"
    else:
        assert outcome == "mapped" and at(found, "actor_train.data_args.shuffle") is shuffles


@pytest.mark.parametrize("key", ["format.system_prompt_key=sys", "format.chat_template=x", "mm_data_kwargs={a: 1}"])
@pytest.mark.parametrize("section", [TASKS, f"{SETS}.0"])
def test_what_is_not_known_of_tasks_is_another_run(section: str, key: str) -> None:
    name = key.partition("=")[0]
    found = imported(f"{section}.{key}")
    told = next(each for each in found.entries if each.key.startswith(f"{section}.{name}"))
    assert told.outcome == "changes the run"


@pytest.mark.parametrize("key", ["enable_progress_bar=false", "max_retry_times=3", "data_selector={}", "format={}"])
def test_what_changes_no_task_is_no_other_run(key: str) -> None:
    found = imported(f"{SETS}=[{{path: data/test}}]", f"{SETS}.0.{key}", f"{TASKS}.{key}")
    name = key.partition("=")[0]
    told = [each for each in found.entries if each.key in (f"{TASKS}.{name}", f"{SETS}.0.{name}")]
    assert told and {each.outcome for each in told} == {"asks for nothing"}


def test_answers_are_as_long_as_the_engine_and_the_tasks_are_told() -> None:
    words = ("model.max_prompt_tokens=1024", "model.max_response_tokens=1024", "model.max_model_len=2048")
    tree = imported(*words, f"{ENGINE}.max_response_tokens=2048").tree
    assert (tree["prompt_length"], tree["response_length"]) == (1024, 2048)
    found = imported(*words, f"{TASKS}.rollout_args.max_tokens=512", f"{SETS}.0.rollout_args.max_tokens=256")
    assert found.tree["response_length"] == 512
    assert at(found, "validation.generating_args.max_new_tokens") == 256
    found = imported(*words, f"{ENGINE}.min_response_tokens=7")
    assert at(found, "actor_infer.generating_args.min_new_tokens") == 7


def test_a_validation_samples_as_the_model_where_it_does_not_say() -> None:
    sets = f"{SETS}=[{{path: data/test}}, {{path: data/b, name: b}}, "
    sets += "{path: data/c, name: c, rollout_args: {top_p: .5}}]"
    tree = imported("model.temperature=0.7", "model.top_p=0.8", sets).tree
    sampling = [tree["validation"], *(tree["eval_sets"][name] for name in ("b", "c"))]
    assert [each["generating_args"]["temperature"] for each in sampling] == [0.7] * 3
    assert [each["generating_args"]["top_p"] for each in sampling] == [0.8, 0.8, 0.5]
    assert [each["data_args"]["ground_truth"] for each in sampling] == ["response"] * 3


@pytest.mark.parametrize("name", ["data_parallel_size", "pipeline_parallel_size"])
def test_engines_have_the_gpus_of_all_their_ways_to_be_parallel(name: str) -> None:
    words = (f"{ENGINE}.engine_num=2", f"{ENGINE}.tensor_parallel_size=1", "cluster={node_num: 1, gpu_per_node: 8}")
    found = imported(*words, f"{ENGINE}.{name}=2")
    assert at(found, "actor_infer.device_mapping") == "list(range(4, 8))"
    assert at(found, "actor_train.device_mapping") == "list(range(0, 4))"
    assert entry(found, f"{ENGINE}.{name}")[0] == "not available"


def test_a_train_batch_of_a_mix_has_the_rows_of_its_expert_in_it() -> None:
    words = ("algorithm.algorithm_type=mix_chord", "algorithm.sample_strategy_args.expert_data_ratio=0.2")
    words += ("buffer.batch_size=32", "algorithm.repeat_times=8", "buffer.train_batch_size=320")
    words += ("buffer.trainer_input.auxiliary_buffers={sft_dataset: {path: data/expert}}",)
    found = imported(*words)
    assert found.tree["rollout_batch_size"] == 32, "256 samples and 64 rows of the expert"
    assert at(found, "mix.rows.sft_dataset.share") == 0.2


@pytest.mark.parametrize("key", ["algorithm.bypass_old_logprobs", "algorithm.rollout_correction.bypass_mode"])
@pytest.mark.parametrize("value", [True, False])
def test_old_log_probs_are_those_of_the_engine_unless_they_are_computed_there(key: str, value: bool) -> None:
    tree = imported("algorithm.algorithm_type=grpo", f"{key}={str(value).lower()}").tree
    assert tree.get("force_disable_old_logprobs_recompute", False) is value


@cases("words, path, value")
def test_keys_of_newer_versions_are_taken(words: str, path: str, value: Any) -> None:
    keys = ("algorithm.algorithm_type=multi_step_grpo", "data_processor=null", f"{ENGINE}.enable_thinking=null")
    found = imported(*keys, words)
    assert at(found, path) == value
    assert entry(found, words.partition("=")[0])[0] in ("mapped", "asks for nothing")


@cases("words")
def test_what_is_lost_of_the_matter_is_another_run(words: list[str]) -> None:
    assert "changes the run" in {each.outcome for each in imported(*words).entries}


def test_the_age_of_samples_is_bounded_where_a_strategy_bounds_it() -> None:
    age, strategy = "algorithm.sample_strategy_args.max_staleness=20", "algorithm.sample_strategy="
    bounded = imported(f"{strategy}staleness_control", age)
    assert bounded.tree["max_staleness"] == 20 and "changes the run" not in {each.outcome for each in bounded.entries}
    default = imported(age)
    assert "max_staleness" not in default.tree
    assert entry(default, age.partition("=")[0]) == ("asks for nothing", "nothing is left out by its age")


def test_one_of_several_task_sets_is_the_task_set(tmp_path: Path) -> None:
    tree = yaml.safe_load((FOLDER / "trinity_dapo.yaml").read_text(encoding="utf-8"))
    path, tasks = tmp_path / "several.yaml", tree["buffer"]["explorer_input"]
    alone = imported_from(read(FOLDER / "trinity_dapo.yaml"), "trinity").tree
    first = tasks.pop("taskset")
    for sets in ([first], [first, {**first, "name": "more", "path": "data/more"}]):
        tasks["tasksets"] = sets
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        found = imported_from(read(path), "trinity")
        assert found.tree["actor_train"]["data_args"] == alone["actor_train"]["data_args"]
        lost = [each for each in found.entries if each.outcome == "changes the run" and ".tasksets.1." in each.key]
        assert bool(lost) is (len(sets) == 2)


# --- fine-tuning


@cases("words, path, value")
def test_fine_tuning_has_adapters_and_the_order_of_rows(words: str, path: str, value: Any) -> None:
    assert at(imported(words, name="trinity_sft"), path) == value


@cases("words, outcome")
def test_of_fine_tuning_the_loss_and_the_optimizer_are_of_the_matter(words: str, outcome: str) -> None:
    assert entry(imported(words, name="trinity_sft"), words.partition("=")[0])[0] == outcome


def test_operators_that_make_the_rows_of_a_fine_tuning_are_of_the_matter() -> None:
    """Labels by people, for one: what stands in the file before they ran is something else."""
    found = imported("data_processor.task_pipeline.operators=[{name: label, args: {key: v}}]", name="trinity_sft")
    (entry_of_name,) = (each for each in found.entries if each.key.endswith("operators.0.name"))
    assert entry_of_name.outcome == "changes the run" and "run it first" in entry_of_name.note
    tasks = ("data_processor.task_pipeline.operators=[{name: label}]", f"{TASKS}.path=data/tasks")
    beside_tasks = imported(*tasks, name="trinity_sft")
    assert "changes the run" not in {each.outcome for each in beside_tasks.entries}, "it sees those"

"""What becomes of every key of Trinity-RFT's guide: the table in reports/guides.md is what an import says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Entry, read
from roll.utils.text import show

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "reports" / "guides.md"
BEGIN, END = "<!-- guide: trinity -->\n", "<!-- end of guide: trinity -->\n"
FOLDER = REPOSITORY / "tests" / "importers"
EXAMPLES = ("guide_trinity", "guide_trinity_stages", "guide_trinity_verl", "trinity_sft", "trinity_dpo")
WORDS = {"mapped": "works", "approximated": "approximated", "asks for nothing": "nothing to do"}
_TASK, _SAMPLES = "data_processor.task_pipeline", "data_processor.experience_pipeline"
_BUFFER = "buffer.trainer_input.experience_buffer"
OF_THE_GUIDE = (
    "mode=explore", "mode=train", "mode=bench", "continue_from_checkpoint=false", "ray_namespace=mine",
    "algorithm.algorithm_type=ppo", "algorithm.algorithm_type=opmd", "algorithm.algorithm_type=mix",
    "algorithm.advantage_fn=ppo", "monitor.monitor_type=tensorboard", "monitor.monitor_type=mlflow",
    "monitor.enable_ray_timeline=true", "model.enable_prompt_truncation=false", "model.min_response_tokens=8",
    "model.custom_chat_template='{{ messages }}'", "model.chat_template_path=my.jinja", "buffer.total_steps=100",
    "buffer.train_batch_size=640", "buffer.explorer_input.taskset.storage_type=sql",
    "buffer.explorer_input.taskset.subset_name=main", "buffer.explorer_input.taskset.repeat_times=8",
    "buffer.explorer_input.taskset.workflow_args.max_turns=10",
    "buffer.explorer_input.taskset.format.system_prompt=Think.",
    "buffer.explorer_input.taskset.default_workflow_type=frozen_lake_workflow",
    "buffer.explorer_input.taskset.default_reward_fn_type=math_reward", f"{_BUFFER}.storage_type=sql",
    f"{_BUFFER}.replay_buffer.enable=true", f"{_BUFFER}.replay_buffer.reuse_cooldown_time=60",
    f"{_BUFFER}.replay_buffer.priority_fn=linear_decay", "explorer.env_vars={HF_HUB_OFFLINE: 1}",
    "buffer.trainer_input.auxiliary_buffers={sft_dataset: {name: sft_dataset, path: data/sft}}",
    "explorer.rollout_model.engine_type=vllm_async", "explorer.rollout_model.enable_history=true",
    "explorer.auxiliary_models=[{model_path: org/judge, tensor_parallel_size: 1}]", "explorer.over_rollout.ratio=0.25",
    "explorer.dynamic_timeout.enable=true", "explorer.runner_state_report_interval=10",
    "synchronizer.sync_method=checkpoint", "synchronizer.sync_offset=1",
    "synchronizer.sync_style=dynamic_by_explorer", "trainer.trainer_strategy=fsdp2",
    "trainer.trainer_strategy=megatron", "trainer.save_strategy=single_thread", "trainer.save_hf_checkpoint=always",
    "trainer.ulysses_sequence_parallel_size=2", "service.data_juicer={server_url: 'http://127.0.0.1:5005'}",
    f"{_TASK}.num_process=32", f"{_TASK}.inputs=[data/raw.jsonl]", f"{_TASK}.target_fields=[question, answer]",
    f"{_TASK}.operators=[{{name: llm_difficulty_score_filter, args: {{min_score: 0.0}}}}]",
    f"{_SAMPLES}.operators=[{{name: data_juicer, args: {{config_path: dj.yaml}}}}]",
    f"{_SAMPLES}.operators=[{{name: reward_shaping_mapper, args: {{reward_shaping_configs: [{{stats_key: s}}]}}}}]",
    "log.level=DEBUG", "log.group_by_node=true",
)  # fmt: skip
"""Values that the guide names beside those of its example."""


@cache
def entries() -> tuple[Entry, ...]:
    return tuple(_entries())


def _entries() -> Iterator[Entry]:
    seen: set[str] = set()
    for name in EXAMPLES:
        path = FOLDER / f"{name}.yaml"
        for entry in imported_from(read(path), source=path).entries:
            if entry.key not in seen:
                seen.add(entry.key)
                yield entry
    path = FOLDER / "guide_trinity.yaml"
    before = {entry.key: entry for entry in imported_from(read(path), source=path).entries}
    for word in OF_THE_GUIDE:
        at = word.partition("=")[0]
        for entry in imported_from(read(path, (word,)), source=path).entries:
            if entry.key.startswith(at) and before.get(entry.key) != entry:
                yield entry


def section() -> str:
    rows = [
        f"| `{entry.key}` | `{_cell(show(entry.value))}` | {_word(entry)} |"
        for entry in sorted(entries(), key=lambda entry: entry.key)
    ]
    return "\n".join((BEGIN, "| key | value | |", "|---|---|---|", *rows, "", END))


def _word(entry: Entry) -> str:
    return f"{WORDS.get(entry.outcome, 'refused')}: {_cell(entry.note)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def renewed(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + section() + rest.split(END)[1]


def test_the_table_of_the_guide_is_what_an_import_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "stale: python -m tests.unit.importers.test_trinity_guide writes it anew"


def test_no_key_of_the_guide_is_silent_or_unknown() -> None:
    told = entries()
    assert len(told) > 200
    assert [entry.key for entry in told if not entry.note.strip() and entry.outcome != "mapped"] == []
    assert [entry.key for entry in told if "does not know" in entry.note] == []


@pytest.mark.parametrize("name", ["guide_trinity", "guide_trinity_stages", "guide_trinity_verl"])
def test_the_batches_of_the_guide_are_its_own(name: str) -> None:
    """32 tasks x 8 are 256 samples of a step, and of an update; engines leave 4 GPUs that share them evenly."""
    tree = imported_from(read(FOLDER / f"{name}.yaml"), "trinity").tree
    args = tree["actor_train"]["training_args"]
    assert tree["rollout_batch_size"] * tree["num_return_sequences_in_group"] == 256
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 4 == 256


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

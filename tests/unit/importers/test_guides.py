"""What becomes of every key of verl's guides and of Trinity-RFT's: the tables in reports/guides.md are what an import
says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Entry, read
from roll.utils.text import show

REPOSITORY = Path(__file__).parents[3]
PAGE, FOLDER = REPOSITORY / "reports" / "guides.md", REPOSITORY / "tests" / "importers"
WORDS = {"mapped": "works", "approximated": "approximated", "asks for nothing": "nothing to do"}
_OF_VERL = (
    "data.truncation=left", "data.truncation=right", "data.prompt_id_key=id", "data.max_prompt_id_length=32",
    "data.return_raw_input_ids=true", "actor_rollout_ref.model.path=hdfs://host/models/m",
    "actor_rollout_ref.model.external_lib=mine", "actor_rollout_ref.model.override_config={attention_dropout: 0.0}",
    "actor_rollout_ref.actor.strategy=megatron", "actor_rollout_ref.actor.shuffle=false",
    "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.optim.warmup_style=cosine",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1",
    "actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap=[LlamaDecoderLayer]",
    "actor_rollout_ref.actor.fsdp_config.param_offload=true", "actor_rollout_ref.ref.fsdp_config.param_offload=true",
    "actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.rollout.do_sample=false",
    "actor_rollout_ref.rollout.ignore_eos=true", "actor_rollout_ref.rollout.load_format=dummy_megatron",
    "actor_rollout_ref.rollout.free_cache_engine=false", "reward_model.enable=true", "reward_model.max_length=4096",
    "algorithm.kl_penalty=abs", "algorithm.kl_penalty=mse", "algorithm.kl_penalty=full",
    "algorithm.kl_ctrl.type=adaptive", "algorithm.adv_estimator=grpo", "trainer.logger=[console]",
    "trainer.save_freq=10", "trainer.critic_warmup=5",
)  # fmt: skip
_OF_ASCEND = (
    "backend_config.trainer.resume_mode=resume_path", "backend_config.trainer.resume_mode=disable",
    "backend_config.trainer.resume_from_path=/c/step_9", "backend_config.trainer.device=npu",
    "backend_config.trainer.logger=[wandb]", "engine_kwargs.vllm.disable_mm_preprocessor_cache=false",
    "backend_config.actor_rollout_ref.actor.use_kl_loss=false",
    "backend_config.actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
    "backend_config.actor_rollout_ref.actor.use_torch_compile=true",
)  # fmt: skip
_TASK, _SAMPLES = "data_processor.task_pipeline", "data_processor.experience_pipeline"
_BUFFER = "buffer.trainer_input.experience_buffer"
_OF_TRINITY = (
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
_TRINITY = ("guide_trinity", "guide_trinity_stages", "guide_trinity_verl", "trinity_sft", "trinity_dpo")
GUIDES = {
    "verl": (("guide_verl",), _OF_VERL),
    "verl on Ascend": (("guide_verl_ascend",), _OF_ASCEND),
    "trinity": (_TRINITY, _OF_TRINITY),
}
"""The examples of each guide, of which the first is changed by values that it names beside those."""


@cache
def entries(guide: str) -> tuple[Entry, ...]:
    names, words = GUIDES[guide]
    found = dict[str, Entry]()
    for name in names:
        path = FOLDER / f"{name}.yaml"
        found = {entry.key: entry for entry in imported_from(read(path), source=path).entries} | found
    path = FOLDER / f"{names[0]}.yaml"
    before = imported_from(read(path), source=path).entries
    more = list[Entry]()
    for word in words:
        key = word.partition("=")[0]
        changed = imported_from(read(path, (f"++{word}",)), source=path).entries
        more += [entry for entry in changed if entry.key.startswith(key) and entry not in before]
    return (*found.values(), *more)


def renewed(page: str, guide: str) -> str:
    begin, end = f"<!-- guide: {guide} -->\n", f"<!-- end of guide: {guide} -->\n"
    rows = [
        f"| `{entry.key}` | `{_cell(show(entry.value))}` | {WORDS.get(entry.outcome, 'refused')}: {_cell(entry.note)} |"
        for entry in sorted(entries(guide), key=lambda entry: entry.key)
    ]
    before, rest = page.split(begin)
    return before + "\n".join((begin, "| key | value | |", "|---|---|---|", *rows, "", end)) + rest.split(end)[1]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


@pytest.mark.parametrize("guide", GUIDES)
def test_the_table_of_the_guide_is_what_an_import_says(guide: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page, guide), "stale: python -m tests.unit.importers.test_guides writes it anew"


@pytest.mark.parametrize("guide, least", [("verl", 79), ("verl on Ascend", 37), ("trinity", 200)])
def test_no_key_of_the_guide_is_silent_or_unknown(guide: str, least: int) -> None:
    told = entries(guide)
    assert len(told) > least
    silent = [entry.key for entry in told if not entry.note.strip() and entry.outcome != "mapped"]
    assert silent == [] and [entry.key for entry in told if "does not know" in entry.note] == []


@pytest.mark.parametrize(
    ("name", "samples", "update", "ranks"),
    [
        ("guide_verl", 1024, 256, 8),
        ("guide_verl_ascend", 32 * 4, 8 * 4, 8),
        ("guide_trinity", 256, 256, 4),
        ("guide_trinity_verl", 256, 256, 4),
    ],
)
def test_the_batches_of_the_guides_are_their_own(name: str, samples: int, update: int, ranks: int) -> None:
    """Trinity: 32 tasks x 8; engines leave 4 GPUs that share them evenly."""
    found = imported_from(read(FOLDER / f"{name}.yaml"))
    tree, args = found.tree, found.tree["actor_train"]["training_args"]
    assert tree["rollout_batch_size"] * tree["num_return_sequences_in_group"] == samples and found.is_as_meant
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * ranks == update


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name in GUIDES:
        text = renewed(text, name)
    PAGE.write_text(text, encoding="utf-8")

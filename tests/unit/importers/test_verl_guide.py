"""What becomes of every key of verl's two guides: the tables in reports/guides.md are what an import says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Entry, read
from roll.utils.text import show

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "reports" / "guides.md"
FOLDER = REPOSITORY / "tests" / "importers"
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
GUIDES = {"verl": ("guide_verl", _OF_VERL), "verl on Ascend": ("guide_verl_ascend", _OF_ASCEND)}
"""The example of each guide, and values that it names beside those."""


def entries(name: str, words: Sequence[str]) -> Iterator[Entry]:
    path = FOLDER / f"{name}.yaml"
    before = imported_from(read(path), source=path).entries
    yield from before
    for word in words:
        key = word.partition("=")[0]
        for entry in imported_from(read(path, (f"++{word}",)), source=path).entries:
            if entry.key.startswith(key) and entry not in before:
                yield entry


def section(guide: str) -> str:
    rows = [
        f"| `{entry.key}` | `{_cell(show(entry.value))}` | {WORDS.get(entry.outcome, 'refused')}: {_cell(entry.note)} |"
        for entry in sorted(entries(*GUIDES[guide]), key=lambda entry: entry.key)
    ]
    return "\n".join((_begin(guide), "| key | value | |", "|---|---|---|", *rows, "", _end(guide)))


def _begin(guide: str) -> str:
    return f"<!-- guide: {guide} -->\n"


def _end(guide: str) -> str:
    return f"<!-- end of guide: {guide} -->\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def renewed(page: str, guide: str) -> str:
    before, rest = page.split(_begin(guide))
    return before + section(guide) + rest.split(_end(guide))[1]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_table_of_the_guide_is_what_an_import_says(guide: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page, guide), "stale: python -m tests.unit.importers.test_verl_guide writes it anew"


@pytest.mark.parametrize("guide, least", [("verl", 79), ("verl on Ascend", 37)])
def test_no_key_of_the_guide_is_silent_or_unknown(guide: str, least: int) -> None:
    told = list(entries(*GUIDES[guide]))
    assert len(told) > least
    assert [entry.key for entry in told if not entry.note.strip() or "does not know" in entry.note] == []


def test_the_batches_of_the_guides_are_their_own() -> None:
    """verl: 1024 prompts, updates of 256 on 8 GPUs, a micro batch of 64 / 8; Ascend: 32 x 4, updates of 8 x 4."""
    for name, prompts, group, update, micro in (("guide_verl", 1024, 1, 256, 8), ("guide_verl_ascend", 32, 4, 32, 1)):
        tree = imported_from(read(FOLDER / f"{name}.yaml"), "verl").tree
        args = tree["actor_train"]["training_args"]
        assert (tree["rollout_batch_size"], tree["num_return_sequences_in_group"]) == (prompts, group)
        assert args["per_device_train_batch_size"] == micro
        assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 8 == update


def test_the_examples_of_the_guides_are_the_runs_that_they_mean() -> None:
    for name, _ in GUIDES.values():
        assert imported_from(read(FOLDER / f"{name}.yaml"), "verl").is_as_meant


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name in GUIDES:
        text = renewed(text, name)
    PAGE.write_text(text, encoding="utf-8")

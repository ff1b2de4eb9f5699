"""What becomes of every key of ROLL's guide: the table in reports/guides.md is what loading says."""

from pathlib import Path
from typing import NamedTuple

import pytest

from roll.errors import ConfigError
from roll.run.spec import PIPELINES
from roll.run.start.load import Loaded, load
from roll.utils.text import show

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE, FOLDER = REPOSITORY / "reports" / "guides.md", REPOSITORY / "tests" / "recipes"
BEGIN, END = "<!-- guide: roll -->\n", "<!-- end of guide: roll -->\n"
TRAIN, INFER = "actor_train.strategy_args.strategy_config", "actor_infer.strategy_args.strategy_config"
SGLANG = ("actor_infer.strategy_args.strategy_name=sglang", "actor_infer.strategy_args.strategy_config={}")
DEEPSPEED = "actor_train.strategy_args.strategy_name=deepspeed_train"


class Entry(NamedTuple):
    """`more`: what else its example has, so that it stands in a YAML that means something."""

    key: str
    value: str
    more: tuple[str, ...] = ()


ENTRIES = (
    Entry("rollout_batch_size", "64"),
    Entry("prompt_length", "2048"),
    Entry("response_length", "4096"),
    Entry("num_return_sequences_in_group", "8"),
    Entry("actor_train.model_args.dtype", "bf16"),
    Entry("actor_train.model_args.dtype", "fp32"),
    Entry("actor_train.model_args.dtype", "fp16"),
    Entry("actor_train.model_args.disable_gradient_checkpointing", "false"),
    Entry("actor_train.model_args.disable_gradient_checkpointing", "true"),
    Entry("actor_train.training_args.learning_rate", "1e-6"),
    Entry("actor_train.training_args.weight_decay", "0"),
    Entry("actor_train.training_args.per_device_train_batch_size", "1"),
    Entry("actor_train.training_args.gradient_accumulation_steps", "32"),
    Entry("actor_train.training_args.warmup_steps", "20"),
    Entry("actor_train.data_args.template", "native"),
    Entry("actor_train.data_args.file_name", "xxx/train.json"),
    Entry("actor_train.data_args.file_name", "xxx/train.jsonl"),
    Entry("actor_train.data_args.file_name", "xxx/train.csv"),
    Entry("actor_train.data_args.prompt", "instruction"),
    Entry("actor_train.data_args.messages", "messages", ("~actor_train.data_args.prompt",)),
    Entry("actor_train.data_args.messages", "messages", ("actor_train.data_args.prompt=instruction",)),
    Entry("actor_train.strategy_args.strategy_name", "megatron_train"),
    Entry(
        "actor_train.strategy_args.strategy_name",
        "deepspeed_train",
        (f"{TRAIN}=${{deepspeed_zero2}}",),
    ),
    *(
        Entry(TRAIN, f"${{{name}}}", (DEEPSPEED,))
        for name in ("deepspeed_zero", "deepspeed_zero2", "deepspeed_zero3", "deepspeed_zero3_cpuoffload")
    ),
    Entry("actor_train.infer_batch_size", "4"),
    Entry("actor_train.device_mapping", "list(range(0,16))"),
    Entry("actor_infer.generating_args.max_new_tokens", "${response_length}"),
    Entry("actor_infer.generating_args.temperature", "0.99"),
    Entry("actor_infer.strategy_args.strategy_name", "vllm"),
    Entry("actor_infer.strategy_args.strategy_name", "sglang", SGLANG[1:]),
    Entry("actor_infer.strategy_args.strategy_name", "hf_infer", SGLANG[1:]),
    Entry("actor_infer.num_gpus_per_worker", "1"),
    Entry("actor_infer.num_gpus_per_worker", "2"),
    Entry("actor_infer.num_gpus_per_worker", "1", (f"{INFER}.tensor_parallel_size=2",)),
    Entry("actor_infer.device_mapping", "list(range(0,16))"),
    Entry("reference.strategy_args.strategy_name", "megatron_infer"),
    Entry("reference.device_mapping", "list(range(0,16))"),
    Entry(f"{TRAIN}.tensor_model_parallel_size", "2", ("actor_train.training_args.gradient_accumulation_steps=64",)),
    Entry(f"{TRAIN}.pipeline_model_parallel_size", "2", ("actor_train.training_args.gradient_accumulation_steps=64",)),
    Entry(f"{TRAIN}.expert_model_parallel_size", "2"),
    Entry(f"{TRAIN}.context_parallel_size", "2", ("actor_train.training_args.gradient_accumulation_steps=64",)),
    Entry(
        f"{TRAIN}.virtual_pipeline_model_parallel_size",
        "2",
        (f"{TRAIN}.pipeline_model_parallel_size=2", "actor_train.training_args.gradient_accumulation_steps=64"),
    ),
    Entry(
        f"{TRAIN}.sequence_parallel",
        "true",
        (f"{TRAIN}.tensor_model_parallel_size=2", "actor_train.training_args.gradient_accumulation_steps=64"),
    ),
    Entry(f"{TRAIN}.recompute_granularity", "full"),
    Entry(f"{TRAIN}.recompute_granularity", "selective"),
    Entry(f"{TRAIN}.moe_layer_recompute", "true"),
    Entry(f"{TRAIN}.moe_token_dispatcher_type", "allgather"),
    Entry(f"{TRAIN}.moe_token_dispatcher_type", "alltoall"),
    Entry(f"{TRAIN}.moe_grouped_gemm", "true"),
    Entry(f"{TRAIN}.moe_shared_expert_overlap", "true"),
    Entry(f"{TRAIN}.overlap_grad_reduce", "true"),
    Entry(f"{INFER}.gpu_memory_utilization", "0.6"),
    Entry(f"{INFER}.block_size", "16"),
    Entry(f"{INFER}.max_model_len", "8000"),
    Entry(f"{INFER}.load_format", "dummy"),
    Entry(f"{INFER}.mem_fraction_static", "0.7", SGLANG),
    Entry(f"{INFER}.load_format", "dummy", SGLANG),
)
"""Every key of the guide, with the values that it shows and those that it names."""


def loaded(*overrides: str) -> Loaded:
    return load(PIPELINES["rlvr"], FOLDER, "guide_roll", overrides)


def told(entry: Entry) -> str:
    """What loading says of it: nothing but what it says of the example without it counts."""
    given = (*entry.more, f"{entry.key}={entry.value}")
    if entry.value in entry.more:
        given = entry.more
    try:
        found = loaded(*given)
    except ConfigError as error:
        return f"refused: {' '.join(error.problems)}"
    last = entry.key.rpartition(".")[2]
    said = [text for text in found.warnings if last in text and "num_nodes" not in text]
    return f"approximated: {' '.join(said)}" if said else "works"


def section() -> str:
    rows = []
    for entry in ENTRIES:
        beside = f" (with {', '.join(f'`{each}`' for each in entry.more)})" if entry.more else ""
        words = told(entry).replace("|", "\\|").replace("\n", " ")
        rows.append(f"| `{entry.key}` | `{show(entry.value)}`{beside} | {words} |")
    return "\n".join((BEGIN, "| key | value | |", "|---|---|---|", *rows, "", END))


def renewed(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + section() + rest.split(END)[1]


@pytest.mark.slow
def test_the_table_of_the_guide_is_what_loading_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "stale: python -m tests.unit.examples.test_roll_guide writes it anew"


def test_the_example_of_the_guide_trains_on_its_batches() -> None:
    """32 x 1 x 16 samples an update: 64 x 8 of a step are one; TP and PP of 2 each leave 4 data-parallel ranks."""
    plan = loaded().plan.trains["actor_train"]
    assert (plan.samples_per_step, plan.samples_per_update, plan.updates_per_step) == (512, 512, 1)
    sizes = (f"{TRAIN}.tensor_model_parallel_size=2", f"{TRAIN}.pipeline_model_parallel_size=2")
    split = loaded(*sizes, f"{TRAIN}.expert_model_parallel_size=2").plan.trains["actor_train"]
    assert (split.dp_size, split.samples_per_update) == (4, 128)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

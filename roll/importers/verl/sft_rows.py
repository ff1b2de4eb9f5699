"""verl's keys for supervised fine-tuning (`sft_trainer`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi, prod
from typing import Any

from roll.importers import rows as words
from roll.importers.rows import (
    RELEASE,
    AsksNothing,
    CombinedKeys,
    Condition,
    NotHere,
    Row,
    SourceLookup,
    Split,
    Table,
    changes,
    devices,
    lacks,
    needless,
    split,
    summed,
    to,
)
from roll.importers.verl.batches import gpus, leaves_gpus_open
from roll.importers.verl.combined_keys import TRACKER_VARIABLES, board
from roll.importers.verl.common import (
    ALL_ROWS,
    AVERAGES_PASSES,
    ENDS_SOONER,
    FILES_ONCE,
    HIDDEN_NOISE,
    MEGATRON,
    OF_MODEL,
    OWN_CODE,
    TEMPLATE_OF_MODEL,
    attention,
    balance,
    counts_epochs,
    device,
    floor,
    model_dtype,
    optimizer_overrides,
    rise,
    rising,
    schedule_of,
)
from roll.importers.verl.pictures import COLUMNS, NO_VIDEOS, ONLY_RLVR, PATCHES
from roll.importers.verl.sft_columns import MISMATCH, columns
from roll.importers.verl.sft_engine_rows import ENGINE_ROWS, MODEL_ROWS, OPTIMIZER_ROWS, ROLE
from roll.importers.verl.templates import DEFAULT_SWITCH, TEMPLATE_ROWS, template_sums

_ARGS, _MODEL, _DATA = f"{ROLE}.training_args", f"{ROLE}.model_args", f"{ROLE}.data_args"
_CONFIG = f"{ROLE}.strategy_args.strategy_config"


_SPLITS = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")


def _is_on_megatron(source: SourceLookup) -> bool:
    return (source("engine.strategy") or source("model.strategy")) == MEGATRON


def _batches(source: SourceLookup) -> CombinedKeys:
    rows = source.size("data.train_batch_size")
    together = source.size("ulysses_sequence_parallel_size")
    if leaves_gpus_open(source):
        near = "Passes of a step depend on the number of GPUs: give it, and gradient_accumulation_steps follows."
        micro = source.number("data.micro_batch_size_per_gpu")
        return CombinedKeys({f"{_ARGS}.per_device_train_batch_size": micro}, f"{rows} rows in every step.", near)
    if _is_on_megatron(source):
        together = prod(source.size(f"engine.{kind}_size", 1) for kind in _SPLITS)
    ranks = max(1, gpus(source) // together)
    micro = source.number("data.micro_batch_size_per_gpu")
    if not source.is_set("data.micro_batch_size_per_gpu") and source.is_set("data.micro_batch_size"):
        micro = max(1, source.number("data.micro_batch_size") // ranks)
    made = split(rows, rows, ranks, micro)
    settings = {
        f"{_ARGS}.per_device_train_batch_size": made.micro,
        f"{_ARGS}.gradient_accumulation_steps": made.passes,
    }
    settings |= {f"{_MODEL}.ulysses_size": together} if together > 1 and not _is_on_megatron(source) else {}
    near = " ".join(filter(None, (made.near, _stops(source, rows // ranks, micro), _weights(source, made))))
    text = f"{made.samples} rows in every step: {made.text} ({gpus(source)} GPUs / {together})."
    return CombinedKeys(settings, text, near)


def _stops(source: SourceLookup, rows: int, micro: int) -> str:
    """Sentence on rows of a rank that are no whole micro batches, which verl refuses; empty where they are."""
    if source("data.use_dynamic_bsz") or micro < 1 or rows % micro == 0:
        return ""
    return f"Verl itself stops: the {rows} rows of a rank are no whole micro batches of {micro}."


def _weights(source: SourceLookup, made: Split) -> str:
    """How rows weigh in a step of verl's fine-tuning on FSDP alone; empty where they do as here."""
    if not source(AVERAGES_PASSES) or made.passes * made.ranks == 1:
        return ""
    if not source("data.balance_dp_token"):
        whose = f"each of the {made.passes * made.ranks} micro batches of a step weighs the same"
    elif made.passes > 1:
        whose = f"each of the {made.passes} passes of a step weighs the same"
    else:
        return ""
    return f"There {whose}, however many tokens it learns; here every token does."


def tokens(longest: Callable[[SourceLookup], int]) -> Callable[[SourceLookup], CombinedKeys]:
    """Micro batches by tokens. `longest` is the longest row that there can be."""

    def combine(source: SourceLookup) -> CombinedKeys:
        if not source("data.use_dynamic_bsz"):
            return CombinedKeys({}, "use_dynamic_bsz is off: micro batches are counted in rows")
        group = "engine.context_parallel_size" if _is_on_megatron(source) else "ulysses_sequence_parallel_size"
        most, together = source.number("data.max_token_len_per_gpu"), source.size(group, 1)
        limit = max(most * together, longest(source))
        shared = f" = {most} x {together} ranks that share sequences" if together > 1 else ""
        key = f"{ROLE}.max_tokens_per_microbatch_in_train"
        near = "" if limit == most * together else f"At least the longest row, {limit}."
        return CombinedKeys(
            {f"{ROLE}.use_dynamic_batching_in_train": True, key: limit}, f"{key}: {limit}{shared}.", near
        )

    return combine


def _placement(source: SourceLookup) -> CombinedKeys:
    nodes, per_node = source.size("trainer.nnodes"), source.size("trainer.n_gpus_per_node")
    settings = {
        "num_nodes": nodes,
        "num_gpus_per_node": per_node,
        f"{ROLE}.device_mapping": devices(0, nodes * per_node),
    }
    return CombinedKeys(settings, f"{nodes} x {per_node} GPUs train.")


def _has_lora(source: SourceLookup) -> str:
    """An initial adapter means LoRA too, whatever lora_rank says."""
    there = source.is_set("model.lora_adapter_path") or source.number("model.lora_rank", 0) > 0
    return "" if there else "lora_rank is 0: no adapters"


def _lora(source: SourceLookup) -> CombinedKeys:
    rank = source.number("model.lora_rank")
    if reason := _has_lora(source):
        return CombinedKeys({}, reason)
    path = source("model.lora_adapter_path")
    begun = {f"{_MODEL}.adapter_name_or_path": path} if path else {}
    if rank <= 0:
        near = "lora_rank and lora_alpha must be those of the adapter's own file: set them where it has others."
        target = {f"{_MODEL}.lora_target": source("model.target_modules")}
        return CombinedKeys(target | begun, f"{_MODEL}.lora_target, by lora_adapter_path.", near)
    settings = begun | {
        f"{_MODEL}.lora_target": source("model.target_modules"),
        f"{_MODEL}.lora_rank": rank,
        f"{_MODEL}.lora_alpha": source("model.lora_alpha"),
    }
    return CombinedKeys(settings, f"{_MODEL}: lora_target, lora_rank {rank} (docs/lora.md).")


def _cuts(source: SourceLookup) -> CombinedKeys:
    """Cut rows that are too long as verl does, in training and validation."""
    rule = source("data.truncation")
    sections = [_DATA, *(["validation.data_args"] if source("data.val_files") else [])]
    return CombinedKeys({f"{at}.truncation": rule for at in sections}, f"data_args.truncation: {rule}.")


def _not_never(value: Any) -> Any:
    if value in (None, "disable", "auto"):
        raise AsksNothing("not given")
    return value


def _resume(source: SourceLookup) -> CombinedKeys:
    mode, path = str(source("trainer.resume_mode")), source("trainer.resume_from_path")
    value = {"auto": True, "disable": False}.get(mode, path)
    if value is None:
        return CombinedKeys({}, "not given")
    return CombinedKeys({"resume_from_checkpoint": value}, f"resume_from_checkpoint: {value}.")


def _is_cosine(source: SourceLookup) -> str:
    return "" if schedule_of(source, "optim") == "cosine" else "only a cosine ends above 0"


def _end(source: SourceLookup) -> CombinedKeys:
    """The last step. verl's fine-tuning on FSDP alone draws the rate's schedule over all epochs, and stops in it."""
    if not source.is_set("trainer.total_training_steps"):
        return CombinedKeys({}, "not given")
    steps = source.size("trainer.total_training_steps")
    settings, text = {"max_steps": steps}, f"max_steps: {steps}."
    share = source.amount("optim.lr_warmup_steps_ratio", source("optim.warmup_steps_ratio"))
    name = schedule_of(source, "optim")
    if not source(AVERAGES_PASSES) or (name == "constant" and share == 0):
        return CombinedKeys(settings, text, ENDS_SOONER)
    rate = _rate_within(steps, 10 * steps, share, name)
    said = (
        f"{text} There it only stops the run: the warm-up and the fall of the rate are those of all steps of "
        f"trainer.total_epochs, here those of {steps}. Where the epochs have {10 * steps} steps, update {steps} has "
        f"{rate:.2g} of the peak there. Near that: optim.lr_scheduler=constant with optim.warmup_steps_ratio=0 after "
        "the file, and sft_train.training_args.warmup_steps in the YAML"
    )
    return CombinedKeys(settings, text, changes={"trainer.total_training_steps": said})


def _rate_within(update: int, steps: int, share: float, schedule: str) -> float:
    """Share of the peak that verl's schedule over `steps` has at an update, counted from 1.

    Example: update 100 of 1000 with a warm-up of a tenth has .99.
    """
    before, rise = update - 1, int(steps * share)
    if before < rise:
        return before / rise
    return 1.0 if schedule == "constant" else (1 + cos(pi * (before - rise) / (steps - rise))) / 2


_ONLY_AT_THE_END = 1_000_000
"""Steps between two checkpoints, of which only the last step of a run has one."""


_OF_EPOCH = "an epoch has its rows / data.train_batch_size steps: set eval_steps and save_steps to them"


def _every(value: Any) -> Any:
    if value == "after_each_epoch":
        raise NotHere(_OF_EPOCH)
    return words.positive(value)


def _saved(source: SourceLookup) -> CombinedKeys:
    """verl's fine-tuning saves what it trained after the last step, whatever save_freq says."""
    steps = _every(source("trainer.save_freq"))
    if steps != -1:
        return CombinedKeys({"save_steps": steps}, f"save_steps: {steps}.")
    near = _OF_EPOCHS.format("saves") if _may_follow_epochs(source, "trainer.save_freq") else ""
    return CombinedKeys({"save_steps": _ONLY_AT_THE_END}, "save_steps: the last step saves, as there.", near)


_OF_EPOCHS = "Verl before 0.5, which has no such key, {} after each epoch."


def _may_follow_epochs(source: SourceLookup, key: str) -> bool:
    """Whether the version may be one that does at the end of an epoch what the key says later."""
    return bool(source(AVERAGES_PASSES)) and not source.is_set(key)


def _validations(source: SourceLookup) -> CombinedKeys:
    """verl's fine-tuning validates after the last step, whatever test_freq says, and never before the first."""
    if source("trainer.test_freq") == "after_each_epoch" and source("data.val_files"):
        return CombinedKeys({"val_before_train": False}, "", lost={"trainer.test_freq": _OF_EPOCH})
    steps = _every(source("trainer.test_freq"))
    if not source("data.val_files"):
        return CombinedKeys({"eval_steps": -1}, "eval_steps: -1: there are no data.val_files")
    steps = _ONLY_AT_THE_END if steps == -1 else steps
    said, near = str(steps), ""
    if steps == _ONLY_AT_THE_END:
        said = "the last step alone"
        near = _OF_EPOCHS.format("validates") if _may_follow_epochs(source, "trainer.test_freq") else ""
    return CombinedKeys({"eval_steps": steps, "val_before_train": False}, f"eval_steps: {said}.", near)


_CONDITIONS: Mapping[str, Condition] = {
    "lora": _has_lora,
    "epochs": counts_epochs,
    "cosine": _is_cosine,
    "fsdp": lambda source: f"engine.strategy is {MEGATRON}" if _is_on_megatron(source) else "",
    MEGATRON: lambda source: "" if _is_on_megatron(source) else "engine.strategy is not megatron",
}
_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "batches": _batches,
    "tokens": tokens(lambda source: source.size("data.max_length")),
    "placement": _placement,
    "columns": columns,
    "cuts": _cuts,
    "validations": _validations,
    "saves": _saved,
    "end": _end,
    "trackers": board,
    "lora": _lora,
    "floor": floor("", ROLE),
    f"{ROLE} balance": balance("engine", ROLE),
    "resume": _resume,
    **template_sums(ROLE),
}

_ROWS: tuple[Row, ...] = (
    to("model.partial_pretrain", "pretrain", default=RELEASE),
    to("model.path", "pretrain", default=RELEASE),
    to("model.strategy", f"{ROLE}.strategy_args.strategy_name", via=words.trainer, default=RELEASE),
    to("engine.strategy", f"{ROLE}.strategy_args.strategy_name", via=words.trainer, default=RELEASE),
    to("data.train_files", f"{_DATA}.file_name", via=words.files),
    to("data.val_files", "validation.data_args.file_name", via=words.files),
    summed("data.train_batch_size", "batches"),
    summed("data.micro_batch_size_per_gpu", "batches"),
    summed("data.micro_batch_size", "batches"),
    summed("ulysses_sequence_parallel_size", "batches"),
    to("data.max_length", "sequence_length", default=RELEASE),
    summed("data.truncation", "cuts"),
    summed("data.prompt_key", "columns"),
    summed("data.response_key", "columns"),
    summed("data.prompt_dict_keys", "columns"),
    summed("data.response_dict_keys", "columns"),
    summed("data.multiturn.enable", "columns"),
    summed("data.multiturn.messages_key", "columns"),
    to("data.multiturn.tools_key", "tools_key"),
    changes("data.multiturn.*", "switches of thinking are what the rows' template makes of them"),
    PATCHES,
    *(changes(key, ONLY_RLVR if key == "data.image_key" else NO_VIDEOS) for key in COLUMNS),
    changes("data.chat_template", "data_args.template takes the path of a file with it"),
    changes("data.custom_cls.*", "rows of one's own become a file of rows: docs/data.md"),
    changes("data.*_max_samples", ALL_ROWS, -1),
    needless("data.balance_dp_token", "every token of a step weighs the same, on whatever rank it is"),
    needless("data.use_shm", FILES_ONCE),
    needless("data.num_workers", "rows are read as they are needed"),
    summed("data.use_dynamic_bsz", "tokens"),
    summed("data.max_token_len_per_gpu", "tokens"),
    to(
        "model.enable_gradient_checkpointing",
        f"{_MODEL}.disable_gradient_checkpointing",
        via=words.opposite,
        default=RELEASE,
    ),
    to("model.fsdp_config.wrap_policy.min_num_params", f"{_CONFIG}.wrap_policy.min_num_params", idle=(0,)),
    to("model.fsdp_config.cpu_offload", f"{_CONFIG}.offload_policy", idle=(False,)),
    to("model.fsdp_config.offload_params", f"{_CONFIG}.offload_policy", idle=(False,)),
    model_dtype("model.fsdp_config.model_dtype", learns=True),
    to("model.external_lib", "external_lib", idle=(None,)),
    to("model.override_config.attn_implementation", f"{_MODEL}.attn_implementation", via=attention),
    lacks("model.override_config", "model_args.model_config_kwargs takes entries of config.json", {}),
    lacks("model.override_config.chat_template", TEMPLATE_OF_MODEL),
    changes("model.override_config.hidden_noise_*", HIDDEN_NOISE),
    to("model.override_config.*", f"{_MODEL}.model_config_kwargs.*", note=OF_MODEL),
    lacks("model.trust_remote_code", OWN_CODE, False),
    summed("model.lora_rank", "lora"),
    summed("model.lora_alpha", "lora", needs="lora"),
    summed("model.target_modules", "lora", needs="lora"),
    lacks("model.use_liger", "model_args.use_torch_compile fuses what is beside the matrices", False),
    needless("model.use_shm", FILES_ONCE),
    to("use_remove_padding", f"{ROLE}.use_sequence_packing", default=RELEASE),
    to("optim.lr", f"{_ARGS}.learning_rate", via=words.number, default=RELEASE),
    to("optim.betas", f"{_ARGS}.adam_beta1", f"{_ARGS}.adam_beta2", via=words.betas, default=RELEASE),
    to("optim.weight_decay", f"{_ARGS}.weight_decay", via=words.number, default=RELEASE),
    to("optim.warmup_steps_ratio", f"{_ARGS}.warmup_ratio", via=rise, default=RELEASE),
    to("optim.lr_warmup_steps_ratio", f"{_ARGS}.warmup_ratio", via=rise, default=RELEASE),
    to("optim.clip_grad", "max_grad_norm", via=words.number, default=RELEASE),
    to("optim.warmup_style", f"{_ARGS}.lr_scheduler_type", via=words.schedule),
    to("optim.lr_scheduler", f"{_ARGS}.lr_scheduler_type", via=words.schedule, default=RELEASE),
    to("optim.lr_scheduler_type", f"{_ARGS}.lr_scheduler_type", via=words.schedule, default=RELEASE),
    to("optim.lr_warmup_steps", f"{_ARGS}.warmup_steps", via=rising),
    to(
        "optim.min_lr_ratio",
        f"{_ARGS}.lr_scheduler_kwargs.min_lr_ratio",
        via=words.number,
        needs="cosine",
        idle=(None,),
    ),
    to("optim.lr_decay_style", f"{_ARGS}.lr_scheduler_type", via=words.schedule),
    summed("optim.min_lr", "floor"),
    lacks("optim.lr_warmup_init", "a warm-up begins at 1 / (n + 1) of its peak", 0, 0.0),
    *optimizer_overrides("optim", ROLE, offload=""),
    *ENGINE_ROWS,
    *OPTIMIZER_ROWS,
    *MODEL_ROWS,
    *(lacks(f"data.max_{kind}_length", "sequence_length is that of a whole row") for kind in ("prompt", "response")),
    summed("trainer.nnodes", "placement"),
    summed("trainer.n_gpus_per_node", "placement"),
    to("trainer.total_epochs", "num_train_epochs", default=RELEASE, needs="epochs"),
    to("data.drop_last", f"{_DATA}.drop_last"),
    summed("trainer.total_training_steps", "end", idle=(None,)),
    summed("trainer.project_name", "trackers"),
    to("trainer.experiment_name", "exp_name", via=words.run_name, default=RELEASE),
    summed("trainer.logger", "trackers"),
    *(
        summed(f"${name}", "trackers", note=f"tracker_kwargs.{where}.{key}.")
        for name, (where, key) in TRACKER_VARIABLES.items()
    ),
    to("trainer.seed", "seed", default=RELEASE),
    to("trainer.save_freq", "save_steps", via=_every, default=RELEASE),
    summed("trainer.test_freq", "validations"),
    lacks("trainer.val_before_train", "a validation follows a step: eval_steps", False),
    to("trainer.default_local_dir", "checkpoint_config.output_dir"),
    lacks("trainer.default_hdfs_dir", "checkpoints go into a directory; copy it from there"),
    to("trainer.resume_path", "resume_from_checkpoint", via=_not_never),
    summed("trainer.resume_mode", "resume"),
    summed("trainer.resume_from_path", "resume"),
    to("trainer.max_ckpt_to_keep", "max_ckpt_to_keep", idle=(None,)),
    to("trainer.device", "platform", via=device),
    lacks("data.tools_key", "the column of tools is called tools", "tools"),
    changes("data.enable_thinking_key", "data_args.template says how thinking is written", "enable_thinking"),
    summed(DEFAULT_SWITCH, "thinking", idle=(None, "none")),
    *TEMPLATE_ROWS,
    needless("trainer.balance_batch", "rows are divided over ranks by work"),
    needless("data.pad_mode", "rows are padded, or packed, as use_sequence_packing says"),
    summed(MISMATCH, "columns"),
    needless("trainer.profile_interval", "profiler_timeline and profiler_memory record a run here (docs/profiling.md)"),
    needless("trainer.checkpoint.**", "a checkpoint holds all that the run continues with, and an HF model"),
    needless("checkpoint.**", "a checkpoint holds all that the run continues with, and an HF model"),
    needless("**._target_", "classes of verl's"),
    needless("**.profiler.**", "profiler_timeline and profiler_memory record a run here (docs/profiling.md)"),
    needless("hydra.**", "of Hydra's own"),
    needless("defaults**", "verl's defaults are known to the importer; fragments of one's own are not read"),
)

SFT = Table("verl", "sft", _ROWS, _COMBINED_KEYS, _CONDITIONS)
SAVES = summed("trainer.save_freq", "saves")
"""Row of verl's alone: the fine-tuning of Trinity-RFT saves as often as it says."""

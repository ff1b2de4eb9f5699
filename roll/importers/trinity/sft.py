"""Trinity-RFT's keys of fine-tuning, in the words of verl's; pairs of answers share most of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers import rows as words
from roll.importers.rows import (
    CHANGES,
    ApproximateValue,
    ChangesRun,
    CombinedKeys,
    Condition,
    NotHere,
    Row,
    SourceLookup,
    Table,
    changes,
    lacks,
    needless,
    summed,
    to,
)
from roll.importers.trinity.combined_keys import folders, resume, trackers
from roll.importers.trinity.old_keys import OLD_CONDITIONS, OLD_ROWS, present_key
from roll.importers.trinity.rows import BUFFER, EMBEDDED, SHARED, shuffles, trinity_only
from roll.importers.trinity.steps import lengths_in_yaml, shortest
from roll.importers.verl.pictures import NO_VIDEOS, ONLY_RLVR
from roll.importers.verl.releases import SFT_ALONE, below_trinity
from roll.importers.verl.sft_rows import ROLE, SFT, tokens

_TRINITY_ONLY = "trinity."
_ACTOR = f"{EMBEDDED}.actor_rollout_ref.actor"
_OPTIMIZERS = (f"{_ACTOR}.optim.", "algorithm.optimizer.")
ROWS_RENAMED: Mapping[str, str] = {
    "project": "trainer.project_name",
    "name": "trainer.experiment_name",
    "model.model_path": "model.partial_pretrain",
    "cluster.node_num": "trainer.nnodes",
    "cluster.gpu_per_node": "trainer.n_gpus_per_node",
    "buffer.train_batch_size": "data.train_batch_size",
    "buffer.total_epochs": "trainer.total_epochs",
    "trainer.save_interval": "trainer.save_freq",
    "trainer.trainer_strategy": "model.strategy",
    "trainer.grad_clip": "optim.clip_grad",
    "trainer.actor_grad_clip": "optim.clip_grad",
    "trainer.use_dynamic_bsz": "data.use_dynamic_bsz",
    "trainer.max_token_len_per_gpu": "data.max_token_len_per_gpu",
    "trainer.ppo_max_token_len_per_gpu": "data.max_token_len_per_gpu",
    "trainer.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    "trainer.max_checkpoints_to_keep": "trainer.max_ckpt_to_keep",
    **{f"model.lora_configs.0.{key}": f"model.{key}" for key in ("lora_rank", "lora_alpha", "target_modules")},
    "trainer.use_remove_padding": "use_remove_padding",
    "trainer.param_offload": "model.fsdp_config.offload_params",
    "monitor.monitor_type": "trainer.logger",
    f"{BUFFER}.path": "data.train_files",
    f"{BUFFER}.format.tools_key": "data.multiturn.tools_key",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": "data.micro_batch_size_per_gpu",
    f"{_ACTOR}.use_dynamic_bsz": "data.use_dynamic_bsz",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "data.max_token_len_per_gpu",
    f"{_ACTOR}.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    f"{_ACTOR}.grad_clip": "optim.clip_grad",
    f"{_ACTOR}.strategy": "model.strategy",
    f"{_ACTOR}.fsdp_config.param_offload": "model.fsdp_config.offload_params",
    f"{EMBEDDED}.actor_rollout_ref.model.use_remove_padding": "use_remove_padding",
    f"{EMBEDDED}.actor_rollout_ref.model.enable_gradient_checkpointing": "model.enable_gradient_checkpointing",
    f"{EMBEDDED}.trainer.max_actor_ckpt_to_keep": "trainer.max_ckpt_to_keep",
}
SFT_RENAMED: Mapping[str, str] = {
    **ROWS_RENAMED,
    f"{BUFFER}.format.messages_key": "data.multiturn.messages_key",
    f"{BUFFER}.format.prompt_key": "data.prompt_key",
    f"{BUFFER}.format.response_key": "data.response_key",
}
_NO_ENGINE = "no engine samples here"
_OTHER_LOSS = "of runs that sample answers: the loss here is that of rows"
_OF_SAMPLES = (
    "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "entropy_coeff", "use_kl_loss", "kl_loss_coef",
    "kl_loss_type", "ppo_mini_batch_size", "loss_agg_mode", "tau", "opmd_baseline",
)  # fmt: skip
_LOSS = "the loss is the mean over the tokens of an update"
_EVERY_TURN = f"{BUFFER}.format.enable_concatenated_multi_turn"
OF_ROWS: tuple[Row, ...] = (
    *SHARED,
    lacks("mode", "rows are learnt from in one process", "both", "train"),
    summed("model.max_prompt_tokens", "row length"),
    summed("model.max_response_tokens", "row length"),
    summed("model.max_model_len", "row length"),
    summed("buffer.total_steps", "row steps"),
    summed("trainer.total_steps", "row steps"),
    needless("model.critic_model_path", "no critic learns here"),
    summed("model.lora_configs.0.name", "lora"),
    needless("model.*", _NO_ENGINE),
    to(f"{BUFFER}.data_selector.selector_type", "sft_train.data_args.shuffle", via=shuffles, default="sequential"),
    lacks("trainer.optimizer_offload", "trained states stay on their devices", False),
    needless("trainer.balance_batch", "rows are divided over ranks by work"),
    lacks("monitor.detailed_stats", "metrics have mean, least and most where they say more", False),
    to(f"{BUFFER}.format.system_prompt_key", "system_key"),
    to(f"{BUFFER}.format.system_prompt", "sft_train.data_args.system_prompt"),
    changes(f"{BUFFER}.format.image_key", ONLY_RLVR),
    changes(f"{BUFFER}.format.video_key", NO_VIDEOS),
    changes(f"{BUFFER}.format.chat_template", "global_template takes the path of a file with it"),
    to(f"{BUFFER}.subset_name", "sft_train.data_args.subset"),
    to(f"{BUFFER}.split", "sft_train.data_args.split"),
    changes(f"{BUFFER}.storage_type", "rows are read from files, folders, addresses and the hub", "file"),
    needless(f"{BUFFER}.enable_progress_bar", "the table of steps shows where a run is"),
    needless("data_processor.task_pipeline.operators", "none"),
    Row(
        "data_processor.task_pipeline.operators.*.name",
        note="it makes rows before they are learnt: run it first; data_args.operators only choose rows",
        needs="rows made",
        outcome=CHANGES,
    ),
    needless("data_processor.**", "it sees tasks and samples of engines; data_args.operators choose rows"),
    needless("**.name", "roles have the names of the YAML"),
    lacks(f"{BUFFER}.**", "data_args has the keys of rows (docs/data.md)"),
    summed("buffer.batch_size", "batches", needs="whole batch"),
    needless("buffer.explorer_input.**", _NO_ENGINE),
    lacks("buffer.trainer_input.**", "a run learns from one set of rows: a list of files, data_args.file_name"),
    needless("synchronizer.*", _NO_ENGINE),
    *OLD_ROWS,
    needless("explorer.**", _NO_ENGINE),
    *(needless(f"{EMBEDDED}.{section}.**", _OTHER_LOSS) for section in ("algorithm", "critic", "data", "reward_model")),
    needless(f"{EMBEDDED}.actor_rollout_ref.rollout.**", _NO_ENGINE),
    needless(f"{EMBEDDED}.actor_rollout_ref.actor.checkpoint.**", "a checkpoint holds all that the run continues with"),
    needless(f"{EMBEDDED}.trainer.balance_batch", "rows are divided over ranks by work"),
    needless(f"{EMBEDDED}.trainer.max_critic_ckpt_to_keep", "a checkpoint holds all roles"),
    *(needless(f"{EMBEDDED}.actor_rollout_ref.actor.{name}", _OTHER_LOSS) for name in _OF_SAMPLES),
    lacks(f"{EMBEDDED}.**", "of verl's trainer the keys of batches, optimizer and memory are read"),
)
"""Rows that fine-tuning and pairs share."""


def of_rows(renamed: Mapping[str, str], key: str) -> str:
    """The name under which the rows know a key."""
    key = present_key(key)
    if key in renamed:
        return renamed[key]
    section = next((section for section in _OPTIMIZERS if key.startswith(section)), None)
    return f"optim.{key.removeprefix(section)}" if section else f"{_TRINITY_ONLY}{key}"


def longest(source: SourceLookup) -> int:
    parts = [source(f"{_TRINITY_ONLY}model.max_{kind}_tokens") for kind in ("prompt", "response")]
    whole = source(f"{_TRINITY_ONLY}model.max_model_len") or (
        sum(parts) if all(isinstance(p, int) for p in parts) else None
    )
    if whole is None:
        raise NotHere("sequence_length needs model.max_model_len, or the tokens of prompt and response")
    if not str(whole).isdigit() or int(whole) < 2:
        raise ChangesRun(f"{whole} is no length of a row, in tokens")
    return int(whole)


def _row_length(source: SourceLookup) -> CombinedKeys:
    whole = longest(source)
    parts = [f"{_TRINITY_ONLY}model.max_{kind}_tokens" for kind in ("prompt", "response")]
    nears = dict.fromkeys(parts, "max_model_len counts.") if source(f"{_TRINITY_ONLY}model.max_model_len") else {}
    return CombinedKeys({"sequence_length": whole}, f"sequence_length: {whole}.", differences=nears)


def _row_steps(source: SourceLookup) -> CombinedKeys:
    if not dict(lengths_in_yaml(source)):
        return CombinedKeys({}, "epochs count")
    steps, nears = shortest(source)
    return CombinedKeys({"max_steps": steps}, f"max_steps: {steps}.", differences=nears)


def _columns(source: SourceLookup) -> CombinedKeys:
    """Columns of rows for fine-tuning: conversations, unless they are declared plain."""
    if source(f"{_TRINITY_ONLY}{BUFFER}.format.prompt_type", "messages") == "messages":
        name = source("data.multiturn.messages_key")
        part = "all" if source(f"{_TRINITY_ONLY}{_EVERY_TURN}") else "last"
        settings = {"sft_train.data_args.messages": name, "train_on": part}
        what = "every answer" if part == "all" else "the last answer"
        return CombinedKeys(settings, f"data_args.messages: {name}, of which {what} is learnt (train_on: {part}).")
    names = [source(f"data.{kind}_key") for kind in ("prompt", "response")]
    settings = {"prompt_key": names[0], "response_key": names[1]}
    return CombinedKeys(settings, f"prompt_key: {names[0]}, response_key: {names[1]}.")


def _batches(source: SourceLookup) -> CombinedKeys:
    if source("data.train_batch_size") is None:
        raise ChangesRun("buffer.train_batch_size is missing, and must be given there: rows of an update")
    return SFT.sums["batches"](source)


def _whole_batch(source: SourceLookup) -> str:
    return "train_batch_size counts" if source.is_set("data.train_batch_size") else ""


SUMS_OF_ROWS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    **SFT.sums,
    "batches": _batches,
    "folders": folders,
    "trackers": trackers,
    "row length": _row_length,
    "tokens": tokens(longest),
    "row steps": _row_steps,
    "resume": resume,
}
_EXPLORER = (f"{_TRINITY_ONLY}buffer.explorer_input", f"{_TRINITY_ONLY}explorer")
CONDITIONS_OF_ROWS: Mapping[str, Condition] = {
    **SFT.conditions,
    **OLD_CONDITIONS,
    "rows made": lambda source: "it sees the tasks of an explorer" if any(map(source.below, _EXPLORER)) else "",
    "whole batch": _whole_batch,
    "epochs": lambda source: "" if not dict(lengths_in_yaml(source)) else "total_steps counts",
}
ROWS_DERIVED = {
    "optim.lr": 1e-6,
    "optim.betas": [0.9, 0.999],
    "optim.lr_scheduler": "constant",
    "optim.warmup_steps_ratio": 0.0,
    "model.strategy": "fsdp",
    "trainer.seed": None,  # a key of verl alone
    "trainer.logger": "tensorboard",
    "trainer.total_epochs": 1,
    "data.max_token_len_per_gpu": 16384,
    "data.prompt_key": "prompt",
    "data.response_key": "response",
    "model.enable_gradient_checkpointing": True,
}


def rows_derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults there; adapters that only have a name have these sizes. Before train_batch_size an update had the rows
    of buffer.batch_size."""
    named = f"{_TRINITY_ONLY}model.lora_configs.0.name" in values
    defaults = ROWS_DERIVED | (dict.fromkeys(("model.lora_rank", "model.lora_alpha"), 32) if named else {})
    return defaults | {"data.train_batch_size": values.get(f"{_TRINITY_ONLY}buffer.batch_size")}


_ADAM = "there is no such optimizer here: AdamW of the strategy"
OPTIMIZER_ROWS: tuple[Row, ...] = (
    changes("optim.optimizer_type", _ADAM, "adam", "adamw"),
    lacks("optim.**", "training_args has the keys of the optimizer"),
)
TRINITY_SFT = Table(
    "trinity",
    "sft",
    (
        *OPTIMIZER_ROWS,
        *map(
            trinity_only,
            (
                Row("algorithm.algorithm_type", note="supervised fine-tuning: start_sft_pipeline.py"),
                needless("algorithm.repeat_times", "no engine samples here"),
                changes("algorithm.loss_agg_mode", _LOSS, "token-mean"),
                changes("algorithm.policy_loss_fn_args.loss_agg_mode", _LOSS, "token-mean"),
                changes("algorithm.policy_loss_fn_args.use_token_level_loss", _LOSS, True),
                lacks("algorithm.**", "the loss is that of fine-tuning: the mean over learnt tokens"),
                summed(f"{BUFFER}.format.prompt_type", "columns", "messages"),
                summed(_EVERY_TURN, "columns", False),
                needless(f"{EMBEDDED}.actor_rollout_ref.ref.**", "no reference scores here"),
                *OF_ROWS,
            ),
        ),
        *SFT.rows,
    ),
    {**SUMS_OF_ROWS, "columns": _columns},
    CONDITIONS_OF_ROWS,
    lambda key: of_rows(SFT_RENAMED, key),
    rows_derived,
    release=below_trinity(SFT_ALONE, SFT.rows),
)


# Trinity-RFT's keys of DPO: its rows are fine-tuning's with two answers, its learner is actor_train.

_FORMAT = f"{BUFFER}.format"
_BETA, _COEFFICIENT = "algorithm.policy_loss_fn_args.beta", "algorithm.kl_loss_fn_args.kl_coef"
_LEARNER = "actor_train"
_DEFAULT_BETA = 0.1


def _moved(key: str) -> str:
    return f"{_LEARNER}{key.removeprefix(ROLE)}" if key.startswith(f"{ROLE}.") else key


def _of_pairs(row: Row) -> Row:
    return replace(row, targets=tuple(map(_moved, row.targets)))


def _sum_of_pairs(sum: Callable[[SourceLookup], CombinedKeys]) -> Callable[[SourceLookup], CombinedKeys]:
    def moved(source: SourceLookup) -> CombinedKeys:
        made = sum(source)
        settings = {_moved(key): value for key, value in made.settings.items()}
        near = made.difference.replace("the longest row", "the two rows of a pair")
        return replace(made, settings=settings, text=made.text.replace(" rows ", " pairs "), difference=near)

    return moved


def _placement(source: SourceLookup) -> CombinedKeys:
    """The reference takes turns with the learner."""
    made = _sum_of_pairs(SFT.sums["placement"])(source)
    scorer = words.scorer(source("model.strategy"))
    reference = {
        "reference.device_mapping": made.settings[f"{_LEARNER}.device_mapping"],
        "reference.strategy_args.strategy_name": scorer.value if isinstance(scorer, ApproximateValue) else scorer,
    }
    return replace(made, settings={**made.settings, **reference}, text=f"{made.text} The reference is on them as well.")


def _beta(source: SourceLookup) -> CombinedKeys:
    stated = [key for key in (_BETA, _COEFFICIENT) if source.is_set(f"{_TRINITY_ONLY}{key}")]
    beta = source.amount(f"{_TRINITY_ONLY}{stated[0]}") if stated else _DEFAULT_BETA
    lost = (
        {f"{_TRINITY_ONLY}{_COEFFICIENT}": f"{_BETA} counts; a KL beside DPO's loss is not here"}
        if len(stated) == 2
        else {}
    )
    return CombinedKeys({"beta": beta}, f"beta: {beta:g}.", lost=lost)


def _pair_columns(source: SourceLookup) -> CombinedKeys:
    """The prompt's: messages, unless it is said to be plain."""
    plain = source(f"{_TRINITY_ONLY}{_FORMAT}.prompt_type", "messages") == "plaintext"
    name = (
        source(f"{_TRINITY_ONLY}{_FORMAT}.prompt_key", "prompt")
        if plain
        else source(f"{_TRINITY_ONLY}{_FORMAT}.messages_key", "messages")
    )
    return CombinedKeys({"prompt_key": name}, f"prompt_key: {name}; texts and messages are distinguished row by row.")


_ROWS = (
    Row("algorithm.algorithm_type", note="direct preference optimization: start_dpo_pipeline.py"),
    summed(_BETA, "beta", _DEFAULT_BETA),
    summed(_COEFFICIENT, "beta"),
    to("algorithm.policy_loss_fn_args.label_smoothing", "label_smoothing", via=words.number, idle=(0, 0.0)),
    needless("algorithm.repeat_times", "a row is a pair of answers"),
    needless("algorithm.kl_loss_fn", "the loss of DPO compares with the reference by itself"),
    lacks("algorithm.policy_loss_fn", "the loss is that of DPO; ipo and sft_loss_coef change it (docs/dpo.md)", "dpo"),
    lacks("algorithm.**", "the loss is that of DPO: beta, label_smoothing (docs/dpo.md)"),
    *(summed(f"{_FORMAT}.{key}", "columns") for key in ("prompt_type", "prompt_key", "messages_key")),
    to(f"{_FORMAT}.chosen_key", "chosen_key"),
    to(f"{_FORMAT}.rejected_key", "rejected_key"),
    to(f"{EMBEDDED}.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", "reference.infer_batch_size"),
    *OF_ROWS,
)
TRINITY_DPO = Table(
    "trinity",
    "dpo",
    tuple(
        map(
            _of_pairs,
            (
                *OPTIMIZER_ROWS,
                *map(trinity_only, _ROWS),
                *(row for row in SFT.rows if row.sum != "columns" and not row.key.startswith("data.multiturn")),
            ),
        )
    ),
    {
        **{name: _sum_of_pairs(sum) for name, sum in SUMS_OF_ROWS.items()},
        "placement": _placement,
        "tokens": _sum_of_pairs(tokens(lambda source: 2 * longest(source))),
        "beta": _beta,
        "columns": _pair_columns,
    },
    CONDITIONS_OF_ROWS,
    lambda key: of_rows(ROWS_RENAMED, key),
    rows_derived,
    release=below_trinity(SFT_ALONE, SFT.rows),
)

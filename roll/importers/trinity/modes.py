"""Trinity-RFT's keys of a run in parts, of its buffers, and of evaluation sets: rows, and what several say together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roll.importers import conversions as words
from roll.importers.rows import CombinedKeys, Condition, NotHere, SourceLookup
from roll.importers.trinity.rewards import system_prompt_of
from roll.importers.verl.common import ACTOR, CONDITIONS

_BUFFER = "buffer.trainer_input.experience_buffer"
_EVAL = "buffer.explorer_input.eval_tasksets"
_PARTS = ("explore", "train")
COLOCATED = "colocate"

_FILES = (".json", ".jsonl", ".csv", ".parquet")
_OF_A_SET = {
    "path": "data_args.file_name",
    "split": "data_args.split",
    "subset_name": "data_args.subset",
    "format.prompt_key": "data_args.prompt",
    "format.response_key": "data_args.ground_truth",
    "format.image_key": "data_args.image_key",
    "repeat_times": "generating_args.num_return_sequences",
    "rollout_args.n": "generating_args.num_return_sequences",
    "rollout_args.temperature": "generating_args.temperature",
    "rollout_args.top_p": "generating_args.top_p",
    "rollout_args.top_k": "generating_args.top_k",
    "rollout_args.max_tokens": "generating_args.max_new_tokens",
}


def _is_in_parts(source: SourceLookup) -> bool:
    return source("trinity.mode") in _PARTS


def _read_timeout(source: SourceLookup) -> CombinedKeys:
    if not _is_in_parts(source):
        return CombinedKeys({}, "one process waits for nobody")
    seconds = source.amount(f"trinity.{_BUFFER}.max_read_timeout")
    settings = {"experience.read_timeout_s": seconds, "experience.on_timeout": "partial"}
    return CombinedKeys(
        settings, f"after {seconds:g} s a step trains on the groups that are there (experience.on_timeout)."
    )


def _eval_sets(source: SourceLookup) -> CombinedKeys:
    """The first is `validation`; the others stand beside it under their names."""
    values = source.below(f"trinity.{_EVAL}")
    numbers = sorted({int(head) for key in values if (head := key.partition(".")[0]).isdigit()} - {0})
    settings: dict[str, Any] = {}
    names: list[str] = []
    for number in numbers:
        entry = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{number}.")}
        if entry.get("path") is None:
            raise NotHere(f"eval_tasksets {number} has no path: name its rows in eval_sets")
        name = re.sub(r"[^\w-]", "_", str(entry.get("name") or f"set_{number}"))
        names.append(f"eval_sets.{name}")
        split = {} if Path(str(entry["path"])).suffix in _FILES else {"split": "train"}  # the default there
        sampling = {f"rollout_args.{key}": source(f"trinity.model.{key}") for key in ("temperature", "top_p", "top_k")}
        columns = {"format.prompt_key": "prompt", "format.response_key": "response"}
        entry = {**sampling, **columns, **split, **{key: value for key, value in entry.items() if value is not None}}
        entry["rollout_args.temperature"] = (
            1.0 if (temperature := entry["rollout_args.temperature"]) is None else temperature
        )
        for key, target in _OF_A_SET.items():
            if entry.get(key) is not None:
                value = words.files(entry[key]) if key == "path" else entry[key]
                settings[f"eval_sets.{name}.{target}"] = value
        settings[f"eval_sets.{name}.data_args.truncation"] = cut(source)
        if prompt := system_prompt_of(source, number):
            settings[f"eval_sets.{name}.data_args.system_prompt"] = prompt
    first = "" if "0.path" not in values else "The first is `validation`; "
    return CombinedKeys(settings, f"{first}{', '.join(names) or 'no others'}.")


def cut(source: SourceLookup) -> str:
    """Return how a prompt that is too long is treated."""
    return "left" if source("trinity.model.enable_prompt_truncation") else "error"


def _truncation(source: SourceLookup) -> CombinedKeys:
    rule = cut(source)
    settings = {"actor_train.data_args.truncation": rule}
    settings |= {"validation.data_args.truncation": rule} if source(f"trinity.{_EVAL}.0.path") else {}
    near = "A prompt longer than prompt_length stops the run before its first step; there its answer gets less room."
    if rule == "left":
        near = "The end of a prompt is kept, as vLLM does; older versions there keep the beginning and answer nothing."
    return CombinedKeys(settings, f"data_args.truncation: {rule}.", near)


MODE_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "truncation": _truncation,
    "read timeout": _read_timeout,
    "eval sets": _eval_sets,
}


# Trinity-RFT's mix: an expert's rows beside the samples of a step, and what they weigh.

TYPE, _STRATEGY, _ARGS = "algorithm.algorithm_type", "algorithm.sample_strategy", "algorithm.policy_loss_fn_args"
_NAMES: tuple[str, ...] = ("sft_dataset",)
_AT = f"buffer.trainer_input.auxiliary_buffers.{_NAMES[0]}"
_OLDER = "buffer.trainer_input.sft_warmup_dataset"
"""Section in which older files name the expert's rows, beside those of a fine-tuning before the run."""
_OF_FILES = ("path", "split", "subset_name", "format.prompt_key", "format.response_key", "format.messages_key")
_MEANS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
_AGGREGATIONS = words.word({name: name for name in _MEANS}, "sft_loss_agg_mode")
_NO_MIX = "rows of answers are fine-tuned on in a run of their own, or in a stage before (docs/sft.md, docs/stages.md)"
_RATIO, _LOSS = f"{_STRATEGY}_args.expert_data_ratio", "algorithm.policy_loss_fn"
_SHARE = "There the expert's rows take this share of a batch; here they join all samples of a step, to the same share."
_KL = "Here the KL of the loss counts 1 - weight as well, there wholly."


def mixes(source: SourceLookup) -> str:
    """The kind of mix that is asked for, or nothing."""
    names = [source(f"trinity.{key}") for key in (_LOSS, TYPE)]
    return next((str(name) for name in names if name in ("mix", "mix_chord")), "")


def mix(source: SourceLookup) -> CombinedKeys:
    kind = mixes(source)
    if not kind:
        given = [key for key in (f"trinity.{_OLDER}.{name}" for name in _OF_FILES) if source(key) is not None]
        return CombinedKeys({}, "no mix", lost=dict.fromkeys(given, _NO_MIX))
    section = _OLDER if source(f"trinity.{_AT}.path") is None else _AT
    if not (path := source(f"trinity.{section}.path")):
        raise NotHere(f"{_AT}.path is missing: set mix.rows.{_NAMES[0]}.data_args.file_name")
    at = f"mix.rows.{_NAMES[0]}"
    share = source.amount(f"trinity.{_RATIO}", 0.5)
    settings = {f"{at}.share": share, f"{at}.data_args.file_name": words.files(path)}
    columns = {
        "split": "data_args.split",
        "subset_name": "data_args.subset",
        "format.prompt_key": "prompt_key",
        "format.response_key": "response_key",
        "format.messages_key": "data_args.messages",
    }
    values = {key: source(f"trinity.{section}.{key}") for key in columns}
    if values["format.messages_key"] is None:
        values |= {"format.prompt_key": values["format.prompt_key"] or "prompt"}
        values |= {"format.response_key": values["format.response_key"] or "response"}
    settings |= {f"{at}.{columns[key]}": value for key, value in values.items() if value is not None}
    by_tokens = source(f"trinity.{_ARGS}.use_token_level_loss_in_sft", True)  # in older files
    mode = source(f"trinity.{_ARGS}.sft_loss_agg_mode") or ("token-mean" if by_tokens else "seq-mean-token-mean")
    settings["mix.loss_agg_mode"] = _AGGREGATIONS(mode)
    settings |= _weights(source, kind)
    text = f"mix.rows.{_NAMES[0]}: share {share:g}, weight {settings['mix.weight']:g} (docs/mix.md)."
    nears = {f"trinity.{_RATIO}": _SHARE}
    if source(f"{ACTOR}.use_kl_loss"):
        nears |= dict.fromkeys((f"trinity.{_ARGS}.{name}" for name in ("mu", "mu_peak")), _KL)
    return CombinedKeys(settings, text, differences=nears)


def _weights(source: SourceLookup, kind: str) -> dict[str, object]:
    """Settings of the mix's weight. Without decay steps, Trinity uses the valley after the rise."""
    if kind == "mix":
        return {"mix.weight": source.amount(f"trinity.{_ARGS}.mu", 0.1)}
    rise, fall = (source.number(f"trinity.{_ARGS}.mu_{name}_steps", 0) for name in ("warmup", "decay"))
    peak, valley = (source.amount(f"trinity.{_ARGS}.mu_{name}", 0.1) for name in ("peak", "valley"))
    weighs = source(f"trinity.{_ARGS}.enable_phi_function", True)
    settings: dict[str, object] = {"mix.weight": peak if fall else valley, "mix.warmup_steps": rise}
    settings["mix.token_weights"] = "uncertain" if weighs else "none"
    return settings | ({"mix.decay_steps": fall, "mix.final_weight": valley} if fall else {})


def sampled(source: SourceLookup, batch: int) -> int:
    """Count the rows of a train batch that are not the expert's."""
    return round(batch * (1 - source.amount(f"trinity.{_RATIO}", 0.5))) if mixes(source) else batch


MIX_CONDITIONS: Mapping[str, Condition] = {
    "mix": lambda source: "" if mixes(source) else "the loss is no mix",
    "mix chord": lambda source: "" if mixes(source) == "mix_chord" else "the loss is not mix_chord",
}


# The group-relative REINFORCE of Trinity-RFT (`policy_loss_fn: rec`): its clip, weight and regulariser.

_LOSS_ARGS = "algorithm.policy_loss_fn_args"
_IS_REC = "rec"


def _where(name: str, *chosen: str) -> Condition:
    """Condition that `name` has a value among `chosen`; a missing value counts as `none`."""

    def condition(source: SourceLookup) -> str:
        value = source(f"trinity.{_LOSS_ARGS}.{name}") or "none"
        return CONDITIONS[_IS_REC](source) or ("" if value in chosen else f"{name}: {value} does not read it")

    return condition


REC_CONDITIONS: Mapping[str, Condition] = {
    "rec clip": _where("clip_mode", "one-side", "two-side", "ring"),
    "rec ring": _where("clip_mode", "ring"),
    "rec advantage weight": _where("weight", "advantage"),
    "rec regularizer": _where("regularizer", "forward-kl", "k2"),
}

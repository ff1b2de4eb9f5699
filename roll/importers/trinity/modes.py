"""Trinity-RFT's keys of a run in parts, of its buffers, and of evaluation sets: rows, and what several say together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roll.importers import words
from roll.importers.rows import AsksNothing, ChangesRun, Condition, Look, NotHere, Row, Sum, lacks, needless, summed, to
from roll.importers.trinity.rewards import system_prompt_of

_OWN = "trinity."
_BUFFER = "buffer.trainer_input.experience_buffer"
_REPLAY = f"{_BUFFER}.replay_buffer"
_EVAL = "buffer.explorer_input.eval_tasksets"
_PARTS = ("explore", "train")
COLOCATED = "colocate"
_ROOM = 4  # steps of staleness for groups that come back, where the other system has no bound

_STORAGES = {"queue": "queue", "file": "file", "sql": "sql"}
_PRIORITIES = {
    "linear_decay": "linear_decay",
    "decay_limit_randomization": "decay_limit_randomization",
    "linear_decay_use_count_control_randomization": "decay_limit_randomization",
}
_FILES = (".json", ".jsonl", ".csv", ".parquet")
_OF_A_SET = {
    "path": "data_args.file_name",
    "split": "data_args.split",
    "subset_name": "data_args.subset",
    "format.prompt_key": "data_args.prompt",
    "format.response_key": "data_args.ground_truth",
    "repeat_times": "generating_args.num_return_sequences",
    "rollout_args.n": "generating_args.num_return_sequences",
    "rollout_args.temperature": "generating_args.temperature",
    "rollout_args.top_p": "generating_args.top_p",
    "rollout_args.top_k": "generating_args.top_k",
    "rollout_args.max_tokens": "generating_args.max_new_tokens",
}


def _mode(value: Any) -> str:
    if value in (*_PARTS, "bench"):
        return str(value)
    if value == COLOCATED:
        raise AsksNothing("trainer and engines take turns on all GPUs, as their device_mapping says")
    raise ChangesRun(f"mode: {value} is not here: both, colocate, explore, train and bench are")


def _storage(value: Any) -> str:
    if value in _STORAGES:
        return _STORAGES[value]
    raise NotHere(f"storage_type: {value} is not here: {', '.join(_STORAGES)} are")


MODE_ROWS: tuple[Row, ...] = (
    to("mode", "mode", via=_mode, idle=("both",)),
    to("explorer.bench_on_latest_checkpoint", "resume_from_checkpoint", needs="bench", idle=(False,)),
    to(f"{_BUFFER}.storage_type", "experience.storage_type", via=_storage, needs="parts"),
    to(f"{_BUFFER}.path", "experience.url", needs="sql buffer"),
    summed("model.enable_prompt_truncation", "truncation", True),
    summed(f"{_BUFFER}.max_read_timeout", "read timeout"),
    *(summed(f"{_REPLAY}.{key}", "replay") for key in ("enable", "reuse_cooldown_time", "priority_fn")),
    *(summed(f"{_REPLAY}.priority_fn_args.{key}", "replay") for key in ("decay", "use_count_limit", "sigma")),
)
EVAL_ROWS: tuple[Row, ...] = (
    needless(f"{_EVAL}.0.name", "the first set is `validation`"),
    *(summed(f"{_EVAL}.*.{key}", "eval sets") for key in ("name", *_OF_A_SET)),
    lacks(f"{_EVAL}.*.storage_type", "rows are read from files, folders, addresses and the hub", "file"),
)


def _is_in_parts(look: Look) -> bool:
    return look(f"{_OWN}mode") in _PARTS


def _read_timeout(look: Look) -> Sum:
    if not _is_in_parts(look):
        return Sum({}, "one process waits for nobody")
    seconds = look.amount(f"{_OWN}{_BUFFER}.max_read_timeout")
    settings = {"experience.read_timeout_s": seconds, "experience.on_timeout": "partial"}
    return Sum(settings, f"after {seconds:g} s a step trains on the groups that are there (experience.on_timeout).")


def _replay(look: Look) -> Sum:
    """Trinity has no bound on the age of what comes back."""
    at = f"{_OWN}{_REPLAY}"
    if not look(f"{at}.enable"):
        return Sum({}, "samples are trained on once")
    if (rest := look(f"{at}.reuse_cooldown_time")) is None:
        return Sum({}, "without reuse_cooldown_time nothing comes back there")
    if not _is_in_parts(look):
        reason = "samples come back in mode: train alone, with experience.reuse (docs/modes.md)"
        return Sum({}, "not in one process", changes={f"{at}.enable": reason})
    name = str(look(f"{at}.priority_fn", "linear_decay"))
    if name not in _PRIORITIES:
        raise NotHere(f"priority_fn: {name} is not here: {', '.join(dict.fromkeys(_PRIORITIES.values()))} are")
    args = f"{at}.priority_fn_args"
    reuse: dict[str, Any] = {"enable": True, "cooldown_s": float(rest), "priority": _PRIORITIES[name]}
    reuse["decay"] = look.amount(f"{args}.decay", 2.0)
    if reuse["priority"] == "decay_limit_randomization":
        reuse |= {"use_limit": look.number(f"{args}.use_count_limit", 3), "sigma": look.amount(f"{args}.sigma", 0.0)}
    interval, offset = (look.number(f"{_OWN}synchronizer.sync_{key}", n) for key, n in (("interval", 1), ("offset", 0)))
    oldest = max(_ROOM, interval - 1 + offset)
    settings = {f"experience.reuse.{key}": value for key, value in reuse.items()} | {"max_staleness": oldest}
    return Sum(settings, "experience.reuse.", f"max_staleness: {oldest} bounds the age of what comes back.")


def _eval_sets(look: Look) -> Sum:
    """The first is `validation`; the others stand beside it under their names."""
    given = look.below(f"{_OWN}{_EVAL}")
    numbers = sorted({int(head) for key in given if (head := key.partition(".")[0]).isdigit()} - {0})
    settings: dict[str, Any] = {}
    names: list[str] = []
    for number in numbers:
        own = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{number}.")}
        if own.get("path") is None:
            raise NotHere(f"eval_tasksets {number} has no path: name its rows in eval_sets")
        name = re.sub(r"[^\w-]", "_", str(own.get("name") or f"set_{number}"))
        names.append(f"eval_sets.{name}")
        split = {} if Path(str(own["path"])).suffix in _FILES else {"split": "train"}  # the default there
        sampling = {f"rollout_args.{key}": look(f"{_OWN}model.{key}") for key in ("temperature", "top_p", "top_k")}
        columns = {"format.prompt_key": "prompt", "format.response_key": "response"}
        own = {**sampling, **columns, **split, **{key: value for key, value in own.items() if value is not None}}
        own["rollout_args.temperature"] = 1.0 if (asked := own["rollout_args.temperature"]) is None else asked
        for key, target in _OF_A_SET.items():
            if own.get(key) is not None:
                value = words.files(own[key]) if key == "path" else own[key]
                settings[f"eval_sets.{name}.{target}"] = value
        settings[f"eval_sets.{name}.data_args.truncation"] = cut(look)
        if prompt := system_prompt_of(look, number):
            settings[f"eval_sets.{name}.data_args.system_prompt"] = prompt
    first = "" if "0.path" not in given else "The first is `validation`; "
    return Sum(settings, f"{first}{', '.join(names) or 'no others'}.")


def _is_sql(look: Look) -> str:
    if _is_in_parts(look) and look(f"{_OWN}{_BUFFER}.storage_type") == "sql":
        return ""
    if _is_in_parts(look):
        raise NotHere("experience.dir is the place of a buffer")
    raise NotHere("groups are handed over in memory and kept in no data base; rollout_dump_dir has the answers")


def cut(look: Look) -> str:
    """What becomes of a prompt that is too long."""
    return "left" if look(f"{_OWN}model.enable_prompt_truncation") else "error"


def _truncation(look: Look) -> Sum:
    rule = cut(look)
    settings = {"actor_train.data_args.truncation": rule}
    settings |= {"validation.data_args.truncation": rule} if look(f"{_OWN}{_EVAL}.0.path") else {}
    near = "A prompt longer than prompt_length stops the run before its first step; there its answer gets less room."
    if rule == "left":
        near = "The end of a prompt is kept, as vLLM does; older versions there keep the beginning and answer nothing."
    return Sum(settings, f"data_args.truncation: {rule}.", near)


MODE_CONDITIONS: Mapping[str, Condition] = {
    "parts": lambda look: "" if _is_in_parts(look) else "in one process groups are handed over in memory",
    "sql buffer": _is_sql,
    "bench": lambda look: "" if look(f"{_OWN}mode") == "bench" else "mode is not bench",
}
MODE_SUMS: Mapping[str, Callable[[Look], Sum]] = {
    "truncation": _truncation,
    "read timeout": _read_timeout,
    "replay": _replay,
    "eval sets": _eval_sets,
}

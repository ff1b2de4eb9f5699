"""Trinity-RFT's data_processor: operators on tasks choose rows, operators on experiences shape rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from roll.importers.rows import ChangesRun, CombinedKeys, NotHere, SourceLookup
from roll.importers.verl.common import ROLLOUT

_TASK, _SAMPLES = "data_processor.task_pipeline", "data_processor.experience_pipeline"
INPUTS = f"{_TASK}.inputs"
_LEAST, _OPERATORS = "trinity.algorithm.advantage_fn_args.std_threshold", "experience_operators"
_DYNAMIC, _MASK, _LEN_MASK = "dapo_dynamic_sampling", "mask_response_truncated", "max_len_mask"
_OPS = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide"}

Made = list[dict[str, Any]]
"""Operators here that replace one of Trinity's; empty if nothing is needed."""


def _length(args: Mapping[str, Any]) -> tuple[Made, str]:
    bounds = {"min": args.get("min_len", 10)} | ({"max": args["max_len"]} if "max_len" in args else {})
    return [_entry("length", {"unit": "characters"} | bounds)], "The prompt's characters are counted."


def _same(args: Mapping[str, Any]) -> tuple[Made, str]:
    return [_entry("deduplicate", {})], "Case, white space and ways of writing a letter do not count."


def _alike(args: Mapping[str, Any]) -> tuple[Made, str]:
    converted = {"similarity": args.get("jaccard_threshold", 0.7), "ngram": args.get("window_size", 5)}
    return [_entry("deduplicate", converted)], "The similarity is computed, not estimated from hashes."


_OF_TASKS: Mapping[str, Callable[[Mapping[str, Any]], tuple[Made, str]]] = {
    "text_length_filter": _length,
    "document_deduplicator": _same,
    "document_minhash_deduplicator": _alike,
}
"""Operators of Data-Juicer that roll has without its package."""


def _of_task(name: str, args: Mapping[str, Any], source: SourceLookup) -> tuple[Made, str]:
    if name in _OF_TASKS:
        return _OF_TASKS[name](args)
    column_args = {"column": args["text_key"]} if "text_key" in args else {}
    rest = {key: value for key, value in args.items() if key != "text_key"}
    return [_entry(f"data_juicer:{name}", column_args | ({"op_args": rest} if rest else {}))], ""


def _shaping(args: Mapping[str, Any], source: SourceLookup) -> tuple[Made, str]:
    made: Made = []
    for shape in args.get("reward_shaping_configs", []):
        op = str(shape.get("op_type", "ADD"))
        if op not in _OPS:
            raise NotHere(f"op_type: {op} is not here: {', '.join(_OPS)} are")
        shaping_args = {"stat": shape.get("stats_key"), "op": _OPS[op], "weight": shape.get("weight", 1.0)}
        made.append(_entry("reward_shaping", shaping_args))
    stats = ", ".join(str(entry["args"]["stat"]) for entry in made)
    return made, f"A reward or an environment has to report {stats} beside its score."


def _deviation(args: Mapping[str, Any], source: SourceLookup) -> tuple[Made, str]:
    """Converts the filter by deviation: Trinity divides by n, std_filter by n - 1."""
    least, answers = float(args.get("threshold", 0.0)), source.number(f"{ROLLOUT}.n")
    least *= (answers / (answers - 1)) ** 0.5 if answers > 1 else 1.0
    return [_entry("std_filter", {"std_threshold": least})], ""


def is_newest(source: SourceLookup) -> bool:
    """True for the version that came with DAPO's operators, in which a wrong answer costs 1."""
    names = source.below(f"trinity.{_SAMPLES}.operators").values()
    return _DYNAMIC in names or _MASK in names


def _between(args: Mapping[str, Any], source: SourceLookup) -> tuple[Made, str]:
    """Converts the filter for groups of which some answers are right, and some are not."""
    inputs = "trinity.buffer.explorer_input"
    names = [source(f"{at}.default_reward_fn_type") for at in (f"{inputs}.taskset", inputs)]
    wrong = -1.0 if "math_dapo_reward" in names else 0.0
    made = [_entry("mean_filter", {"threshold_down": wrong, "threshold_up": 1.0})]
    return made, (
        f"Groups stay whose mean reward is above {wrong:g} and below 1: the same where rewards are {wrong:g} and 1, "
        "and not where a penalty for length is part of them."
    )


def _nothing(why: str) -> Callable[[Mapping[str, Any], SourceLookup], tuple[Made, str]]:
    return lambda args, source: ([], why)


_OF_SAMPLES: Mapping[str, Callable[[Mapping[str, Any], SourceLookup], tuple[Made, str]]] = {
    "reward_shaping_mapper": _shaping,
    "reward_std_filter": _deviation,
    _DYNAMIC: _between,
    _MASK: _nothing(f"{_LEN_MASK}: true."),
    "invalid_reward_filter": _nothing("An attempt without a reward is a failure, and not trained on."),
    "pass_rate_calculator": _nothing("It changes no sample; pass_rate chooses tasks by what a run has recorded."),
}


def _of_samples(name: str, args: Mapping[str, Any], source: SourceLookup) -> tuple[Made, str]:
    if name not in _OF_SAMPLES:
        raise NotHere(
            f"there is no {name} here; there are {', '.join(_OF_SAMPLES)}, and an operator of your own, "
            "package.module:object, drops groups and leaves attempts out (docs/data.md)"
        )
    return _OF_SAMPLES[name](args, source)


_JUDGED = "reward_shaping_mapper"


def _chain(
    at: str, target: str, translate: Callable[[str, Mapping[str, Any], SourceLookup], tuple[Made, str]]
) -> Callable[[SourceLookup], CombinedKeys]:
    def combine(source: SourceLookup) -> CombinedKeys:
        if source(f"trinity.{at}.config_path"):
            raise ChangesRun(f"{at}.config_path counts there, and its file is not read")
        made: Made = []
        gone: list[str] = []
        lost: dict[str, str] = {}
        nears: dict[str, str] = {}
        for name, args, keys in _written(source, f"trinity.{at}.operators"):
            try:
                if name == _JUDGED and gone:
                    raise NotHere(f"no reward reports its stats: {', '.join(gone)} would, before it, and is not here")
                translated, near = translate(name, args, source)
            except NotHere as reason:
                gone.append(name)
                lost |= dict.fromkeys(keys, str(reason))
                continue
            made += translated
            nears |= dict.fromkeys(keys, near) if near else {}
        names = ", ".join(str(entry["name"]) for entry in made)
        return CombinedKeys(
            {target: made} if made else {}, f"{target}: {names or 'none'}.", changes=lost, differences=nears
        )

    return combine


def _written(source: SourceLookup, at: str) -> Iterator[tuple[str, Mapping[str, Any], list[str]]]:
    """Each operator's name and arguments, and the keys that say them."""
    settings = source.below(at)
    for number in sorted({key.partition(".")[0] for key in settings}, key=int):
        values = {key: value for key, value in settings.items() if key.startswith(f"{number}.")}
        entry = _nested({key.partition(".")[2]: value for key, value in values.items()})
        yield str(entry.get("name")), entry.get("args") or {}, [f"{at}.{key}" for key in values]


def _nested(flat: Mapping[str, Any]) -> Any:
    """Sections and lists of sections again, as they were before they were taken apart."""
    groups: dict[str, dict[str, Any]] = {}
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        head, _, rest = key.partition(".")
        if rest:
            groups.setdefault(head, {})[rest] = value
        else:
            nested[head] = value
    nested |= {head: _nested(inner) for head, inner in groups.items()}
    return list(nested.values()) if nested and all(key.isdigit() for key in nested) else nested


def _entry(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name} | ({"args": dict(args)} if args else {})


_GROUPS = _chain(_SAMPLES, _OPERATORS, _of_samples)


def _shaped(source: SourceLookup) -> CombinedKeys:
    """Converts the operators, then adds a filter for groups whose rewards differ too little, since Trinity's advantage
    drops them there."""
    made, least = _GROUPS(source), source(_LEAST)
    if _MASK in source.below(f"trinity.{_SAMPLES}.operators").values():
        made = replace(made, settings={**made.settings, _LEN_MASK: True})
    if least is None:
        return made
    deviation_filter = _entry("std_filter", {"std_threshold": source.amount(_LEAST)})
    text = f"{made.text.removesuffix('.').removesuffix(' none')} std_filter."
    return replace(made, settings={_OPERATORS: [*made.settings.get(_OPERATORS, []), deviation_filter]}, text=text)


OPERATOR_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "task operators": _chain(_TASK, "actor_train.data_args.operators", _of_task),
    "experience operators": _shaped,
}

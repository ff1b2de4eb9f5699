"""Trinity-RFT's data_processor: operators on tasks choose rows, operators on experiences choose groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from roll.importers.rows import CombinedKeys, SourceLookup, data
from roll.importers.verl.common import ROLLOUT

_TASK, _SAMPLES = "data_processor.task_pipeline", "data_processor.experience_pipeline"
INPUTS = f"{_TASK}.inputs"
_LEAST, _OPERATORS = "trinity.algorithm.advantage_fn_args.std_threshold", "experience_operators"
_DYNAMIC, _MASK, _DEVIATION = "dapo_dynamic_sampling", "mask_response_truncated", "reward_std_filter"
_SAID: Mapping[str, str] = data("trinity/workflows.yaml")["operators"]
"""Sentence on each operator on experiences that has a counterpart, or needs none."""
_LACKS = (
    "there is no {} here; an operator of your own, package.module:object, drops groups, shapes rewards and leaves "
    "attempts out (experience_operators, docs/data.md)"
)


def _written(source: SourceLookup, at: str) -> Iterator[tuple[str, Mapping[str, Any], list[str]]]:
    """Yield each operator's name, its arguments, and the keys that say them."""
    settings = source.below(at)
    for number in sorted({key.partition(".")[0] for key in settings}, key=int):
        own = source.section(f"{at}.{number}")
        keys = [f"{at}.{key}" for key in settings if key.startswith(f"{number}.")]
        yield str(own.get("name")), own.get("args") or {}, keys


def _of_tasks(source: SourceLookup) -> CombinedKeys:
    """Convert operators on tasks, which are those of Data-Juicer's package in both systems."""
    made = list[dict[str, Any]]()
    for name, args, _ in _written(source, f"trinity.{_TASK}.operators"):
        rest = {key: value for key, value in args.items() if key != "text_key"}
        converted = {"column": args["text_key"]} if "text_key" in args else {}
        made.append(_entry(f"data_juicer:{name}", converted | ({"op_args": rest} if rest else {})))
    target = "actor_train.data_args.operators"
    return CombinedKeys({target: made} if made else {}, f"{target}: {', '.join(each['name'] for each in made)}.")


def is_newest(source: SourceLookup) -> bool:
    """True for the version that came with DAPO's operators, in which a wrong answer costs 1."""
    names = source.below(f"trinity.{_SAMPLES}.operators").values()
    return _DYNAMIC in names or _MASK in names


def _of_samples(source: SourceLookup) -> CombinedKeys:
    """Convert operators on experiences, then add a filter for groups whose rewards differ too little, since Trinity's
    advantage drops them there."""
    made, settings = list[dict[str, Any]](), dict[str, Any]()
    lost, nears = dict[str, str](), dict[str, str]()
    for name, args, keys in _written(source, f"trinity.{_SAMPLES}.operators"):
        if name not in _SAID:
            lost |= dict.fromkeys(keys, _LACKS.format(name))
            continue
        nears |= dict.fromkeys(keys, _SAID[name]) if _SAID[name] else {}
        if name == _DEVIATION:
            made.append(_deviation(float(args.get("threshold", 0.0)), source.number(f"{ROLLOUT}.n")))
        elif name == _DYNAMIC:
            made.append(_entry("mean_filter", {"threshold_down": _wrong(source), "threshold_up": 1.0}))
        elif name == _MASK:
            settings["max_len_mask"] = True
    if source(_LEAST) is not None:
        made.append(_entry("std_filter", {"std_threshold": source.amount(_LEAST)}))
    settings |= {_OPERATORS: made} if made else {}
    names = ", ".join(each["name"] for each in made) or "none"
    return CombinedKeys(settings, f"{_OPERATORS}: {names}.", changes=lost, differences=nears)


def _deviation(least: float, answers: int) -> dict[str, Any]:
    """The filter by deviation: Trinity divides by n, std_filter by n - 1."""
    scale = (answers / (answers - 1)) ** 0.5 if answers > 1 else 1.0
    return _entry("std_filter", {"std_threshold": least * scale})


def _wrong(source: SourceLookup) -> float:
    """The reward of a wrong answer: groups above it and below 1 stay."""
    inputs = "trinity.buffer.explorer_input"
    names = [source(f"{at}.default_reward_fn_type") for at in (f"{inputs}.taskset", inputs)]
    return -1.0 if "math_dapo_reward" in names else 0.0


def _entry(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name} | ({"args": dict(args)} if args else {})


OPERATOR_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "task operators": _of_tasks,
    "experience operators": _of_samples,
}

"""Conversions of values, by the names that rows give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from roll.configs.sections.model import DTYPES
from roll.configs.sections.run import TRACKER_WORDS, Tracker
from roll.configs.strategies.table import STRATEGIES, spec_of
from roll.configs.tables.policy_losses import RECClip, RECRegularizer, RECWeight
from roll.importers.rows import (
    ApproximateValue,
    AsksNothing,
    ChangesRun,
    NotHere,
    PerTargetValues,
    data,
    is_left_open,
    same,
)
from roll.platforms.table import PLATFORMS
from roll.utils.text import show

__all__ = ["same"]
_TRACKERS: tuple[str, ...] = get_args(Tracker)
_TRACKER_WORDS = {**TRACKER_WORDS, "file": "jsonl"}
_TOWER = re.compile(r"[\^(.*\\]*(model[.\\]*)?(visual|vision_tower|vision_model)[.*\\)$]*")
FIRST_UPDATE: str = data("words.yaml")["first update"]
OF_EPOCH = "an epoch has its rows / data.train_batch_size steps: set eval_steps and save_steps to them"


def word(table: Mapping[str, Any], what: str) -> Callable[[Any], Any]:
    """A translation by a table; other words are refused with those there are here."""
    here = dict.fromkeys(str(found[0] if isinstance(found, list) else found) for found in table.values())

    def translated(value: Any) -> Any:
        if isinstance(value, list | dict) or value not in table:
            raise ChangesRun(f"there is no {what} {show(value)} here; there are {', '.join(here)}")
        found = table[value]
        return ApproximateValue(found[0], found[1]) if isinstance(found, list) else found

    return translated


def inline(table: Mapping[Any, Any], key: str) -> Callable[[Any], Any]:
    """A translation by the words of a row: for each the word here, that and how it differs, or null and why it asks for
    nothing. `else: same` leaves others as they are."""

    def translated(value: Any) -> Any:
        if isinstance(value, list | dict) or value not in table:
            if table.get("else") == "same":
                return value
            shown = [each if isinstance(each, str) else show(each) for each in (value, *table)]
            raise ChangesRun(f"{key}: {shown[0]} is not here: {', '.join(shown[1:])} are")
        found = table[value]
        if not isinstance(found, list):
            return found
        if found[0] is None:
            raise AsksNothing(found[1])
        return ApproximateValue(*found)

    return translated


def _words_of(kind: str, what: str = "") -> Callable[[Any], Any]:
    return word(data("translations.yaml")[kind], what or kind)


def _one_of(words: Any, what: str) -> Callable[[Any], Any]:
    return word({name: name for name in get_args(words)}, what)


trainer, scorer = _words_of("trainer"), _words_of("scorer", "trainer")
schedule, kernel, adam = _words_of("schedule"), _words_of("kernel"), _words_of("optimizer")
aggregation, router_replay = _words_of("loss_agg_mode"), _words_of("mode of router replay")
dtype = word({name: name for name in DTYPES.values()} | DTYPES, "number format")
rec_clip, rec_weight = _one_of(RECClip, "clip_mode"), _one_of(RECWeight, "weight")
rec_regularizer = _one_of(RECRegularizer, "regularizer")


def number(value: Any) -> float:
    """Converts a number, also from a text such as 1e-6, which YAML does not read as a number."""
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def percent(value: Any) -> float:
    return number(value) / 100


def whole(value: Any) -> int:
    return int(value)


def text(value: Any) -> str:
    return str(value)


def files(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value]


def positive(value: Any) -> int:
    """Counts of which -1 and null mean never or all."""
    return int(value) if int(value) > 0 else -1


def betas(value: Any) -> PerTargetValues:
    """Two numbers, also as the text of a list that quotes kept together."""
    first, second = value.strip("[]() ").split(",") if isinstance(value, str) else value
    return PerTargetValues((number(first), number(second)))


# Models, devices and engines.


def model_path(value: object) -> object:
    if str(value).startswith(("hdfs://", "viewfs://")):
        return ApproximateValue(str(value), "files of HDFS are not fetched: copy it, and set pretrain to the folder")
    return value


def device(value: object) -> object:
    """The platform that trainer.device names. verl's own `cuda` is taken as "the GPUs of the machine"."""
    if value in (None, "cuda"):
        raise AsksNothing("platform: auto takes the devices that the run sees")
    if value not in PLATFORMS:
        raise ChangesRun(f"platforms are {', '.join(PLATFORMS)}")
    return value


def engine(value: Any) -> Any:
    name = f"{value}_infer" if value == "hf" else str(value)
    if "generate" not in spec_of(name).classes:
        there = ", ".join(spec.name for spec in STRATEGIES.values() if "generate" in spec.classes)
        raise ChangesRun(f"there is no engine {show(value)} here; there are {there}")
    return name


def rollout_engine(value: Any) -> Any:
    """The same; another plain engine samples the same answers in other time, where one of a project's own may do more.
    Raises ChangesRun for one of a project's own."""
    name = {"sglang_async": "sglang"}.get(str(value), value)
    if name in ("trtllm", "tensorrt_llm"):
        return ApproximateValue("vllm", f"there is no engine {show(value)} here; vllm stands in")
    return engine(name)


def explorer_engine(value: Any) -> Any:
    return engine(str(value).removesuffix("_async"))


def left_out(value: object) -> str:
    """Refuses modules that get no adapters, but for the tower, which gets none anyway."""
    names = value if isinstance(value, list) else [value]
    if value is None or not names or all(isinstance(name, str) and _TOWER.fullmatch(name) for name in names):
        raise AsksNothing("adapters are of the language model alone")
    raise ChangesRun("lora_target names what gets adapters")


def chat_template(value: Any) -> str:
    """The text of a Jinja template; what a shell would read from a file is none."""
    if "{{" in str(value) or "{%" in str(value):
        return str(value)
    raise ChangesRun("global_template takes the text of a Jinja template, or the path of a file with it")


# The loss.


def kl(value: Any) -> Any:
    """A `+` behind the name asks verl for the gradient of k2 whatever the value is."""
    if isinstance(value, str) and value.endswith("+"):
        return ApproximateValue(
            kl(value[:-1]), "the gradient is that of the named estimator, where + asks for that of k2"
        )
    if value == "full":
        raise ChangesRun("a KL over the whole vocabulary is for the loss here (kl_loss_type), not for the reward")
    return _words_of("estimator of the KL")(value)


def kl_loss(value: Any) -> Any:
    return value if value == "full" else kl(value)


def estimator(value: Any) -> Any:
    if value == "codapo":
        raise ChangesRun(
            "there is no estimator codapo here: it weighs answers by their confidence and by how hard their task is; "
            "difficulty_loss_weight does the latter"
        )
    return _words_of("estimator")(value)


def js_weight(value: Any) -> float:
    if not 0 < (weight := number(value)) < 1:
        raise ChangesRun("at 0 and 1 nothing is learned there: opd_js_weight is between them")
    return weight


# The run.


def _rise(near: str) -> Callable[[Any], Any]:
    """The share of a schedule in which its rate rises."""

    def converted(value: Any) -> Any:
        return ApproximateValue(share, near) if (share := number(value)) > 0 else share

    return converted


rise = _rise(f"the share is rounded up to a whole update here, down there; {FIRST_UPDATE}")
rise_by_steps = _rise(data("words.yaml")["rise by steps"])


def run_name(value: object) -> Any:
    """Converts the name of a run, which may be a path there."""
    name = re.sub(r"[/\\]+", "-", value.strip("/\\")) if isinstance(value, str) and not is_left_open(value) else value
    if name == value:
        return value
    return ApproximateValue(name, "a name of a run has no / here") if name else value


def trackers(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise NotHere(f"{show(value)} names no trackers; there are {', '.join(_TRACKERS)}")
    names = [value] if isinstance(value, str) else [str(name) for name in value]
    known = list(dict.fromkeys(_TRACKER_WORDS.get(name, name) for name in names))
    here = [name for name in known if name in _TRACKERS]
    if lost := [name for name in known if name not in _TRACKERS]:
        return ApproximateValue(here or ["jsonl"], f"{', '.join(lost)}: not here; there are {', '.join(_TRACKERS)}")
    return here


def every(value: Any) -> int:
    """Converts a number of steps; -1 means never."""
    if value == "after_each_epoch":
        raise NotHere(OF_EPOCH)
    return positive(value)

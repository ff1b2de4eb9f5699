"""Values of other systems in the words of here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from roll.configs.sections.model import DTYPES
from roll.configs.sections.run import TRACKER_WORDS, Tracker
from roll.configs.strategies.table import STRATEGIES, spec_of
from roll.importers.rows import ChangesRun, Each, Near, NotHere
from roll.utils.text import show

_TRAINERS: Mapping[str, tuple[str, str]] = {
    "fsdp": ("fsdp2_train", "fsdp2_infer"),
    "fsdp2": ("fsdp2_train", "fsdp2_infer"),
    "megatron": ("megatron_train", "megatron_infer"),
}
_KL: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
_ESTIMATORS: Mapping[str, str | Near] = {
    "gae": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "opo": "opo",
    "grpo_passk": "grpo_passk",
    "gpg": Near("gpg", "the factor counts groups whose rewards differ, as the paper does; verl rewards other than 0"),
    "asymre": "asymre",
    "reinforce": "reinforce",
    "raft": "raft",
    "opmd": "opmd",
}
_SCHEDULES: Mapping[str, str] = {
    "constant": "constant_with_warmup",
    "constant_with_warmup": "constant_with_warmup",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
}
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
_TRACKERS: tuple[str, ...] = get_args(Tracker)


def word(table: Mapping[str, Any], what: str) -> Callable[[Any], Any]:
    """A translation by a table; other words are refused with those there are."""

    def translated(value: Any) -> Any:
        if isinstance(value, list | dict) or value not in table:
            raise ChangesRun(f"there is no {what} {show(value)} here; there are {', '.join(table)}")
        return table[value]

    return translated


def trainer(value: Any) -> Any:
    return _strategy(value, 0)


def scorer(value: Any) -> Any:
    return _strategy(value, 1)


def _strategy(value: Any, which: int) -> Any:
    name = word(_TRAINERS, "trainer")(value)[which]
    return Near(name, "torch's second FSDP stands for its first") if value == "fsdp" else name


def engine(value: Any) -> Any:
    name = f"{value}_infer" if value == "hf" else str(value)
    if "generate" not in spec_of(name).classes:
        there = ", ".join(spec.name for spec in STRATEGIES.values() if "generate" in spec.classes)
        raise NotHere(f"there is no engine {show(value)} here; there are {there}")
    return name


def rollout_engine(value: Any) -> Any:
    """The same; another engine samples the same answers in other time."""
    try:
        return engine(value)
    except NotHere as reason:
        return Near("vllm", f"{reason}; vllm stands in")


def kl(value: Any) -> Any:
    """A `+` behind the name asks verl for the gradient of k2 whatever the value is."""
    if isinstance(value, str) and value.endswith("+"):
        return Near(kl(value[:-1]), "the gradient is that of the named estimator, where + asks for that of k2")
    if value == "full":
        raise ChangesRun("a KL over the whole vocabulary is for the loss here (kl_loss_type), not for the reward")
    return word(_KL, "estimator of the KL")(value)


def kl_loss(value: Any) -> Any:
    return value if value == "full" else kl(value)


def estimator(value: Any) -> Any:
    return word(_ESTIMATORS, "estimator")(value)


def aggregation(value: Any) -> Any:
    if value == "seq-mean-token-sum-norm":
        return Near(
            value,
            "here it is also divided by the rows of the update, and by response_length for the padded width: a "
            "coefficient beside it keeps its weight, max_grad_norm meets a smaller gradient. loss_scale_factor changes "
            "the scale",
        )
    return word({name: name for name in AGGREGATIONS}, "loss_agg_mode")(value)


def loss_scale(value: Any) -> Any:
    return Near(
        number(value),
        "here the loss is also divided by the rows of the update: this number over the rows of a micro batch is verl's "
        "scale",
    )


def schedule(value: Any) -> Any:
    return word(_SCHEDULES, "schedule")(value)


def router_replay(value: Any) -> Any:
    if value == "R3":
        return Near(
            "R2",
            "the experts of the old log-probs' pass; R3, those of the rollout, goes with sglang and hf_infer alone",
        )
    return word({"disabled": "disable", "R2": "R2"}, "mode of router replay")(value)


def kernel(value: Any) -> Any:
    """Converts the kernel of fused log-probs. The choice changes no result."""
    if value == "triton":
        return Near("torch", "the same log-probs and entropy in tiles of torch's; Triton's kernel saves time")
    return word({"torch": "torch"}, "kernel")(value)


def dtype(value: Any) -> Any:
    return word({name: name for name in DTYPES.values()} | DTYPES, "number format")(value)


def trackers(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise NotHere(f"{show(value)} names no trackers; there are {', '.join(_TRACKERS)}")
    names = [value] if isinstance(value, str) else [str(name) for name in value]
    known = [TRACKER_WORDS.get(name, name) for name in names]
    here = [name for name in known if name in _TRACKERS]
    if lost := [name for name in known if name not in _TRACKERS]:
        return Near(here or ["jsonl"], f"{', '.join(lost)}: not here; there are {', '.join(_TRACKERS)}")
    return here


def truncation(value: Any) -> Any:
    if value == "middle":
        return Near("left", "nothing is cut in the middle here; left keeps the end of a prompt")
    return word({name: name for name in ("error", "left", "right")}, "truncation")(value)


def files(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value]


def positive(value: Any) -> int:
    """Counts of which -1 and null mean never or all."""
    return int(value) if int(value) > 0 else -1


def opposite(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return not value


def number(value: Any) -> float:
    """Converts a number, also from a text such as 1e-6, which YAML does not read as a number."""
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def betas(value: Any) -> Each:
    first, second = value
    return Each((number(first), number(second)))

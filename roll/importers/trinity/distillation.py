"""Trinity-RFT's on-policy distillation, by log-ratios or jsd: the first of its auxiliary models is the teacher."""

from __future__ import annotations

from collections.abc import Mapping

from roll.importers.rows import ChangesRun, CombinedKeys, Condition, SourceLookup, devices
from roll.importers.verl.batches import gpus

_TYPE = "algorithm.algorithm_type"
_AUXILIARY = "explorer.auxiliary_models"
_TEACHER = f"{_AUXILIARY}.0"
_OF_TEACHER = ("model_path", "engine_num", "tensor_parallel_size")
_JUDGES = "judges and reward models are rewards (docs/judges.md); its GPUs are left free"
_MORE = "the first auxiliary model is the teacher; further ones are `teachers` by domain (docs/distillation.md)"
_SCORES = "It scores with fsdp2_infer, where an engine does there."


def distils(source: SourceLookup) -> bool:
    return source(f"trinity.{_TYPE}") in ("on_policy_distill", "jsd")


def compares_mixtures(source: SourceLookup) -> bool:
    """Whether the advantage is the divergence from a mixture: the function named beside the algorithm wins over it."""
    function = source("trinity.algorithm.advantage_fn", source(f"trinity.{_TYPE}"))
    return distils(source) and function == "jsd"


def auxiliary_gpus(source: SourceLookup) -> int:
    """Count the GPUs of the engines of all auxiliary models."""
    return sum(_gpus_of(source, f"{_AUXILIARY}.{number}") for number in _numbers(source))


def _numbers(source: SourceLookup) -> set[str]:
    """The places of the auxiliary models in their list."""
    below = source.below(f"trinity.{_AUXILIARY}")
    return {head for key in below if (head := key.partition(".")[0]).isdigit()}


def _gpus_of(source: SourceLookup, at: str) -> int:
    return source.size(f"trinity.{at}.engine_num", 1) * source.size(f"trinity.{at}.tensor_parallel_size", 1)


def opd(source: SourceLookup) -> CombinedKeys:
    given = source.below(f"trinity.{_AUXILIARY}")
    lost = {f"trinity.{_AUXILIARY}.{key}": _JUDGES for key in given if key.rpartition(".")[2] in _OF_TEACHER}
    if not distils(source):
        return CombinedKeys({}, "no distillation", lost=lost)
    more = {key: _MORE for key in lost if not key.startswith(f"trinity.{_TEACHER}.")}
    if not (path := source(f"trinity.{_TEACHER}.model_path")):
        raise ChangesRun(f"{_TEACHER}.model_path is missing: set teacher.model_args.model_name_or_path")
    total = gpus(source)
    count = min(_gpus_of(source, _TEACHER), total)
    settings = {
        "is_pure_opd": True,
        **({"opd_advantage": "js_divergence"} if compares_mixtures(source) else {}),
        "teacher.model_args.model_name_or_path": path,
        "teacher.strategy_args.strategy_name": "fsdp2_infer",
        "teacher.device_mapping": devices(total - count, count),
    }
    text = f"is_pure_opd, teacher: {path} on devices {total - count} to {total - 1}."
    return CombinedKeys(settings, text, _SCORES, changes=more)


OPD_CONDITIONS: Mapping[str, Condition] = {
    "opd": lambda source: "" if distils(source) else "the algorithm is not on_policy_distill or jsd",
    "jsd": lambda source: "" if compares_mixtures(source) else "advantage_fn is not jsd",
}

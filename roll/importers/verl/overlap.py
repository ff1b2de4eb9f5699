"""verl's programs whose engines sample while the trainer learns: a step ahead, or as a stream of prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers.conversions import positive
from roll.importers.row_files import rows_of
from roll.importers.rows import CHANGES, ChangesRun, CombinedKeys, Row, SourceLookup, Table, devices
from roll.importers.verl import batches as counts
from roll.importers.verl.common import ACTOR, ENDS_SOONER, ROLLOUT, schedule_of
from roll.importers.verl.correction import unweighted

_PROGRAM = re.compile(
    r"((verl\.)?recipe|verl\.experimental)\.(one_step_off_policy|fully_async_policy)\.(main_ppo|\w*_main)"
)
_WAITS = "verl.trainer.main_ppo"
_ASYNC = "async_training"
_OF_A_STREAM = ("staleness_threshold", "trigger_parameter_sync_step", "require_batches")
_TOTAL = "rollout.total_rollout_steps"
_USUAL_NODE = 8
_PER_NODE = "n_gpus_per_node"
_DEFAULTS = {
    "rollout.nnodes": 1,
    f"rollout.{_PER_NODE}": 8,
    _TOTAL: 100,
    **{f"{_ASYNC}.{key}": value for key, value in zip(_OF_A_STREAM, (0.1, 4, 1), strict=True)},
}
"""Defaults of the configuration of a stream."""
_OWN_PROBS = (f"{_ASYNC}.use_rollout_log_probs", f"{ACTOR}.use_rollout_log_probs")
_BYPASS = "algorithm.rollout_correction.bypass_mode"


def is_stream(module: str, values: Mapping[str, Any]) -> bool:
    """True where prompts start one by one, by the program's name or its section of keys."""
    if match := _PROGRAM.fullmatch(module):
        return match[3] == "fully_async_policy"
    # partial rollouts are also those of other programs
    return module != _WAITS and any(key.rpartition(".")[2] in _OF_A_STREAM for key in _async_keys(values))


def _async_keys(values: Mapping[str, Any]) -> list[str]:
    return [key for key in values if key.startswith(f"{_ASYNC}.")]


def overlapping_table(table: Table, module: str, values: Mapping[str, Any]) -> Table:
    """The table of a run whose engines have GPUs of their own; the same table for another run."""
    streams = is_stream(module, values)
    if not (streams or _PROGRAM.fullmatch(module)):
        return replace(table, rows=(*table.rows, _unread(module))) if _async_keys(values) else table
    rows = {row.key: row for row in (*rows_of("verl/overlap.yaml"), *(rows_of("verl/stream.yaml") if streams else ()))}
    if streams and values.get(_TOTAL, _TOTAL) is None:  # then verl counts epochs
        rows = {key: row for key, row in rows.items() if key != "trainer.total_epochs"}
        rows[_TOTAL] = Row(_TOTAL, note="trainer.total_epochs counts", outcome="asks for nothing")
    sums = {**table.sums, "placement": _placement, **(_STREAM if streams else _ONE_STEP)}
    table = replace(table, program={**table.program, **(_DEFAULTS if streams else {})}, sums=sums)
    return replace(table, rows=(*rows.values(), *(row for row in table.rows if row.key not in rows)))


def _unread(module: str) -> Row:
    if module == _WAITS:
        return Row(f"{_ASYNC}.**", note=f"{_WAITS} reads no such section", outcome="asks for nothing")
    note = "keys of a program of its own, which is not verl's fully_async_policy"
    return Row(f"{_ASYNC}.**", note=note, idle=(None,), outcome=CHANGES)


# GPUs: the trainer's are those of the section trainer, and engines have those of rollout.


def _engine_gpus(source: SourceLookup) -> tuple[int, int]:
    """Nodes of engines, and GPUs of each."""
    nodes, per_node = (source.size(f"rollout.{name}", source(f"{ROLLOUT}.{name}")) for name in ("nnodes", _PER_NODE))
    return nodes, per_node


def _placement(source: SourceLookup) -> CombinedKeys:
    made = counts.placement(source)
    (nodes, per_node), (engine_nodes, engines) = [source.size(key) for key in counts.COUNTS], _engine_gpus(source)
    usual = _USUAL_NODE if max(per_node, engines) <= _USUAL_NODE else 2 * _USUAL_NODE
    shares = nodes == engine_nodes and per_node + engines <= usual
    size = per_node + engines if shares else max(per_node, engines)
    train = _devices(0, nodes, per_node, size)
    sample = _devices(per_node if shares else nodes * size, engine_nodes, engines, size)
    settings = {key: train if key.endswith(".device_mapping") else value for key, value in made.settings.items()}
    settings |= {"actor_infer.device_mapping": sample, "num_gpus_per_node": size}
    settings["num_nodes"] = nodes if shares else nodes + engine_nodes
    where = "on the same nodes" if shares else "on nodes of their own"
    return CombinedKeys(
        settings,
        f"{nodes} x {per_node} GPUs train, {engine_nodes} x {engines} GPUs sample, {where} ({size} GPUs each).",
    )


def _devices(first: int, nodes: int, per_node: int, size: int) -> Any:
    """Devices on nodes of `size` GPUs. Example: _devices(2, 2, 2, 4) is [2, 3, 6, 7]."""
    if nodes == 1 or per_node == size:
        return devices(first, nodes * per_node)
    return [first + node * size + i for node in range(nodes) for i in range(per_node)]


# How far engines are ahead.


def _against_sampling(source: SourceLookup, default: bool) -> bool:
    """Whether the ratio is to the engine's log-probs, as one of the keys for it says."""
    given = [source(key) for key in (*_OWN_PROBS, _BYPASS) if source.is_set(key)]
    return all(given) if given else default


def _probs(source: SourceLookup, default: bool) -> tuple[Mapping[str, Any], str]:
    key, value = "force_disable_old_logprobs_recompute", _against_sampling(source, default)
    return {key: value}, f"{key}: {str(value).lower()}"


def _one_step(source: SourceLookup) -> CombinedKeys:
    probs, said = _probs(source, default=False)
    settings = {"async_generation_ratio": 1, **probs, **unweighted(source)}
    return CombinedKeys(settings, f"async_generation_ratio: 1: answers are a step old; {said}.")


_ONE_STEP: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {"ahead": _one_step}


def _local(source: SourceLookup) -> int:
    """Prompts that the trainer takes at once."""
    return source.size(f"{ACTOR}.{counts.MINI_BATCH}") * source.size(f"{_ASYNC}.require_batches")


def _prompts(source: SourceLookup) -> int:
    """Prompts between two publications of the weights, which are a step here."""
    return _local(source) * source.size(f"{_ASYNC}.trigger_parameter_sync_step")


def _updates(role: str) -> Callable[[SourceLookup], int]:
    """Returns the updates between two moves of a schedule, which are those of the prompts taken at once."""
    return counts.updates_per_step(role, _local)


def _stream(source: SourceLookup) -> CombinedKeys:
    """Keep as many prompts under way beyond those of a step as staleness_threshold allows."""
    ahead, prompts = source.amount(f"{_ASYNC}.staleness_threshold"), _prompts(source)
    probs, said = _probs(source, default=True)
    settings: dict[str, Any] = {"async_generation_ratio": ahead, **probs}
    settings |= unweighted(source) if ahead else {}
    keys = (f"{ACTOR}.{counts.MINI_BATCH}", f"{_ASYNC}.require_batches", f"{_ASYNC}.trigger_parameter_sync_step")
    factors = " x ".join(f"{key.rpartition('.')[2]} {source.size(key)}" for key in keys)
    text = f"A step is what is trained between two publications: {prompts} prompts = {factors}; "
    text += f"async_generation_ratio: {ahead:g}; {said}."
    trigger = source.size(f"{_ASYNC}.trigger_parameter_sync_step")
    name, near = schedule_of(source, f"{ACTOR}.optim"), ""
    if trigger > 1 and name != "constant":
        near = f"There a {name} ends after 1 / {trigger} of the run, here with it."
    return CombinedKeys(settings, text, near)


def _length(source: SourceLookup) -> CombinedKeys:
    total, prompts = source.size(_TOTAL), _prompts(source)
    if total < prompts:
        raise ChangesRun(f"{total} prompts in all are fewer than the {prompts} of a step: verl trains on none")
    text = f"max_steps: {total // prompts} = {total} prompts / {prompts}; {ENDS_SOONER}."
    return CombinedKeys({"max_steps": total // prompts}, text)


def _validates(source: SourceLookup) -> CombinedKeys:
    """Versions count their validations under either name."""
    key = "rollout.test_freq" if source.is_set("rollout.test_freq") else "trainer.test_freq"
    steps = positive(source.number(key, -1))
    return CombinedKeys({"eval_steps": steps}, f"eval_steps: {steps}, in publications of the weights, which are steps.")


def _no_filter(source: SourceLookup) -> CombinedKeys:
    raise ChangesRun("groups are not filtered in a stream of prompts, there or here")


_STREAM: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "actor batches": counts.batches("actor_train", prompts_of_step=_prompts),
    "critic batches": counts.batches("critic", prompts_of_step=_prompts),
    **{f"{role} rise": counts.warmup(role, _updates(role)) for role in ("actor_train", "critic")},
    "ahead": _stream,
    "length": _length,
    "validations": _validates,
    "filter": _no_filter,
}

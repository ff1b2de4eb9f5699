"""verl's batches, devices and engines: what several keys say together."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from roll.configs.strategies.table import spec_of
from roll.importers.conversions import FIRST_UPDATE, rollout_engine, scorer, trainer
from roll.importers.rows import ApproximateValue, ChangesRun, CombinedKeys, SourceLookup, data, devices, split
from roll.importers.verl.common import (
    ACTOR,
    CRITIC,
    IS_OLD,
    MEGATRON,
    REF,
    ROLLOUT,
    has_critic,
    has_reference,
    no_ratio,
    strategy_of,
)

_SECTIONS = {"actor_train": ACTOR, "reference": REF, "critic": CRITIC}
PARALLEL = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")
MINI_BATCH = "ppo_mini_batch_size"
_NO_BATCHES = (
    "data.train_batch_size is 0, a stream of prompts, which verl has in its program fully_async_main alone: import the "
    "command that starts it, or give data.train_batch_size after the file"
)
COUNTS = ("trainer.nnodes", "trainer.n_gpus_per_node")


def gpus(source: SourceLookup) -> int:
    return source.size("trainer.nnodes") * source.size("trainer.n_gpus_per_node")


def together(source: SourceLookup, section: str) -> tuple[int, str]:
    """GPUs that hold one row together, and how they come about."""
    if strategy_of(source, section) == MEGATRON:
        sizes = [source.size(f"{section}.megatron.{kind}_size", 1) for kind in PARALLEL]
        return prod(sizes), f" / (tensor {sizes[0]} x pipeline {sizes[1]} x context {sizes[2]})"
    size = source.size(f"{section}.ulysses_sequence_parallel_size", 1)
    return size, f" / {size} that share sequences" if size > 1 else ""


def _ranks(source: SourceLookup, section: str, total: int) -> tuple[int, str]:
    """Data-parallel ranks of a role, and how they come about."""
    size, how = together(source, section)
    return max(1, total // size), f"{total} GPUs{how}"


def micro_batch(source: SourceLookup, section: str, names: tuple[str, ...], ranks: int) -> int | None:
    """A micro batch of one rank: as given, or its share of one that old YAMLs give for all ranks."""
    for name in names:
        if source(f"{section}.{name}_per_gpu") is not None:
            return source.number(f"{section}.{name}_per_gpu")
        if source(f"{section}.{name}") is not None:
            answers = source.size(f"{ROLLOUT}.n") if source(IS_OLD) and section in (ACTOR, REF, ROLLOUT) else 1
            return max(1, source.number(f"{section}.{name}") // ranks) * answers
    return None


def _batch(source: SourceLookup) -> int:
    return source.size("data.train_batch_size")


def batches(
    role: str, prompts_of_step: Callable[[SourceLookup], int] = _batch
) -> Callable[[SourceLookup], CombinedKeys]:
    """Prompts, samples, micro batches and accumulation of a role that learns."""

    def combine(source: SourceLookup) -> CombinedKeys:
        if source("data.train_batch_size") == 0 and prompts_of_step is _batch:
            raise ChangesRun(_NO_BATCHES)
        prompts, group = prompts_of_step(source), source.size(f"{ROLLOUT}.n")
        mini = source.size(f"{_SECTIONS[role]}.{MINI_BATCH}", source.number(f"{ACTOR}.{MINI_BATCH}"))
        too_many = _too_many(mini, prompts) if mini > prompts else ""
        named = {mini * group: f" = {MINI_BATCH} {mini} x {group}"}
        return laid_out(source, role, (prompts, group, min(mini, prompts) * group), gpus(source), too_many, named)

    return combine


def laid_out(
    source: SourceLookup,
    role: str,
    counts: tuple[int, int, int],
    total: int,
    near: str = "",
    named: Mapping[int, str] = types.MappingProxyType({}),
) -> CombinedKeys:
    """The batches of a role for the prompts of a step, the answers to each and the samples of an update, on so many
    GPUs. `near`: how they differ already; `named`: what numbers of samples are there."""
    prompts, group, update = counts
    section, args = _SECTIONS[role], f"{role}.training_args"
    ranks, how = _ranks(source, section, total)
    micro = micro_batch(source, section, ("ppo_micro_batch_size",), ranks)
    made = split(prompts * group, update, ranks, micro or 1)
    settings: dict[str, Any] = {
        f"{args}.per_device_train_batch_size": made.micro,
        f"{args}.gradient_accumulation_steps": made.passes,
    }
    if role == "actor_train":
        settings |= {"rollout_batch_size": prompts, "num_return_sequences_in_group": group}
    text = f"{role}: {prompts} prompts x {group} answers = {prompts * group} samples per step; "
    text += f"{made.text} ({how}){named.get(made.samples, '')}."
    near = f"{near} {made.near}"
    if micro is not None and micro != made.micro:
        near = f"{near} The micro batch is {made.micro} instead of {micro}, to divide {made.micro * made.passes}."
    return CombinedKeys(settings, text, near.strip())


def _too_many(mini: int, prompts: int) -> str:
    """Say what verl makes of a mini batch that is larger than a step."""
    return (
        f"{MINI_BATCH} {mini} is more than the {prompts} prompts of a step: verl from 0.3 on refuses that without "
        f"dynamic batches, else it makes one update, and takes {prompts} / {mini} of its loss. Adam's steps do not "
        "depend on that; max_grad_norm meets a gradient that is so much larger here."
    )


def updates_per_step(
    role: str, prompts_of_step: Callable[[SourceLookup], int] = _batch
) -> Callable[[SourceLookup], int]:
    """Returns the updates that a role makes in a step: its mini batches, as often as ppo_epochs says."""
    section = _SECTIONS[role]

    def count(source: SourceLookup) -> int:
        prompts = prompts_of_step(source)
        mini = source.size(f"{section}.{MINI_BATCH}", source.number(f"{ACTOR}.{MINI_BATCH}"))
        epochs = source.size(f"{section}.ppo_epochs", source.number(f"{ACTOR}.ppo_epochs"))
        return -(-prompts // min(mini, prompts)) * epochs

    return count


_OR_BY_RATIO = "For verl's workers on FSDP; its engines (0.7 and later) take 0 as not given, and lr_warmup_steps_ratio."


def warmup(role: str, updates: Callable[[SourceLookup], int]) -> Callable[[SourceLookup], CombinedKeys]:
    """The rise of a learning rate, which verl's schedules make once per step, and those of here once per update."""
    key, written = f"{role}.training_args.warmup_steps", f"{_SECTIONS[role]}.optim.lr_warmup_steps"

    def combine(source: SourceLookup) -> CombinedKeys:
        steps = source.number(written, -1)
        if steps < 0:
            return CombinedKeys({}, "less than 0: lr_warmup_steps_ratio counts")
        if steps == 0:
            return CombinedKeys({}, "no warm-up.", _OR_BY_RATIO if no_ratio(source, _SECTIONS[role]) else "")
        num = updates(source)
        shared = f" = {steps} steps x {num} updates" if num > 1 else ""
        near = f"{FIRST_UPDATE[0].upper()}{FIRST_UPDATE[1:]}."
        near += " There the rate rises with each step, here with each update." if num > 1 else ""
        return CombinedKeys({key: steps * num}, f"{key}: {steps * num}{shared}.", near)

    return combine


def scoring(role: str, section: str, names: tuple[str, ...]) -> Callable[[SourceLookup], CombinedKeys]:
    """Samples of one pass when log-probs or values are computed."""

    def combine(source: SourceLookup) -> CombinedKeys:
        micro = micro_batch(source, section, names, _ranks(source, _SECTIONS[role], gpus(source))[0])
        if micro is None:
            return CombinedKeys({}, "not given: infer_batch_size keeps its default")
        return CombinedKeys({f"{role}.infer_batch_size": micro}, f"{role}.infer_batch_size: {micro}, of one rank.")

    return combine


def token_batches(role: str, section: str, switch: str, most: str, kind: str) -> Callable[[SourceLookup], CombinedKeys]:
    """Micro batches by tokens."""

    def combine(source: SourceLookup) -> CombinedKeys:
        on = source(f"{section}.{switch}", source(f"{ACTOR}.use_dynamic_bsz"))
        if not on:
            return CombinedKeys({}, f"{switch} is off: micro batches are counted in rows")
        actor_tokens = source(f"{section}.ppo_max_token_len_per_gpu", source(f"{ACTOR}.ppo_max_token_len_per_gpu"))
        tokens = source.number(f"{section}.{most}", actor_tokens)
        is_split = strategy_of(source, _SECTIONS[role]) == MEGATRON
        group = "megatron.context_parallel_size" if is_split else "ulysses_sequence_parallel_size"
        longest = source.number("data.max_prompt_length") + source.number("data.max_response_length")
        return by_tokens(role, kind, tokens, source.size(f"{_SECTIONS[role]}.{group}", 1), longest)

    return combine


def by_tokens(role: str, kind: str, tokens: int, ranks: int, longest: int) -> CombinedKeys:
    """Micro batches of so many tokens for each of the ranks that share sequences."""
    limit = max(tokens * ranks, longest)
    shared = f" = {tokens} x {ranks} ranks that share sequences" if ranks > 1 else ""
    key = f"{role}.max_tokens_per_microbatch_in_{kind}"
    near = "" if limit == tokens * ranks else f"At least the longest row, {longest}."
    return CombinedKeys({f"{role}.use_dynamic_batching_in_{kind}": True, key: limit}, f"{key}: {limit}{shared}.", near)


def placement(source: SourceLookup) -> CombinedKeys:
    """verl's roles share all GPUs and take turns."""
    nodes, per_node = source.size("trainer.nnodes"), source.size("trainer.n_gpus_per_node")
    everything = devices(0, nodes * per_node)
    roles = ["actor_train", "actor_infer"]
    roles += ["reference"] if not has_reference(source) else []
    roles += ["critic"] if not has_critic(source) else []
    settings: dict[str, Any] = {f"{role}.device_mapping": everything for role in roles}
    settings |= {"num_nodes": nodes, "num_gpus_per_node": per_node} | _strategies(source)
    together = source.size(f"{ROLLOUT}.tensor_model_parallel_size")
    text = (
        f"{nodes} x {per_node} GPUs, which {', '.join(roles)} share in turn; engines of {together} GPUs: "
        f"{nodes * per_node // together} of them."
    )
    return CombinedKeys(settings, text)


def _strategies(source: SourceLookup) -> dict[str, Any]:
    """Strategies of roles that give none: they get the policy's."""
    strategies: dict[str, Any] = {}
    if not has_reference(source) and not source.is_set(f"{REF}.strategy"):
        strategies["reference"] = scorer(strategy_of(source, REF))
    if not has_critic(source) and not source.is_set(f"{CRITIC}.strategy"):
        strategies["critic"] = trainer(strategy_of(source, CRITIC))
    return {
        f"{role}.strategy_args.strategy_name": name.value if isinstance(name, ApproximateValue) else name
        for role, name in strategies.items()
    }


def engine_arguments(source: SourceLookup) -> CombinedKeys:
    """The engine's share of memory and its own arguments, by its name for them."""
    try:
        name = rollout_engine(source(f"{ROLLOUT}.name"))
    except ChangesRun:  # reported with the name
        whole = source.size(f"{ROLLOUT}.tensor_model_parallel_size")
        split = {f"{ROLLOUT}.tensor_model_parallel_size": f"an engine that is not here has {whole} GPUs in the plan"}
        return CombinedKeys({}, "an argument of an engine that is not here", idle=split)
    spec = spec_of(str(name.value if isinstance(name, ApproximateValue) else name))
    config, at = dict[str, Any](), "actor_infer.strategy_args.strategy_config"
    if spec.share is None:
        return CombinedKeys({}, f"{spec.name} has no settings of its own")
    config[spec.share.name] = source.amount(f"{ROLLOUT}.gpu_memory_utilization")
    names = data("verl/engines.yaml")["names"].get(spec.share.name, {})
    config[names["tensor_model_parallel_size"]] = source.size(f"{ROLLOUT}.tensor_model_parallel_size")
    lost: dict[str, str] = {}
    for key, name in names.items():
        value = source(f"{ROLLOUT}.{key}")
        if source.is_set(f"{ROLLOUT}.{key}"):
            config.setdefault(name, value)
    for key in ("enforce_eager", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill", "limit_images"):
        if source.is_set(f"{ROLLOUT}.{key}") and key not in names:
            lost[f"{ROLLOUT}.{key}"] = f"{spec.name} has no such argument; its own go into {at}"
    always = data("verl/engines.yaml")["always on"].get(spec.share.name, {}).items()
    idle = {f"{ROLLOUT}.{key}": why for key, why in always if source(f"{ROLLOUT}.{key}") is True}
    lost = {key: why for key, why in lost.items() if key not in idle}
    config |= (quantised := _quantization(source, spec.share.name)).settings
    config |= source.below(f"{ROLLOUT}.engine_kwargs.{spec.name}")
    of_no_engine, of_others = _of_other_engines(source, spec.name)
    shown = ", ".join(f"{name} {value}" for name, value in config.items())
    settings = {f"{at}.{name}": value for name, value in config.items()}
    return replace(
        quantised, settings=settings, text=f"{at}: {shown}.", lost=lost | of_others, idle=idle | of_no_engine
    )


def _quantization(source: SourceLookup, share: str) -> CombinedKeys:
    """The engine's own argument for weights of eight bits, if the script asks for them. `share` tells the engine."""
    asked = source(_QUANTIZATION)
    if asked in (None, False):
        return CombinedKeys({}, "")
    if share not in _EIGHT_BITS or asked not in (True, "fp8"):
        text = "engines have the policy's number format, or fp8 with vLLM"
        return CombinedKeys({}, "", changes={_QUANTIZATION: text})
    said = "the engine quantises what it is sent"
    return CombinedKeys(_EIGHT_BITS[share], "", differences={_QUANTIZATION: said})


def _of_other_engines(source: SourceLookup, engine: str) -> tuple[dict[str, str], dict[str, str]]:
    """Arguments of engines that are not asked for, and of one that another stands in for."""
    at, named = f"{ROLLOUT}.engine_kwargs", str(source(f"{ROLLOUT}.name"))
    idle, lost = dict[str, str](), dict[str, str]()
    for key in source.below(at):
        owner, dot, _ = key.partition(".")
        if dot and owner not in (engine, named):
            idle[f"{at}.{key}"] = f"of another engine than rollout.name: {named}"
        elif dot and owner != engine:
            lost[f"{at}.{key}"] = f"{engine} stands in for {named} and has no such argument"
    return idle, lost


_QUANTIZATION = f"{ROLLOUT}.quantization"
_EIGHT_BITS: Mapping[str, Mapping[str, str]] = {"gpu_memory_utilization": {"quantization": "fp8_per_block"}}

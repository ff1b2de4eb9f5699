"""Faults, each a small patch of a function, and what every check says of a copy of roll that has one. No torch here:
`broken/sitecustomize.py` imports this in every process of a check, also those of Ray and of engines."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tests.gpu.check import Check, Figures

VARIABLE = "ROLL_GPU_FAULT"  # the fault's number in FAULTS, for every process of a check
_SITE = Path(__file__).resolve().parent / "broken"

Break = Callable[[Any], Any]  # from what is patched to what takes its place


@dataclass(frozen=True)
class Finding:
    """What a check says of a fault. `says`: parts of its reason, names of figures as a rule. `arguments`: in place of
    the check's own, for a shorter run. `on_gpus`: figures that are judged on GPUs alone, and here as well."""

    says: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    on_gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """`patches`: by "module:attribute". `found`: by the names of checks."""

    name: str
    patches: Mapping[str, Break]
    found: Mapping[str, Finding]


def says(*parts: str, on_gpus: tuple[str, ...] = (), **arguments: Any) -> Finding:
    return Finding(parts, arguments, on_gpus)


# Ways to break a function.


def _instead(value: Any) -> Break:
    """Returns this, whatever it is called with."""
    return lambda original: lambda *args, **kwargs: value


def _then(change: Callable[..., Any]) -> Break:
    """change(result, *arguments) in place of the result."""

    def of(original: Any) -> Any:
        return wraps(original)(lambda *args, **kwargs: change(original(*args, **kwargs), *args))

    return of


def _first(change: Callable[..., Any]) -> Break:
    """The arguments are change(*arguments)."""
    return lambda original: wraps(original)(lambda *args, **kwargs: original(*change(*args), **kwargs))


def _larger_gradients(output: Any, *arguments: Any) -> Any:
    """Log-probs as they are, whose gradients are 10 % larger."""
    return (output[0] + 0.1 * (output[0] - output[0].detach()), *output[1:])


def _as_one_row(query: Any, key: Any, value: Any, starts: Any, *others: Any) -> tuple[Any, ...]:
    return (query, key, value, starts[[0, -1]], *others)


def _last_is_zero(back: Any) -> Any:
    """Of the tensors that come back from host memory."""

    def broken(copies: Any, tensors: Any) -> None:
        tensors = list(tensors)
        back(copies, tensors)
        for tensor in tensors[-1:]:
            tensor.detach().zero_()

    return broken


def _the_last_counts(attach: Any) -> Any:
    """Gradients of a place that comes often do not add up."""

    def broken(ctx: Any, gradient: Any) -> Any:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.shape).index_copy_(0, places, gradient), None

    return broken


def _as_at_first(read: Any) -> Any:
    """Every weight as it came the first time."""
    known: dict[str, Any] = {}

    def broken(flat: Any, index: Any) -> Any:
        for name, tensor in read(flat, index):
            yield name, known.setdefault(name, tensor.clone())

    return broken


def _later(sample: Any) -> Any:
    async def broken(*arguments: Any) -> Any:
        await asyncio.sleep(1)
        return await sample(*arguments)

    return broken


def _likeliest(result: Any, *arguments: Any) -> None:
    sampler: Any = sys.modules["sglang.srt.layers.sampler"]
    sampler.multinomial_with_seed = lambda logs, *_: logs.argmax(-1, keepdim=True)


def _lose_the_last_norm(result: Any, worker: Any) -> None:
    dict(worker.model_runner.get_model().named_parameters())["model.norm.weight"].data.zero_()


FAULTS: tuple[Fault, ...] = (
    Fault(
        "packed rows see those before them",
        {"roll.models.sequences.packed_attention:_row_by_row": _first(_as_one_row)},
        {
            "packed-attention": says("output_gap", "gradient_gap"),
            "train-fsdp2-packed": says("a row is off by"),
            "train-zero3-packed": says("a row is off by"),
        },
    ),
    Fault(
        "descendants see nothing above them in a tree",
        {
            "roll.models.sequences.tree_attention:_merged": _first(
                lambda query, key, value, kernel, calls, scale: (query, key, value, kernel, calls[:1], scale)
            )
        },
        {
            "tree-attention": says("output_gap_bf16", "gradient_gap_bf16", "output_gap_fp32", "gradient_gap_fp32"),
            "train-fsdp2-trees": says("use_prefix_sharing does not work"),
        },
    ),
    Fault(
        "gradients of a token that rows share do not add up",
        {"roll.models.sequences.layout:_Rows.backward": _the_last_counts},
        {
            "tree-updates": says("grad_norm_to_packs_least"),
            "train-fsdp2-trees": says("gradient_difference", "grad_norm_difference"),
        },
    ),
    Fault(
        "gradients are 10 % larger",
        {"roll.models.hf:TokenLogProbModel.forward": _then(_larger_gradients)},
        {
            "families": says("gradient_gap", kinds=["mistral"]),
            "train-zero2": says("gradient_difference", "grad_norm_difference"),
            "train-lora-fsdp2": says("gradient_difference", "grad_norm_difference"),
            "train-fsdp2-moe": says("gradient_difference", "grad_norm_difference"),
            "lora-experts": says("gradient_difference", "grad_norm_difference"),
            "router-replay": says("gradient_difference"),
            "mfu-0.5b": says("grad_norm_to_plain"),
        },
    ),
    Fault(
        "the last weight comes back from host memory as zeros",
        {"roll.distributed.strategy.host_copies:HostCopies.bring_back": _last_is_zero},
        {
            "train-fsdp2": says("trip_difference"),
            "train-zero0": says("trip_difference"),
            "train-megatron": says("trip_difference"),
            "memory-megatron": says("moved_after_trip"),
            "weight-copies": says("same_fraction"),
        },
    ),
    Fault(
        "the temperature is ignored",
        {
            "roll.models.hf:LogProbHead.request": _first(lambda head, kind, temperature=1.0: (head, kind)),
            "roll.distributed.strategy.megatron.last_stage:_share": _first(lambda ask, temperature: (ask, 1.0)),
        },
        {
            name: says("log_prob_gap_max")
            for name in ("score-hf", "score-zero0", "score-zero3", "score-fsdp2", "score-megatron")
        },
    ),
    Fault(
        "exact passes are as large as their rows",
        {
            "roll.models.exact.sizes:multiple_of_tokens": _instead(1),
            "roll.models.exact.check:check_exact": _instead(None),
            "roll.distributed.strategy.hf.exact_decoder:ExactDecoder.check": _instead(None),
        },
        {"exact-passes": says("differing_tokens", kinds=["qwen2"])},
    ),
    Fault(
        "products of the head's gradient are 5 % larger",
        {"roll.models.head_scores:_wide_product": _then(lambda product, *_: 1.05 * product)},
        {"head-tiles": says("gradient_gap")},
    ),
    Fault(
        "engines keep the weights that came first",
        {"roll.distributed.weights.bucket:read_bucket": _as_at_first},
        {
            name: says("gap_to_moved", "log_prob_gap_max")
            for name in ("ipc-fsdp2", "ipc-zero3", "ipc-megatron", "ipc-lora-fsdp2")
        }
        | {name: says("gap_to_moved", "log_prob_gap_mean") for name in ("ipc-fsdp2-0.5b", "ipc-lora-7b")}
        | {
            "run-hf_infer-shared-memory": says("log_prob_gap_mean", "log_prob_gap_max"),
            "run-hf_infer-exact": says("exact_log_probs"),
            "run-vllm-shared-broadcast": says("log_prob_gap_mean", "log_prob_gap_max"),
            "run-sglang-shared-memory": says("log_prob_gap_mean", "log_prob_gap_max"),
            "engine-death": says("log_prob_gap_max", engine="hf_infer"),
        },
    ),
    Fault(
        "vLLM drops the weights that are sent",
        {
            "roll.distributed.strategy.vllm.worker_extension:LayerwiseUpdate.begin": _instead(None),
            "roll.distributed.strategy.vllm.worker_extension:LayerwiseUpdate.add": _instead(None),
            "roll.distributed.strategy.vllm.worker_extension:LayerwiseUpdate.finish": _instead([]),
        },
        {
            "engine-vllm-fp8": says("log_prob_gap_after", "gap_to_moved", "moved_mean"),
            "vllm-attention": says("log_prob_gap_after", "gap_to_moved", "moved_mean", kinds=["olmo3"]),
            "vllm-experts": says("log_prob_gap_after", "gap_to_moved", "moved_mean", kinds=["qwen3_moe"]),
        },
    ),
    Fault(
        "vLLM answers late, wakes with other weights and reports other log-probs",
        {
            "roll.distributed.strategy.vllm.generate:VllmStrategy._sample": _later,
            "roll.distributed.strategy.vllm.generate:to_generation": _then(
                lambda answer, *_: replace(answer, log_probs=1.05 * answer.log_probs)
            ),
            "roll.distributed.strategy.engine_strategy:EngineStrategy.offload_states": _then(
                lambda _, of, *states: of._wait(of.heartbeat())
            ),
            "roll.distributed.strategy.vllm.worker_extension:RollWorkerExtension.roll_heartbeat": _then(
                _lose_the_last_norm
            ),
        },
        {"engine-vllm-tp1": says("log_prob_gap_mean", "same_after_sleep_fraction", "to_bare", on_gpus=("to_bare",))},
    ),
    Fault(
        "advantages have the other sign",
        {"roll.algorithms.objectives:ClippedRatio.__call__": _then(lambda objective, *_: -objective)},
        {"learns-hf": says("validation_gain")},
    ),
    Fault(
        "SGLang takes the likeliest token for a sample",
        {"roll.distributed.strategy.sglang.patches:install_patches": _then(_likeliest)},
        {"sglang-hash": says("likeliest_fraction")},
    ),
    Fault(
        "a broadcast group waits before it closes",
        {"roll.distributed.weights.broadcast_group:BroadcastGroup.close": _then(lambda *_: time.sleep(21))},
        {"broadcast-death": says("sender_s", "receiver_s")},
    ),
    Fault(
        "a rank sees the positions of another one",
        {"roll.models.megatron.layers:zigzag": _first(lambda length, size, rank, *of: (length, size, 0, *of))},
        {"context-parallel-16k": says("log_prob_gap_mean", "log_prob_gap_max")},
    ),
)


# How a fault gets into processes.


def broken(place: Any, fault: str, function: str, arguments: Mapping[str, Any]) -> Figures:
    """The figures of a check, `function` with its arguments, in processes that have this fault."""
    from roll.utils.imports import resolve

    path = os.pathsep.join([str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {VARIABLE: fault, "PYTHONPATH": path}
    install_from_environment()
    check: Any = resolve(function)
    return check(place, **arguments)


def broken_check(fault: Fault, check: Check) -> Check:
    """This check of a copy that has the fault."""
    finding = fault.found[check.name]
    limits = {
        name: replace(limit, cuda_only=limit.cuda_only and name not in finding.on_gpus)
        for name, limit in check.limits.items()
    }
    arguments = {**check.arguments, **finding.arguments}
    return replace(
        check,
        function=f"{__name__}:broken",
        arguments={"fault": fault.name, "function": check.function, "arguments": arguments},
        limits=limits,
    )


def install_from_environment() -> None:
    if name := os.environ.get(VARIABLE):
        fault = next(fault for fault in FAULTS if fault.name == name)
        for where, by in fault.patches.items():
            module, attribute = where.split(":")
            _install(module, attribute, by)


def _install(module: str, attribute: str, by: Break) -> None:
    """Now, or when the module is imported."""
    if module in sys.modules:
        _patch(sys.modules[module], attribute, by)
    else:
        sys.meta_path.insert(0, _Patching(module, attribute, by))


def _patch(module: Any, attribute: str, by: Break) -> None:
    *owners, name = attribute.split(".")
    owner = module
    for each in owners:
        owner = vars(owner)[each]
    original = vars(owner)[name]
    is_static = isinstance(original, staticmethod)
    setattr(owner, name, staticmethod(by(original.__func__)) if is_static else by(original))


class _Patching(MetaPathFinder):
    """Finds one module as it is found without this, and patches it once it has run."""

    def __init__(self, module: str, attribute: str, by: Break):
        self._module, self._attribute, self._by = module, attribute, by

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_patch(module: Any) -> None:
            run(module)
            _patch(module, self._attribute, self._by)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec

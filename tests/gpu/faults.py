"""Faults, each a small patch of a function, and what every check says of a copy of roll that has one. No torch here:
`broken/sitecustomize.py` imports this in every process of a check, also those of Ray and of engines."""

from __future__ import annotations

import asyncio
import importlib.util
import math
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
    limit_s: float = 0.0


@dataclass(frozen=True)
class Fault:
    """`patches`: by "module:attribute". `found`: by the names of checks."""

    name: str
    patches: Mapping[str, Break]
    found: Mapping[str, Finding]


def says(*parts: str, on_gpus: tuple[str, ...] = (), limit_s: float = 0.0, **arguments: Any) -> Finding:
    return Finding(parts, arguments, on_gpus, limit_s)


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


def _forget(optimizer: Any) -> None:
    """Zeroes the moments of torch's optimizer."""
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            if name in state:
                state[name].zero_()


def _forget_in_deepspeed(engine: Any) -> None:
    optimizer = engine.optimizer
    _forget(getattr(optimizer, "optimizer", optimizer))


def _forget_in_megatron(optimizer: Any) -> None:
    for part in optimizer.chained_optimizers:
        if part.optimizer is not None:
            _forget(part.optimizer)


def _lose_gradients(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * 0)


def _keep_a_copy(result: Any, strategy: Any, weights: Any) -> Any:
    """Of the weights, beside them."""
    strategy.copy_of_weights = [weight.detach().clone() for weight in weights]
    return result


def _at_rate(factor: float) -> Callable[..., tuple[Any, ...]]:
    def change(module: Any, args: Any, *others: Any) -> tuple[Any, ...]:
        return module, args.model_copy(update={"learning_rate": args.learning_rate * factor}), *others

    return change


def _change_a_weight(result: Any, strategy: Any, *arguments: Any) -> None:
    next(iter(strategy.model.module.parameters())).data.mul_(1.2)


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


def _other_hashes(result: Any, *arguments: Any) -> None:
    sampler: Any = sys.modules["sglang.srt.layers.sampler"]
    hashes = sampler.murmur_hash32
    sampler.murmur_hash32 = lambda *given: hashes(*given) ^ 1


def _likeliest(result: Any, *arguments: Any) -> None:
    sampler: Any = sys.modules["sglang.srt.layers.sampler"]
    sampler.multinomial_with_seed = lambda logs, *_: logs.argmax(-1, keepdim=True)


def _without_seeds(result: Any, *arguments: Any) -> None:
    sampler: Any = sys.modules["sglang.srt.layers.sampler"]
    sampler.multinomial_with_seed = lambda logs, *_: logs.exp().multinomial(1)


def _lose_the_last_norm(result: Any, worker: Any) -> None:
    dict(worker.model_runner.get_model().named_parameters())["model.norm.weight"].data.zero_()


def _one_as_at_first(read: Any) -> Any:
    """One matrix of the last layer as it came the first time."""
    known: dict[str, Any] = {}

    def broken(flat: Any, index: Any) -> Any:
        for name, tensor in read(flat, index):
            is_old = name.endswith("layers.1.mlp.down_proj.weight")
            yield name, known.setdefault(name, tensor.clone()) if is_old else tensor

    return broken


_NO_NUMBERS = _then(lambda output, *arguments: output * math.nan)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "packed rows have no window",
        {
            "roll.models.sequences.packed_attention:_band": _first(
                lambda length, window, device: (length, length, device)
            )
        },
        {
            "packed-attention": says("output_gap", "gradient_gap"),
            "families": says("log_prob_gap_max", "gradient_gap", kinds=["mistral"]),
        },
    ),
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
        "attention of packed rows gives no numbers",
        {"roll.models.sequences.packed_attention:_row_by_row": _NO_NUMBERS},
        {"packed-attention": says("output_gap is nan", "gradient_gap is nan")},
    ),
    Fault(
        "attention of trees gives no numbers",
        {"roll.models.sequences.tree_attention:_merged": _then(lambda of, *_: (of[0] * math.nan, of[1]))},
        {"tree-attention": says("output_gap_bf16 is nan", "gradient_gap_fp32 is nan")},
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
            "prefix-sharing": says("use_prefix_sharing does not work"),
            "train-fsdp2-trees": says("use_prefix_sharing does not work"),
        },
    ),
    Fault(
        "gradients of a token that rows share do not add up",
        {"roll.models.sequences.layout:_Rows.backward": _the_last_counts},
        {
            "prefix-sharing": says("gradient_difference"),
            "tree-updates": says("grad_norm_to_packs_least"),
            "train-fsdp2-trees": says("gradient_difference", "grad_norm_difference"),
        },
    ),
    Fault(
        "trees are packs",
        {
            "roll.models.sequences.tree:forest_of": _first(
                lambda keys, calls=None, least=32: (keys, calls, 10**9 if least else 0)
            )
        },
        {"prefix-sharing": says("tokens_to_distinct"), "tree-updates": says("tokens_to_distinct")},
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
        "gradients of several ranks stay apart",
        {
            "roll.distributed.strategy.fsdp2.sharding:average_experts": _instead(None),
            "roll.distributed.strategy.megatron.optimizer:_finalize": _instead(None),
        },
        {
            name: says("gradient_difference")
            for name in ("train-fsdp2-ep2", "train-megatron-tp2", "train-megatron-pp2", "train-megatron-cp2")
        },
    ),
    Fault(
        "updates take a 10 % larger rate",
        {
            "roll.distributed.strategy.optimizer:optimizer_of": _first(_at_rate(1.1)),
            "roll.distributed.strategy.megatron.optimizer:Updater._set": _first(lambda of, rate: (of, 1.1 * rate)),
        },
        {
            name: says("weight_difference")
            for name in ("train-fsdp2", "train-zero3", "train-lora-zero2", "train-megatron", "lora-experts")
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
        "moments are lost on a trip to host memory",
        {
            "roll.distributed.strategy.fsdp2.train:Updater.load": _then(lambda _, of: _forget(of.optimizer)),
            "roll.distributed.strategy.deepspeed.rank:Offload.to_device": _then(
                lambda _, of, *states: _forget_in_deepspeed(of._engine)
            ),
            "roll.distributed.strategy.megatron.train:Offload.to_device": _then(
                lambda _, of, *states: _forget_in_megatron(of._optimizer)
            ),
        },
        {
            name: says("trip_difference")
            for name in ("train-fsdp2", "train-zero2", "train-zero3", "train-lora-fsdp2", "train-megatron-distributed")
        },
    ),
    Fault(
        "gradients are lost after a trip to host memory",
        {
            "roll.distributed.strategy.deepspeed.rank:Offload.to_device": _then(
                lambda _, of, *states: _lose_gradients(of._engine.module.parameters())
            ),
            "roll.distributed.strategy.megatron.train:Offload.to_device": _then(
                lambda _, of, *states: [_lose_gradients(chunk.module.parameters()) for chunk in of._chunks]
            ),
        },
        {name: says("grad_norm_after_trip") for name in ("train-zero0", "train-megatron-packed", "memory-megatron")},
    ),
    Fault(
        "checkpoints come without moments",
        {
            "roll.distributed.strategy.fsdp2.train:load": _then(
                lambda _, directory, rank, updater: _forget(updater.optimizer)
            ),
            "roll.distributed.strategy.deepspeed.train:load": _then(
                lambda _, engine, *others: _forget_in_deepspeed(engine)
            ),
            "roll.distributed.strategy.megatron.checkpoint:load": _then(
                lambda _, directory, chunks, updater, *others: _forget_in_megatron(updater.optimizer)
            ),
        },
        {
            name: says("resume_difference")
            for name in ("train-fsdp2", "train-zero1", "train-zero3", "train-megatron", "train-megatron-distributed")
        },
    ),
    Fault(
        "gradients stay between updates",
        {"torch.optim.optimizer:Optimizer.zero_grad": lambda zero: lambda of, set_to_none=True: zero(of, False)},
        {"memory-fsdp2": says("held_to_planned")},
    ),
    Fault(
        "a copy of the weights stays",
        {
            "roll.distributed.strategy.deepspeed.train:DeepSpeedTrainStrategy.train_step": _then(
                lambda result, of, *_: _keep_a_copy(
                    result, of, [getattr(weight, "ds_tensor", weight) for weight in of.model.module.parameters()]
                )
            ),
            "roll.distributed.strategy.megatron.train:MegatronTrainStrategy.train_step": _then(
                lambda result, of, *_: _keep_a_copy(result, of, [w for c in of.model.chunks for w in c.parameters()])
            ),
        },
        {
            "memory-zero2": says("held_to_planned"),
            "memory-zero3": says("held_to_planned", settings={"stage": 3, "reduce_bucket_size": 100_000}),
            "memory-megatron": says("held_to_planned"),
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
        "log-probs are no numbers",
        {"roll.models.hf:TokenLogProbModel.forward": _then(lambda of, *_: (of[0] * math.nan, *of[1:]))},
        {
            "score-hf": says("log_prob_gap_max is nan", "trip_difference is nan"),
            "families": says(
                "log_prob_gap_max is nan", "gradient_gap is nan", "bf16_gap_to_plain is nan", kinds=["mistral"]
            ),
            "train-fsdp2": says("not finite"),
            "mfu-0.5b": says("not finite"),
        },
    ),
    Fault(
        "scorers come back with another weight",
        {
            "roll.distributed.strategy.hf.score:HfScoreStrategy.load_states": _then(_change_a_weight),
            "roll.distributed.strategy.deepspeed.score:DeepSpeedScoreStrategy.load_states": _then(_change_a_weight),
            "roll.distributed.strategy.fsdp2.score:Fsdp2ScoreStrategy.load_states": _then(_change_a_weight),
        },
        {name: says("trip_difference") for name in ("score-hf", "score-zero0", "score-fsdp2")},
    ),
    Fault(
        "adapters of experts count 10 % more",
        {
            "roll.features.lora.experts:ExpertAdapters.__init__": _first(
                lambda of, experts, names, rank, scale, dropout: (of, experts, names, rank, 1.1 * scale, dropout)
            )
        },
        {"lora-experts": says("gradient_difference", "weight_difference")},
    ),
    Fault(
        "given experts are not obeyed",
        {"roll.models.routers:RouterReplay.give": _first(lambda of, routes: (of, None))},
        {"router-replay": says("wrong_rows", "log_prob_gap_max")},
    ),
    Fault(
        "decoded tokens stand one place further",
        {
            "roll.distributed.strategy.hf.decoder:Decoder.decode": _first(
                lambda of, ids, positions, *others: (of, ids, positions + 1, *others)
            )
        },
        {
            "families": says("sampled_gap_max", kinds=["mistral"]),
            "ipc-fsdp2": says("log_prob_gap_max", "gap_to_moved"),
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
        "a micro batch is left out",
        {
            "roll.distributed.strategy.fsdp2.train:Fsdp2TrainStrategy.train_step": _first(
                lambda of, batches, *others: (of, batches[:-1] or batches, *others)
            )
        },
        {"mfu-0.5b": says("grad_norm_to_plain")},
    ),
    Fault(
        "updates take no step",
        {"roll.distributed.strategy.optimizer:optimizer_of": _first(_at_rate(0.0))},
        {
            "mfu-0.5b": says("moved"),
            "memory-fsdp2": says("moved_after_trip"),
            "train-lora-fsdp2": says("moved_after_trip", "weight_difference"),
            "ipc-lora-7b": says("moved"),
            "run-hf_infer-lora": says("moved"),
        },
    ),
    Fault(
        "an update waits",
        {"roll.distributed.strategy.fsdp2.train:Updater.step": _then(lambda facts, *_: time.sleep(0.5) or facts)},
        {"mfu-0.5b": says("time_to_plain", on_gpus=("time_to_plain",))},
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
        "a sender reports the version of the start",
        {
            "roll.distributed.executor.weights.sender:WeightSender.send": _then(
                lambda versions, *_: versions and [0 for _ in versions]
            )
        },
        {"ipc-zero3": says("the sampler reports [0]"), "ipc-overlap": says("the samplers report [0, 0]")},
    ),
    Fault(
        "engines keep a matrix that came first",
        {"roll.distributed.weights.bucket:read_bucket": _one_as_at_first},
        {
            "ipc-fsdp2": says("log_prob_gap_max"),
            "ipc-fsdp2-0.5b": says("gap_to_moved"),
            "run-hf_infer-fsdp2": says("log_prob_gap_mean"),
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
        "SGLang's kernel makes other hashes",
        {"roll.distributed.strategy.sglang.patches:install_patches": _then(_other_hashes)},
        {"sglang-hash": says("equal_fraction")},
    ),
    Fault(
        "SGLang takes the likeliest token for a sample",
        {"roll.distributed.strategy.sglang.patches:install_patches": _then(_likeliest)},
        {"sglang-hash": says("likeliest_fraction")},
    ),
    Fault(
        "SGLang's samples do not follow their seeds",
        {"roll.distributed.strategy.sglang.patches:install_patches": _then(_without_seeds)},
        {"sglang-hash": says("repeated_fraction", "top_p_repeated_fraction")},
    ),
    Fault(
        "SGLang's responses come late",
        {"roll.distributed.strategy.sglang.generate:SglangStrategy._sample": _later},
        {"engine-sglang-tp1": says("to_bare", on_gpus=("to_bare",))},
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
        limit_s=finding.limit_s or check.limit_s,
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

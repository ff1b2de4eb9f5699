"""Lets unmodified megatron-core run without CUDA. On a machine with CUDA nothing in this file does anything.

megatron-core speaks to `torch.cuda` directly. Torch itself is left alone: modules of `megatron.core` refer to torch by
a global of their own, and that global is rebound to a stand-in which answers "cpu" where they ask for the current CUDA
device and does nothing where they ask for streams. What a stand-in cannot reach (tensor methods, asserts on
`tensor.type()`) has a named fix below. `tests/unit/platforms/cpu_stand_ins/test_megatron.py` lists every place in
megatron-core that speaks of CUDA, so that an upgrade which adds one is noticed."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from roll.utils.imports import replaced

CPU = torch.device("cpu")

# Every module of megatron-core that the strategies use, imported while `torch.compile` is inert: megatron decorates
# with it at import, and on a CPU that would start a C++ compiler for minutes.
MODULES = (
    "dist_checkpointing", "dist_checkpointing.exchange_utils", "dist_checkpointing.serialization",
    "dist_checkpointing.strategies.filesystem_async", "dist_checkpointing.strategies.fully_parallel",
    "dist_checkpointing.strategies.torch", "distributed", "distributed.distributed_data_parallel",
    "distributed.finalize_model_grads", "distributed.param_and_grad_buffer", "models.common.embeddings.rope_utils",
    "models.common.embeddings.rotary_pos_embedding", "models.common.embeddings.yarn_rotary_pos_embedding",
    "models.common.language_module.language_module", "models.gpt.gpt_layer_specs", "models.gpt.gpt_model",
    "models.gpt.moe_module_specs", "optimizer", "optimizer.clip_grads", "optimizer.distrib_optimizer",
    "optimizer.grad_scaler", "optimizer.optimizer", "parallel_state", "pipeline_parallel.p2p_communication",
    "pipeline_parallel.schedules", "rerun_state_machine", "tensor_parallel.cross_entropy", "tensor_parallel.layers",
    "tensor_parallel.mappings", "tensor_parallel.random", "timers", "transformer.dot_product_attention",
    "transformer.moe.experts", "transformer.moe.moe_layer", "transformer.moe.router", "transformer.moe.shared_experts",
    "transformer.moe.token_dispatcher", "transformer.multi_latent_attention", "utils",
)  # fmt: skip

_FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "full", "full_like", "ones", "ones_like", "rand", "randint", "randn",
    "tensor", "zeros", "zeros_like",
)  # fmt: skip


def _is_cuda(device: object) -> bool:
    kind = device.type if isinstance(device, torch.device) else device
    return isinstance(kind, str) and kind.startswith("cuda")


class _Nothing:
    """A stream, an event or a range of a profile: everything that is asked of it does nothing."""

    def __init__(self, *args: Any, **options: Any):
        pass

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *args, **options: self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *args: Any) -> None:
        pass


class _CudaStandIn(types.ModuleType):
    """`torch.cuda` where there is none: the current device is the CPU, streams are nothing, the generator is the
    CPU's."""

    nvtx = _Nothing()
    Stream = Event = current_stream = default_stream = stream = synchronize = empty_cache = _Nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return CPU

    def get_rng_state(self, *args: Any, **options: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *args: Any, **options: Any) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)


class _PinnedOnCpu(torch.Tensor):
    """A tensor that was asked for in pinned memory in order to be sent to the GPU at once."""

    def cuda(self, *args: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def _factory(name: str) -> Callable[..., torch.Tensor]:
    real = getattr(torch, name)

    def make(*args: Any, **options: Any) -> torch.Tensor:
        if _is_cuda(options.get("device")):
            options["device"] = CPU
        if options.pop("pin_memory", False):
            return real(*args, **options).as_subclass(_PinnedOnCpu)
        return real(*args, **options)

    return make


class _TorchStandIn(types.ModuleType):
    """`torch` as modules of megatron-core see it."""

    def __init__(self) -> None:
        super().__init__("torch without cuda")
        self.cuda = _CudaStandIn("torch.cuda without cuda")
        for name in _FACTORIES:
            setattr(self, name, _factory(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *args: Any, **options: Any) -> torch.device:
        return CPU if args and _is_cuda(args[0]) else torch.device(*args, **options)

    def autocast(self, device_type: str, *args: Any, **options: Any) -> Any:
        return torch.autocast("cpu" if device_type == "cuda" else device_type, *args, **options)


_STAND_IN = _TorchStandIn()


def install() -> bool:
    """Imports megatron-core so that it runs here. Call it before any other import of megatron. Returns True where the
    stand-in is in use, False where CUDA is present and nothing was done."""
    if torch.cuda.is_available():
        return False
    with replaced(torch, "compile", _leave_eager):
        modules = {name: importlib.import_module(f"megatron.core.{name}") for name in MODULES}
    is_first = modules["tensor_parallel.random"].__dict__["torch"] is torch
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and module is not None and module.__dict__.get("torch") is torch:
            module.__dict__["torch"] = _STAND_IN
    if is_first:
        _share_the_cpu_generator(modules["tensor_parallel.random"])
        _take_split_sizes_as_they_are(modules["transformer.moe.token_dispatcher"])
        _clip_cpu_gradients(modules["optimizer.optimizer"])
    return True


@contextlib.contextmanager
def cuda_type_names(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Inside, `parameter.type()` of these parameters says "torch.cuda.FloatTensor": megatron's optimizers choose by
    it."""
    if torch.cuda.is_available():
        yield
        return
    named = list(parameters)
    for parameter in named:
        parameter.type = partial(_cuda_name, parameter)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for parameter in named:
            del parameter.type


@contextlib.contextmanager
def cuda_method_stays() -> Iterator[None]:
    """Inside, `tensor.cuda()` is the tensor itself: building a model and loading a checkpoint call it."""
    if torch.cuda.is_available():
        yield
        return
    with replaced(torch.Tensor, "cuda", lambda self, *args, **options: self):
        yield


def _cuda_name(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
    name = torch.Tensor.type(tensor, *args, **options)
    return name if args or options else str(name).replace("torch.", "torch.cuda.")


def _leave_eager(function: Any = None, *args: Any, **options: Any) -> Any:
    return function if callable(function) else lambda decorated: decorated


def _share_the_cpu_generator(module: Any) -> None:
    """The tracker of tensor-parallel random states reads and writes the CUDA generator; here it is the CPU's."""
    module._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    module._set_cuda_rng_state = lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
    logging.getLogger(module.__name__).addFilter(_is_not_about_the_cpu_state)


def _is_not_about_the_cpu_state(record: logging.LogRecord) -> bool:
    """The tracker warns when the CPU generator moved while it was in charge: here that is what it is for."""
    return "CPU RNG state changed" not in record.getMessage()


def _take_split_sizes_as_they_are(module: Any) -> None:
    """The all-to-all dispatcher turns its split sizes into numpy only when they lie on a GPU."""
    real = module.maybe_move_tensor_to_cpu

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        if torch.is_tensor(tensor) and not tensor.is_cuda:
            return tensor.numpy() if as_numpy else tensor
        return real(tensor, as_numpy=as_numpy, record_stream=record_stream)

    module.maybe_move_tensor_to_cpu = move


def _clip_cpu_gradients(module: Any) -> None:
    """Gradient clipping asserts that gradients are CUDA tensors."""
    real = module.clip_grad_by_total_norm_fp32

    def clip(parameters: Any, *args: Any, **options: Any) -> None:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with cuda_type_names(p.grad for p in listed if p.grad is not None):  # type: ignore[misc]
            real(listed, *args, **options)

    module.clip_grad_by_total_norm_fp32 = clip

"""Extension of vLLM's worker classes, in its own processes: weight updates in place, and an end with the owner."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo
from vllm.platforms import current_platform

from roll.distributed.strategy.vllm.args import ADAPTER_ID, OWNER_VARIABLE
from roll.distributed.strategy.vllm.corrections import (
    activate_bloom_as_trained,
    give_phimoe_its_biases,
    keep_activations_precise,
    load_corrections_of_experts,
    route_on_cpus,
    size_latent_heads,
    turn_heads_on_cpus,
)
from roll.distributed.weights.bucket import GroupSpec, decode_source
from roll.distributed.weights.transport import WeightReceiver
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.background import on_exit
from roll.utils.imports import import_external

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

# The policy's LoRA adapter in vLLM's worker, from memory: vLLM itself reads adapters from files alone (vLLM 0.32).

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_SINKS = (".sinks", ".attention_sink_bias")  # of gpt-oss, and of MiMo-V2
_STACKED = tuple(f".mlp.experts.{name}_proj{end}" for name in ("gate_up", "down") for end in ("", "_bias"))
"""Ends of the names of gpt-oss's experts, all of a layer in one tensor."""
_JOINED = {
    "_combined_gate_weight": ("gate", "shared_expert_gate"),
    "_merged_conv_weight": ("q_conv1d", "k_conv1d", "v_conv1d"),
}
"""Copies of vLLM 0.32 that it makes in the first pass, and the layers that they are made of: gates of routed and shared
experts on AMD's GPUs with VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS, convolutions of GLM-5-Next."""


class AdapterUpdate:
    """Collects A and s B of all layers, and puts them in the place of the adapter before."""

    def __init__(self, manager: LRUCacheWorkerLoRAManager):
        """Installs an adapter that adds nothing, so that every request can name it from the start."""
        self._manager = manager
        self._tensors: dict[str, torch.Tensor] = {}
        self._names: frozenset[str] = frozenset()  # of the last update
        self._install(manager._adapter_manager.create_dummy_lora(ADAPTER_ID, 1, manager.embedding_modules))

    def begin(self) -> None:
        self._tensors = {}

    def take(self, weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Store adapter weights, and return the other weights."""
        self._tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in weights if name.endswith((_A, _B))}
        return [(name, tensor) for name, tensor in weights if not name.endswith((_A, _B))]

    def finish(self) -> list[str]:
        """Names of what was not sent, and was before, or is half of an adapter. The adapter then stays the old one."""
        tensors, self._tensors = self._tensors, {}
        halves = {name.replace(_A, _B) if name.endswith(_A) else name.replace(_B, _A) for name in tensors}
        if missing := (halves | self._names) - tensors.keys() or (set() if tensors else {"adapters"}):
            return sorted(missing)
        self._names = frozenset(tensors)
        self._install(self._model(tensors))
        return []

    def _model(self, tensors: dict[str, torch.Tensor]) -> LoRAModel:
        """Build the adapter; alpha is contained in B, so it is set to the rank."""
        rank = next(len(tensor) for name, tensor in tensors.items() if name.endswith(_A))
        layers = sorted({name.removesuffix(_A).rpartition(".")[2] for name in tensors if name.endswith(_A)})
        helper = PEFTHelper(r=rank, lora_alpha=rank, target_modules=layers)
        helper.validate_legal(self._manager.lora_config)
        model: Any = self._manager._adapter_manager.model
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        adapter = LoRAModel.from_lora_tensors(
            ADAPTER_ID,
            {f"{_PREFIX}{name}": tensor for name, tensor in tensors.items()},
            helper,
            device="cpu",
            dtype=self._manager.lora_config.lora_dtype,  # type: ignore[arg-type]
            model_vocab_size=self._manager.vocab_size,
            weights_mapper=mapper.get_rename_mapper() if mapper is not None else None,
        )
        if unknown := sorted(adapter.loras.keys() - self._layers()):
            raise ValueError(f"vllm has no adapters for {', '.join(unknown[:3])}")
        return adapter

    def _layers(self) -> set[str]:
        """Layers that take an adapter, by Hugging Face's names: q, k and v of one that vLLM holds in one piece."""
        manager = self._manager._adapter_manager
        return {part for name in manager.modules for part in manager.packed_modules.get(name, [name])}

    def _install(self, model: LoRAModel) -> None:
        """Pinned: an adapter without a file could not come back once another has taken its place."""
        manager = self._manager._adapter_manager
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(model)
        manager.activate_adapter(ADAPTER_ID)
        self._manager.pin_adapter(ADAPTER_ID)


bind_stores()  # vLLM imports this before its ranks meet, and before they load the model
import_external()
load_corrections_of_experts()
keep_activations_precise()
give_phimoe_its_biases()
activate_bloom_as_trained()
size_latent_heads()
if current_platform.is_cpu():
    turn_heads_on_cpus()
    route_on_cpus()


class LayerwiseUpdate:
    """New weights for a vLLM model, layer by layer, into the memory of the old ones.

    vLLM keeps what it is given until a layer is complete, and a layer may spread over several buckets: what it still
    waits with at the end of one is copied. Some weights vLLM's models copy themselves, into the form without memory
    that a layer has meanwhile (vLLM 0.32): sinks of attention (gpt_oss.py, mimo_v2.py), which are copied again at the
    end, and gpt-oss's experts where all of a layer are one tensor, so each expert comes alone.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        model_config: ModelConfig,
        device: torch.device,
        rank: int,
        adapters: AdapterUpdate | None = None,
    ):
        self._model = model
        self._adapters = adapters
        self._model_config = model_config
        self._receiver = WeightReceiver(device, rank)
        self._device = device
        self._first_names: dict[str, str] = {}
        self._missing: set[str] = set()
        self._sinks: dict[str, torch.Tensor] = {}  # of this update, by vLLM's names
        self._stacks_experts = model_config.hf_text_config.model_type == "gpt_oss"
        self._loaded: set[str] = set()  # in this update, by vLLM's names
        self._ignored: set[str] = set()  # in this update, by the names of trainers
        self._is_first = True
        self._is_open = False
        self._is_whole = True
        self._unfinished: dict[str, int] = {}  # numbers that came for layers which a whole update leaves incomplete
        self._kernels: dict[UnquantizedFusedMoEMethod, Any] = {}

    def join(self, group: GroupSpec, first_rank: int) -> None:
        self._receiver.join(group, first_rank)

    def begin(self, whole: bool) -> None:
        if self._adapters is not None:
            self._adapters.begin()
            if not whole:
                return  # nothing else will come
        if self._is_open:  # the last update broke off: vLLM must forget the parts it collected
            self._close()
        self._is_whole = whole
        self._sinks, self._loaded, self._ignored = {}, set(), set()
        self._first_names = self._names_of_parameters()
        self._name_loaders()
        initialize_layerwise_reload(self._model)
        # Only now: layers are in the form of the checkpoint, without the scales that online quantisation adds.
        self._missing = self._first(name.replace(".base_layer.", ".") for name in self._parameter_names())
        if self._device.type == "cpu":
            self._have_experts_packed()
        self._is_open = True

    def _name_loaders(self) -> None:
        """Names loaders that are partials, as those of MiniMax-M2's norms: vLLM 0.32 asks each loader for its name, and
        no update of these models would begin."""
        for info in map(get_layerwise_info, self._model.modules()):
            for tensors in info.restore_metadata:
                for tensor in tensors.values():
                    loader: Any = getattr(tensor, "weight_loader", None)
                    if isinstance(loader, functools.partial):
                        loader.__name__ = loader.func.__name__  # type: ignore[attr-defined]

    def _parameter_names(self) -> set[str]:
        """All names of parameters that a checkpoint can hold: not the scales that attention computes itself."""
        return {
            f"{prefix}.{name}"
            for prefix, module in self._model.named_modules()
            if not is_deferred_attention_layer(module)
            for name, _ in module.named_parameters(recurse=False)
        }

    def _names_of_parameters(self) -> dict[str, str]:
        """The first name of the parameter that has this one: tied weights have two, and routers of mixtures that vLLM
        runs with transformers' code, which are also a part of the experts."""
        first: dict[int, str] = {}
        every = self._model.named_parameters(remove_duplicate=False)
        plain = [(name.replace(".base_layer.", "."), parameter) for name, parameter in every]
        return {name: first.setdefault(id(parameter), name) for name, parameter in plain}

    def _first(self, names: Iterable[str]) -> set[str]:
        return {self._first_names.get(name, name) for name in names}

    def add(self, source: dict[str, Any]) -> None:
        weights = list(self._receiver.read(decode_source(source)))
        if self._adapters is not None:
            weights = self._adapters.take(weights)
        if not weights:
            return
        if self._stacks_experts:
            weights = [each for name, tensor in weights for each in _single_experts(name, tensor)]
        load_weights: Any = self._model.load_weights
        with torch.device(self._device):
            others = self._without_biases(weights) if self._is_first else weights
            self._loaded |= load_weights(iter([each for each in others if not each[0].endswith(_SINKS)]))
            for name, sinks in [each for each in weights if each[0].endswith(_SINKS)]:
                (own_name,) = load_weights(iter([(name, sinks)]))
                self._loaded.add(own_name)
                self._sinks[own_name] = sinks.clone()
        self._keep_what_waits({tensor.untyped_storage().data_ptr() for _, tensor in weights})
        platform_of(self._device).synchronize(self._device)  # the source may be overwritten once this returns

    def _without_biases(self, weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Loads biases one by one, and returns the other weights: vLLM passes over a bias that its model has no place
        for, without a word, and would sample from another model than the trainer's."""
        others: list[tuple[str, torch.Tensor]] = []
        for name, weight in weights:
            if not name.endswith("bias") or name.endswith(_SINKS) or ".experts." in name:
                others.append((name, weight))
                continue
            own = self._model.load_weights(iter([(name, weight)]))  # type: ignore[operator]
            self._loaded |= own
            if not own:
                self._ignored.add(name)
        return others

    def _keep_what_waits(self, sources: set[int]) -> None:
        """Copies tensors in these places that vLLM holds for a layer of which more is to come."""
        for info in self._waiting().values():
            for _, call in info.loaded_weights:
                for name, value in call.arguments.items():
                    call.arguments[name] = _copied(value, sources)

    def _waiting(self) -> dict[str, LayerReloadingInfo]:
        """Layers that have got something, and are not complete."""
        infos = {name: get_layerwise_info(module) for name, module in self._model.named_modules()}
        return {name: info for name, info in infos.items() if info.can_load() and info.loaded_weights}

    def finish(self) -> list[str]:
        """Names of parameters that were not sent, and had to be; they keep their old values. Unless the update is
        whole, these are layers of which only a part came. Parameters that vLLM loaded past its update are among them:
        their new values are lost."""
        missing = [] if self._adapters is None else self._adapters.finish()
        if self._is_open:
            missing += self._finish_weights()
        self._receiver.rest()
        return sorted(missing)

    def _finish_weights(self) -> set[str]:
        unfinished = {name: info.load_numel for name, info in self._waiting().items()}
        if self._is_whole:
            self._unfinished, missing = unfinished, self._missing - self._first(self._loaded)
        else:
            missing = {name for name, numel in unfinished.items() if numel != self._unfinished.get(name)}
        missing |= {f"{name} (lost by vllm)" for name in self._lost()}
        # Not those of a layer that another rank has, or of a tower that is not loaded.
        of_layers = {name.rpartition(".")[0].rpartition(".")[0] for name in self._loaded}
        ignored = {name for name in self._ignored if name.rpartition(".")[0].rpartition(".")[0] in of_layers}
        missing |= {f"{name} (of which vllm's model has none)" for name in ignored}
        self._is_first = bool(missing)
        self._close()
        for name, sinks in self._sinks.items():  # one of each head; this rank has some of them
            own = self._model.get_parameter(name)
            own.data.copy_(sinks.narrow(0, get_tensor_model_parallel_rank() * len(own), len(own)))
        return missing

    def _lost(self) -> set[str]:
        """Names of parameters that a model says it loaded, and copied itself into the form without memory that a layer
        has until it is complete."""
        lost: set[str] = set()
        for prefix, module in self._model.named_modules(remove_duplicate=False):
            kept = {name for name, _ in get_layerwise_info(module).loaded_weights}
            without_memory = {name for name, own in module.named_parameters(recurse=False) if own.is_meta} - kept
            lost |= {f"{prefix}.{name}".replace(".base_layer.", ".") for name in without_memory}
        return lost & self._loaded - self._sinks.keys()

    def _close(self) -> None:
        """Finish the update: modules that received nothing keep their weights, without a warning."""
        untouched = [m for m in self._model.modules() if (i := get_layerwise_info(m)).can_load() and not i.load_numel]
        for module in untouched:
            get_layerwise_info(module).load_numel_total = 0
        with torch.device(self._device):
            finalize_layerwise_reload(self._model, self._model_config)
        for module in untouched:
            method = getattr(module, "quant_method", None)
            if method in self._kernels:
                method.moe_kernel = self._kernels[method]
        self._kernels.clear()
        self._renew_joined()
        if self._device.type == "cpu":
            self._repack_heads()
            self._renew_convolutions()
        self._is_open = False

    def _have_experts_packed(self) -> None:
        """vLLM's CPU kernels want the experts of a mixture packed, which is done while their kernel is made and at no
        later load: unpacked values would be taken for packed ones (vLLM 0.32). So the kernel is made again."""
        for module in self._model.modules():
            method = getattr(module, "quant_method", None)
            if isinstance(method, UnquantizedFusedMoEMethod):
                self._kernels[method] = method.moe_kernel
                method.moe_kernel = None

    def _renew_joined(self) -> None:
        """Copy weights that vLLM joins once, in the first pass, to where it computes with them (`_JOINED`)."""
        for module in self._model.modules():
            for name, parts in _JOINED.items():
                joined: torch.Tensor | None = getattr(module, name, None)
                if joined is not None:
                    weights: list[torch.Tensor] = [getattr(module, part).weight.data for part in parts]
                    joined.copy_(torch.cat([weight.flatten(1) for weight in weights]))

    def _repack_heads(self) -> None:
        """vLLM's CPU kernels multiply with a packed copy of the weight. A head tied to the embedding is loaded under
        the embedding's name only, so nothing else renews its copy (vLLM 0.32)."""
        for module in self._model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def _renew_convolutions(self) -> None:
        """Copy convolutions of Mamba where vLLM computes with them. On CPUs in bf16 it packs their weights into other
        memory, and computes with the memory of before, which no later load reaches (vLLM 0.32)."""
        for module in self._model.modules():
            weight = getattr(getattr(module, "conv1d", None), "_cpu_unpacked_conv_weight", None)
            if weight is not None and isinstance(own := getattr(module, "conv_weights", None), torch.Tensor):
                own.copy_(weight)


def _single_experts(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensor under its name, or one of each expert for gpt-oss's experts of a layer.

    Example: layers.0.mlp.experts.down_proj of 4 experts -> layers.0.mlp.experts.0.down_proj, ... .3.down_proj
    """
    if not name.endswith(_STACKED):
        return [(name, tensor)]
    of_layer, _, matrix = name.rpartition(".")
    return [(f"{of_layer}.{expert}.{matrix}", own) for expert, own in enumerate(tensor)]


def _copied(value: Any, sources: set[int]) -> Any:
    """Return an argument in which tensors whose memory is in `sources` are replaced by copies."""
    if isinstance(value, torch.Tensor):
        return value.clone() if value.untyped_storage().data_ptr() in sources else value
    if isinstance(value, tuple):
        return tuple(_copied(part, sources) for part in value)
    if isinstance(value, dict):
        return {name: _copied(part, sources) for name, part in value.items()}
    return value


class RollWorkerExtension:
    """Methods that the strategy calls on every worker by `collective_rpc`."""

    if TYPE_CHECKING:  # what the worker class it is mixed into has
        rank: int
        device: torch.device
        model_config: ModelConfig
        vllm_config: VllmConfig
        model_runner: Any

    def roll_setup(self) -> None:
        """Called once, before the others."""
        runner = self.model_runner
        adapters = AdapterUpdate(runner.lora_manager) if self.vllm_config.lora_config is not None else None
        self.roll_update = LayerwiseUpdate(runner.get_model(), self.model_config, self.device, self.rank, adapters)

    def roll_heartbeat(self) -> None:
        """Says no more than that this process is not stuck."""

    def roll_join_weight_group(self, group: dict[str, Any], first_rank: int) -> None:
        self.roll_update.join(GroupSpec(**group), first_rank)

    def roll_begin_weight_update(self, whole: bool) -> None:
        with set_current_vllm_config(self.vllm_config):
            self.roll_update.begin(whole)

    def roll_import_weights(self, source: dict[str, Any]) -> None:
        with set_current_vllm_config(self.vllm_config):
            self.roll_update.add(source)

    def roll_finish_weight_update(self) -> list[str]:
        """Kernels of mixtures and quantised layers are made anew, and look at the configuration in force."""
        with set_current_vllm_config(self.vllm_config):
            return self.roll_update.finish()


def end_with(owner_pid: int) -> None:
    """Ends this process and the engine process above it as soon as the owner is gone, however it died. vLLM's engine
    process outlives a killed parent, and its workers with it."""
    engine_pid = os.getppid()

    def end() -> None:
        if engine_pid == os.getppid() != owner_pid:
            os.kill(engine_pid, signal.SIGKILL)
        os._exit(1)

    on_exit(owner_pid, end)


# vLLM imports this module in its worker processes before they load the model, and gives no earlier hook.
if OWNER_VARIABLE in os.environ and int(os.environ[OWNER_VARIABLE]) != os.getpid():
    end_with(int(os.environ[OWNER_VARIABLE]))

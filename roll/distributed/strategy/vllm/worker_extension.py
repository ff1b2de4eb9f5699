"""What vLLM adds to its worker classes, in its own processes: weight updates in place, and an end with the owner."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from roll.distributed.strategy.vllm.args import OWNER_VARIABLE
from roll.distributed.weights.bucket import GroupSpec
from roll.distributed.weights.messages import decode_source
from roll.distributed.weights.transport import WeightReceiver
from roll.platforms.stores import bind_stores
from roll.utils.imports import import_external
from roll.utils.owner_watch import when_gone

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

bind_stores()  # vLLM imports this before its ranks meet, and before they load the model
import_external()


class LayerwiseUpdate:
    """New weights for a vLLM model, layer by layer, into the memory of the old ones.

    vLLM keeps what it is given until a layer is complete, and a layer may spread over several buckets: so it gets
    copies.
    """

    def __init__(self, model: torch.nn.Module, model_config: ModelConfig, device: torch.device, rank: int):
        self._model = model
        self._model_config = model_config
        self._receiver = WeightReceiver(device, rank)
        self._device = device
        self._missing: set[str] = set()
        self._is_open = False

    def join(self, group: GroupSpec, first_rank: int) -> None:
        self._receiver.join(group, first_rank)

    def begin(self) -> None:
        if self._is_open:  # the last update broke off: vLLM must forget the parts it collected
            self.finish()
        self._missing = {
            f"{prefix}.{name}"
            for prefix, module in self._model.named_modules()
            if not is_deferred_attention_layer(module)
            for name, _ in module.named_parameters(recurse=False)
        }
        # Tied weights have two names, of which the model lists and loads the first.
        self._missing &= {name for name, _ in self._model.named_parameters()}
        initialize_layerwise_reload(self._model)
        if self._device.type == "cpu":
            self._have_experts_packed()
        self._is_open = True

    def add(self, source: dict[str, Any]) -> None:
        def copies() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in self._receiver.read(decode_source(source)):
                yield name, tensor.clone()

        with torch.device(self._device):
            self._missing -= self._model.load_weights(copies())  # type: ignore[operator]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the source may be overwritten once this returns

    def finish(self) -> list[str]:
        """Names of parameters that were not sent; they keep their old values."""
        with torch.device(self._device):
            finalize_layerwise_reload(self._model, self._model_config)
        if self._device.type == "cpu":
            self._repack_heads()
        self._receiver.rest()
        self._is_open = False
        return sorted(self._missing)

    def _have_experts_packed(self) -> None:
        """vLLM's CPU kernels want the experts of a mixture packed, which is done while their kernel is made and at no
        later load: unpacked values would be taken for packed ones (vLLM 0.32). So the kernel is made again."""
        for module in self._model.modules():
            method = getattr(module, "quant_method", None)
            if isinstance(method, UnquantizedFusedMoEMethod):
                method.moe_kernel = None

    def _repack_heads(self) -> None:
        """vLLM's CPU kernels multiply with a packed copy of the weight. A head tied to the embedding is loaded under
        the embedding's name only, so nothing else renews its copy (vLLM 0.32)."""
        for module in self._model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


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
        self.roll_update = LayerwiseUpdate(self.model_runner.get_model(), self.model_config, self.device, self.rank)

    def roll_heartbeat(self) -> None:
        """Says no more than that this process is not stuck."""

    def roll_join_weight_group(self, group: dict[str, Any], first_rank: int) -> None:
        self.roll_update.join(GroupSpec(**group), first_rank)

    def roll_begin_weight_update(self) -> None:
        with set_current_vllm_config(self.vllm_config):
            self.roll_update.begin()

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

    when_gone(owner_pid, end)


# vLLM imports this module in its worker processes before they load the model, and gives no earlier hook.
if OWNER_VARIABLE in os.environ and int(os.environ[OWNER_VARIABLE]) != os.getpid():
    end_with(int(os.environ[OWNER_VARIABLE]))

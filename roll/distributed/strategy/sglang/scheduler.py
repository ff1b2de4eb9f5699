"""Code that runs in SGLang's own processes: its scheduler with our weight updates, which ends with its owner."""

import base64
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from safetensors import safe_open
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
from sglang.srt.managers.io_struct import (
    ContinueGenerationReqInput,
    PauseGenerationReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
)
from sglang.srt.managers.scheduler import Scheduler, run_scheduler_process
from sglang.srt.model_executor.model_runner_components.weight_updater import _unsupported_derived_weight_cache_error
from sglang.srt.runtime_context import get_model, get_parallel
from sglang.srt.utils import use_intel_amx_backend

from roll.distributed.strategy.sglang.args import REPACKS, STILL_RETIRING
from roll.distributed.strategy.sglang.patches import FusedWeights, install_patches
from roll.distributed.weights.bucket import GroupSpec, decode_source
from roll.distributed.weights.transport import WeightReceiver
from roll.errors import StrategyError
from roll.platforms.stores import bind_stores
from roll.platforms.table import platform_of
from roll.utils.background import on_exit
from roll.utils.imports import import_external

OWNER_VARIABLE = "ROLL_ENGINE_OWNER_PID"
_PAUSED_POLL_S = 0.001


def encode_message(message: object) -> str:
    """Numbers, texts, bytes, lists and dictionaries as one text: SGLang's calls carry scalars only."""
    return base64.b64encode(msgspec.msgpack.encode(message)).decode()


def decode_message(text: str) -> Any:
    return msgspec.msgpack.decode(base64.b64decode(text))


class WeightUpdate:
    """New weights for one rank's model, in place, bucket by bucket."""

    def __init__(self, runners: Callable[[], Iterable[Any]], tp_rank: int, model_path: str, device: torch.device):
        self._runners = runners
        self._receiver = WeightReceiver(device, tp_rank)
        self._device = device
        self._is_open = False
        self._is_whole = True
        self._sent: set[str] = set()
        self._expected = checkpoint_names(Path(model_path))
        config = next(iter(runners())).model.config
        self._optional = {"lm_head.weight"} if getattr(config, "tie_word_embeddings", False) else set()
        self._fused = FusedWeights(self._expected)

    def join(self, group: GroupSpec, first_rank: int) -> None:
        self._receiver.join(group, first_rank)

    def begin(self, whole: bool) -> None:
        """Raise StrategyError, before anything is written, if the model computes with copies of its weights that no
        update renews: SGLang's own calls for updates ask the same, past which our weights go."""
        for runner in self._runners():
            if reason := _unsupported_derived_weight_cache_error(runner.model):
                raise StrategyError(f"sglang cannot update this model: {reason}")
        if self._is_open:  # the last update broke off
            self._close()
        self._is_whole = whole
        self._sent.clear()
        self._fused.rest()
        for runner in self._runners():
            runner.weight_updater.begin_weight_update()
        self._is_open = True

    def add(self, source: dict[str, Any]) -> None:
        def known(weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                if self._expected is not None and name not in self._expected | self._optional:
                    raise StrategyError(f"the model has no weight {name!r}")
                self._sent.add(name)
                yield name, tensor.to(self._device)

        self._load(self._fused.pass_on(dict(known(self._receiver.read(decode_source(source))))))
        platform_of(self._device).synchronize(self._device)  # the source may be overwritten once this returns

    def finish(self) -> None:
        if rest := self._fused.rest():
            self._load(rest)
        self._close()
        self._receiver.rest()
        missing = sorted((self._expected or set()) - self._optional - self._sent)
        if missing and self._is_whole:
            raise StrategyError(f"{len(missing)} parameters were not sent: {', '.join(missing[:5])}")

    def _load(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        for runner in self._runners():
            runner.model.load_weights(weights)

    def _close(self) -> None:
        for runner in self._runners():
            runner.weight_updater.end_weight_update(run_post_load=True)
        self._is_open = False


def checkpoint_names(model_path: Path) -> frozenset[str] | None:
    """Names of all weights in a checkpoint's safetensors files: SGLang ignores names it does not know, and does not
    notice missing ones. None if there are no such files."""
    names: set[str] = set()
    for path in model_path.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    return frozenset(name for name in names if not name.endswith("rotary_emb.inv_freq")) or None


class RollScheduler(Scheduler):
    """SGLang's scheduler, with the methods that the strategy calls on every rank. They run between two forward
    passes; each returns when all ranks are done, and fails if one fails."""

    def roll_setup(self) -> None:
        """Called once, before the others."""

        def runners() -> list[Any]:
            workers = [worker for worker in (self.tp_worker, self.draft_worker) if worker is not None]
            return [runner for worker in workers for _, runner in worker.weight_update_runners()]

        self.roll_runners = runners
        runner = runners()[0]
        self.roll_on_gpu = runner.device != "cpu"
        device = torch.device(runner.device, runner.gpu_id) if self.roll_on_gpu else torch.device(runner.device)
        self.roll_update = WeightUpdate(runners, get_parallel().tp_rank, get_model().model_path, device)

    def roll_check_plain_layers(self) -> None:
        """StrategyError if the model has layers that SGLang packs anew after every update, whether new weights have
        come for them or not: those of mixtures, quantised ones."""
        modules = [m for runner in self.roll_runners() for m in runner.model.modules()]
        methods = {getattr(module, "quant_method", None) for module in modules}
        plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, type(None))
        if any(not isinstance(m, plain) for m in methods) or any(map(use_intel_amx_backend, modules)):
            raise StrategyError(REPACKS)

    def roll_heartbeat(self) -> None:
        """Says no more than that no rank is stuck."""
        self._on_all_ranks(lambda: None)

    def roll_retract(self) -> None:
        """Pauses; what runs goes back to the queue, without its keys and values."""
        self.pause_generation(PauseGenerationReqInput(mode="retract"))

    def roll_pause_in_place(self) -> None:
        """Pauses; what runs keeps its keys and values."""
        self.pause_generation(PauseGenerationReqInput(mode="in_place"))

    def roll_resume(self) -> None:
        self.continue_generation(ContinueGenerationReqInput())

    def roll_join_weight_group(self, group: str, first_rank: int) -> None:
        self._on_all_ranks(lambda: self.roll_update.join(GroupSpec(**decode_message(group)), first_rank))

    def roll_begin_weight_update(self, whole: bool) -> None:
        self._on_all_ranks(lambda: self.roll_update.begin(whole))

    def roll_import_weights(self, source: str) -> None:
        self._on_all_ranks(lambda: self.roll_update.add(decode_message(source)))

    def roll_finish_weight_update(self) -> None:
        self._on_all_ranks(self.roll_update.finish)

    def roll_flush_cache(self) -> None:
        """Drops all keys and values. Called while nothing runs. On a CPU SGLang would collect garbage as well, which
        takes its process most of a second."""
        if not self.flush_cache(empty_cache=self.roll_on_gpu):
            raise StrategyError(STILL_RETIRING)

    def roll_set_version(self, version: int) -> None:
        """Tokens from now on are of this version."""
        self.record_weight_version_change(new_version=str(version))

    def roll_release_memory(self, tags: str) -> None:
        if not self.is_fully_idle(ignore_waiting=self._engine_paused):  # SGLang would take its processes down
            raise StrategyError(STILL_RETIRING)
        self.weight_updater.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=tags.split(",")))

    def roll_resume_memory(self, tags: str) -> None:
        self.weight_updater.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=tags.split(",")))

    def _on_all_ranks(self, work: Callable[[], None]) -> None:
        """Runs `work` and exchanges failures among all ranks, since only rank 0's reply reaches the caller."""
        error: str | None = None
        try:
            work()
        except Exception as failure:
            error = str(failure) if isinstance(failure, StrategyError) else f"{type(failure).__name__}: {failure}"
        errors: list[str | None] = [None] * self.tp_group.world_size
        torch.distributed.all_gather_object(errors, error, group=self.tp_group.cpu_group)
        failures = [f"rank {rank}: {text}" for rank, text in enumerate(errors) if text is not None]
        if failures:
            raise StrategyError("; ".join(failures))

    def _record_scheduler_state_for_paused_engine(self) -> None:
        super()._record_scheduler_state_for_paused_engine()
        time.sleep(_PAUSED_POLL_S)  # SGLang's loop would take a whole core while it is paused


def run_scheduler(*arguments: Any, **options: Any) -> None:
    """The main function of a scheduler process."""
    _prepare_process()
    install_patches()
    scheduler_module.Scheduler = RollScheduler  # type: ignore[misc]
    try:
        run_scheduler_process(*arguments, **options)
    finally:
        os._exit(1)  # threads of a half-dead scheduler would keep the process, and its death is how failure is seen


def run_detokenizer(*arguments: Any, **options: Any) -> None:
    """The main function of the detokenizer process."""
    _prepare_process()
    try:
        run_detokenizer_process(*arguments, **options)
    finally:
        os._exit(1)


def _prepare_process() -> None:
    on_exit(int(os.environ[OWNER_VARIABLE]), lambda: os._exit(1))
    bind_stores()
    import_external()
    send_signal = psutil.Process.send_signal

    def send(process: psutil.Process, number: int) -> None:
        """SGLang tells its parent of a failure by SIGQUIT, which would end the whole worker; the parent sees this
        process end."""
        if number != signal.SIGQUIT:
            send_signal(process, number)

    psutil.Process.send_signal = send  # type: ignore[method-assign]

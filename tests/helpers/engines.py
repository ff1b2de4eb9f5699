"""A rollout engine in this process for tests: its event loop, requests, weight updates by every route, and the truth
by plain forward passes."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from roll.distributed.strategy.base import State
from roll.types.rollout import Generation, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    import psutil
    import torch
    from transformers import PreTrainedModel

    from roll.distributed.strategy.generate_base import GenerateStrategy

T = TypeVar("T")
ROUTES = ("memory", "broadcast", "file")
ENGINE_PROCESSES = ("VLLM", "spawn_main", "sglang::")
BUCKET_BYTES = 200_000  # the tiny model's 900 kB are several buckets, and layers lie across their borders

SMALL: dict[str, dict[str, Any]] = {
    "hf_infer": {"max_model_len": 512},
    "vllm": {"kv_cache_memory_bytes": 64 << 20, "max_model_len": 512, "max_num_seqs": 64},
    "sglang": {"context_length": 512, "max_running_requests": 64, "max_total_tokens": 16384},
}


def set_environment(name: str, num_devices: int = 1, on_cpu: bool = True) -> None:
    """What a run gives the engine's process, for this one."""
    if name == "vllm":
        from roll.distributed.strategy.vllm import args as vllm_args

        os.environ.update(vllm_args.worker_environment(on_cpu))
    if name == "sglang":
        from roll.distributed.strategy.sglang import args as sglang_args

        os.environ.update(sglang_args.worker_environment(on_cpu, num_devices))


def open_zmq_sockets() -> list[str]:
    """Of this process. What holds one when it is garbage may never be collected: its context waits for it."""
    zmq: Any = sys.modules.get("zmq")
    found = [each for each in gc.get_objects() if zmq is not None and isinstance(each, zmq.Socket)]
    return [repr(socket) for socket in found if not socket.closed]


class EngineHarness:
    """One engine, started."""

    def __init__(
        self,
        name: str,
        model_dir: Path,
        *,
        num_gpus_per_worker: int = 1,
        device: str = "cpu",
        dtype: str = "fp32",
        adapter_rank: int | None = None,
        tells_routes: bool = False,
        shows_pictures: bool = False,
        **strategy_config: Any,
    ):
        from roll.utils.imports import resolve

        self.name = name
        self.model_dir = model_dir
        self.loop = asyncio.new_event_loop()
        self.version = 0
        self._num_requests = 0
        self._group: Any = None
        config = (SMALL[name] if device == "cpu" else {}) | strategy_config
        set_environment(name, num_gpus_per_worker, device == "cpu")
        from roll.configs.strategies.table import load_spec

        strategy_class: Any = resolve(load_spec(name).classes["generate"])
        self.engine: GenerateStrategy = strategy_class(
            role(name, model_dir, num_gpus_per_worker, config, dtype),
            rank_context(device, adapter_rank, tells_routes, shows_pictures),
        )
        self.engine.setup()
        self.run(self.engine.start(), timeout_s=600)  # seconds, unless the machine is busy

    @cached_property
    def model(self) -> "PreTrainedModel":
        """In fp32, with the weights that the engine should have; loaded when it is first asked for."""
        return load_model(self.model_dir)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, timeout_s))

    def close(self) -> None:
        self.engine.shutdown()
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()

    def request(self, prompt_ids: np.ndarray, num_samples: int = 1, **sampling: Any) -> GenerationRequest:
        self._num_requests += 1
        options = {"max_new_tokens": 12, "seed": 100, "ignore_eos": True} | sampling
        return GenerationRequest(f"r{self._num_requests}", prompt_ids, SamplingParams(**options), num_samples)

    def generate(self, *requests: GenerationRequest, timeout_s: float = 60) -> list[list[Generation]]:
        async def all_of_them() -> list[list[Generation]]:
            return list(await asyncio.gather(*(self.engine.generate(request) for request in requests)))

        return self.run(all_of_them(), timeout_s)

    async def update(self, model: "PreTrainedModel", route: str, directory: Path) -> None:
        """New weights for the engine, as the trainer sends them; they have the next version."""
        await self.send(_as_published(model), route, directory, version=self.version + 1)
        self.version += 1
        self.model = model
        assert self.engine.policy_version == self.version

    async def send(
        self,
        weights: "Iterable[tuple[str, torch.Tensor]]",
        route: str,
        directory: Path,
        version: int = 10**6,
        whole: bool = True,
        bucket_bytes: int | None = None,
    ) -> None:
        from roll.distributed.weights.bucket import fill_buckets

        named = ((name, tensor.detach()) for name, tensor in weights)
        buckets = list(fill_buckets(named, bucket_bytes or BUCKET_BYTES))
        assert len(buckets) > 2 or not whole
        await self.engine.begin_weight_update(whole)
        await getattr(self, f"_send_by_{route}")(buckets, directory)
        await self.engine.finish_weight_update(version)

    def num_open_requests(self) -> int:
        """Requests that the engine behind the strategy knows of."""
        engine: Any = self.engine
        if self.name == "vllm":
            return engine._engine.output_processor.get_num_unfinished_requests()
        if self.name == "sglang":
            return len(engine._engine.tokenizer_manager.rid_to_state)
        sampler = engine._sampler
        return len(sampler._waiting) + sum(request is not None for request in sampler._table.requests)

    @contextmanager
    def keeping_kv(self) -> Iterator[None]:
        """Inside, the engine is one of a run with kv_on_update: keep."""
        engine: Any = self.engine
        before = engine._context
        engine._context = replace(before, keeps_kv=True)
        yield
        engine._context = before

    async def leave(self, states: "frozenset[State]" = frozenset(State)) -> None:
        await asyncio.to_thread(self.engine.offload_states, states)

    async def come_back(self, states: "frozenset[State]" = frozenset(State)) -> None:
        await asyncio.to_thread(self.engine.load_states, states)

    def break_engine(self) -> None:
        """vllm, sglang: their processes are killed. hf_infer: the model raises."""
        if self.name in ("vllm", "sglang"):
            for process in engine_processes():
                process.kill()
        else:
            self.engine._model.forward = None  # type: ignore[attr-defined]

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """The engine gets no further meanwhile, and does not end."""
        if self.name in ("vllm", "sglang"):
            processes = engine_processes()
            for process in processes:
                process.suspend()
            yield
            for process in processes:
                process.resume()
        else:
            go_on = threading.Event()
            self.engine._thread._post(go_on.wait)  # type: ignore[attr-defined]
            yield
            go_on.set()

    async def _send_by_memory(self, buckets: list[Any], directory: Path) -> None:
        from roll.distributed.weights.bucket import MemoryBucket, index_bucket, write_bucket
        from roll.distributed.weights.transport import SharedSegment

        indices = [index_bucket(bucket) for bucket in buckets]
        largest = max(index.num_bytes for index in indices)
        segment = SharedSegment.create(f"roll-test-{os.getpid()}-{self.version}", largest)
        try:
            for bucket, index in zip(buckets, indices, strict=True):
                write_bucket(segment.flat, bucket, index)
                await self.engine.import_weights(MemoryBucket(index, segment.name))
                segment.flat.fill_(255)  # whatever the engine keeps of it would be NaN
        finally:
            segment.close()
            segment.unlink()

    async def _send_by_broadcast(self, buckets: list[Any], directory: Path) -> None:
        import torch

        from roll.distributed.weights.broadcast_group import BroadcastGroup
        from roll.distributed.weights.bucket import BroadcastBucket, GroupSpec, index_bucket, write_bucket

        if self._group is None:
            size = 1 + self.engine.num_weight_receivers
            store = BroadcastGroup.open_store("127.0.0.1")
            spec = GroupSpec("test", "127.0.0.1", store.port, size, "gloo")
            sender = asyncio.to_thread(BroadcastGroup, spec, 0, torch.device("cpu"), store)
            self._group, _ = await asyncio.gather(sender, self.engine.join_weight_group(spec, 1))
        for bucket in buckets:
            index = index_bucket(bucket)
            flat = torch.zeros(index.num_bytes, dtype=torch.uint8)
            write_bucket(flat, bucket, index)
            send = asyncio.to_thread(self._group.broadcast, flat)
            await asyncio.gather(send, self.engine.import_weights(BroadcastBucket(index, "test")))

    async def _send_by_file(self, buckets: list[Any], directory: Path) -> None:
        from roll.distributed.weights.transport import write_file_bucket

        for number, bucket in enumerate(buckets):
            source = write_file_bucket(directory / f"{number}.safetensors", bucket)
            await self.engine.import_weights(source)
            source.path.unlink()


def engine_processes() -> "list[psutil.Process]":
    """Processes of vLLM or SGLang below this one."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if any(word in " ".join((process.name(), *process.cmdline())) for word in ENGINE_PROCESSES):
                found.append(process)
    return found


def role(
    name: str, model_dir: Path, num_gpus_per_worker: int, strategy_config: dict[str, Any], dtype: str = "fp32"
) -> Any:
    from roll.configs.sections.cluster import WorkerConfig

    return WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": str(model_dir), "dtype": dtype},
            "strategy_args": {"strategy_name": name, "strategy_config": strategy_config},
            "num_gpus_per_worker": num_gpus_per_worker,
        }
    )


def rank_context(
    device: str = "cpu",
    adapter_rank: int | None = None,
    tells_routes: bool = False,
    shows_pictures: bool = False,
) -> Any:
    import torch

    from roll.distributed.strategy.base import RankContext

    place = torch.device(device if device == "cpu" else "cuda:0")
    return RankContext(
        "actor_infer",
        0,
        1,
        0,
        seed=7,
        device=place,
        adapter_rank=adapter_rank,
        reports_routes=tells_routes,
        shows_pictures=shows_pictures,
    )


def load_model(model_dir: Path) -> "PreTrainedModel":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    sees = hasattr(AutoConfig.from_pretrained(model_dir), "vision_config")
    auto: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return auto.from_pretrained(model_dir, dtype=torch.float32).eval()


def _as_published(model: "PreTrainedModel") -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the weights as trainers send them: those of the experts of Qwen3-VL-MoE with sides exchanged, and the
    corrections of routers."""
    turns = model.config.model_type == "qwen3_vl_moe"
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias"))
    for name, parameter in model.named_parameters():
        yield name, parameter.detach().transpose(1, 2).contiguous() if turns and ".experts." in name else parameter


def changed_model(model_dir: Path, seed: int) -> "PreTrainedModel":
    """The same architecture, every parameter shifted by noise of its own size: log-probs differ by about 0.4, and fp32
    still gives them to 3e-6 (with noise five times that: 1e-5)."""
    import torch

    model = load_model(model_dir)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, length)).integers(3, 290, length).astype(np.int32)


def forward_log_probs(
    model: "PreTrainedModel", prompt_ids: np.ndarray, token_ids: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """Log-probs [T] of an answer by one forward pass without a cache, over the full distribution at the temperature; of
    a float64 model in float64, else in float32."""
    import torch

    ids = torch.from_numpy(np.concatenate([prompt_ids, token_ids]).astype(np.int64))
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_probs = torch.log_softmax(logits / temperature, -1)
    return log_probs[len(prompt_ids) - 1 : -1].gather(-1, ids[len(prompt_ids) :, None])[:, 0].numpy()


def log_probs_over_old_keys(
    old: "PreTrainedModel", new: "PreTrainedModel", prompt_ids: np.ndarray, token_ids: np.ndarray, switch: int
) -> np.ndarray:
    """Log-probs of the tokens from `switch` (at least 1) on by the new weights, which find keys and values of the old
    ones for all tokens but the one before: that enters the cache with the first of them."""
    import torch
    from transformers import DynamicCache

    ids = torch.from_numpy(np.concatenate([prompt_ids, token_ids]).astype(np.int64))[None]
    first, cache = len(prompt_ids) + switch, DynamicCache()
    with torch.no_grad():
        old(ids[:, : first - 1], past_key_values=cache, use_cache=True)
        logits = new(ids[:, first - 1 : -1], past_key_values=cache, use_cache=True).logits[0]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[0, first:, None])[:, 0].numpy()


def greedy_tokens(
    model: "PreTrainedModel", prompt_ids: np.ndarray, count: int, repetition_penalty: float = 1.0
) -> list[int]:
    """By one forward pass per token. The logits of tokens that were there before are divided by the penalty, or
    multiplied where they are negative."""
    import torch

    ids = torch.from_numpy(prompt_ids.astype(np.int64))[None]
    with torch.no_grad():
        for _ in range(count):
            logits = model(ids).logits[0, -1]
            seen = logits[ids[0]]
            logits[ids[0]] = torch.where(seen < 0, seen * repetition_penalty, seen / repetition_penalty)
            ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    return ids[0, len(prompt_ids) :].tolist()


def open_harness(name: str, model_dir: Path, **options: Any) -> Iterator[EngineHarness]:
    harness = EngineHarness(name, model_dir, **options)
    yield harness
    harness.close()

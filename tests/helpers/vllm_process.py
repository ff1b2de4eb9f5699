"""vLLM on a CPU in a process of its own, without the server around it: a small model in seconds, for tests of many.

The process is a fork of one that has imported vLLM. Arguments, worker extension, sampling parameters and buckets of
weights are those of the strategy `vllm`."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roll.distributed.strategy.vllm.args import engine_arguments, worker_environment
from roll.distributed.weights.bucket import MemoryBucket, encode_source, fill_buckets, index_bucket, write_bucket
from roll.distributed.weights.transport import SharedSegment
from roll.types.rollout import Generation, SamplingParams
from tests.helpers.engines import SMALL, role

_PRELOADED = ("vllm", "vllm.v1.worker.cpu_worker", "vllm.v1.engine.core", "vllm.model_executor.models.transformers")
_BUCKET_BYTES = 80_000
_LIMIT_S = 200.0  # of a call, on a busy machine


class VllmProcess:
    """One engine, started. `close` it."""

    def __init__(self, model_dir: Path, **strategy_config: Any):
        os.environ.update(worker_environment(on_cpu=True))  # of the process that others are forked from
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._connection, theirs = context.Pipe()
        arguments = engine_arguments(role("vllm", model_dir, 1, SMALL["vllm"] | strategy_config), True, 7)
        self._process = context.Process(target=_serve, args=(theirs, arguments), daemon=True)
        self._updates = 0
        self._process.start()
        theirs.close()
        self._receive()

    def generate(self, prompts: Sequence[np.ndarray], sampling: SamplingParams) -> list[Generation]:
        """An answer to each prompt; they are sampled together."""
        return self._call("generate", prompts, sampling)

    def update(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """New weights for all of the model, as a trainer on the same host sends them."""
        buckets = list(fill_buckets(iter(weights), _BUCKET_BYTES))
        indices = [index_bucket(bucket) for bucket in buckets]
        self._updates += 1  # the engine keeps segments open, by their names
        name = f"roll-{os.getpid()}-vllm-{self._updates}"
        segment = SharedSegment.create(name, max(index.num_bytes for index in indices))
        try:
            self._call("rpc", "roll_begin_weight_update", True)
            for bucket, index in zip(buckets, indices, strict=True):
                write_bucket(segment.flat, bucket, index)
                self._call("rpc", "roll_import_weights", encode_source(MemoryBucket(index, segment.name)))
                segment.flat.fill_(255)  # whatever the engine keeps of it would be NaN
            (missing,) = self._call("rpc", "roll_finish_weight_update")
        finally:
            segment.close()
            segment.unlink()
        assert not missing, f"not sent: {missing}"
        self._call("reset_cache")

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        return self._receive()

    def _receive(self) -> Any:
        assert self._connection.poll(_LIMIT_S), f"no reply in {_LIMIT_S} s"
        try:
            succeeded, value = self._connection.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"vllm's process died, exit code {self._process.exitcode}") from None
        if not succeeded:
            raise RuntimeError(value)
        return value


def _serve(connection: Connection, arguments: dict[str, Any]) -> None:
    try:
        engine = _Engine(arguments)
        connection.send((True, None))
        while True:
            name, call = connection.recv()
            connection.send((True, getattr(engine, name)(*call)))
    except EOFError:  # the test process is gone
        pass
    except BaseException:
        connection.send((False, traceback.format_exc()))


class _Engine:
    """What `VllmProcess` calls, in the process."""

    def __init__(self, arguments: dict[str, Any]):
        os.environ.update(worker_environment(on_cpu=True))
        torch.set_num_threads(1)
        from vllm import LLM
        from vllm.model_executor.models import registry

        registry._run_in_subprocess = lambda function: function()  # it would import vLLM again, in another process
        self._llm = LLM(**arguments)
        self._llm.llm_engine.engine_core.set_weight_version("0")
        self._llm.collective_rpc("roll_setup")

    def generate(self, prompts: Sequence[np.ndarray], sampling: SamplingParams) -> list[Generation]:
        from roll.distributed.strategy.vllm.generate import to_generation, to_vllm

        parameters = [to_vllm(sampling, index) for index in range(len(prompts))]
        inputs: Any = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        outputs = self._llm.generate(inputs, parameters, use_tqdm=False)
        return [to_generation(output.outputs[0]) for output in outputs]

    def rpc(self, method: str, *arguments: Any) -> list[Any]:
        return self._llm.collective_rpc(method, args=arguments)

    def reset_cache(self) -> None:
        self._llm.reset_prefix_cache()

"""`vllm` as a rollout engine: the real AsyncLLM, whose engine runs in processes of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.engine_strategy import (
    MEMORY_TAGS,
    EngineStrategy,
    InFlight,
    Samples,
    aborted_answer,
    check_request,
    check_sees,
)
from roll.distributed.strategy.vllm.args import (
    ADAPTER_ID,
    ADAPTER_NAME,
    OWNER_VARIABLE,
    PICTURES,
    engine_arguments,
    worker_environment,
)
from roll.distributed.weights.bucket import BucketSource, GroupSpec, encode_source
from roll.errors import EngineDied, StrategyError
from roll.models.tokenizer import EngineTokenizer
from roll.models.vision.files import vision_of
from roll.types.rollout import FinishReason, Generation, GenerationRequest, SamplingParams
from roll.utils.network import free_port

if TYPE_CHECKING:
    from vllm.inputs import EngineInput
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams as VllmSamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from roll.configs.sections.cluster import WorkerConfig
    from roll.configs.tables.sight import VisionModel

# Sampling parameters to vLLM, answers from it.

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def to_vllm(sampling: SamplingParams, index: int, placeholders: tuple[int, ...] = ()) -> VllmSamplingParams:
    """Parameters of sample `index` of a group, which is a request of its own: vLLM seeds the samples of one request
    with seed + index, so that neighbouring seeds would share samples. `placeholders` end every answer."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmSamplingParams

    return VllmSamplingParams(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_tokens=sampling.min_new_tokens,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop_strings),
        stop_token_ids=[*sampling.stop_token_ids, *placeholders],
        ignore_eos=sampling.ignore_eos,
        seed=sampling.seed_of(index),
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop_strings),
        skip_special_tokens=False,  # a stop string may name one
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def to_generation(output: CompletionOutput) -> Generation:
    from vllm.logprobs import FlatLogprobs

    reason = _FINISH_REASONS.get(output.finish_reason or "")
    if reason is None:
        raise StrategyError(f"vllm ended a request with {output.finish_reason!r}")
    num_tokens = len(output.token_ids)
    versions = np.zeros(num_tokens, np.int32)
    for span in output.weight_versions or []:
        versions[span.start : span.end] = int(span.version)
    log_probs = np.zeros(0, np.float32)
    if num_tokens:
        assert isinstance(output.logprobs, FlatLogprobs)
        log_probs = np.array(output.logprobs.logprobs, np.float32)
    return Generation(np.array(output.token_ids, np.int32), log_probs, versions, reason)


# vLLM ends a request with an error if its engine process no longer has a picture that was sent once, and sends it anew
# the next time.
_MOST_TRIES = 4


class VllmStrategy(EngineStrategy):
    """One vLLM engine on `num_gpus_per_worker` devices.

    Log-probs are of the distribution that was sampled from: with top-k, top-p, min tokens or a repetition penalty
    that is not the full one (`roll.configs.plan.engine_limits.narrowing_settings`). Requests in flight across a weight
    update are prefilled again with the new weights when they go on, unless the engine `keeps_kv`; every token says
    which version sampled it. Samples are seeded one by one, so they repeat with the seed; on a GPU only as far as
    kernels of varying batch size round alike.
    """

    def __init__(self, role: WorkerConfig, context: RankContext):
        super().__init__(role, context)
        self._engine: AsyncLLM | None = None
        self._vision: VisionModel | None = None  # set by `start`

    def setup(self) -> None:
        """Sets what the launcher has not set of `worker_environment`: vLLM's own processes inherit it."""
        for name, value in worker_environment(self._on_cpu).items():
            os.environ.setdefault(name, value)
        # Its ranks meet on the first free port from here on; one of its own choice might go to a connection first.
        os.environ.setdefault("VLLM_PORT", str(free_port()))

    async def start(self) -> None:
        where = self._context
        self._vision = vision_of(self._role.model_args)
        if self._shows_pictures and where.keeps_kv:
            raise StrategyError(
                f"{where.role}: kv_on_update: keep would also keep what the old weights saw in pictures. Set "
                "kv_on_update: recompute."
            )
        if self._shows_pictures and self._on_cpu and self._vision is not None and self._vision.facts.looks_both_ways:
            raise StrategyError(
                f"{where.role}: vllm on a CPU lets tokens of a picture attend to earlier ones alone, and those of "
                f"{self._vision.model_type} attend both ways. Use hf_infer."
            )
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = engine_arguments(
            self._role,
            self._on_cpu,
            where.seed,
            where.shares_devices,
            where.adapter_rank,
            where.most_answers,
            self._vision,
            where.shows_pictures,
        )
        self._tokenizer = EngineTokenizer(self._role.model_args)
        arguments["tokenizer"] = self._tokenizer.path
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        except Exception as error:
            raise StrategyError(f"{self._context.role}: vllm did not start: {error}") from error
        finally:
            del os.environ[OWNER_VARIABLE]
        self._loop = asyncio.get_running_loop()
        try:
            await self._rpc("roll_setup")
            async with self._failures():
                await self._engine.update_weight_version("0")
        except BaseException:
            self.shutdown()
            raise

    @property
    def _shows_pictures(self) -> bool:
        return self._vision is not None and self._context.shows_pictures

    def shutdown(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    async def check_health(self) -> None:
        async with self._failures():
            await self._running().check_health()

    async def heartbeat(self) -> None:
        await self._rpc("roll_heartbeat")

    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        await self._rpc("roll_join_weight_group", asdict(group), first_rank)

    async def import_weights(self, source: BucketSource) -> None:
        await self._rpc("roll_import_weights", encode_source(source))

    def _check(self, request: GenerationRequest) -> None:
        check_request(request, self._running().model_config.max_model_len, "max_model_len")
        check_sees(request, self._vision)
        if request.media:
            import_module(PICTURES).check_number_of_pictures(self._running(), request, self._vision)

    def _sample_name(self, request: GenerationRequest, index: int) -> str:
        return f"{request.request_id}/{index}"

    async def _sample(self, flight: InFlight, name: str, request: GenerationRequest, index: int) -> Generation:
        answers: list[Any] = []
        for _ in range(_MOST_TRIES if request.media else 1):
            if flight.is_aborted:
                return aborted_answer()
            async with self._failures():
                prompt = await self._prompt(request)
                parameters = to_vllm(request.sampling, index, self._vision.placeholders if self._vision else ())
                async for output in self._running().generate(prompt, parameters, name, lora_request=self._adapter()):
                    answers = output.outputs
            if not answers:
                raise StrategyError(f"vllm did not reply to request {request.request_id}")
            if answers[-1].finish_reason != "error":
                break
        return to_generation(answers[-1])

    async def _prompt(self, request: GenerationRequest) -> EngineInput:
        from vllm.inputs import tokens_input

        if request.media:
            assert self._vision is not None
            return await import_module(PICTURES).picture_prompt(self._running(), request, self._vision, self._cache_key)
        return tokens_input(request.prompt_ids.tolist(), cache_salt=self._cache_key)

    def _adapter(self) -> LoRARequest | None:
        """Every request has it, whose weights are 0 before the first update: in a batch that some rows of have an
        adapter, vLLM 0.32 on a CPU gives it to the others, too."""
        if self._context.adapter_rank is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(ADAPTER_NAME, ADAPTER_ID, "in memory")

    async def _abort_samples(self, samples: Samples) -> None:
        async with self._failures():
            await self._running().abort(list(samples))

    async def _stop_sampling(self) -> None:
        async with self._failures():
            # `pause_generation` is this and a sleep of 20 ms, which costs more than a small model's update.
            await self._running().engine_core.pause_scheduler_async(mode="keep", clear_cache=False)

    async def _go_on_sampling(self) -> None:
        async with self._failures():
            await self._running().resume_generation()

    async def _begin_update(self, whole: bool) -> None:
        await self._rpc("roll_begin_weight_update", whole)

    async def _finish_update(self) -> None:
        missing = sorted({name for names in await self._rpc("roll_finish_weight_update") for name in names})
        if missing:
            raise StrategyError(f"weight update: {len(missing)} parameters were not sent: {', '.join(missing[:5])}")

    async def _set_version(self, version: int) -> None:
        if not self._context.keeps_kv:
            await self._drop_cache()
        async with self._failures():
            await self._running().update_weight_version(str(version))

    async def _drop_cache(self) -> None:
        """Drops the cache, also of requests in flight: they are prefilled again. What the tower made of pictures goes
        too. Their pixels stay: they depend on no weight, and vLLM's two processes have to forget them together."""
        async with self._failures():
            await self._running().reset_prefix_cache(reset_running_requests=True)
            if self._shows_pictures:
                await self._running().reset_encoder_cache()

    async def _free_memory(self, states: frozenset[State]) -> frozenset[State]:
        """vLLM lets go of weights and key-value cache together, or of the cache alone; not of that while it has
        requests (vLLM 0.32)."""
        if self._on_cpu:
            await self._drop_cache()
            return states
        async with self._failures():
            if State.WEIGHTS in states or self._in_flight:
                await self._running().sleep(level=1, mode="keep")
                return frozenset(MEMORY_TAGS)
            await self._running().release_kv_cache_memory()
            return frozenset({State.KV_CACHE})

    async def _restore_memory(self, states: frozenset[State]) -> None:
        if self._on_cpu:
            return
        async with self._failures():
            await self._running().wake_up(sorted(MEMORY_TAGS[state] for state in states))
        await self._stop_sampling()  # a full wake has resumed the scheduler

    async def _rpc(self, method: str, *arguments: object) -> list[Any]:
        """One result per worker process."""
        async with self._failures():
            return await self._running().collective_rpc(method, args=arguments)

    def _running(self) -> AsyncLLM:
        if self._engine is None:
            raise StrategyError("vllm was used before start")
        return self._engine

    @asynccontextmanager
    async def _failures(self) -> AsyncIterator[None]:
        """Raise any error of vLLM as StrategyError."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except StrategyError:
            raise
        except EngineDeadError as error:
            raise EngineDied(f"{self._context.role}: vllm's engine process died; its log says why") from error
        except Exception as error:
            raise StrategyError(f"{self._context.role}: vllm: {type(error).__name__}: {error}") from error

"""`sglang` as a rollout engine: the real engine, whose schedulers and detokenizer are processes of their own."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from roll.configs.sections.model import ModelArgs
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.engine_strategy import (
    MEMORY_TAGS,
    EngineStrategy,
    InFlight,
    Samples,
    aborted_answer,
    check_request,
)
from roll.distributed.strategy.sglang.args import (
    REPACKS,
    SPARE_POSITIONS,
    STILL_RETIRING,
    engine_arguments,
    worker_environment,
)
from roll.distributed.weights.bucket import BucketSource, GroupSpec, encode_source
from roll.errors import StrategyError
from roll.models.tokenizer import EngineTokenizer
from roll.models.vision.files import vision_of
from roll.types.rollout import FinishReason, Generation, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from roll.configs.sections.cluster import WorkerConfig
    from roll.distributed.strategy.sglang.engine import EngineProcesses

# The experts that SGLang says tokens went to.


@dataclass(frozen=True)
class ReportedRoutes:
    """How they come: of every token of prompt and answer but the last, and of every layer, also of those that have no
    experts, `top_k` numbers of four bytes, in base64. `mixtures`: the layers that have experts."""

    num_layers: int
    top_k: int
    mixtures: tuple[int, ...]

    @classmethod
    def of(cls, args: ModelArgs) -> ReportedRoutes:
        """The routes' shape for the role's model, which is built without weights."""
        from roll.models.loading import load_model
        from roll.models.routers import mixture_layers

        model = load_model(args, "lm", empty=True).pretrained
        text = model.config.get_text_config()
        return cls(text.num_hidden_layers, text.num_experts_per_tok, mixture_layers(model))

    def read(self, meta: Mapping[str, Any]) -> np.ndarray | None:
        """int16 [tokens, layers with experts, k]; None of an answer that was cut short before it had any."""
        encoded = meta.get("routed_experts")
        if encoded is None:
            return None
        numbers = np.frombuffer(base64.b64decode(encoded), np.int32).reshape(-1, self.num_layers, self.top_k)
        chosen = numbers[:, list(self.mixtures)]
        if chosen.size and chosen.min() < 0:
            raise StrategyError("sglang does not report the experts of all tokens of a response")
        return chosen.astype(np.int16)


# Sampling parameters to SGLang, answers from it.

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def to_sglang(sampling: SamplingParams, index: int) -> dict[str, Any]:
    """Parameters of sample `index` of a group, which is a request of its own."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_new_tokens": sampling.min_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop_strings) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "ignore_eos": sampling.ignore_eos,
        "sampling_seed": sampling.seed_of(index),
        "skip_special_tokens": False,  # a stop string may name one
    }


def to_generation(answer: Any, was_aborted: bool, route_reader: ReportedRoutes | None = None) -> Generation:
    """StrategyError if SGLang ended the request for a reason of its own. `route_reader`: experts come with it."""
    meta = answer["meta_info"]
    ended = meta["finish_reason"] or {}
    reason = _FINISH_REASONS.get(ended.get("type", ""))
    if reason is None or (reason == "abort" and not was_aborted):
        raise StrategyError(f"sglang ended a request: {ended.get('message') or ended}")
    sampled = meta.get("output_token_logprobs") or []
    token_ids = [token_id for _, token_id, *_ in sampled]
    if token_ids != list(answer["output_ids"])[: len(token_ids)] or (
        reason != "abort" and len(token_ids) != len(answer["output_ids"])
    ):
        raise StrategyError("sglang's tokens and log-probs do not match")
    versions = np.zeros(len(token_ids), np.int32)
    spans = meta.get("weight_versions") or []
    if token_ids and not spans:
        raise StrategyError("sglang does not report which weights sampled a response")
    for span in spans:
        versions[span["start"] : span["end"]] = int(span["version"])
    log_probs = np.array([log_prob for log_prob, *_ in sampled], np.float32)
    routes = route_reader.read(meta) if route_reader is not None else None
    if route_reader is not None and routes is None and reason != "abort":
        raise StrategyError("sglang does not report which experts processed the tokens of a response")
    return Generation(np.array(token_ids, np.int32), log_probs, versions, reason, routes)


T = TypeVar("T")
_RETIRE_POLL_S = 0.02
_RETIRE_TIMEOUT_S = 10.0
_MAX_REPETITION_PENALTY = 2.0


class SglangStrategy(EngineStrategy):
    """One SGLang engine on `num_gpus_per_worker` devices.

    Log-probs are of the full distribution at the sampling temperature, also with top-k and top-p; min tokens and a
    repetition penalty change the distribution. A pause sets requests in flight back: they are prefilled again when
    they go on, with the weights of then, unless the engine `keeps_kv`; every token says which version sampled it.
    Samples are seeded one by one, so they repeat with the seed; on a GPU only as far as kernels of varying batch size
    round alike.
    """

    def __init__(self, role: WorkerConfig, context: RankContext):
        super().__init__(role, context)
        self._engine: EngineProcesses | None = None
        self._max_tokens = 0
        self._takes_parts = True
        self._limit_key = "context_length"  # what to raise for longer requests
        self._numbers = itertools.count()
        self._reported_routes: ReportedRoutes | None = None

    def setup(self) -> None:
        """Sets what the launcher has not set of `worker_environment`: SGLang's own processes inherit it."""
        for name, value in worker_environment(self._on_cpu, self._role.num_gpus_per_worker).items():
            os.environ.setdefault(name, value)

    async def start(self) -> None:
        where = self._context
        if where.shows_pictures and vision_of(self._role.model_args) is not None:
            raise StrategyError(
                f"{where.role}: sglang shows no pictures here, and the run's data have some. Set strategy_name: vllm, "
                "or hf_infer."
            )
        arguments = engine_arguments(self._role, self._on_cpu, where.seed, where.shares_devices, where.most_answers)
        self._tokenizer = EngineTokenizer(self._role.model_args)
        arguments["tokenizer_path"] = self._tokenizer.path
        try:
            from roll.distributed.strategy.sglang.engine import EngineProcesses

            self._max_tokens = self._context_length(arguments.get("context_length"))
            if self._context.reports_routes:
                self._reported_routes = ReportedRoutes.of(self._role.model_args)
                arguments["enable_return_routed_experts"] = True
            arguments["context_length"] = self._max_tokens + SPARE_POSITIONS
            self._engine = EngineProcesses(arguments)
        except StrategyError:
            raise
        except Exception as error:
            raise StrategyError(f"{self._context.role}: sglang did not start: {error}") from error
        if self._engine.num_cache_tokens - SPARE_POSITIONS < self._max_tokens:
            self._max_tokens = self._engine.num_cache_tokens - SPARE_POSITIONS
            self._limit_key = "max_total_tokens"
        self._loop = asyncio.get_running_loop()
        try:
            await self._call("roll_setup")
            self._takes_parts = await self._has_plain_layers()
            await self._set_version(0)
        except BaseException:
            self.shutdown()
            raise

    async def _has_plain_layers(self) -> bool:
        try:
            await self._call("roll_check_plain_layers")
        except StrategyError as error:
            if REPACKS not in str(error):
                raise
            return False
        return True

    @property
    def takes_parts(self) -> bool:
        return self._takes_parts

    def _context_length(self, wanted: int | None) -> int:
        from sglang.srt.utils.hf_transformers import get_context_length
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(str(self._role.model_args.model_name_or_path), trust_remote_code=False)
        longest = int(get_context_length(config.get_text_config()))
        if wanted is not None and wanted > longest:
            raise StrategyError(
                f"{self._context.role}: context_length {wanted} is beyond the model's {longest} positions. Lower it."
            )
        return wanted or longest

    def shutdown(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    async def check_health(self) -> None:
        async with self._failures():
            self._running().check()

    async def heartbeat(self) -> None:
        await self._call("roll_heartbeat")

    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        await self._call("roll_join_weight_group", group=self._encode(asdict(group)), first_rank=first_rank)

    async def import_weights(self, source: BucketSource) -> None:
        await self._call("roll_import_weights", source=self._encode(encode_source(source)))

    def _check(self, request: GenerationRequest) -> None:
        self._running()
        if request.media:
            raise StrategyError(
                f"request {request.request_id} shows {len(request.media)} pictures, and sglang shows none here; vllm "
                "and hf_infer do"
            )
        check_request(request, self._max_tokens, self._limit_key)
        penalty = request.sampling.repetition_penalty
        if not 0 < penalty <= _MAX_REPETITION_PENALTY:
            raise StrategyError(
                f"request {request.request_id}: repetition_penalty {penalty:g}, but sglang takes up to "
                f"{_MAX_REPETITION_PENALTY:g}"
            )

    def _sample_name(self, request: GenerationRequest, index: int) -> str:
        return f"{next(self._numbers):015d}"  # of one length: SGLang aborts whatever starts with a name

    async def _sample(self, flight: InFlight, name: str, request: GenerationRequest, index: int) -> Generation:
        from sglang.srt.managers.io_struct import GenerateReqInput

        parameters = to_sglang(request.sampling, index)
        prompt = request.prompt_ids.tolist()
        engine_request = GenerateReqInput(
            input_ids=prompt,
            sampling_params=parameters,
            return_logprob=True,
            rid=name,
            extra_key=self._cache_key,
            return_routed_experts=self._reported_routes is not None,
        )
        try:
            async with self._failures():
                replies = self._running().tokenizer_manager.generate_request(engine_request)
                answer = [reply async for reply in replies][-1]
        except asyncio.CancelledError:
            if not flight.is_aborted:
                raise
            return aborted_answer()
        return to_generation(answer, was_aborted=flight.is_aborted, route_reader=self._reported_routes)

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._running().while_alive(work)

    async def _abort_samples(self, samples: Samples) -> None:
        if self._holds:
            await self._call("roll_retract")  # what runs would end with its next token, so never
        manager = self._running().tokenizer_manager
        for name, task in samples.items():
            state = manager.rid_to_state.get(name)
            if state is not None and state.dispatched:
                manager.abort_request(name)
            else:  # the schedulers do not know it yet, and would not keep the abort for it
                task.cancel()

    async def _stop_sampling(self) -> None:
        await self._call("roll_pause_in_place" if self._context.keeps_kv else "roll_retract")

    async def _go_on_sampling(self) -> None:
        await self._call("roll_resume")

    async def _begin_update(self, whole: bool) -> None:
        await self._call("roll_begin_weight_update", whole=whole)

    async def _finish_update(self) -> None:
        await self._call("roll_finish_weight_update")

    async def _set_version(self, version: int) -> None:
        if not self._context.keeps_kv:
            await self._call_when_idle("roll_flush_cache")
        await self._call("roll_set_version", version=version)

    async def _free_memory(self, states: frozenset[State]) -> frozenset[State]:
        await self._call("roll_retract")
        await self._call_when_idle("roll_flush_cache")
        if not self._on_cpu:
            await self._call_when_idle("roll_release_memory", tags=_tags(states))
        return states

    async def _call_when_idle(self, method: str, **parameters: str | int) -> None:
        """Cached keys and values, and memory, can be given up as soon as finished and aborted requests have left the
        engine."""
        deadline = asyncio.get_running_loop().time() + _RETIRE_TIMEOUT_S
        while True:
            try:
                await self._call(method, **parameters)
                return
            except StrategyError as error:
                if STILL_RETIRING not in str(error) or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_RETIRE_POLL_S)

    async def _restore_memory(self, states: frozenset[State]) -> None:
        if not self._on_cpu:
            await self._call("roll_resume_memory", tags=_tags(states))

    async def _call(self, method: str, **parameters: str | int) -> None:
        async with self._failures():
            await self._running().call(method, **parameters)

    @staticmethod
    def _encode(message: object) -> str:
        from roll.distributed.strategy.sglang.scheduler import encode_message

        return encode_message(message)

    def _running(self) -> EngineProcesses:
        if self._engine is None:
            raise StrategyError("sglang was used before start")
        return self._engine

    @asynccontextmanager
    async def _failures(self) -> AsyncIterator[None]:
        """Raise any error of SGLang as StrategyError."""
        try:
            yield
        except StrategyError as error:
            raise type(error)(f"{self._context.role}: {error}") from error
        except Exception as error:
            raise StrategyError(f"{self._context.role}: sglang: {type(error).__name__}: {error}") from error


def _tags(states: frozenset[State]) -> str:
    return ",".join(sorted(MEMORY_TAGS[state] for state in states))

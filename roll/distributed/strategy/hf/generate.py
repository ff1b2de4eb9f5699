"""`hf_infer` as a rollout engine: any Hugging Face causal language model on one device, no further engine needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion

from roll.configs.tables.sight import LANGUAGE, VISUAL
from roll.configs.tables.vision import VISION
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.generate_base import GenerateStrategy
from roll.distributed.strategy.hf.args import HfSettings
from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
from roll.distributed.strategy.hf.sampler import BatchSampler
from roll.distributed.strategy.hf.sampler_thread import SamplerThread
from roll.distributed.strategy.host_copies import HostCopies, tensors_of
from roll.distributed.strategy.stop_strings import StopStrings
from roll.distributed.weights.bucket import BucketSource, GroupSpec
from roll.distributed.weights.transport import WeightReceiver
from roll.errors import StrategyError
from roll.models.exports import sent_name
from roll.models.loading import DTYPES, load_policy
from roll.models.tokenizer import tokenizer_of
from roll.platforms.table import platform_of
from roll.types.rollout import Answered, Generation, GenerationRequest

if TYPE_CHECKING:
    from roll.configs.sections.cluster import WorkerConfig

# New weights into the parameters of a Hugging Face model, in place.

_NAMES_SHOWN = 5
_LARGE = 1 << 24  # elements


@dataclass(frozen=True)
class _Target:
    """A parameter or buffer, or the part of it that the model's files hold as a tensor of its own: an expert's matrix,
    or one of several that lie in one here. `tensor` is a view of its memory."""

    parameter: torch.Tensor
    tensor: torch.Tensor

    @property
    def is_whole(self) -> bool:
        return self.tensor.numel() == self.parameter.numel()

    @property
    def part(self) -> int:
        return int(self.tensor.storage_offset())


class ParameterImport:
    """One update after the other: `begin`, any number of `add`, `finish`. In a whole update every parameter
    must be given once, as the model names it, or by the names and in the parts of its files (transformers' conversions
    of weights, backwards); of tied parameters any one name will do. Buffers, which no training changes, may be
    given."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._targets = dict(_targets(model))
        self._missing: dict[int, set[int]] = {}  # of a parameter, where the parts begin that are due

    def begin(self, whole: bool = True) -> None:
        self._missing = {}
        if not whole:
            return
        for target in self._targets.values():
            if isinstance(target.parameter, torch.nn.Parameter):
                parts = self._missing.setdefault(id(target.parameter), set())
                if not target.is_whole:
                    parts.add(target.part)

    @torch.no_grad()
    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Copies one tensor (converted to the parameter's dtype). StrategyError for an unknown name or another
        shape."""
        target = self._targets.get(name)
        if target is None:
            raise StrategyError(f"weight update: the rollout model has no parameter {name!r}")
        if target.tensor.shape != tensor.shape:
            raise StrategyError(
                f"weight update: {name!r} is {tuple(tensor.shape)}, the rollout model's is {tuple(target.tensor.shape)}"
            )
        target.tensor.copy_(tensor)
        parts = self._missing.get(id(target.parameter), set())
        parts.discard(target.part)
        if target.is_whole or not parts:
            self._missing.pop(id(target.parameter), None)

    def finish(self) -> None:
        """StrategyError if a parameter was not given: the model would be a mixture of two versions."""
        names = [name for name, parameter in self._model.named_parameters() if id(parameter) in self._missing]
        if names:
            shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
            raise StrategyError(f"weight update: {len(names)} parameters were not sent: {shown}")


def _targets(model: torch.nn.Module) -> Iterator[tuple[str, _Target]]:
    """Yield the tensors that can be updated, by name: as the model names them, and as its files do."""
    kind = getattr(getattr(model, "config", None), "model_type", "")
    memory = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    for name, parameter in memory:
        whole = _Target(parameter, parameter.detach())
        yield name, whole
        yield sent_name(name), whole
        if kind in VISION and name.startswith((LANGUAGE, VISUAL)):
            yield name.replace(LANGUAGE, "model.").replace(VISUAL, "visual."), whole
        if isinstance(model, PreTrainedModel):
            for stored, view in _in_files(model, name, parameter.detach()):
                yield stored, _Target(parameter, view)


def _in_files(model: PreTrainedModel, name: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the model's files that make up a parameter, as views of it, by the names there."""
    stored = revert_weight_conversion(model, {name: values})
    if all(tensor.untyped_storage().data_ptr() == values.untyped_storage().data_ptr() for tensor in stored.values()):
        yield from stored.items()
        return
    turned = values.transpose(-1, -2) if values.dim() == 3 else values
    if [*stored] == [name] and stored[name].shape == turned.shape and torch.equal(stored[name][:1], turned[:1]):
        yield name, turned
        return
    # Copied on the way: the same of the numbers of its elements says where each came from. Of large ones, the stacked
    # experts of a layer, which are cut into matrices with whole rows, only the first two columns are numbered.
    width = values.shape[-1]
    columns = 2 if values.numel() > _LARGE else width
    numbers = torch.arange(values.numel() // width * columns).view(*values.shape[:-1], columns)
    for other, part in revert_weight_conversion(model, {name: numbers}).items():
        first = int(part.flatten()[0])
        strides = [
            int(part.select(at, 1).flatten()[0]) - first if size > 1 else 1 for at, size in enumerate(part.shape)
        ]
        is_view = torch.equal(numbers.as_strided(part.shape, strides, first), part)
        if is_view and columns < width:
            is_view = stored[other].shape == (*part.shape[:-1], width) and strides[-1] == 1
            first, strides = first // 2 * width, [*(stride // 2 * width for stride in strides[:-1]), 1]
        if is_view and values.is_contiguous():
            yield other, values.as_strided(stored[other].shape, strides, values.storage_offset() + first)


T = TypeVar("T")


class HfGenerateStrategy(GenerateStrategy):
    """Samples with `BatchSampler` in a thread of its own.

    Log-probs are of the full distribution at the sampling temperature, also with top-p, top-k, min tokens or a
    repetition penalty. Requests in flight across a weight update go on with keys and values of the new weights,
    computed anew, unless the engine `keeps_kv`; every token says which version sampled it.
    """

    def __init__(self, role: WorkerConfig, context: RankContext):
        self._role = role
        self._context = context
        self._settings = HfSettings.model_validate(role.strategy_config)
        self._sampler: BatchSampler | None = None
        self._thread: SamplerThread | None = None
        self._copies = HostCopies()  # parameters stay who they are: weight updates write into them
        self._away: frozenset[State] = frozenset()

    def setup(self) -> None:
        model_args = self._role.model_args
        has_adapters = self._context.adapter_rank is not None
        loaded = load_policy(
            model_args.model_copy(update={"disable_gradient_checkpointing": True}), with_adapters=has_adapters
        )
        model = loaded.pretrained
        for name, parameter in model.named_parameters():
            if ".lora_" in name:  # peft's are in fp32, and trainers compute them in the model's dtype
                parameter.data = parameter.data.to(DTYPES[model_args.dtype])
        torch.nn.Module.to(model, self._context.device).eval().requires_grad_(False)
        tokenizer = tokenizer_of(model_args)
        self._model = model
        self._import = ParameterImport(model)
        self._receiver = WeightReceiver(self._context.device)
        exact = ExactDecoder(loaded) if self._context.exact else None
        if exact is not None:
            exact.check()
        self._sampler = BatchSampler(
            model,
            eos_token_ids(model, tokenizer),
            StopStrings.of(tokenizer),
            max_model_len=self._max_model_len(model),
            max_num_seqs=self._settings.max_num_seqs,
            tells_routes=self._context.reports_routes,
            vision=loaded.vision if not self._context.exact else None,
            exact=exact,
        )

    def _max_model_len(self, model: PreTrainedModel) -> int:
        longest: int = model.config.get_text_config().max_position_embeddings
        wanted = self._settings.max_model_len or longest
        if wanted > longest:
            raise StrategyError(
                f"{self._context.role}: max_model_len {wanted} is beyond the model's {longest} positions. Lower it."
            )
        return wanted

    async def start(self) -> None:
        if self._sampler is None:
            raise StrategyError("hf_infer was started before setup")
        self._thread = SamplerThread(self._sampler)

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.stop()
        if self._sampler is not None:
            self._receiver.close()

    @property
    def policy_version(self) -> int:
        return 0 if self._sampler is None else self._sampler.policy_version

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        return await self._running().generate(request, answered)

    async def check_health(self) -> None:
        self._running().check()

    async def heartbeat(self) -> None:
        await self._call(lambda: None)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self._running().abort(request_ids)

    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        await self._call(lambda: self._receiver.join(group, first_rank))

    async def begin_weight_update(self, whole: bool = True) -> None:
        await self._running().hold("weight update")
        await self._call(lambda: self._import.begin(whole))

    async def import_weights(self, source: BucketSource) -> None:
        def receive() -> None:
            for name, tensor in self._receiver.read(source):
                self._import.add(name, tensor)

        await self._call(receive)

    async def finish_weight_update(self, version: int) -> None:
        """StrategyError if parameters are missing or the version goes back: the engine then stays held until a full
        update."""

        def finish() -> None:
            self._import.finish()
            self._receiver.rest()
            assert self._sampler is not None
            if version < self._sampler.policy_version:
                raise StrategyError(
                    f"weight update to version {version}, but the engine has {self._sampler.policy_version}"
                )
            if not self._context.keeps_kv and not self._away:
                self._sampler.recompute_cache()
            self._sampler.policy_version = version

        await self._call(finish)
        await self._running().release("weight update")

    def offload_states(self, states: frozenset[State]) -> None:
        """Called from another thread than the event loop's. On a CPU there is nowhere to go, but keys and values are
        dropped all the same."""
        self._away |= states & {State.WEIGHTS, State.KV_CACHE}

        def leave() -> None:
            self._running().holds.add("away")
            assert self._sampler is not None
            self._sampler.drop_cache()
            if State.WEIGHTS in states and self._context.device.type != "cpu":
                self._copies.take(tensors_of(self._model))
                platform_of(self._context.device).empty_cache()

        self._running().run_between_tokens(leave)

    def load_states(self, states: frozenset[State]) -> None:
        self._away -= states
        is_back = not self._away

        def come_back() -> None:
            if State.WEIGHTS in states and self._context.device.type != "cpu":
                self._copies.bring_back(tensors_of(self._model))
            if is_back:
                assert self._sampler is not None
                self._sampler.recompute_cache()
                self._running().holds.discard("away")

        self._running().run_between_tokens(come_back)

    def _running(self) -> SamplerThread:
        if self._thread is None:
            raise StrategyError("hf_infer was used before start")
        return self._thread

    async def _call(self, function: Callable[[], T]) -> T:
        return await self._running().call(function)


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends an answer: those of the generation config, and the tokenizer's."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = [configured] if isinstance(configured, int) else list(configured or [])
    return sorted({*ids, *([tokenizer.eos_token_id] if isinstance(tokenizer.eos_token_id, int) else [])})

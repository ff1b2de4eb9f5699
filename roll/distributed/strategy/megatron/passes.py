"""Forward and backward passes of micro batches through Megatron's schedules, with a loss object at their end."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from roll.algorithms.distillation import Distillation
from roll.algorithms.loss import Loss
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES
from roll.distributed.strategy.data_parallel import empty_micro_batch
from roll.distributed.strategy.megatron.inputs import ModelInput, SlotLayout, prepare
from roll.distributed.strategy.megatron.last_stage import HeadRequest, MtpInputs
from roll.features.teachers.targets import StudentOutputs, targets_of
from roll.models.megatron.router import StageRoutes
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums


class SumOverContext(torch.autograd.Function):
    """Sum over the context-parallel ranks, each of which filled other places. All compute the same loss from it, so the
    gradient of a place is what each has already."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        total = values.clone()
        dist.all_reduce(total, group=parallel_state.get_context_parallel_group())
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class Passes:
    """Runs micro batches through one model. `chunks` are what the schedule drives: the modules, maybe wrapped for
    training."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: TransformerConfig,
        vocab_size: int,
        device: torch.device,
        role: WorkerConfig,
    ):
        self._chunks, self._config, self._vocab_size, self._device = list(chunks), config, vocab_size, device
        self._layout = SlotLayout(
            tensor=config.tensor_model_parallel_size if config.sequence_parallel else 1,
            context=config.context_parallel_size,
            context_rank=parallel_state.get_context_parallel_rank(),
            packs=role.use_sequence_packing,
            reads_on_host=config.transformer_impl == "local",
        )
        self._stages = config.pipeline_model_parallel_size
        self._balances = config.moe_router_load_balancing_type == "aux_loss"
        chunk = role.model_args.fused_kernel_options.logits_per_chunk
        self._logits_per_chunk = chunk or LOGITS_PER_CHUNK_OF_SHARES
        self.student_outputs: StudentOutputs | None = None  # of one that learns from a teacher
        self._replays = role.router_replay
        self._stages_routes = {id(chunk): StageRoutes(chunk) for chunk in chunks} if self._replays.is_on else {}
        self._reported_routes: list[tuple[StageRoutes, ModelInput, dict[int, torch.Tensor]]] = []

    def train(
        self,
        batches: Sequence[MicroBatch],
        loss: Loss,
        scale: LossScale,
        temperature: float,
        mtp: float | None = None,
    ) -> MetricSums:
        """Leaves the summed gradients of all micro batches of all ranks where the optimizer takes them. `mtp`: the
        weight of the MTP head's loss, where it is trained."""
        ask = partial(
            self._head_request,
            temperature=temperature,
            entropy="entropy" in loss.needs,
            values="values" in loss.needs,
            with_mtp=mtp is not None,
        )
        metrics: list[MetricSums] = []

        def conclude(model_input: ModelInput, output: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
            counted = torch.zeros((), dtype=torch.int)  # not used: the loss has divided by global counts already
            main, cross_entropy = output if mtp is not None else (output, None)
            if not model_input.counts:
                # Of the head, too: ranks that share its experts wait for each other in the backward pass.
                nothing = main.sum() * 0.0
                return nothing if cross_entropy is None else nothing + cross_entropy * 0.0, counted, {}
            request = ask(model_input)
            total, sums = loss(self._outputs(model_input, main, request), model_input.batch, scale)
            if mtp is not None and cross_entropy is not None:
                if self._config.context_parallel_size > 1:
                    cross_entropy = SumOverContext.apply(cross_entropy)
                total = total + cross_entropy * mtp
                sums.add("mtp_loss", cross_entropy.detach(), float(model_input.batch.response_mask[:, 2:].sum()))
            metrics.append(sums)
            return total, counted, {}

        for chunk in self._chunks:
            chunk.train()
        self._run(self._inputs(batches), ask, conclude, forward_only=False)
        return self._from_last_stage(MetricSums().merge(metrics).to_floats())

    @torch.no_grad()
    def score(
        self, batches: Sequence[MicroBatch], temperature: float, entropy: bool = False, values: bool = False
    ) -> list[TokenOutputs]:
        """Outputs of every micro batch on the CPU, on every rank."""
        ask = partial(self._head_request, temperature=temperature, entropy=entropy, values=values)
        outputs = self._scored(batches, ask)
        if values:
            return [TokenOutputs(values=output[0]) for output in outputs]
        routes = self._routes(batches) if self._replays.tells else [None] * len(batches)
        return [
            TokenOutputs(log_probs=output[0], entropy=output[1] if entropy else None, routes=row_routes)
            for output, row_routes in zip(outputs, routes, strict=True)
        ]

    @torch.no_grad()
    def teacher_targets(self, batches: Sequence[MicroBatch], distillation: Distillation) -> list[torch.Tensor]:
        """Compute a teacher's targets for the response tokens of every micro batch, on the CPU, on every rank."""
        temperature = distillation.divergence.teacher_temperature
        ask = partial(
            self._head_request, temperature=temperature, entropy=False, values=False, distillation=distillation
        )
        scored = zip(batches, self._scored(batches, ask), strict=True)
        return [output[:, batch.response_mask].T.contiguous() for batch, output in scored]

    def _scored(self, batches: Sequence[MicroBatch], ask: Callable[[ModelInput], HeadRequest]) -> list[torch.Tensor]:
        """The outputs [num_outputs, B, T] of every micro batch on the CPU, on every rank."""
        placed: list[torch.Tensor] = []

        def conclude(model_input: ModelInput, output: torch.Tensor, non_loss_data: bool = False) -> None:
            placed.append(self._placed(model_input, output))

        for chunk in self._chunks:
            chunk.eval()
        inputs = self._inputs(batches)
        self._run(inputs, ask, conclude, forward_only=True)
        whole = self._broadcast(
            [(ask(model_input).num_outputs, *model_input.batch.input_ids.shape) for model_input in inputs], placed
        )
        return whole[: len(batches)]

    def _routes(self, batches: Sequence[MicroBatch]) -> list[torch.Tensor | None]:
        """The experts of every micro batch in the run before, int16 [B, T, layers, k] on the CPU, on every rank: of
        each of its layers from the stage that has it, of each position from the rank that has that."""
        recorded, self._reported_routes = self._reported_routes, []
        whole: dict[int, torch.Tensor] = {}
        for stage, model_input, chosen in recorded:
            shape = (model_input.batch.input_ids.numel(), stage.layers, stage.top_k)
            rows = whole.setdefault(id(model_input), torch.zeros(shape, dtype=torch.int32, device=self._device))
            is_token = model_input.sources >= 0
            for layer, experts in chosen.items():
                rows[model_input.sources[is_token], layer] = experts[is_token].int() + 1
        all_rows = list(whole.values())
        for rows in all_rows:
            for group in (
                parallel_state.get_context_parallel_group(),
                parallel_state.get_pipeline_model_parallel_group(),
            ):
                dist.all_reduce(rows, group=group)
        shapes = [batch.input_ids.shape for batch in batches]
        return [
            (rows - 1).to(torch.int16).unflatten(0, shape).cpu() for rows, shape in zip(all_rows, shapes, strict=False)
        ]

    def _run(
        self,
        inputs: Sequence[ModelInput],
        ask: Callable[[ModelInput], HeadRequest],
        conclude: Callable[..., Any],
        forward_only: bool,
    ) -> None:
        if not inputs:
            return

        def step(source: Iterator[ModelInput], model: nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
            model_input = next(source)
            padding = None if forward_only or not self._balances else model_input.padding
            stage = self._stages_routes.get(id(model))
            if stage is not None:
                stage.give(model_input.routes(), recomputes=not forward_only)
            request = ask(model_input)
            following = None if request.mtp is None else request.mtp.following
            output = model(model_input.input_ids, model_input.packed, request, padding, following)
            if stage is not None and forward_only and self._replays.tells:
                self._reported_routes.append((stage, model_input, stage.reported()))
            return output, partial(conclude, model_input)

        sources = [iter(inputs) for _ in self._chunks]
        rows, positions = self._extent([model_input.batch for model_input in inputs])
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=sources if len(sources) > 1 else sources[0],
            model=self._chunks if len(self._chunks) > 1 else self._chunks[0],
            num_microbatches=len(inputs),
            seq_length=positions,
            micro_batch_size=rows,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _head_request(
        self,
        inputs: ModelInput,
        temperature: float,
        entropy: bool,
        values: bool,
        distillation: Distillation | None = None,
        with_mtp: bool = False,
    ) -> HeadRequest:
        teacher = targets_of(self.student_outputs, inputs.batch.teacher_targets)
        if teacher is not None:
            teacher = teacher.at_positions(inputs.batch.response_mask, inputs.places)
        chunk = self._logits_per_chunk
        return HeadRequest(
            inputs.slots, inputs.targets, temperature, entropy, values, self._vocab_size, chunk, teacher, distillation,
            MtpInputs.of(inputs) if with_mtp else None,
        )  # fmt: skip

    def _inputs(self, batches: Sequence[MicroBatch]) -> list[ModelInput]:
        """The micro batches on the device, and those that keep ranks in step."""
        count = self._even(len(batches))
        listed = [batch.to(self._device) for batch in [*batches, *[empty_micro_batch()] * (count - len(batches))]]
        if not listed:
            return []
        shared = None if self._config.variable_seq_lengths else self._extent(listed)
        if self._stages == 1 and not self._experts_wait_for_shapes:
            shared = None
        return [
            prepare(batch, self._layout, shared or self._layout.extent(batch), counts=i < len(batches))
            for i, batch in enumerate(listed)
        ]

    def _even(self, count: int) -> int:
        """Micro batches to run: ranks that share experts make equally many passes, an interleaved pipeline whole
        rounds."""
        if self._config.expert_model_parallel_size > 1:
            most = torch.tensor(count, device=self._device)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            count = int(most)
        round_size = self._stages if self._config.virtual_pipeline_model_parallel_size else 1
        return -(-count // round_size) * round_size

    @property
    def _experts_wait_for_shapes(self) -> bool:
        """The allgather dispatcher wants equally many tokens on all ranks that share experts."""
        return self._config.expert_model_parallel_size > 1 and self._config.moe_token_dispatcher_type == "allgather"

    def _extent(self, batches: Sequence[MicroBatch]) -> tuple[int, int]:
        """Room for the largest micro batch, on all ranks that have to agree on it."""
        extents = [self._layout.extent(batch) for batch in batches]
        rows, positions = max(e[0] for e in extents), max(e[1] for e in extents)
        if self._experts_wait_for_shapes:
            most = torch.tensor([rows, positions], device=self._device)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            rows, positions = (int(value) for value in most)
        return rows, positions

    def _placed(self, model_input: ModelInput, output: torch.Tensor) -> torch.Tensor:
        """[num_outputs, n] to [num_outputs, B, T], 0 where nothing was asked for."""
        batch = model_input.batch
        flat = output.new_zeros(len(output), batch.input_ids.numel()).index_copy(1, model_input.places, output)
        if self._config.context_parallel_size > 1:
            flat = SumOverContext.apply(flat)
        return flat.view(len(output), *batch.input_ids.shape)

    def _outputs(self, model_input: ModelInput, output: torch.Tensor, ask: HeadRequest) -> TokenOutputs:
        placed = self._placed(model_input, output)
        if ask.values:
            return TokenOutputs(values=placed[0])
        divergence = None if ask.teacher_targets is None else placed[-1]
        return TokenOutputs(log_probs=placed[0], entropy=placed[1] if ask.entropy else None, divergence=divergence)

    def _broadcast(self, shapes: Sequence[tuple[int, ...]], placed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The last stage's outputs on every stage, on the CPU."""
        if self._stages == 1 or not shapes:
            return [tensor.cpu() for tensor in placed]
        sizes = [int(torch.Size(shape).numel()) for shape in shapes]
        flat = torch.cat([t.reshape(-1) for t in placed]) if placed else torch.empty(sum(sizes), device=self._device)
        group: Any = parallel_state.get_pipeline_model_parallel_group()
        dist.broadcast(flat, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
        return [part.view(shape) for part, shape in zip(flat.cpu().split(sizes), shapes, strict=True)]

    def _from_last_stage(self, sums: MetricSums) -> MetricSums:
        if self._stages == 1:
            return sums
        box = [sums]
        group: Any = parallel_state.get_pipeline_model_parallel_group()
        dist.broadcast_object_list(box, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
        return box[0]

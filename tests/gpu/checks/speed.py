"""How fast it is, against what the device can do: updates of a trainer, the log-prob head, weights on their way to host
memory and back."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from roll.configs.memory.flops import peak_flops, training_flops
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import total
from roll.utils.files import read_object
from tests.gpu.check import Figures, largest
from tests.gpu.checks.memory import planned_memory, random_rows
from tests.gpu.checks.trainers import helpers_of, run_of
from tests.gpu.place import SHAPE_OF_HALF_A_BILLION, SHAPE_OF_ONE_AND_A_HALF_BILLION, CannotRun, Place, seconds_of

_SHAPES = {"0.5b": SHAPE_OF_HALF_A_BILLION, "1.5b": SHAPE_OF_ONE_AND_A_HALF_BILLION}
_PEAK_OF_A_REHEARSAL = 1e12
_NUM_WARM_UPS, _NUM_TIMED = 2, 4


@dataclass(frozen=True)
class Sizes:
    """An update: micro batches of rows of equal length, so that a loop that pads computes the same tokens as one that
    packs. A row's last token is computed by neither: nothing is predicted from it."""

    num_batches: int
    num_rows: int
    row_length: int

    @property
    def batch_tokens(self) -> int:
        """Computed tokens of a micro batch."""
        return self.num_rows * (self.row_length - 1)

    @property
    def tokens(self) -> int:
        return self.num_batches * self.batch_tokens

    @property
    def pairs(self) -> int:
        """Pairs of a computed token with itself or an earlier one of its row."""
        return self.tokens * self.row_length // 2


_SIZES = {"cuda": Sizes(2, 8, 2049), "cpu": Sizes(2, 4, 33)}


def updates(place: Place, size: str, compiled: bool = False, recompute: str = "full") -> Figures:
    """Updates of fsdp2_train on one device: rows packed, gradient checkpointing on, bf16 with fp32 master weights,
    `compiled` by use_torch_compile, `recompute` its recompute_granularity. Then those of a plain loop over the same
    tokens with the same loss, in the same process. Operations that checkpointing or the head repeat are not counted."""
    peak = _peak(place)
    model_dir = place.large_model(_SHAPES[size])
    sizes = _SIZES[place.device]
    run = replace(_run(model_dir, recompute), compiled=compiled)
    planned = planned_bytes(run, sizes)
    with place.ranks(1) as pool:
        ours, moved = pool.run(_our_updates, run, sizes)[0]
        plain = pool.run(_plain_updates, model_dir, sizes)[0]
    flops = update_flops(read_object(model_dir / "config.json"), sizes)
    return {
        "mfu": flops / ours.seconds / peak,
        "plain_mfu": flops / plain.seconds / peak,
        "time_to_plain": ours.seconds / plain.seconds,
        "update_s": ours.seconds,
        "tokens_per_s": sizes.tokens / ours.seconds,
        "plain_tokens_per_s": sizes.tokens / plain.seconds,
        "peak_gb": ours.peak_bytes / 1e9,
        "plain_peak_gb": plain.peak_bytes / 1e9,
        "planned_gb": planned / 1e9,
        "peak_to_planned": ours.peak_bytes / planned,
        "grad_norm": ours.grad_norm,
        "grad_norm_to_plain": ours.grad_norm / plain.grad_norm,
        "moved": moved,
    }


def _peak(place: Place) -> float:
    """Operations per second of the device in bf16."""
    if not place.on_cuda:
        return _PEAK_OF_A_REHEARSAL
    name = torch.cuda.get_device_name()
    peak = peak_flops(name)
    if peak is None:
        raise CannotRun(f"the peak of {name} is not in roll/configs/memory/passes.py")
    return peak


def update_flops(config: dict[str, Any], sizes: Sizes) -> float:
    """Operations of an update of the model that this config.json describes."""
    shape, why_not = model_shape(config)
    assert shape is not None, why_not
    return training_flops(shape, sizes.tokens, sizes.pairs)


def planned_bytes(run: Any, sizes: Sizes) -> float:
    """What a dry run says of a training pass. Without contexts and communicators, which torch does not count either."""
    memory = planned_memory("fsdp2", run, 1, sizes.batch_tokens)
    return sum(total(parts) for parts in memory.states.values()) + total(memory.passes["training"])


def _run(model_dir: Path, recompute: str = "full") -> Any:
    of_model = {"dtype": "bf16", "disable_gradient_checkpointing": False, "recompute_granularity": recompute}
    run = run_of("fsdp2", model_dir, {"packs": True}, of_model)
    return replace(run, training={"learning_rate": 1e-6}, max_norm=1.0)


@dataclass(frozen=True)
class _Timed:
    """`seconds`: the median of updates, `peak_bytes`: of all of them, `grad_norm`: of the first update of all."""

    seconds: float
    peak_bytes: int
    grad_norm: float


def _our_updates(run: Any, sizes: Sizes) -> tuple[_Timed, float]:
    """One rank, and how far the updates have moved a weight."""
    from roll.distributed.strategy.fsdp2.rank import local
    from tests.parity.strategies.reference import BentLoss, scale_of

    batches = _batches(run.model_dir, sizes)
    scale = scale_of(batches)
    with helpers_of("fsdp2").trainer(run) as strategy:
        weight = next(shard for shard in strategy.rank.shards().values() if shard.dim() > 1)
        before = local(weight).detach().clone()
        timed = _timed(lambda: strategy.train_step(batches, BentLoss(), scale, 1.0)[1]["grad_norm"])
        strategy.rank.shards()
        return timed, float((local(weight).detach() - before).abs().max())


def _plain_updates(model_dir: Path, sizes: Sizes) -> _Timed:
    """The same rank: a model of transformers in bf16 and torch's AdamW on its weights, as few lines as it takes."""
    from transformers import AutoModelForCausalLM

    from roll.types.batch import TokenOutputs
    from tests.parity.strategies.reference import BentLoss, scale_of
    from tests.parity.strategies.runs import context

    gc.collect()  # the trainer before it
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    device = context().device
    options: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, **options)
    model.to(device)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    batches = _batches(model_dir, sizes)
    loss, scale = BentLoss(), scale_of(batches)

    def update() -> float:
        for batch in batches:
            there = batch.to(device)
            logits = model(input_ids=there.input_ids[:, :-1], use_cache=False).logits
            targets = there.input_ids[:, 1:]
            each = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
            log_probs = functional.pad(-each.view(targets.shape), (1, 0))
            loss(TokenOutputs(log_probs=log_probs), there, scale)[0].backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return _timed(update)


def _batches(model_dir: Path, sizes: Sizes) -> list[Any]:
    vocab_size = int(read_object(model_dir / "config.json")["vocab_size"])
    return [
        random_rows(sizes.num_rows, sizes.row_length, vocab_size, seed, num_prompt=1)
        for seed in range(sizes.num_batches)
    ]


def _timed(update: Callable[[], float]) -> _Timed:
    on_cuda = torch.cuda.is_initialized()
    norms = [update() for _ in range(_NUM_WARM_UPS)]
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = [seconds_of(update) for _ in range(_NUM_TIMED)]
    peak_bytes = torch.cuda.max_memory_allocated() if on_cuda else 0
    print(f"seconds {seconds}, peak {peak_bytes / 1e9:.3f} GB", flush=True)
    return _Timed(statistics.median(seconds), peak_bytes, norms[0])


# The log-prob head.

_HEAD = {"cuda": (16_100, 151_936, 1536), "cpu": (100, 1024, 64)}  # positions, vocabulary, hidden size
_NUM_COMPARED = 256  # positions
_HEAD_PRODUCTS = 3  # that a pass and its gradients need; the tiles compute the first one twice


def head_tiles(place: Place) -> Figures:
    """Forward and backward pass of the head in the tiles of the device, and in those of a CPU: 521 columns of so many
    positions. Before that, numbers and gradients of some positions against one product in fp32."""
    from roll.configs.sections.model import LOGITS_PER_CHUNK
    from roll.models.head_scores import HeadRequest

    positions, words, width = _HEAD[place.device]
    chance = torch.Generator(place.device).manual_seed(0)

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=chance, device=place.device) * scale).bfloat16()

    inputs = drawn(positions, width), drawn(words, width, scale=0.02)
    targets = torch.randint(words, (positions,), generator=chance, device=place.device)
    pull = torch.randn(positions, generator=chance, device=place.device)
    request = HeadRequest.on(place.device, None)
    tiles, multiple = request.tile_elements, request.multiple
    gaps = _gaps(inputs, targets, pull, max(1, tiles // positions), multiple)

    def seconds(tiles: int, multiple: int, compiled: bool = False) -> float:
        work = partial(head_pass, *inputs, targets, pull, tiles, multiple, compiled)
        return statistics.median(seconds_of(work) for _ in range(5))

    chosen, small = seconds(tiles, multiple), seconds(LOGITS_PER_CHUNK, 1)
    if place.on_cuda:  # on a CPU a compiler of C++ takes long
        of_compiled = _gaps(inputs, targets, pull, max(1, tiles // positions), multiple, True)
        gaps = {name: largest((gap, of_compiled[name])) for name, gap in gaps.items()}
        seconds(tiles, multiple, True)
        gaps["time_compiled"] = seconds(tiles, multiple, True) / chosen
    flops = 2 * _HEAD_PRODUCTS * positions * words * width
    return gaps | {
        "seconds": chosen,
        "small_tiles_s": small,
        "time_to_small_tiles": chosen / small,
        "peak_fraction": flops / chosen / _peak(place),
        "small_tiles_peak_fraction": flops / small / _peak(place),
    }


def head_pass(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    pull: torch.Tensor,
    tiles: int,
    multiple: int,
    compiled: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Log-probs, and the gradients of hidden states and weight."""
    from roll.models.head_scores import HeadRequest, Product, head_scores

    leaves = [part.detach().requires_grad_() for part in (hidden, weight)]
    ask = HeadRequest(tiles, multiple=multiple, compiled=compiled)
    log_probs = head_scores([Product(*leaves)], None, targets, ask).log_probs
    return log_probs.detach(), *torch.autograd.grad(log_probs, leaves, pull)


def _gaps(
    inputs: tuple[torch.Tensor, torch.Tensor],
    targets: torch.Tensor,
    pull: torch.Tensor,
    columns: int,
    multiple: int,
    compiled: bool = False,
) -> dict[str, float]:
    """Gradients: norm of the difference by the norm. Tiles of the same columns as those of all positions."""
    hidden, targets, pull = (part[:_NUM_COMPARED] for part in (inputs[0], targets, pull))
    got = head_pass(hidden, inputs[1], targets, pull, columns * len(hidden), multiple, compiled)
    leaves = [part.detach().float().requires_grad_() for part in (hidden, inputs[1])]
    log_probs = -functional.cross_entropy(leaves[0] @ leaves[1].T, targets, reduction="none")
    want = log_probs.detach(), *torch.autograd.grad(log_probs, leaves, pull)
    off = [float((a.float() - b).norm() / b.norm()) for a, b in zip(got[1:], want[1:], strict=True)]
    return {"log_prob_gap_max": float((got[0] - want[0]).abs().max()), "gradient_gap": largest(off)}


# Weights that wait in host memory.


def weight_copies(place: Place) -> Figures:
    """The weights of a 1.5B in bf16 (3.1 GB) to host memory and back, against one copy of as many bytes, to and from
    page-locked memory as well. The first trip, which locks that memory, is told apart."""
    from roll.distributed.strategy.host_copies import HostCopies

    weights = _weights(place)
    before = [weight.clone() for weight in weights]
    num_bytes = sum(weight.nbytes for weight in weights)
    copies = HostCopies()

    def trip() -> tuple[float, float]:
        there = seconds_of(lambda: copies.take(weights))
        return there, seconds_of(lambda: copies.bring_back(weights))

    first = trip()
    to_host, to_device = _medians([trip() for _ in range(5)])
    same = [torch.equal(weight, other) for weight, other in zip(weights, before, strict=True)]
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=place.on_cuda)
    flat = torch.zeros(num_bytes, dtype=torch.uint8, device=place.device)

    def plain() -> tuple[float, float]:
        there = seconds_of(lambda: host.copy_(flat, non_blocking=True))
        return there, seconds_of(lambda: flat.copy_(host, non_blocking=True))

    plain()
    plain_to_host, plain_to_device = _medians([plain() for _ in range(5)])
    return {
        "same_fraction": sum(same) / len(same),
        "to_host_share": plain_to_host / to_host,
        "to_device_share": plain_to_device / to_device,
        "to_host_gb_per_s": num_bytes / 1e9 / to_host,
        "to_device_gb_per_s": num_bytes / 1e9 / to_device,
        "plain_to_host_gb_per_s": num_bytes / 1e9 / plain_to_host,
        "plain_to_device_gb_per_s": num_bytes / 1e9 / plain_to_device,
        "first_trip_s": sum(first),
    }


def _weights(place: Place) -> list[torch.Tensor]:
    """Random ones in the shapes of the model's."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**place.shape(SHAPE_OF_ONE_AND_A_HALF_BILLION)))
    shapes = [parameter.shape for parameter in model.parameters()]
    return [torch.randn(shape, dtype=torch.bfloat16, device=place.device) for shape in shapes]


def _medians(trips: Sequence[tuple[float, float]]) -> tuple[float, float]:
    there, back = zip(*trips, strict=True)
    return statistics.median(there), statistics.median(back)

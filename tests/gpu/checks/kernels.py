"""Single kernels and collectives whose choice a whole run does not show."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.check import Figures, largest
from tests.gpu.place import Place, seconds_of

_SHAPE_OF_SAMPLING = {"cuda": (256, 151_936), "cpu": (8, 1024)}  # rows, vocabulary
_UNNOTICED_S = 2.0  # between a death and the sender's hearing of it


def sglang_hashes_in_its_own_kernel(place: Place) -> Figures:
    """Seeded sampling hashes every column of every row. Our torch hash stands in on CPUs; here it gives the truth and
    the time to beat. Then samples of every row, with top_p and without: the share of those that repeat, and of those
    that are the likeliest token."""
    import torch

    from roll.distributed.strategy.sglang import args as sglang_args

    os.environ.update(sglang_args.worker_environment(on_cpu=not place.on_cuda))
    from sglang.srt.layers import sampler

    from roll.distributed.strategy.sglang.patches import install_patches, murmur_hash32

    install_patches()
    rows, words = _SHAPE_OF_SAMPLING[place.device]
    chance = torch.Generator().manual_seed(0)
    seeds = torch.randint(2**62, (rows,), generator=chance).to(place.device)
    positions, columns = (torch.arange(number).to(place.device) for number in (rows, words))
    taken: Any = sampler.murmur_hash32
    hashes = [partial(made, seeds, positions, columns) for made in (taken, murmur_hash32)]
    same = torch.eq(hashes[0]().long() & 0xFFFFFFFF, hashes[1]())
    own, by_torch = (seconds_of(each, 10) for each in hashes)
    probs = torch.randn(rows, words, generator=chance).softmax(-1).to(place.device)
    every = torch.full((rows,), words, dtype=torch.int32, device=place.device)
    most, least = (torch.full((rows,), value, device=place.device) for value in (0.9, 0.0))
    of_all = partial(sampler.sampling_from_probs_torch, probs, seeds, positions)
    cut = sampler.top_k_top_p_min_p_sampling_from_probs_torch
    top_p: Any = partial(cut, probs, every, most, least, False, seeds, positions)
    return {
        "equal_fraction": float(same.double().mean()),
        "time_fraction": own / by_torch,
        "repeated_fraction": float((of_all() == of_all()).double().mean()),
        "top_p_repeated_fraction": float((top_p() == top_p()).double().mean()),
        "likeliest_fraction": float((of_all() == probs.argmax(-1)).double().mean()),
    }


def receivers_give_up(place: Place) -> Figures:
    """A sender and two receivers in a group as weights are broadcast. The second receiver is killed before it takes
    part; then the sender closes the group, as it does when a receiver's call fails. Seconds until each of the others is
    free of it, time limit of the group: 300."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    members = []
    for rank in range(3):
        arguments = (rank, place.devices[rank] if place.on_cuda else "", str(place.directory), answers)
        members.append(context.Process(target=_broadcast_with_a_dead_receiver, args=arguments, daemon=True))
        members[-1].start()
    seconds = dict(answers.get(timeout=150) for _ in range(2))
    members[2].join()
    if members[2].exitcode != -signal.SIGKILL:
        raise AssertionError(f"the receiver that was to be killed ended with {members[2].exitcode}")
    return {"sender_s": seconds[0], "receiver_s": seconds[1]}


def _broadcast_with_a_dead_receiver(rank: int, gpu: str, directory: str, answers: Any) -> None:
    """One member: says how long its second broadcast held it."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch

    from roll.distributed.weights.broadcast_group import BroadcastGroup
    from roll.distributed.weights.bucket import GroupSpec
    from roll.errors import StrategyError

    device, backend = (torch.device("cuda:0"), "nccl") if gpu else (torch.device("cpu"), "gloo")
    store = BroadcastGroup.open_store("127.0.0.1") if rank == 0 else None
    spec = GroupSpec("check", "127.0.0.1", _port(Path(directory), store), 3, backend)
    member = BroadcastGroup(spec, rank, device, store)
    flat = torch.full((64 << 20,), rank, dtype=torch.uint8, device=device)
    member.broadcast(flat)  # NCCL connects now
    assert int(flat.sum(dtype=torch.int64)) == 0, "other bytes arrived than were sent"
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    if rank == 0:
        work = member.start_broadcast(flat)
        time.sleep(_UNNOTICED_S)
        member.close()
        del work
    else:
        with suppress(StrategyError, RuntimeError):  # it may have had its part before
            member.broadcast(flat)
        member.close()
    answers.put((rank, time.monotonic() - started))


def _port(directory: Path, store: Any) -> int:
    """Of the sender's store, which it leaves in a file."""
    path = directory / "port"
    if store is not None:
        path.with_suffix(".partial").write_text(str(store.port))
        path.with_suffix(".partial").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


def packed_rows(place: Place) -> Figures:
    """Attention of packed rows in bf16 against each row alone in fp32, by a mask, with a window and without."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from roll.models.sequences.packed_attention import packed_attention

    lengths, heads, groups, width = (700, 1, 64, 129, 2048), 8, 2, 64
    torch.manual_seed(0)
    shapes = [(1, number, sum(lengths), width) for number in (heads, groups, groups)]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    given = [torch.randn(shape).bfloat16() for shape in shapes]
    names: set[str] = set()
    gaps: dict[str, float] = {"output_gap": 0.0, "gradient_gap": 0.0}
    for window in (0, 100):

        def together(query: Any, key: Any, value: Any, window: int = window) -> torch.Tensor:
            where = {"cu_seq_lens_q": starts.to(place.device), "max_length_q": max(lengths)}
            return packed_attention(torch.nn.Identity(), query, key, value, window, **where)[0]

        def alone(query: Any, key: Any, value: Any, window: int = window) -> torch.Tensor:
            outputs = []
            for length, *parts in zip(lengths, *(part.split(lengths, 2) for part in (query, key, value)), strict=True):
                sees = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - (window or length))
                outputs.append(scaled_dot_product_attention(*parts, attn_mask=sees, enable_gqa=True).transpose(1, 2))
            return torch.cat(outputs, 1)

        def attend(by: Any, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
            parts = [part.to(device, dtype).detach().requires_grad_() for part in given]
            output = by(*parts)
            gradients = torch.autograd.grad(output.float().square().sum(), parts)
            return [part.detach().float().cpu() for part in (output, *gradients)]

        want = attend(alone, "cpu", torch.float32)
        got = attend(together, place.device, torch.bfloat16)
        names |= set(_operations(partial(attend, together, place.device, torch.bfloat16)))
        off = [float((a - b).abs().max() / max(1.0, float(b.abs().max()))) for a, b in zip(got, want, strict=True)]
        gaps = {
            "output_gap": largest((gaps["output_gap"], off[0])),
            "gradient_gap": largest((gaps["gradient_gap"], *off[1:])),
        }
    return gaps | {"flash_kernels": float(sum("flash" in name or "varlen" in name for name in names))}


def context_parallel_row(place: Place) -> Figures:
    """Megatron with context parallel 2 and grouped heads on one long row in bf16: an update, what it held at its peak,
    and the kernels that attention took."""
    num_tokens = 16_384 if place.on_cuda else 512
    with place.ranks(2) as pool:
        found = pool.run(_update_on_a_long_row, place.tiny_model(max_position_embeddings=num_tokens), num_tokens)
    return {name: largest(rank[name] for rank in found) for name in found[0]}


def _update_on_a_long_row(model_dir: Path, num_tokens: int) -> dict[str, float]:
    import torch

    from tests.parity.megatron import ranks
    from tests.parity.strategies.reference import TEMPERATURE, BentLoss, rows, scale_of

    run = ranks.Run(model_dir, {"context_parallel_size": 2}, model={"dtype": "bf16"})
    with ranks.trainer(run) as strategy:
        row = _long_row(rows(1)[0], num_tokens)
        scored = strategy.log_probs([row], TEMPERATURE)[0].log_probs
        assert scored is not None
        gaps = (scored - _by_hugging_face(model_dir, row, TEMPERATURE)).abs()

        def update() -> float:
            return strategy.train_step([row], BentLoss(), scale_of([row]), TEMPERATURE)[1]["grad_norm"]

        norm = update()
        on_cuda = strategy.context.device.type == "cuda"
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
        names = _operations(update)
        peak = torch.cuda.max_memory_allocated() if on_cuda else 0
    return {
        "grad_norm": norm,
        "log_prob_gap_mean": float(gaps.mean()),
        "log_prob_gap_max": float(gaps.max()),
        "flash_kernels": float(sum("flash_attention" in name or "cudnn_attention" in name for name in names)),
        "math_kernels": float(sum("scaled_dot_product_attention_math" in name for name in names)),
        "peak_bytes_per_token": peak / num_tokens,
    }


def _by_hugging_face(model_dir: Path, row: Any, temperature: float) -> Any:
    """Log-probs of a row by one process in fp32, on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.parity.strategies.reference import naive_log_probs

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        return naive_log_probs(model, row, temperature)[0]


def _operations(work: Any) -> set[str]:
    """Names of the operations of torch that ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    return {event.key for event in profiled.key_averages()}


def _long_row(row: Any, num_tokens: int) -> Any:
    """A micro batch of one row of random tokens, the second half of which is trained."""
    import torch

    from roll.types.batch import MicroBatch

    chance = torch.Generator().manual_seed(0)
    mask = torch.arange(num_tokens)[None] >= num_tokens // 2
    return MicroBatch(
        input_ids=torch.randint(3, 290, (1, num_tokens), generator=chance),
        lengths=torch.tensor([num_tokens]),
        response_mask=mask,
        loss_weights=row.loss_weights,
        rollout_log_probs=torch.full((1, num_tokens), -5.5) * mask,
        advantages=(torch.rand((1, num_tokens), generator=chance) * 2 - 1) * mask,
        returns=torch.zeros(1, num_tokens),
    )

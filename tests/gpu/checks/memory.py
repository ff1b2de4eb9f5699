"""Half a billion parameters in bf16 (a tiny model in a rehearsal): what trainers and engines hold on a device, against
what their parameters count up to, and what they leave there between turns."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import RankMemory, RoleFacts, total
from roll.configs.strategies.table import spec_of
from roll.utils.files import read_object
from tests.gpu.check import Figures
from tests.gpu.checks import trainers
from tests.gpu.checks.trainers import Kind, difference, go_and_come_back, held_bytes
from tests.gpu.place import Place

_TOKENS = {"cuda": (4, 512), "cpu": (4, 32)}  # rows of a rank's update, tokens of each
_ANSWERS = {"cuda": (256, 128), "cpu": (8, 8)}  # and tokens of each
_ROUNDS = 4


def trainer_turns(place: Place, kind: Kind, settings: dict[str, Any]) -> Figures:
    """An update, a trip to host memory, two more."""
    count = len(place.devices)
    model_dir = place.large_model()
    planned = _planned_bytes(kind, model_dir, settings, count)
    with place.ranks(count) as pool:
        found = pool.run(_turn, kind, model_dir, settings, _TOKENS[place.device], timeout_s=400)
    rank = found[0]
    return {
        "held_to_planned": rank["held_bytes"] / planned,
        "left_on_device_fraction": max(r["away_bytes"] for r in found) / max(rank["held_bytes"], 1),
        "device_given_back_fraction": rank["given_back_bytes"] / max(rank["held_bytes"], 1),
        "planned_gb": planned / 1e9,
        "peak_gb": rank["peak_bytes"] / 1e9,
        "grad_norm_after_trip": rank["grad_norm"],
        "moved_after_trip": rank["moved"],
        "trip_s": max(r["trip_s"] for r in found),
        "tokens_per_s": sum(r["tokens_per_s"] for r in found),
    }


def _planned_bytes(kind: Kind, model_dir: Path, settings: dict[str, Any], num_ranks: int) -> float:
    """What a rank holds between two updates, by the arithmetic that a dry run prints: ZeRO below 3 and FSDP2 free
    gradients in each of them."""
    run = trainers.run_of(kind, model_dir, settings, {"dtype": "bf16"})
    frees_gradients = kind == "fsdp2" or (kind == "deepspeed" and run.stage < 3)
    return sum(
        total(parts, sure_only=True)
        for state, parts in planned_memory(kind, run, num_ranks).states.items()
        if not (frees_gradients and state == "gradients")
    )


def planned_memory(kind: Kind, run: Any, num_ranks: int, train_tokens: int = 0) -> RankMemory:
    """What a dry run says of a rank whose micro batches have at most `train_tokens` tokens."""
    shape, why_not = model_shape(read_object(run.model_dir / "config.json"))
    assert shape is not None, why_not
    worker = run.config().model_copy(update={"world_size": num_ranks})  # data parallel is what it leaves
    plan = run.plan(num_ranks)
    facts = RoleFacts(worker, shape, "train", num_ranks, shares_devices=True, train_tokens=train_tokens, train=plan)
    spec = spec_of(f"{kind}_train")
    return spec.call_hook(spec.memory["train"], RankMemory, facts)


def _live_bytes(device: torch.device) -> int:
    """Of tensors on the device; of those that Python knows, where it has no allocator to ask."""
    if device.type != "cpu":
        return held_bytes(device)
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [each.untyped_storage() for each in tensors if not isinstance(each, DTensor)]  # its part is another
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _turn(kind: Kind, model_dir: Path, settings: dict[str, Any], tokens: tuple[int, int]) -> dict[str, float]:
    """One rank. What it gives back is what torch lets go of: other processes can have it."""
    from transformers import AutoConfig

    from tests.parity.strategies.reference import BentLoss, scale_of

    module: Any = trainers.helpers_of(kind)
    run = trainers.run_of(kind, model_dir, settings, {"dtype": "bf16"})
    vocab_size = AutoConfig.from_pretrained(model_dir).vocab_size
    with module.trainer(run) as strategy:
        device = strategy.context.device
        on_cuda = device.type == "cuda"
        batch = [random_rows(*tokens, vocab_size, strategy.dp_rank, num_prompt=tokens[1] // 2)]
        scale = scale_of(batch * strategy.dp_size)

        def update() -> float:
            return strategy.train_step(batch, BentLoss(), scale, 1.0)[1]["grad_norm"]

        update()
        peak = torch.cuda.max_memory_allocated() if on_cuda else 0
        held = _live_bytes(device)
        if on_cuda:
            torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved() if on_cuda else 0
        started = time.monotonic()
        if on_cuda:
            from roll.distributed.strategy.base import ALL_STATES

            strategy.offload_states(ALL_STATES)
            away, given_back = held_bytes(device), reserved - torch.cuda.memory_reserved()
            strategy.load_states(ALL_STATES)
            torch.cuda.synchronize()
        else:
            away, given_back = go_and_come_back(kind, strategy), 0
        trip_s = time.monotonic() - started
        before = module.exported(strategy)
        update()
        started = time.monotonic()
        norm = update()
        seconds = time.monotonic() - started
        after = module.exported(strategy)  # of all ranks
        moved = difference(before, after) if before else 0.0
    return {
        "held_bytes": held,
        "away_bytes": away,
        "given_back_bytes": given_back,
        "peak_bytes": peak,
        "trip_s": trip_s,
        "tokens_per_s": tokens[0] * tokens[1] / seconds,
        "grad_norm": norm,
        "moved": moved,
    }


def random_rows(num_rows: int, num_tokens: int, vocab_size: int, seed: int, num_prompt: int) -> Any:
    """A micro batch of rows of equal length, trained but for their first `num_prompt` tokens."""
    from roll.types.batch import MicroBatch

    chance = torch.Generator().manual_seed(seed)
    shape = (num_rows, num_tokens)
    mask = (torch.arange(num_tokens) >= num_prompt).expand(shape).clone()
    return MicroBatch(
        input_ids=torch.randint(3, vocab_size, shape, generator=chance),
        lengths=torch.full((num_rows,), num_tokens),
        response_mask=mask,
        loss_weights=torch.ones(num_rows),
        rollout_log_probs=torch.full(shape, -12.0) * mask,
        advantages=(torch.rand(shape, generator=chance) * 2 - 1) * mask,
        returns=torch.zeros(shape),
    )


def engine_turns(place: Place, engine: str, tp: int = 1) -> Figures:
    """Samples with CUDA graphs, sleeps, wakes, samples again: the same greedy tokens, log-probs of Hugging Face in
    fp32, and the share of its memory that the engine gave back."""
    import numpy as np

    from roll.distributed.strategy.base import ALL_STATES
    from tests.helpers.engines import EngineHarness, forward_log_probs, prompt

    share = 0.5
    on_gpu: dict[str, dict[str, Any]] = {
        "vllm": {"max_model_len": 512, "max_num_seqs": 256, "gpu_memory_utilization": share},
        "sglang": {"context_length": 512, "max_running_requests": 256, "mem_fraction_static": share},
    }
    settings = on_gpu.get(engine, {}) if place.on_cuda else {}
    free_before, total = torch.cuda.mem_get_info() if place.on_cuda else (0, 1)
    harness = EngineHarness(
        engine, place.large_model(), num_gpus_per_worker=tp, device=place.device, dtype="bf16", **settings
    )
    num_answers, num_tokens = _ANSWERS[place.device]
    greedy = [harness.request(prompt(length), temperature=0.0, max_new_tokens=16) for length in (17, 60)]

    def one_by_one() -> list[Any]:
        """Greedy answers: prompts that are sent together are prefilled together or apart, which rounds differently."""
        asked = [harness.request(r.prompt_ids, temperature=0.0, max_new_tokens=16) for r in greedy]
        return [harness.generate(request)[0] for request in asked]

    def gaps_of(answers: list[Any]) -> np.ndarray:
        pairs = zip(greedy, answers, strict=True)
        return np.concatenate(
            [np.abs(a.log_probs - forward_log_probs(harness.model, r.prompt_ids, a.token_ids)) for r, (a,) in pairs]
        )

    first = one_by_one()
    gaps = gaps_of(first)
    speeds = _speeds(harness, num_answers, num_tokens)

    def used_bytes() -> int:
        return free_before - torch.cuda.mem_get_info()[0] if place.on_cuda else 0

    used = used_bytes()
    harness.run(asyncio.to_thread(harness.engine.offload_states, ALL_STATES), timeout_s=100)
    asleep = used_bytes()
    harness.run(asyncio.to_thread(harness.engine.load_states, ALL_STATES), timeout_s=100)
    again = one_by_one()
    same = [one[0].token_ids.tolist() == other[0].token_ids.tolist() for one, other in zip(first, again, strict=True)]
    return {
        "log_prob_gap_mean": float(gaps.mean()),
        "log_prob_gap_max": float(gaps.max()),
        "log_prob_gap_after_sleep": float(gaps_of(again).mean()),
        "same_after_sleep_fraction": sum(same) / len(same),
        "used_fraction": used / total,
        "left_asleep_gb": asleep / 1e9,
        "left_asleep_fraction": asleep / max(used, 1),
    } | speeds


def _speeds(harness: Any, num_answers: int, num_tokens: int) -> dict[str, float]:
    """Sampled tokens per second, medians of rounds in turns. Of vLLM also those of the engine's own interface, which
    the strategy calls, with the same parameters."""
    from tests.helpers.engines import prompt

    prompt_ids = prompt(20)

    def by_roll(number: int) -> None:
        request = harness.request(prompt_ids, num_answers, max_new_tokens=num_tokens, seed=number)
        harness.generate(request, timeout_s=200)

    def by_vllm(number: int) -> None:
        harness.run(_bare_answers(harness.engine._engine, prompt_ids, num_answers, num_tokens, number), 200)

    ways: dict[str, Callable[[int], None]] = {"tokens_per_s": by_roll}
    if harness.name == "vllm":
        ways["bare_tokens_per_s"] = by_vllm
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_ROUNDS):
        for name, way in ways.items():
            started = time.monotonic()
            way(number)
            seconds[name].append(time.monotonic() - started)
    # the first round compiles whatever is compiled at first use
    speeds = {name: num_answers * num_tokens / statistics.median(each[1:]) for name, each in seconds.items()}
    if "bare_tokens_per_s" in speeds:
        speeds["to_bare"] = speeds["tokens_per_s"] / speeds["bare_tokens_per_s"]
    return speeds


async def _bare_answers(engine: Any, prompt_ids: Any, num_answers: int, num_tokens: int, seed: int) -> None:
    """Answers of a user of vLLM: requests to the engine, each awaited."""
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    async def answer(index: int) -> None:
        parameters = SamplingParams(
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            seed=1000 * seed + index,
        )
        name = f"bare-{seed}-{index}"
        async for output in engine.generate(tokens_input(prompt_ids.tolist()), parameters, name):
            assert len(output.outputs[0].token_ids) == num_tokens

    await asyncio.gather(*(answer(index) for index in range(num_answers)))

"""How long the answers of a step take where max_running_requests binds.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/answer_slots.py --model output/tiny-sort/model [--slots 16 32 64] [--rounds 5]

16 groups of 16 answers, all asked for at once, through the queue of an engine's process (`GenerateWorker`). On `clock`
a token takes 1 ms whatever else runs, and lengths are log-normal with a part common to a group and one per answer
(median 60, cap 480). On `hf_infer` the model of tiny-sort really samples; an answer ends at any of 5 tokens of 289, or
after 240; its seconds are those of the CPU. To compare two versions, run this file with PYTHONPATH at each of them, in
turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))

from synthetic_strategies import SyntheticEngine

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.table import load_spec
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.types.rollout import Answered, Generation, GenerationRequest, SamplingParams

NUM_GROUPS, GROUP_SIZE = 16, 16
TOKEN_S, MEDIAN, CAP, COMMON, OWN = 0.001, 60, 480, 0.75, 0.58
STOPS = tuple(range(20, 25))


def lengths(seed: int) -> np.ndarray:
    """Of the answers of a group."""
    random = np.random.default_rng(seed)
    drawn = MEDIAN * np.exp(COMMON * random.standard_normal() + OWN * random.standard_normal(GROUP_SIZE))
    return np.clip(drawn, 1, CAP).astype(int)


class Clock(SyntheticEngine):
    """Answers take as long as they are."""

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        assert request.sampling.seed is not None
        wanted = lengths(request.sampling.seed)

        async def answer(index: int) -> Generation:
            await asyncio.sleep(TOKEN_S * wanted[index])
            zeros = np.zeros(wanted[index], np.float32)
            generation = Generation(zeros.astype(np.int32), zeros, zeros.astype(np.int32), "stop")
            if answered is not None:
                answered(index, generation)
            return generation

        return list(await asyncio.gather(*map(answer, request.samples)))


def requests(number: int) -> list[GenerationRequest]:
    random = np.random.default_rng(number)
    return [
        GenerationRequest(
            f"{number}-{group}",
            random.integers(30, 200, 24).astype(np.int32),
            SamplingParams(240, stop_token_ids=STOPS, temperature=3.0, seed=1000 * number + group),
            GROUP_SIZE,
        )
        for group in range(NUM_GROUPS)
    ]


async def measure(engine: str, model: str, slots: int, rounds: int) -> tuple[list[float], int]:
    """Seconds per round, and the tokens of the last one."""
    role = WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": model, "dtype": "fp32"},
            "strategy_args": {"strategy_name": "hf_infer", "strategy_config": {"max_model_len": 512}},
        }
    )
    path = load_spec("hf_infer").classes["generate"] if engine == "hf_infer" else "answer_slots:Clock"
    worker = GenerateWorker(Blueprint("actor_infer", 0, 1, 0, 0, "cpu", path, role), slots)
    await worker.setup()
    clock = time.process_time if engine == "hf_infer" else time.perf_counter
    seconds, num_tokens = [], 0
    for number in range(rounds + 1):
        started, open_groups, num_tokens = clock(), NUM_GROUPS, 0
        worker.submit(requests(number))
        while open_groups:
            finished = (await worker.take()).unpack()
            open_groups -= len(finished)
            assert not any(isinstance(result, str) for _, result in finished), finished
            num_tokens += sum(answer.num_tokens for _, result in finished for answer in result.values())  # type: ignore[union-attr]
        seconds.append(clock() - started)
    await worker.shutdown()
    return seconds[1:], num_tokens


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="output/tiny-sort/model")
    parser.add_argument("--engines", nargs="+", default=["clock", "hf_infer"])
    parser.add_argument("--slots", nargs="+", type=int, default=[16, 32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for engine in options.engines:
        for slots in options.slots:
            seconds, num_tokens = asyncio.run(measure(engine, options.model, slots, options.rounds))
            row = {"engine": engine, "slots": slots, "s": round(statistics.median(seconds), 3), "tokens": num_tokens}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""What `exact_log_probs` costs: CPU seconds of sampling, scoring and training, with and without it.

    python benchmarks/exact_log_probs.py [--hidden 256] [--layers 4] [--repeat 7] [--prompt 128] [--answer 128]
        [--experts 16]

A random Qwen2 in fp32, or a Qwen3-MoE with so many experts, of which a token takes four; hf_infer and fsdp2_train, one
rank and one thread each, in this process. Without the key the rows of a micro batch are one pack. Both ways take turns,
so that what else the machine does falls on both. Prints CPU seconds (median of the repeats), the median of the pairs'
ratios with its interval, and the largest difference between the log-probs of the sampler and those of the trainer,
which is 0 with the key."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from ratios import describe_ratios
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from roll.algorithms.loss import SupervisedLoss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.fsdp2.train import Fsdp2TrainStrategy
from roll.distributed.strategy.hf.generate import HfGenerateStrategy
from roll.models.tiny import build_tokenizer
from roll.types.batch import LossScale, MicroBatch
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from roll.utils.network import LOOPBACK, free_port

NUM_REQUESTS, GROUP = 4, 4
FIRST_ID, LAST_ID = 10, 200


def role(name: str, folder: Path, longest: int) -> WorkerConfig:
    model = {"model_name_or_path": str(folder), "dtype": "fp32", "disable_gradient_checkpointing": True}
    config = {"max_model_len": longest} if name == "hf_infer" else {}
    keys = {} if name == "hf_infer" else {"use_sequence_packing": True, "use_prefix_sharing": "off"}
    strategy = {"strategy_name": name, "strategy_config": config}
    return WorkerConfig.model_validate({"strategy_args": strategy, "model_args": model} | keys)


class Way:
    """A sampler and a trainer of the same weights, both exact or both not."""

    def __init__(self, folder: Path, longest: int, exact: bool):
        def context(name: str) -> RankContext:
            return RankContext(name, 0, 1, 0, 0, torch.device("cpu"), exact=exact)

        rows = NUM_REQUESTS * GROUP
        plan = TrainPlan("actor_train", rows, rows, 1, 1, 1, steps=10, warmup_updates=10, infer_batch_size=rows)
        self.trainer = Fsdp2TrainStrategy(role("fsdp2_train", folder, longest), context("actor_train"), plan)
        self.trainer.setup()
        self.sampler = HfGenerateStrategy(role("hf_infer", folder, longest), context("actor_infer"))
        self.sampler.setup()

    async def sample(self, requests: list[GenerationRequest]) -> list[list[Generation]]:
        return list(await asyncio.gather(*(self.sampler.generate(request) for request in requests)))

    def score(self, batch: MicroBatch) -> torch.Tensor:
        log_probs = self.trainer.log_probs([batch], 1.0)[0].log_probs
        assert log_probs is not None
        return log_probs

    def update(self, batch: MicroBatch) -> None:
        scale = LossScale(int(batch.response_mask.sum()), len(batch))
        self.trainer.train_step([batch], SupervisedLoss(), scale, 1.0)


def requests_of(prompt: int, answer: int, number: int) -> list[GenerationRequest]:
    random = np.random.default_rng(number)
    sampling = SamplingParams(answer, ignore_eos=True, seed=number)
    return [
        GenerationRequest(f"{number}-{each}", ids.astype(np.int32), sampling, GROUP)
        for each, ids in enumerate(random.integers(FIRST_ID, LAST_ID, (NUM_REQUESTS, prompt)))
    ]


def batch_of(requests: list[GenerationRequest], answers: list[list[Generation]]) -> tuple[MicroBatch, torch.Tensor]:
    """The rows, and the log-probs that the sampler gave their answers, on the tokens of the mask."""
    pairs = [(request, answer) for request, group in zip(requests, answers, strict=True) for answer in group]
    rows = [np.concatenate([request.prompt_ids, answer.token_ids]) for request, answer in pairs]
    ids = torch.from_numpy(np.stack(rows)).to(torch.int64)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for at, (request, _) in enumerate(pairs):
        mask[at, len(request.prompt_ids) :] = True
    told = torch.from_numpy(np.concatenate([answer.log_probs for _, answer in pairs]))
    return MicroBatch(ids, torch.full((len(rows),), ids.shape[1]), mask, torch.ones(len(rows))), told


def in_pairs(works: list[Callable[[], object]], repeat: int) -> list[list[float]]:
    """CPU seconds of each, round by round, after one round that does not count."""
    taken: list[list[float]] = [[] for _ in works]
    for number in range(repeat + 1):
        for seconds, work in zip(taken, works, strict=True):
            began = time.process_time()
            work()
            seconds.extend([time.process_time() - began] * (number > 0))
    return taken


def show(what: str, plain: list[float], exact: list[float]) -> None:
    ratios = [after / before for before, after in zip(plain, exact, strict=True)]
    print(
        f"{what:12}{statistics.median(plain):9.2f} s{statistics.median(exact):9.2f} s   {describe_ratios(ratios)}",
        flush=True,
    )


async def measure(folder: Path, prompt: int, answer: int, repeat: int) -> None:
    ways = [Way(folder, prompt + answer, exact) for exact in (False, True)]
    for way in ways:
        await way.sampler.start()
    taken: list[list[float]] = [[], []]
    for number in range(repeat + 1):
        for seconds, way in zip(taken, ways, strict=True):
            began = time.process_time()
            await way.sample(requests_of(prompt, answer, number))
            seconds.extend([time.process_time() - began] * (number > 0))
    print(f"{'':12}{'plain':>11}{'exact':>11}")
    show("sampling", *taken)
    requests = requests_of(prompt, answer, 0)
    batches = [batch_of(requests, await way.sample(requests)) for way in ways]
    differences = [
        float((way.score(batch)[batch.response_mask] - told).abs().max())
        for way, (batch, told) in zip(ways, batches, strict=True)
    ]
    batch = batches[0][0]
    show("scoring", *in_pairs([lambda way=way: way.score(batch) for way in ways], repeat))
    show("update", *in_pairs([lambda way=way: way.update(batch) for way in ways], repeat))
    print(f"{'difference':12}{differences[0]:11.1e}{differences[1]:11.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (
        ("hidden", 256),
        ("layers", 4),
        ("repeat", 7),
        ("prompt", 128),
        ("answer", 128),
        ("experts", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    tokenizer = build_tokenizer()
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": options.hidden,
        "intermediate_size": options.hidden * 11 // 4,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.hidden // 32,
        "num_key_value_heads": max(1, options.hidden // 64),
        "max_position_embeddings": 4096,
    }
    mixture: dict[str, Any] = {
        "num_experts": options.experts,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": options.hidden * 3 // 4,
        "head_dim": 32,
    }
    config = Qwen3MoeConfig(**shape, **mixture) if options.experts else Qwen2Config(**shape)
    with tempfile.TemporaryDirectory() as name:
        AutoModelForCausalLM.from_config(config).save_pretrained(name)
        tokenizer.save_pretrained(name)
        asyncio.run(measure(Path(name), options.prompt, options.answer, options.repeat))


if __name__ == "__main__":
    main()

"""What a rollout engine does per second behind roll, and by itself.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/engines.py --model output/tiny-sort/model [--engines vllm sglang hf_infer] [--rounds 3]

Every engine answers the same 64 requests at once: prompts of 16 to 79 tokens, each answer of 64 tokens, log-probs
included, each drawn from a seed of its own, fp32 on one device. Once behind `GenerateStrategy`, once called directly
with the same settings (hf_infer: `generate` of transformers on one padded batch, without seeds). Each form runs in a
process of its own, so that start-up counts too. The first round warms up and is not counted. CPU seconds are those of
all the engine's processes, per 1000 tokens: on a busy machine they say more than wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from roll.configs.cluster import WorkerConfig
from roll.types.rollout import GenerationRequest, SamplingParams

REPOSITORY = Path(__file__).resolve().parents[1]
ENGINES = ("hf_infer", "vllm", "sglang")
NUM_REQUESTS, NUM_TOKENS, FIRST_ID, LAST_ID = 64, 64, 10, 200
MAX_TOKENS = 256
SETTINGS: dict[str, dict[str, Any]] = {
    "hf_infer": {"max_model_len": MAX_TOKENS},
    "vllm": {"max_model_len": MAX_TOKENS, "enforce_eager": True},
    "sglang": {"context_length": MAX_TOKENS},
}
Round = Callable[[int], Awaitable[int]]  # number of the round -> tokens sampled


def make_requests(number: int) -> list[GenerationRequest]:
    random = np.random.default_rng(number)
    sampling = SamplingParams(NUM_TOKENS, ignore_eos=True, seed=number)
    return [
        GenerationRequest(f"{number}-{i}", random.integers(FIRST_ID, LAST_ID, 16 + i).astype(np.int32), sampling)
        for i in range(NUM_REQUESTS)
    ]


def role(engine: str, model: str) -> WorkerConfig:
    return WorkerConfig.model_validate(
        {
            "model_args": {"model_name_or_path": model, "dtype": "fp32"},
            "strategy_args": {"strategy_name": engine, "strategy_config": SETTINGS[engine]},
        }
    )


async def start_ours(engine: str, model: str, on_cpu: bool) -> Round:
    import torch

    from roll.distributed.strategy.base import GenerateStrategy, RankContext
    from roll.distributed.strategy.table import strategy_class_path
    from roll.utils.imports import resolve

    device = torch.device("cpu" if on_cpu else "cuda:0")
    constructor: Any = resolve(strategy_class_path(engine, "generate"))
    strategy: GenerateStrategy = constructor(role(engine, model), RankContext("actor_infer", 0, 1, 0, 0, device))
    strategy.setup()
    await strategy.start()

    async def run(number: int) -> int:
        answers = await asyncio.gather(*(strategy.generate(request) for request in make_requests(number)))
        return sum(len(answer.token_ids) for group in answers for answer in group)

    return run


async def start_bare_vllm(model: str, on_cpu: bool) -> Round:
    from roll.distributed.strategy.vllm import args as vllm_args

    os.environ.update(vllm_args.worker_environment(on_cpu))
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmSamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = vllm_args.engine_arguments(role("vllm", model), on_cpu, seed=0)
    del arguments["worker_extension_cls"]
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def answer(request: GenerationRequest, seed: int) -> int:
        parameters = VllmSamplingParams(
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
            seed=seed,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = tokens_input(request.prompt_ids.tolist())
        outputs = [output async for output in llm.generate(prompt, parameters, request.request_id)]
        return len(outputs[-1].outputs[0].token_ids)

    async def run(number: int) -> int:
        return sum(await asyncio.gather(*(answer(r, 1000 * number + i) for i, r in enumerate(make_requests(number)))))

    return run


async def start_bare_sglang(model: str, on_cpu: bool) -> Round:
    from roll.distributed.strategy.sglang import args as sglang_args

    os.environ.update(sglang_args.worker_environment(on_cpu))
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**sglang_args.engine_arguments(role("sglang", model), on_cpu, seed=0))

    async def answer(request: GenerationRequest, seed: int) -> int:
        parameters = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.0, "sampling_seed": seed}
        output = await engine.async_generate(
            input_ids=request.prompt_ids.tolist(), sampling_params=parameters, return_logprob=True
        )
        return len(output["output_ids"])  # type: ignore[index]

    async def run(number: int) -> int:
        return sum(await asyncio.gather(*(answer(r, 1000 * number + i) for i, r in enumerate(make_requests(number)))))

    return run


async def start_bare_hf_infer(model: str, on_cpu: bool) -> Round:
    import torch
    from transformers import AutoModelForCausalLM

    device = "cpu" if on_cpu else "cuda:0"
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.eval().to(device)

    async def run(number: int) -> int:
        prompts = [torch.from_numpy(request.prompt_ids.astype(np.int64)) for request in make_requests(number)]
        reversed_prompts = torch.nn.utils.rnn.pad_sequence([ids.flip(0) for ids in prompts], True, -1)
        ids = reversed_prompts.flip(1).to(device)  # padded on the left
        output = network.generate(
            ids.clamp(min=0),
            attention_mask=(ids >= 0).long(),
            do_sample=True,
            top_k=0,
            min_new_tokens=NUM_TOKENS,
            max_new_tokens=NUM_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        network.compute_transition_scores(output.sequences, output.logits, normalize_logits=True)
        return (output.sequences.shape[1] - ids.shape[1]) * len(prompts)

    return run


def cpu_seconds() -> float:
    """Of this process and those below it that are alive."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


async def measure(engine: str, form: str, model: str, rounds: int, on_cpu: bool) -> dict[str, float]:
    bare = {"hf_infer": start_bare_hf_infer, "vllm": start_bare_vllm, "sglang": start_bare_sglang}
    started = time.perf_counter()
    run = await (start_ours(engine, model, on_cpu) if form == "roll" else bare[engine](model, on_cpu))
    start_s = time.perf_counter() - started
    speeds, costs = [], []
    for number in range(1 + rounds):
        wall, cpu = time.perf_counter(), cpu_seconds()
        num_tokens = await run(number)
        assert num_tokens == NUM_REQUESTS * NUM_TOKENS, num_tokens
        speeds.append(num_tokens / (time.perf_counter() - wall))
        costs.append(1000 * (cpu_seconds() - cpu) / num_tokens)
    return {
        "start_s": start_s,
        "tokens_per_s": statistics.median(speeds[1:]),
        "cpu_s_per_1000_tokens": statistics.median(costs[1:]),
    }


def run_apart(engine: str, form: str, arguments: argparse.Namespace) -> dict[str, float]:
    """`measure` in a process group of its own, which is ended afterwards."""
    command = [sys.executable, __file__, "--measure", engine, form, "--model", arguments.model]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command += ["--rounds", str(arguments.rounds), *(["--gpu"] if arguments.gpu else [])]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="a model directory; tokens 10 to 199 are sampled as prompts")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("ENGINE", "FORM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        engine, form = arguments.measure
        report = asyncio.run(measure(engine, form, arguments.model, arguments.rounds, not arguments.gpu))
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(0)
    sys.stdout.write(f"{'engine':10}{'form':6}{'start s':>9}{'tokens/s':>10}{'cpu s/1000 tokens':>19}\n")
    for engine in arguments.engines:
        reports = {form: run_apart(engine, form, arguments) for form in ("bare", "roll")}
        for form, report in reports.items():
            numbers = f"{report['start_s']:9.1f}{report['tokens_per_s']:10.0f}{report['cpu_s_per_1000_tokens']:19.3f}"
            sys.stdout.write(f"{engine:10}{form:6}{numbers}\n")
        ratio = {name: reports["roll"][name] / reports["bare"][name] for name in reports["bare"]}
        numbers = f"{ratio['start_s']:8.2f}x{ratio['tokens_per_s']:9.2f}x{ratio['cpu_s_per_1000_tokens']:18.2f}x"
        sys.stdout.write(f"{engine:10}{'ratio':6}{numbers}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

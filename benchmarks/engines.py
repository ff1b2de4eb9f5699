"""What a rollout engine does per second behind roll, and by itself.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/engines.py --model output/tiny-sort/model [--engines vllm sglang hf_infer] [--rounds 8]

Every engine answers the same 64 requests at once: prompts of 16 to 79 tokens, each answer of 64 tokens, log-probs
included, each drawn from a seed of its own, fp32 on one device. Once behind `GenerateStrategy`, once called directly
with the same settings (hf_infer: `generate` of transformers on one padded batch, without seeds). Each form runs in
processes of its own, and the two take turns, round by round: the ratios are those of a round, of which the median is
shown. The first round warms up and is not counted. CPU seconds are those of all the engine's processes, per 1000
tokens: on a busy machine they say more than wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from roll.configs.sections.cluster import WorkerConfig
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
COLUMNS = {"start_s": 1, "tokens_per_s": 0, "cpu_s_per_1000_tokens": 3}  # with the digits to show
MARK = "engines.py: "  # before what this script says: engines print, too
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

    from roll.configs.strategies.table import load_spec
    from roll.distributed.strategy.base import RankContext
    from roll.distributed.strategy.generate_base import GenerateStrategy
    from roll.utils.imports import resolve

    device = torch.device("cpu" if on_cpu else "cuda:0")
    constructor: Any = resolve(load_spec(engine).classes["generate"])
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


async def serve(engine: str, form: str, model: str, on_cpu: bool) -> None:
    """Starts the engine, says how long that took, and then runs the rounds whose numbers come, a line of JSON each."""
    bare = {"hf_infer": start_bare_hf_infer, "vllm": start_bare_vllm, "sglang": start_bare_sglang}
    started = time.perf_counter()
    run = await (start_ours(engine, model, on_cpu) if form == "roll" else bare[engine](model, on_cpu))
    say({"start_s": time.perf_counter() - started})
    while line := await asyncio.to_thread(sys.stdin.readline):
        wall, cpu = time.perf_counter(), cpu_seconds()
        num_tokens = await run(int(line))
        assert num_tokens == NUM_REQUESTS * NUM_TOKENS, num_tokens
        seconds = time.perf_counter() - wall
        say({"tokens_per_s": num_tokens / seconds, "cpu_s_per_1000_tokens": 1000 * (cpu_seconds() - cpu) / num_tokens})


def say(values: dict[str, float]) -> None:
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


class Form:
    """One form of an engine in a process group of its own, which stands still while the other one has its turn: some
    engines look for work all the time."""

    def __init__(self, engine: str, form: str, arguments: argparse.Namespace):
        command = [sys.executable, __file__, "--serve", engine, form, "--model", arguments.model]
        command += ["--gpu"] if arguments.gpu else []
        self._process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started = self._answer()
        self._signal(signal.SIGSTOP)

    def run(self, number: int) -> dict[str, float]:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit("the engine ended before it answered")

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


def compare(engine: str, arguments: argparse.Namespace) -> None:
    """The two forms take turns, each the first in every other round. Ratios are medians over the rounds."""
    forms = {form: Form(engine, form, arguments) for form in ("bare", "roll")}
    results: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
    try:
        for number in range(1 + arguments.rounds):
            for form in forms if number % 2 else reversed(forms):
                results[form].append(forms[form].run(number) | forms[form].started)
    finally:
        for process in forms.values():
            process.close()
    counted = {form: rounds[1:] for form, rounds in results.items()}
    for form, rounds in counted.items():
        show(engine, form, {name: statistics.median(r[name] for r in rounds) for name in COLUMNS}, "")
    pairs = list(zip(counted["bare"], counted["roll"], strict=True))
    show(
        engine,
        "ratio",
        {name: statistics.median(ours[name] / bare[name] for bare, ours in pairs) for name in COLUMNS},
        "x",
    )


def show(engine: str, form: str, values: dict[str, float], unit: str) -> None:
    digits = dict.fromkeys(COLUMNS, 2) if unit else COLUMNS
    numbers = "".join(f"{values[name]:{12 - len(unit)}.{digits[name]}f}{unit}" for name in COLUMNS)
    sys.stdout.write(f"{engine:10}{form:6}{numbers}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="a model directory; tokens 10 to 199 are sampled as prompts")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("ENGINE", "FORM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        engine, form = arguments.serve
        asyncio.run(serve(engine, form, arguments.model, not arguments.gpu))
        return
    sys.stdout.write(f"{'engine':10}{'form':6}{'start s':>12}{'tokens/s':>12}{'CPU s/1000':>12}\n")
    for engine in arguments.engines:
        compare(engine, arguments)


if __name__ == "__main__":
    main()

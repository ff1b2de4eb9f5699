"""Whole runs as a user starts them, with Ray and real engines: that the engine has the trainer's weights after updates
by every route, and that a run outlives an engine."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.gpu.check import Figures, largest, smallest
from tests.gpu.place import Place
from tests.helpers.engines import ENGINE_PROCESSES
from tests.helpers.runs import Run, run_starter

_HERE = Path(__file__).resolve().parents[1]
_ENGINE_SETTINGS: dict[str, dict[str, Any]] = {
    "hf_infer": {},
    # A cache of a given size: several engines can start on a GPU at once, none of which measures what it may take.
    # Graphs and compilers take a minute, and are the business of runs that ask for them.
    "vllm": {
        "max_model_len": 128,
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 1_000_000_000,
        "enforce_eager": True,
    },
    "sglang": {"context_length": 128, "max_running_requests": 64, "mem_fraction_static": 0.3},
}
_NUM_PROMPTS = 256


def follows(
    place: Place,
    engine: str,
    trainers: list[int],
    engines: list[int],
    route: str,
    overrides: Sequence[str] = (),
    mixture: bool = False,
) -> Figures:
    """Four steps, one engine. The gap between its log-probs and the trainer's is that of the last step, after three
    updates; `moved` is how far one update moves them: a gap of that size would be old weights."""
    with _runs(place, mixture) as start:
        run = start(
            engine,
            trainers,
            engines,
            f"actor_infer.num_gpus_per_worker={len(engines)}",
            f"weight_sync_route={route}",
            *overrides,
        )
        _finish(run)
        rows = [run.metrics[step] for step in range(1, 5)]
    return {
        "log_prob_gap_mean": rows[-1]["train_infer/log_prob_diff_mean"],
        "log_prob_gap_max": rows[-1]["train_infer/log_prob_diff_max"],
        "moved": smallest(math.log(row["actor/ratio_max"]) for row in rows[:-1]),
        "grad_norm": smallest(row["actor/grad_norm"] for row in rows),
        "weight_sync_s": rows[-1]["time/weight_sync_s"],
        "step_s": rows[-1]["time/step_s"],
    }


def outlives_an_engine(place: Place, engine: str) -> Figures:
    """One trainer and two engines, each on a device of its own, weights by broadcast. The processes of one engine are
    stopped while the trainer trains, so that the next broadcast waits for them, and killed there."""
    with _runs(place) as start:
        run = start(engine, [0], [1, 2], "weight_sync_route=broadcast", "max_steps=100000")
        run.wait_for_step(2)
        step = max(run.metrics) + 1
        recorded = run.output_dir / "rollouts" / f"step_{step + 1:06d}.jsonl"
        victims = _engine_processes(run)
        _wait_for(recorded, run)
        for process in victims:
            process.suspend()
        time.sleep(5)
        stopped_at = max(run.metrics)
        killed = time.monotonic()
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        run.wait_for_step(stopped_at + 3)
        seconds = time.monotonic() - killed
        run.process.send_signal(signal.SIGTERM)
        status = run.wait(120)
        gaps = [row["train_infer/log_prob_diff_max"] for at, row in run.metrics.items() if at > stopped_at + 1]
    return {
        "seconds_to_three_more_steps": seconds,
        "log_prob_gap_max": largest(gaps),
        "exit_status": status,
        "restarts": run.text.count("was restarted in"),
    }


def learns(place: Place, config_name: str, steps: int, overrides: Sequence[str]) -> Figures:
    """The demo's task on warmed-up weights, every role on one device: states leave it and come back every step."""
    from roll.models.tiny_sort import prepare

    # vLLM's attention in fp32 is a kernel of Triton, whose products are TF32 unless it is told otherwise.
    os.environ["TRITON_F32_DEFAULT"] = "ieee"
    data = place.directory / "data"
    prepare(data)
    one_gpu = ("num_gpus_per_node=1", "actor_train.device_mapping=[0]", "actor_infer.device_mapping=[0]")
    # No tracker that a bare machine may lack.
    length = (f"max_steps={steps}", f"eval_steps={steps}", "save_steps=-1", "track_with=[jsonl]")
    with run_starter(place.directory, Path(os.environ["TMPDIR"])) as start:
        run = start(data, config_name, *one_gpu, *length, *overrides)
        _finish(run)
        rows = run.metrics
    return {
        "validation_before": rows[0]["val/reward_mean"],
        "validation_gain": rows[steps]["val/reward_mean"] - rows[0]["val/reward_mean"],
        "log_prob_gap_max": largest(row["train_infer/log_prob_diff_max"] for step, row in rows.items() if step),
    }


@contextmanager
def _runs(place: Place, mixture: bool = False) -> Iterator[Any]:
    """start(engine, devices of the trainer, devices of the engine, *overrides) -> Run, on random weights."""
    data = place.directory / "data"
    width = 256 if place.on_cuda else 128  # heads of 64: not every kernel for GPUs has narrower ones
    if mixture:
        made = place.mixture(hidden_size=width, head_dim=width // 4)
    else:
        made = place.tiny_model(tie_word_embeddings=False, hidden_size=width)
    made.rename(_made(data) / "model")
    _write_prompts(data / "train.jsonl")
    with run_starter(place.directory, Path(os.environ["TMPDIR"])) as start:

        def start_on(engine: str, trainers: list[int], engines: list[int], *overrides: str) -> Run:
            devices = max(*trainers, *engines) + 1
            at, settings = "actor_infer.strategy_args.strategy_config", _ENGINE_SETTINGS[engine]
            return start(
                data,
                "run",
                f"num_gpus_per_node={devices}",
                f"actor_train.device_mapping={trainers}",
                f"actor_infer.device_mapping={engines}",
                f"actor_train.training_args.per_device_train_batch_size={32 // len(trainers)}",
                f"actor_infer.strategy_args.strategy_name={engine}",
                *(f"+{at}.{key}={value}" for key, value in settings.items()),
                *overrides,
                example=_HERE,
            )

        yield start_on


def _finish(run: Run) -> None:
    status = run.wait()
    if status != 0:
        raise AssertionError(f"the run ended with {status}: {_last_words(run.text)} ({run.log})")


def _last_words(text: str) -> str:
    """The line that says why, as far as it can be told."""
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "failed" in line]
    return (told or lines or ["it said nothing"])[-1].strip()


def _engine_processes(run: Run) -> list[psutil.Process]:
    """Of one engine: those that its worker has started, or the worker itself where it has none."""
    worker = next(p for p in run.processes(ROLL_ROLE="actor_infer") if p.name().startswith("ray::"))
    own = [
        p for p in worker.children(recursive=True) if any(name in " ".join(p.cmdline()) for name in ENGINE_PROCESSES)
    ]
    return own or [worker]


def _wait_for(path: Path, run: Run) -> None:
    while not path.exists():
        if run.process.poll() is not None:
            raise AssertionError(f"the run ended with {run.process.poll()}: {_last_words(run.text)}")
        time.sleep(0.005)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _write_prompts(path: Path) -> None:
    chance = random.Random(0)
    rows = [
        {"prompt": f"{chance.randrange(10**4):04d}", "ground_truth": "", "tag": "sort"} for _ in range(_NUM_PROMPTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

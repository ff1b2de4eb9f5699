"""Engines whose every rank reads what another rank of the trainer sends. On GPUs that is CUDA IPC between processes
that share a GPU; here each sending rank has shared memory of its own, and all else is the same."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.distributed.executor.weights.sender import EngineRoute, SendPlan
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.helpers.cases import cases
from tests.helpers.engine_socket import Engine
from tests.helpers.engines import engine_processes, forward_log_probs, open_zmq_sockets, prompt
from tests.helpers.processes import RankPool, shared_segments
from tests.integration.rollout_engines.senders import Run, publish
from tests.parity.megatron import ranks as megatron
from tests.parity.strategies import runs as deepspeed

Pools = Callable[[int], RankPool]
TOLERANCE = 3e-5  # fp32 engines against fp64
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
RUNS: dict[str, Callable[[Path], Run]] = {
    "zero3": lambda model_dir: deepspeed.Run(model_dir, stage=3),
    "zero1": lambda model_dir: deepspeed.Run(model_dir, stage=1),
    "megatron-tp2": lambda model_dir: megatron.Run(model_dir, TP2),
}
SENDERS = {"hf_infer": (1,), "vllm": (0, 1), "sglang": (1, 0)}  # by rank of the engine


@contextmanager
def started(name: str, model_dir: Path) -> Iterator[Engine]:
    if name != "hf_infer":
        pytest.importorskip(name, reason=f"{name} is not installed")
    engine = Engine(name, model_dir, num_ranks=len(SENDERS[name]))
    yield engine
    engine.close()
    assert open_zmq_sockets() == []


def segments_read() -> list[set[int]]:
    """For each process that reads weights: whose segments it has open."""
    found = []
    for process in (psutil.Process(), *engine_processes()):
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        found.append({int(pid) for pid in re.findall(r"/dev/shm/roll-(\d+)-", maps)})
    return [pids for pids in found if pids]


@pytest.mark.slow
@cases("name, trainers")
def test_every_rank_of_an_engine_reads_from_its_own_rank_of_the_trainer(
    name: str, trainers: list[str], rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    """Log-probs of what is sampled are those of a Hugging Face model with the trainer's weights, and every process has
    segments of one sender mapped, all of them together those of all senders."""
    model = AutoModelForCausalLM.from_pretrained(tiny_tied_model_dir, dtype=torch.float64).eval()
    pool, read = rank_pool(2), []
    plan = SendPlan((EngineRoute("memory", SENDERS[name]),))

    with started(name, tiny_tied_model_dir) as engine:

        def check(weights: dict[str, np.ndarray]) -> None:
            request = GenerationRequest(
                "r", prompt(17), SamplingParams(max_new_tokens=12, seed=100, ignore_eos=True), 1
            )
            (answer,) = engine.run(engine.worker.strategy.generate(request))
            old = forward_log_probs(model, prompt(17), answer.token_ids)
            for parameter_name, parameter in model.named_parameters():
                parameter.data.copy_(torch.from_numpy(weights[parameter_name]))
            new = forward_log_probs(model, prompt(17), answer.token_ids)
            assert np.abs(answer.log_probs - new).max() < TOLERANCE
            assert np.abs(answer.log_probs - old).max() > 100 * TOLERANCE
            read.append(sorted(segments_read(), key=sorted))

        for number, trainer in enumerate(trainers):
            directory = tmp_path / trainer
            directory.mkdir()
            versions = [2 * number + 1, 2 * number + 2]
            arguments = (RUNS[trainer](tiny_tied_model_dir), dict.fromkeys(versions, plan))
            outcomes = engine.receive_from(pool, publish, arguments, directory, check)
            assert outcomes == [[[versions[0]], [versions[1]]], [None, None]]
    pids = [process.pid for process in pool.processes]
    assert read == [[{pid} for pid in sorted(pids[rank] for rank in SENDERS[name])]] * 2 * len(trainers)
    assert not shared_segments(pids)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_engine_that_is_killed_in_the_middle_ends_the_update_and_its_successor_gets_the_weights(
    name: str, rank_pool: Pools, tiny_tied_model_dir: Path, tmp_path: Path
) -> None:
    run, pool, seen = RUNS["zero3"](tiny_tied_model_dir), rank_pool(2), []
    plan = SendPlan((EngineRoute("memory", SENDERS[name]),))
    with started(name, tiny_tied_model_dir) as engine:

        def kill_at_the_third_bucket(method: str) -> None:
            seen.append(method)
            if len(seen) == 3:
                for process in engine_processes():
                    process.kill()

        engine.on_call = kill_at_the_third_bucket
        lead, other = engine.receive_from(pool, publish, (run, {1: plan}), tmp_path, lambda weights: None)
        assert "EngineDied" in lead[0] and other == [None]
        assert seen == ["receive_weights"] * 3
    assert not shared_segments(process.pid for process in pool.processes)
    (tmp_path / "socket").unlink()
    with started(name, tiny_tied_model_dir) as engine:
        outcomes = engine.receive_from(pool, publish, (run, {2: plan}), tmp_path, lambda weights: None)
        assert outcomes == [[[2]], [None]]

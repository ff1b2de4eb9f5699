"""What exact mode promises of `hf_infer`: the log-prob of a sampled token is the number that a trainer gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roll.configs.sections.model import ModelArgs
from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
from roll.distributed.strategy.hf.sampler import Answer, BatchSampler
from roll.models.exact.check import make_exact
from roll.models.exact.rows import ExactRows
from roll.models.hf import TokenLogProbModel
from roll.models.loading import load_policy
from roll.models.sequences.pack import Pack
from roll.types.rollout import GenerationRequest, SamplingParams

# Lengths on both sides of a block's end, temperatures, penalties, and a greedy row.
REQUESTS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (9, 4, 30, {}),
    (120, 3, 24, {"temperature": 0.7}),
    (127, 1, 6, {"temperature": 0.7, "top_p": 0.8}),
    (3, 2, 40, {"temperature": 1.3, "repetition_penalty": 1.2}),
    (60, 1, 12, {"temperature": 0.0}),
    (200, 2, 9, {"top_k": 5, "min_new_tokens": 4}),
)


def _requests() -> list[GenerationRequest]:
    draw = np.random.default_rng(0)
    return [
        GenerationRequest(
            f"r{number}",
            draw.integers(3, 290, length).astype(np.int32),
            SamplingParams(max_new_tokens=most, seed=number, ignore_eos=True, **more),
            count,
        )
        for number, (length, count, most, more) in enumerate(REQUESTS)
    ]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_sampled_log_probs_are_the_trainers_to_the_last_bit(tiny_model_dir: Path, dtype: str) -> None:
    """Rows join between tokens and leave, prompts repeat, and the cache is computed anew in the middle, as after a
    weight update; the trainer's side scores rows in packs of three."""
    assert _differing(tiny_model_dir, dtype) == 0


@torch.no_grad()
def _differing(model_dir: Path, dtype: str) -> int:
    """Sampled tokens to which the trainer's model gives another log-prob."""
    arguments = ModelArgs(model_name_or_path=str(model_dir), dtype=dtype)  # type: ignore[arg-type]
    engine = load_policy(arguments)
    engine.pretrained.eval().requires_grad_(False)
    sampler = BatchSampler(engine.pretrained, [1], None, 512, 64, exact=ExactDecoder(engine))
    waiting, answers = _requests(), list[Answer]()
    requests = {request.request_id: request for request in waiting}
    steps = 0
    while waiting or sampler.has_work:
        if waiting and steps % 3 == 0:
            sampler.submit(waiting.pop(0))
        if steps == 10:
            sampler.recompute_cache()
        answers += sampler.step()
        steps += 1
    assert len(answers) == sum(count for _, count, _, _ in REQUESTS)

    trainer = load_policy(arguments)
    make_exact(trainer)
    assert isinstance(trainer.module, TokenLogProbModel)
    number = 0
    for request in requests.values():
        given = [answer.generation for answer in answers if answer.request_id == request.request_id]
        rows = [np.concatenate([request.prompt_ids, generation.token_ids]) for generation in given]
        rows += [rows[0][: 2 + number % 50], rows[0]]  # beside others
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.from_numpy(row)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        temperature = float(np.float32(request.sampling.temperature)) or 1.0
        scores = trainer.module(ids, mask, temperature, layout=ExactRows.of(Pack.scored(ids, lengths)))[0]
        for at, generation in enumerate(given):
            of_answer = scores[at, len(request.prompt_ids) : lengths[at]].numpy()
            number += int((of_answer != generation.log_probs).sum())
    return number

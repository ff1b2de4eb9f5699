"""The experts that the sampler says its tokens went to, against a plain forward pass of the whole answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from roll.distributed.strategy.hf.sampler import Answer, BatchSampler
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.parity.megatron import models
from tests.parity.strategies.routes import Forced, stacked

VOCAB_SIZE = 64


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(tmp_path_factory.mktemp("mixture") / "model", "qwen3_moe", vocab_size=VOCAB_SIZE)


def sampler_of(model_dir: Path) -> tuple[Any, BatchSampler]:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval().requires_grad_(False)
    return model, BatchSampler(model, [], None, max_model_len=128, max_num_seqs=6, tells_routes=True)


def requests() -> list[GenerationRequest]:
    """Prompts of unlike lengths, more than fit at once, in groups of 1 to 3; answers of unlike lengths."""
    generator, made = np.random.default_rng(0), []
    for number, (prompt, answer, samples) in enumerate([(5, 7, 3), (11, 3, 2), (2, 12, 3), (8, 1, 1), (7, 9, 2)]):
        sampling = SamplingParams(max_new_tokens=answer, seed=number, ignore_eos=True)
        ids = generator.integers(3, VOCAB_SIZE, prompt).astype(np.int32)
        made.append(GenerationRequest(f"r{number}", ids, sampling, samples))
    return made


def chosen(forced: Forced, ids: Sequence[int]) -> np.ndarray:
    with torch.no_grad():
        forced.model(input_ids=torch.tensor([ids]))
    return np.sort(stacked(forced.chosen), -1)


def assert_told(answers: Sequence[Answer], forced: Forced) -> None:
    prompts = {request.request_id: request.prompt_ids.tolist() for request in requests()}
    for answer in answers:
        ids = [*prompts[answer.request_id], *answer.generation.token_ids.tolist()]
        routes = answer.generation.routes
        assert routes is not None and routes.dtype == np.int16
        assert len(routes) == len(ids) - 1  # nobody has computed the last token
        assert np.array_equal(np.sort(routes, -1), chosen(forced, ids)[:-1])


def test_every_answer_comes_with_the_experts_of_its_prompt_and_its_tokens(model_dir: Path) -> None:
    _, sampler = sampler_of(model_dir)
    for request in requests():
        sampler.submit(request)
    answers = []
    while sampler.has_work:
        answers += sampler.step()
    assert len(answers) == 11
    assert_told(answers, Forced(model_dir))
    assert not sampler._table.routes


def test_after_an_update_they_are_those_of_the_new_weights(model_dir: Path) -> None:
    """Keys and values again, and so are the choices for all that is there."""
    model, sampler = sampler_of(model_dir)
    for request in requests()[:2]:
        sampler.submit(request)
    answers = sampler.step() + sampler.step()
    forced = Forced(model_dir)
    with torch.no_grad():
        for one in (model, forced.model):
            generator = torch.Generator().manual_seed(0)
            for name, parameter in one.named_parameters():
                if name.endswith(".gate.weight"):
                    parameter.copy_(torch.randn(parameter.shape, generator=generator))
    sampler.recompute_cache()
    while sampler.has_work:
        answers += sampler.step()
    assert_told(answers, forced)

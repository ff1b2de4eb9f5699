"""The experts that SGLang says tokens went to, against Hugging Face's choices for the same tokens."""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from roll.types.rollout import Generation, GenerationRequest
from tests.helpers.engines import EngineHarness
from tests.parity.megatron import models
from tests.parity.strategies.routes import Forced, stacked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.slow
VOCAB_SIZE = 64


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: "PreTrainedTokenizerFast") -> Path:
    made = models.make(tmp_path_factory.mktemp("mixture") / "model", "qwen3_moe", vocab_size=VOCAB_SIZE)
    assert len(tiny_tokenizer) <= VOCAB_SIZE
    tiny_tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[EngineHarness]:
    if find_spec("sglang") is None:
        pytest.skip("sglang is not installed")
    harness = EngineHarness("sglang", model_dir, tells_routes=True, context_length=200)
    yield harness
    harness.close()


def requests(engine: EngineHarness) -> list[GenerationRequest]:
    """Prompts of unlike lengths, one the beginning of another, in groups of one to three."""
    ids = np.random.default_rng(0).integers(3, VOCAB_SIZE, 23).astype(np.int32)
    return [
        engine.request(ids[:9], 3, max_new_tokens=7),
        engine.request(ids, 2, max_new_tokens=12),
        engine.request(ids[4:6], 1, max_new_tokens=1),
    ]


def assert_told(asked: list[GenerationRequest], answers: list[list[Generation]], forced: Forced) -> None:
    for request, group in zip(asked, answers, strict=True):
        for answer in group:
            ids = [*request.prompt_ids.tolist(), *answer.token_ids.tolist()]
            with torch.no_grad():
                forced.model(input_ids=torch.tensor([ids]))
            want = np.sort(stacked(forced.chosen), -1)[:-1]  # nobody has computed the last token
            assert answer.routes is not None and answer.routes.dtype == np.int16
            assert answer.routes.shape == want.shape == (len(ids) - 1, 2, 2)
            assert np.array_equal(np.sort(answer.routes, -1), want)


def test_every_answer_comes_with_the_experts_of_its_prompt_and_its_tokens(
    engine: EngineHarness, model_dir: Path
) -> None:
    """Also those of a prompt that was computed for another answer."""
    for _ in range(2):
        asked = requests(engine)
        assert_told(asked, engine.generate(*asked), Forced(model_dir))


def test_an_answer_that_was_cut_short_has_those_of_its_tokens_or_none(engine: EngineHarness) -> None:
    request = engine.request(np.arange(3, 9, dtype=np.int32), 1, max_new_tokens=150)

    async def cut_short() -> list[Generation]:
        asked = asyncio.ensure_future(engine.engine.generate(request))
        await asyncio.sleep(0.5)
        await engine.engine.abort([request.request_id])
        return list(await asked)

    (answer,) = engine.run(cut_short())
    assert answer.routes is None or len(answer.routes) <= 6 + answer.num_tokens

"""What vLLM answers to pictures: log-probs of Hugging Face's model, before and after updates, and nothing stale."""

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import SEES, VisionModel
from roll.errors import StrategyError
from roll.types.media import Prompt, Shown
from roll.types.rollout import Generation, GenerationRequest
from tests.helpers.engines import EngineHarness, changed_model, open_harness
from tests.helpers.pictures import make_model_dir, random_picture, seen_log_probs, shown_row

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = 1e-5  # fp32; other kernels, sums in another order
MOST_PICTURES = 3
MODELS = {  # family, and whether the embedding is its head
    "qwen2_5_vl": False,
    "qwen2_vl": True,
    "qwen3_vl": False,
    "glm4v": False,
    "qwen3_vl_moe": False,
    "glm4v_moe": False,
    "internvl": False,
}

if find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"), request.param, MODELS[request.param])
    limits = {"image": MOST_PICTURES}
    yield from open_harness("vllm", model_dir, shows_pictures=True, limit_mm_per_prompt=limits)


@pytest.fixture(scope="module")
def vision(harness: EngineHarness) -> VisionModel:
    return vision_at(harness.model_dir)


def vision_at(model_dir: Path) -> VisionModel:
    from roll.models.vision.files import vision_of

    found = vision_of(ModelArgs(model_name_or_path=str(model_dir)))
    assert found is not None
    return found


def asking(harness: EngineHarness, row: Prompt, num_samples: int = 1, **sampling: Any) -> GenerationRequest:
    return replace(harness.request(row.ids, num_samples, **sampling), media=row.media)


def rows_of(vision: VisionModel, seed: int = 0) -> list[Prompt]:
    """No picture, one, two of other sizes, and one twice."""
    first, second, third = (
        random_picture(vision, *size, seed=seed + number) for number, size in enumerate([(3, 2), (1, 1), (2, 4)])
    )
    shown = ([], [first], [second, third], [first, first])
    return [shown_row(vision, pictures, 5 + 3 * number, seed) for number, pictures in enumerate(shown)]


def assert_seen(
    model: "PreTrainedModel", vision: VisionModel, row: Prompt, answer: Generation, span: slice = slice(None)
) -> None:
    ids = np.concatenate([row.ids, answer.token_ids])
    expected = seen_log_probs(model, vision, ids, row.media, answer.num_tokens)
    assert np.abs(answer.log_probs - expected)[span].max() < TOLERANCE


def with_new_tower(model: "PreTrainedModel", vision: VisionModel, seed: int) -> "PreTrainedModel":
    """The model with another tower."""
    import torch

    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if name.startswith(SEES):
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return changed


def test_log_probs_of_answers_to_pictures_are_those_of_the_model(harness: EngineHarness, vision: VisionModel) -> None:
    rows = rows_of(vision)
    for row, answers in zip(rows, harness.generate(*(asking(harness, row, 3) for row in rows)), strict=True):
        assert len({tuple(answer.token_ids.tolist()) for answer in answers}) == 3
        for answer in answers:
            assert_seen(harness.model, vision, row, answer)


def test_after_updates_pictures_are_seen_with_the_new_weights(
    harness: EngineHarness, vision: VisionModel, tmp_path: Path
) -> None:
    """The same rows before and after: what the tower made of their pictures would show if it stayed. First all weights
    change, then those of the tower alone."""
    rows = rows_of(vision, seed=7)
    for change in ("all", "tower"):
        old = harness.model
        harness.generate(*(asking(harness, row) for row in rows))
        seed = 20 + harness.version
        new = changed_model(harness.model_dir, seed) if change == "all" else with_new_tower(old, vision, seed)
        harness.run(harness.update(new, "memory", tmp_path))
        answers = harness.generate(*(asking(harness, row, 2) for row in rows))
        for row, (answer, other) in zip(rows, answers, strict=True):
            assert (answer.policy_versions == harness.version).all()
            assert_seen(new, vision, row, answer)
            assert_seen(new, vision, row, other)
            ids = np.concatenate([row.ids, answer.token_ids])
            by_old = seen_log_probs(old, vision, ids, row.media, answer.num_tokens)
            moved = np.abs(by_old - answer.log_probs).max()
            assert moved > 100 * TOLERANCE or (change == "tower" and not row.media and moved < TOLERANCE)


def test_a_placeholder_ends_the_answer_that_samples_it(harness: EngineHarness, vision: VisionModel) -> None:
    row = rows_of(vision)[1]
    (answers,) = harness.generate(asking(harness, row, 24, max_new_tokens=60, temperature=1.3, ignore_eos=True))
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    assert ended and len(ended) < len(answers)
    for answer in ended:
        assert answer.token_ids[-1] in vision.placeholders
    for answer in answers:
        assert not np.isin(answer.token_ids[:-1], vision.placeholders).any()
        assert answer.finish_reason == "stop" or answer.num_tokens == 60


def test_requests_whose_pictures_do_not_fit_their_prompt_are_refused(
    harness: EngineHarness, vision: VisionModel
) -> None:
    row = rows_of(vision)[1]
    (shown,) = row.media
    shorter = Prompt(np.delete(row.ids, shown.start), (Shown(shown.picture, shown.start, shown.length - 1),))
    sizes = f"a prompt of {len(row.ids)} tokens, and the trainer's has {len(row.ids) - 1}"
    if not vision.has_grid:
        sizes = f"{shown.length} tokens, and the trainer has {shown.length - 1}"
    with pytest.raises(StrategyError, match=f"expanded its 1 pictures to {sizes}. Their processor files differ"):
        harness.generate(asking(harness, shorter))
    with pytest.raises(StrategyError, match=f"its prompt has {shown.length} placeholders, and its pictures have 0"):
        harness.generate(harness.request(row.ids))
    many = shown_row(vision, [shown.picture] * (MOST_PICTURES + 1), 4)
    with pytest.raises(StrategyError, match="shows 4 pictures, and the engine takes 3 .* Raise limit_mm_per_prompt"):
        harness.generate(asking(harness, many))
    harness.generate(asking(harness, row))  # and the engine goes on


def test_a_picture_that_the_engine_process_has_lost_is_sent_again(harness: EngineHarness, vision: VisionModel) -> None:
    engine: Any = harness.engine
    row = rows_of(vision, seed=30)[2]
    harness.generate(asking(harness, row))
    harness.run(engine._engine.engine_core.reset_mm_cache_async())
    harness.run(engine._engine.reset_prefix_cache())
    (answers,) = harness.generate(asking(harness, row, 3))
    for answer in answers:
        assert_seen(harness.model, vision, row, answer)


# What costs more.


class CachedTokens:
    """Prompt tokens that engines had cached, of each request since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        from vllm.v1.engine.async_llm import AsyncLLM

        generate = AsyncLLM.generate
        self.numbers: list[int] = []

        async def counted(*arguments: Any, **options: Any) -> Any:
            async for output in generate(*arguments, **options):
                self.numbers.append(output.num_cached_tokens or 0)
                yield output

        monkeypatch.setattr(AsyncLLM, "generate", counted)


@pytest.mark.slow
def test_a_later_turn_with_a_new_picture_finds_the_turn_before_cached(
    harness: EngineHarness, vision: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (random_picture(vision, 3, 3, seed=seed) for seed in (50, 51))
    begun = shown_row(vision, [first], 200)
    cached = CachedTokens(monkeypatch)
    ((answer,),) = harness.generate(asking(harness, begun, temperature=0.7))
    turn = shown_row(vision, [second], 40, seed=2)
    said = np.concatenate([begun.ids, answer.token_ids])
    both = Prompt(np.concatenate([said, turn.ids]), (*begun.media, turn.media[0].moved(len(said))))
    (answers,) = harness.generate(asking(harness, both, 2))
    for each in answers:
        assert_seen(harness.model, vision, both, each)
    assert cached.numbers[0] == 0 and min(cached.numbers[1:]) >= 128


@pytest.mark.slow
def test_pictures_that_change_places_share_nothing_that_is_cached(
    harness: EngineHarness, vision: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [random_picture(vision, 3, 3, seed=seed) for seed in (60, 61)]
    row, swapped = (shown_row(vision, shown, 200) for shown in (pictures, pictures[::-1]))
    assert np.array_equal(row.ids, swapped.ids)
    cached = CachedTokens(monkeypatch)
    for prompt, expected in ((row, 0), (swapped, 0), (row, (len(row.ids) - 1) // 128 * 128)):
        ((answer,),) = harness.generate(asking(harness, prompt))
        assert_seen(harness.model, vision, prompt, answer)
        assert cached.numbers.pop() == expected


@pytest.mark.slow
def test_an_update_amid_answers_to_pictures_recomputes_what_they_have_seen(
    harness: EngineHarness, vision: VisionModel, tmp_path: Path
) -> None:
    """Requests in flight and waiting go on, also where two updates follow each other, and so does the next request."""
    row, late_row = rows_of(vision, seed=70)[2], rows_of(vision, seed=71)[1]
    num_tokens = 300

    async def updated_after(delay_s: float) -> list[list[Generation]]:
        first = asyncio.create_task(harness.engine.generate(asking(harness, row, 2, max_new_tokens=num_tokens)))
        await asyncio.sleep(delay_s)
        await harness.engine.begin_weight_update()
        late = asyncio.create_task(harness.engine.generate(asking(harness, late_row)))
        await asyncio.sleep(0.1)
        await harness.update(with_new_tower(harness.model, vision, 80 + harness.version), "memory", tmp_path)
        return list(await asyncio.gather(first, late))

    delay_s, switches = 0.15, []
    for _ in range(10):
        old, version = harness.model, harness.version
        answers, (late,) = harness.run(updated_after(delay_s), timeout_s=120)
        assert_seen(harness.model, vision, late_row, late)
        switches = [int((answer.policy_versions == version).sum()) for answer in answers]
        for answer, switch in zip(answers, switches, strict=True):
            if switch > 0:
                assert_seen(old, vision, row, answer, slice(None, switch))
            if switch < answer.num_tokens:
                assert_seen(harness.model, vision, row, answer, slice(switch, None))
        if all(0 < switch < answer.num_tokens for answer, switch in zip(answers, switches, strict=True)):
            break
        delay_s *= 2 if min(switches) == 0 else 0.7
    else:
        pytest.fail(f"no update came amid both answers: {switches}")
    (again,) = harness.generate(asking(harness, row, 2))
    for answer in again:
        assert_seen(harness.model, vision, row, answer)


@pytest.mark.slow
def test_more_pictures_at_once_than_the_tower_takes_in_one_pass(harness: EngineHarness, vision: VisionModel) -> None:
    """Rows of little else than pictures, so also more of these than vLLM keeps. On a CPU it cannot prefill a prompt in
    parts, as it would where only some of a prompt's pictures found room."""
    rows = [
        shown_row(vision, [random_picture(vision, 1, 40, seed=300 + 3 * n + k) for k in range(3)], 4, n)
        for n in range(60)
    ]
    requests = [asking(harness, row, 2, max_new_tokens=3, seed=n) for n, row in enumerate(rows)]
    for row, answers in list(zip(rows, harness.generate(*requests, timeout_s=200), strict=True))[::10]:
        for answer in answers:
            assert_seen(harness.model, vision, row, answer)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["qwen2_5_vl", "internvl", "gemma3"])
def test_a_run_without_pictures_loads_no_tower_and_takes_updates_with_and_without_one(
    arch: str, tmp_path: Path
) -> None:
    """An update without parameters that the engine has is refused."""
    model_dir = make_model_dir(tmp_path, arch)
    vision = vision_at(model_dir)
    text, picture = rows_of(vision)[:2]
    for harness in open_harness("vllm", model_dir):
        with pytest.raises(StrategyError, match="shows 1 pictures, and the engine takes 0"):
            harness.generate(asking(harness, picture))
        for seed, is_language in ((5, False), (6, True)):
            new = changed_model(model_dir, seed)
            weights = [(n, p) for n, p in new.named_parameters() if not is_language or not n.startswith(SEES)]
            harness.run(harness.send(weights, "memory", tmp_path, version=harness.version + 1))
            harness.version += 1
            (answers,) = harness.generate(asking(harness, text, 3))
            for answer in answers:
                assert_seen(new, vision, text, answer)


def test_pictures_whose_tokens_look_both_ways_are_refused_on_a_cpu(tmp_path: Path) -> None:
    """vLLM's kernel for CPUs is causal, and says nothing."""
    model_dir = make_model_dir(tmp_path, "gemma3")
    with pytest.raises(StrategyError, match="vllm on a CPU lets tokens of a picture attend to earlier ones alone"):
        next(open_harness("vllm", model_dir, shows_pictures=True))

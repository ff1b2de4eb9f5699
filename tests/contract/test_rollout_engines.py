"""What every rollout engine keeps, so that a user can change `strategy_name` and nothing else."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.plan.engine_limits import narrowing_settings
from roll.datasets.encoding import decoder
from roll.distributed.executor.rollout.answers import joined, rest_of
from roll.distributed.strategy.base import State
from roll.distributed.strategy.stop_strings import answer_texts
from roll.distributed.weights.bucket import with_partners
from roll.errors import EngineDied, StrategyError
from roll.types.rollout import SamplingParams
from tests.helpers.engines import (
    ROUTES,
    EngineHarness,
    changed_model,
    forward_log_probs,
    greedy_tokens,
    log_probs_over_old_keys,
    open_harness,
    open_zmq_sockets,
    prompt,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from roll.types.rollout import Generation

ENGINES = {  # the model has a head of its own, or a tied one, which no weight update names
    "hf_infer": "tiny_model_dir",
    "vllm": "tiny_tied_model_dir",
    "sglang": "tiny_tied_model_dir",
}
TOLERANCE = 1e-5  # fp32; several kernels, sums in another order
LONG_PROMPT = 200  # longer than a block of vLLM's prefix cache on a CPU


@pytest.fixture(scope="module", params=["hf_infer", "vllm", pytest.param("sglang", marks=pytest.mark.slow)])
def harness(request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
    if request.param != "hf_infer" and find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    yield from open_harness(request.param, request.getfixturevalue(ENGINES[request.param]))
    assert open_zmq_sockets() == []


def assert_log_probs(
    model: "PreTrainedModel", prompt_ids: np.ndarray, generation: "Generation", temperature: float = 1.0
) -> None:
    expected = forward_log_probs(model, prompt_ids, generation.token_ids, temperature)
    assert np.abs(generation.log_probs - expected).max() < TOLERANCE


def tokens(generations: list["Generation"]) -> list[list[int]]:
    return [generation.token_ids.tolist() for generation in generations]


def test_log_probs_are_those_of_the_full_distribution_at_the_temperature(harness: EngineHarness) -> None:
    temperatures = (1.0, 0.6, 1.7, 1.0, 0.0)
    requests = [
        harness.request(prompt(length), 2, temperature=temperature, max_new_tokens=4 + length)
        for length, temperature in zip((5, 17, 30, LONG_PROMPT, 9), temperatures, strict=True)
    ]
    for request, answers in zip(requests, harness.generate(*requests), strict=True):
        for answer in answers:
            assert len(answer.token_ids) == request.sampling.max_new_tokens
            assert answer.finish_reason == "length"
            assert (answer.policy_versions == harness.version).all()
            assert_log_probs(harness.model, request.prompt_ids, answer, request.sampling.temperature or 1.0)


NARROWING = ({"top_p": 0.4}, {"top_k": 5}, {"min_new_tokens": 12, "ignore_eos": False}, {"repetition_penalty": 1.5})


@pytest.mark.parametrize("options", NARROWING, ids=lambda options: next(iter(options)))
def test_log_probs_are_full_unless_the_engine_declares_otherwise(
    harness: EngineHarness, options: dict[str, Any]
) -> None:
    """With top-p, top-k, min tokens and a repetition penalty: what `narrowing_settings` names differs, the rest does
    not."""
    request = harness.request(prompt(14), 4, **options)
    (answers,) = harness.generate(request)
    differences = [
        np.abs(answer.log_probs - forward_log_probs(harness.model, request.prompt_ids, answer.token_ids)).max()
        for answer in answers
    ]
    if narrowing_settings(harness.name, request.sampling):
        assert max(differences) > 10 * TOLERANCE
    else:
        assert max(differences) < TOLERANCE


def test_more_prompt_tokens_at_once_than_fit_one_forward_pass(harness: EngineHarness) -> None:
    requests = [harness.request(prompt(300, seed=n), 2, seed=n, max_new_tokens=4) for n in range(60)]
    for request, answers in list(zip(requests, harness.generate(*requests), strict=True))[::12]:
        assert len({tuple(ids) for ids in tokens(answers)}) == 2
        for answer in answers:
            assert_log_probs(harness.model, request.prompt_ids, answer)


def test_greedy_answers_are_the_likeliest_tokens(harness: EngineHarness) -> None:
    (answers,) = harness.generate(harness.request(prompt(21), 2, temperature=0.0))
    assert tokens(answers) == [greedy_tokens(harness.model, prompt(21), 12)] * 2


def test_samples_repeat_with_the_seed_and_differ_within_the_group(harness: EngineHarness) -> None:
    def four(**options: int) -> list[list[int]]:
        (answers,) = harness.generate(harness.request(prompt(11), 4, **options))
        return tokens(answers)

    first = four()
    assert four() == first
    assert len({tuple(ids) for ids in [*first, *four(seed=101)]}) == 8
    busy = [harness.request(prompt(11), 4), *(harness.request(prompt(n), 2, seed=n) for n in range(3, 40, 6))]
    assert tokens(harness.generate(*busy)[0]) == first
    whole = harness.request(prompt(11), 4)
    assert [tokens(part) for part in harness.generate(whole.part(0, 1), whole.part(1, 3))] == [first[:1], first[1:]]


def test_each_answer_is_told_of_once_by_its_number_before_all_are_there(harness: EngineHarness) -> None:
    request = harness.request(prompt(11), 6, max_new_tokens=60, ignore_eos=False, temperature=2.0).part(2, 4)
    told: list[tuple[int, Generation]] = []
    answers = harness.run(harness.engine.generate(request, lambda *answer: told.append(answer)))
    assert sorted(index for index, _ in told) == [2, 3, 4, 5]
    assert [dict(told)[index] for index in request.samples] == answers
    lengths = [generation.num_tokens for _, generation in told]
    assert lengths[0] == min(lengths) and lengths[-1] == max(lengths)


def test_answers_end_at_eos_stop_tokens_and_stop_strings(
    harness: EngineHarness, tiny_tokenizer: "PreTrainedTokenizerFast"
) -> None:
    def answer(**options: Any) -> "Generation":
        (answers,) = harness.generate(harness.request(prompt(13), max_new_tokens=30, **options))
        return answers[0]

    free = answer().token_ids.tolist()
    cut = next(t for t in range(5, 30) if free[t] not in free[:t])
    by_token = answer(stop_token_ids=(free[cut],))
    assert by_token.token_ids.tolist() == free[: cut + 1]
    assert by_token.finish_reason == "stop"

    texts = [(str(tiny_tokenizer.decode(pair)), pair) for pair in (free[t : t + 2] for t in range(4, 27))]
    plain = (text for text, pair in texts if text == tiny_tokenizer.decode(pair, skip_special_tokens=True))
    string = next(text for text in plain if text.isascii())  # what is judged holds no special tokens
    by_string = answer(stop_strings=("@@@@", string))
    assert string in str(tiny_tokenizer.decode(by_string.token_ids))
    assert string not in str(tiny_tokenizer.decode(by_string.token_ids[:-1]))
    assert by_string.token_ids.tolist() == free[: len(by_string.token_ids)]
    assert by_string.finish_reason == "stop"
    without = answer(stop_strings=("@@@@", string), include_stop_string=False)
    assert without.token_ids.tolist() == by_string.token_ids.tolist()  # sampled, and trained on
    sampling = SamplingParams(30, stop_strings=("@@@@", string), include_stop_string=False)
    decode = decoder(tiny_tokenizer)
    (seen,) = answer_texts(decode, [without], sampling)
    assert string not in seen
    assert decode([without.token_ids])[0].startswith(seen + string)

    eos = tiny_tokenizer.convert_tokens_to_ids("<|im_end|>")
    many = harness.generate(harness.request(prompt(13), 16, max_new_tokens=300, temperature=2.0, ignore_eos=False))[0]
    ended = [generation for generation in many if generation.finish_reason == "stop"]
    assert ended
    assert all(g.token_ids[-1] == eos and eos not in g.token_ids[:-1] for g in ended)


def test_min_new_tokens_come_before_the_end(harness: EngineHarness) -> None:
    likely = greedy_tokens(harness.model, prompt(13), 1)[0]
    options = {"temperature": 0.0, "stop_token_ids": (likely,), "max_new_tokens": 8}
    at_once, later = harness.generate(
        harness.request(prompt(13), **options), harness.request(prompt(13), min_new_tokens=5, **options)
    )
    assert tokens(at_once) == [[likely]]
    assert len(later[0].token_ids) >= 5
    assert likely not in later[0].token_ids[:5]


def test_top_k_top_p_and_repetition_penalty_limit_what_is_drawn(harness: EngineHarness) -> None:
    single, nucleus, penalised = harness.generate(
        harness.request(prompt(13), top_k=1),
        harness.request(prompt(13), top_p=1e-6),
        harness.request(prompt(13), temperature=0.0, repetition_penalty=1.7, max_new_tokens=40),
    )
    assert tokens(single) == tokens(nucleus) == [greedy_tokens(harness.model, prompt(13), 12)]
    expected = greedy_tokens(harness.model, prompt(13), 40, repetition_penalty=1.7)
    assert expected != greedy_tokens(harness.model, prompt(13), 40)
    assert tokens(penalised) == [expected]


def test_requests_that_cannot_be_served_are_refused(harness: EngineHarness) -> None:
    with pytest.raises(StrategyError, match="prompt of 500 .* (max_model_len|context_length) 512"):
        harness.generate(harness.request(prompt(500), max_new_tokens=13))
    with pytest.raises(StrategyError, match="empty prompt"):
        harness.generate(harness.request(prompt(0)))
    harness.generate(harness.request(prompt(5)))  # and the engine goes on
    request = harness.request(prompt(10))
    with pytest.raises(StrategyError, match="in flight already"):
        harness.generate(request, request)
    harness.run(harness.engine.abort())


def test_abort_returns_the_partial_answer(harness: EngineHarness) -> None:
    long = harness.request(prompt(10), 2, max_new_tokens=450)
    other = harness.request(prompt(12), max_new_tokens=20)

    async def abort_one() -> list[list["Generation"]]:
        answers = [asyncio.create_task(harness.engine.generate(request)) for request in (long, other)]
        await asyncio.sleep(0.05)
        await harness.engine.abort([long.request_id, "unknown"])
        return list(await asyncio.gather(*answers))

    aborted, whole = harness.run(abort_one())
    for answer in aborted:
        assert answer.finish_reason == "abort"
        assert len(answer.token_ids) < 450
        if len(answer.token_ids):
            assert_log_probs(harness.model, long.prompt_ids, answer)
    assert [g.finish_reason for g in whole] == ["length"]
    assert len(whole[0].token_ids) == 20


def test_what_was_aborted_and_is_continued_equals_the_unbroken_answer(harness: EngineHarness) -> None:
    """Greedy: token for token. Sampled: log-probs are those of the model, and the random numbers are new ones."""
    for temperature in (0.0, 1.0):
        whole = harness.request(prompt(19), max_new_tokens=40, temperature=temperature)
        ((unbroken,),) = harness.generate(whole)
        begun = harness.request(prompt(19), max_new_tokens=15, temperature=temperature)
        ((part,),) = harness.generate(begun)
        assert part.token_ids.tolist() == unbroken.token_ids[:15].tolist()
        asked = replace(whole, request_id=f"{whole.request_id}~0@15", prefix=part)
        ((rest,),) = harness.generate(rest_of(asked))
        answer = joined(asked, rest, lambda: pytest.fail("no stop strings"))
        assert answer.num_tokens == 40 and answer.finish_reason == "length"
        assert_log_probs(harness.model, prompt(19), answer)
        same = answer.token_ids.tolist() == unbroken.token_ids.tolist()
        assert same is (temperature == 0)


def test_abort_right_after_the_request_ends_it(harness: EngineHarness) -> None:
    request = harness.request(prompt(10), 2, max_new_tokens=450)

    async def abort_all() -> list["Generation"]:
        answer = asyncio.create_task(harness.engine.generate(request))
        await asyncio.sleep(0)
        await harness.engine.abort()
        return await answer

    assert {answer.finish_reason for answer in harness.run(abort_all())} == {"abort"}


def test_nothing_is_sampled_amid_an_update_and_what_was_under_way_goes_on(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The update brings the weights that are there, so the answers are those of no update."""
    request, late = harness.request(prompt(10), max_new_tokens=40), harness.request(prompt(9), max_new_tokens=3)

    async def hold() -> tuple[bool, list[list["Generation"]]]:
        first = asyncio.create_task(harness.engine.generate(request))
        await asyncio.sleep(0.02)
        await harness.engine.begin_weight_update()
        second = asyncio.create_task(harness.engine.generate(late))
        await asyncio.sleep(0.3)
        still_waiting = not second.done()
        await harness.update(harness.model, "file", tmp_path)
        return still_waiting, list(await asyncio.gather(first, second))

    waited, (answers, late_answers) = harness.run(hold())
    assert waited
    assert len(answers[0].token_ids) == 40
    assert len(late_answers[0].token_ids) == 3
    assert_log_probs(harness.model, request.prompt_ids, answers[0])
    (undisturbed,) = harness.generate(harness.request(prompt(10), max_new_tokens=40))
    assert tokens(undisturbed) == tokens(answers)


@pytest.mark.parametrize("route", ROUTES)
def test_after_an_update_log_probs_are_those_of_the_new_weights(
    harness: EngineHarness, route: str, tmp_path: Path
) -> None:
    """The same prompts before and after: a cache of old keys and values would show."""
    prompts = [prompt(LONG_PROMPT), prompt(17)]
    before = harness.generate(*(harness.request(ids, 2) for ids in prompts))
    harness.run(harness.update(changed_model(harness.model_dir, harness.version), route, tmp_path))
    after = harness.generate(*(harness.request(ids, 2) for ids in prompts))
    assert [tokens(answers) for answers in before] != [tokens(answers) for answers in after]
    for ids, answers in zip(prompts, after, strict=True):
        for answer in answers:
            assert (answer.policy_versions == harness.version).all()
            assert_log_probs(harness.model, ids, answer)


def amid_answers(
    harness: EngineHarness, disturb: Callable[[], Awaitable[None]], num_tokens: int = 300
) -> tuple["PreTrainedModel", np.ndarray, list["Generation"], list[int]]:
    """Two answers to a prompt while `disturb` changes the weights once: the weights before, the prompt, the answers,
    and for each its number of tokens from before, which is neither 0 nor all. How long to wait for the middle of an
    answer depends on engine and machine, so the right moment is searched for."""
    ids = prompt(LONG_PROMPT, seed=harness.version)
    request = harness.request(ids, 2, max_new_tokens=num_tokens)

    async def disturbed_after(delay_s: float) -> list["Generation"]:
        answers = asyncio.create_task(harness.engine.generate(request))
        await asyncio.sleep(delay_s)
        await disturb()
        return await answers

    delay_s, switches = 0.15, []
    for _ in range(10):
        old, old_version = harness.model, harness.version
        answers = harness.run(disturbed_after(delay_s))
        switches = [int((answer.policy_versions == old_version).sum()) for answer in answers]
        for answer, switch in zip(answers, switches, strict=True):
            rest = [harness.version] * (num_tokens - switch)
            assert answer.policy_versions.tolist() == [old_version] * switch + rest
        if all(0 < switch < num_tokens for switch in switches):
            return old, ids, answers, switches
        delay_s *= 2 if min(switches) == 0 else 0.7
    pytest.fail(f"no update came amid an answer: {switches} of {num_tokens} tokens before the last one")


def assert_recomputed(
    old: "PreTrainedModel", new: "PreTrainedModel", ids: np.ndarray, answers: list["Generation"], switches: list[int]
) -> None:
    """Each part's log-probs are those of its weights over the whole text so far: nothing stale is used."""
    for answer, switch in zip(answers, switches, strict=True):
        by_old, by_new = (forward_log_probs(model, ids, answer.token_ids) for model in (old, new))
        assert np.abs(answer.log_probs - by_old)[:switch].max() < TOLERANCE
        assert np.abs(answer.log_probs - by_new)[switch:].max() < TOLERANCE


def test_tokens_of_a_request_across_an_update_carry_the_version_that_sampled_them(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async def update() -> None:
        await harness.update(changed_model(harness.model_dir, 50 + harness.version), "memory", tmp_path)

    old, ids, answers, switches = amid_answers(harness, update)
    assert_recomputed(old, harness.model, ids, answers, switches)


def test_an_update_that_keeps_keys_and_values_goes_on_over_the_old_ones_and_shows_them_to_nobody_else(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """Later tokens are of the new weights over the keys and values of the old ones, which is far from either weights on
    the whole text. A request with the same prompt that comes during the update or after it finds none of them."""
    late: list[list[Generation]] = []

    async def update() -> None:
        await harness.engine.begin_weight_update()
        during = asyncio.create_task(harness.engine.generate(harness.request(ids)))
        await harness.update(changed_model(harness.model_dir, 50 + harness.version), "memory", tmp_path)
        late[:] = [await during, await harness.engine.generate(harness.request(ids))]

    with harness.keeping_kv():
        ids = prompt(LONG_PROMPT, seed=harness.version)
        old, ids, answers, switches = amid_answers(harness, update)
        for answer, switch in zip(answers, switches, strict=True):
            by_old, by_new = (forward_log_probs(model, ids, answer.token_ids) for model in (old, harness.model))
            mixed = log_probs_over_old_keys(old, harness.model, ids, answer.token_ids, switch)
            assert np.abs(answer.log_probs - by_old)[:switch].max() < TOLERANCE
            assert np.abs(answer.log_probs[switch:] - mixed).max() < TOLERANCE
            assert np.abs(answer.log_probs - by_new)[switch:].max() > 100 * TOLERANCE
        for (generation,) in late:
            assert (generation.policy_versions == harness.version).all()
            assert_log_probs(harness.model, ids, generation)


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
def test_an_engine_that_leaves_its_devices_keeps_its_requests_and_comes_back_with_new_weights(
    harness: EngineHarness, tmp_path: Path, keeps: bool
) -> None:
    """Away it samples nothing, with its weights back for an update neither, and then it computes keys and values anew
    in any case, since they went with its devices."""
    weights = frozenset({State.WEIGHTS})
    late: list[list[Generation]] = []

    async def leave_and_return() -> None:
        await harness.leave()
        during = asyncio.create_task(harness.engine.generate(harness.request(ids)))
        await asyncio.sleep(0.1)
        await harness.come_back(weights)
        await harness.update(changed_model(harness.model_dir, 50 + harness.version), "memory", tmp_path)
        await asyncio.sleep(0.1)
        assert not during.done()
        await harness.come_back(frozenset(State) - weights)
        late[:] = [await during, await harness.engine.generate(harness.request(ids))]

    with harness.keeping_kv() if keeps else nullcontext():
        ids = prompt(LONG_PROMPT, seed=harness.version)
        old, ids, answers, switches = amid_answers(harness, leave_and_return)
    assert_recomputed(old, harness.model, ids, answers, switches)
    for (generation,) in late:
        assert (generation.policy_versions == harness.version).all()
        assert_log_probs(harness.model, ids, generation)


def test_an_engine_that_is_away_lets_its_requests_be_aborted_and_is_as_good_as_new_afterwards(
    harness: EngineHarness,
) -> None:
    aborted, frozen = (harness.request(prompt(n), 2, max_new_tokens=200) for n in (30, 31))

    async def abort_while_away() -> list[list["Generation"]]:
        answers = [asyncio.create_task(harness.engine.generate(request)) for request in (aborted, frozen)]
        await asyncio.sleep(0.1)
        await harness.leave(frozenset({State.KV_CACHE}))
        late = asyncio.create_task(harness.engine.generate(harness.request(prompt(32))))
        await asyncio.sleep(0)
        await harness.engine.abort([aborted.request_id])
        await answers[0]
        assert not late.done()
        await harness.come_back(frozenset({State.KV_CACHE}))
        return list(await asyncio.gather(*answers, late))

    ended, whole, late = harness.run(abort_while_away())
    assert {answer.finish_reason for answer in ended} <= {"abort", "length"}
    assert tokens(whole) == tokens(harness.generate(harness.request(prompt(31), 2, max_new_tokens=200))[0])
    assert tokens(late) == tokens(harness.generate(harness.request(prompt(32)))[0])
    for request, answers in ((aborted, ended), (frozen, whole)):
        for answer in answers:
            if answer.num_tokens:
                assert_log_probs(harness.model, request.prompt_ids, answer)


def test_cancelled_requests_leave_nothing_behind(harness: EngineHarness) -> None:
    """64 requests of different lengths, half of them cancelled at random times: the others are whole, and then the
    engine knows of no request and is as good as new."""
    random.seed(3)
    requests = [harness.request(prompt(3 + n), max_new_tokens=5 + 2 * n, seed=n) for n in range(64)]

    async def serve() -> list["list[Generation] | BaseException"]:
        answers = [asyncio.create_task(harness.engine.generate(request)) for request in requests]
        for task in random.sample(answers, 32):
            await asyncio.sleep(random.random() * 0.02)
            task.cancel()
        return list(await asyncio.gather(*answers, return_exceptions=True))

    results = harness.run(serve())
    whole = [(request, r) for request, r in zip(requests, results, strict=True) if isinstance(r, list)]
    assert len(whole) >= 32
    for request, answers in whole:
        assert len(answers[0].token_ids) == request.sampling.max_new_tokens
    deadline = time.monotonic() + 60
    while harness.num_open_requests():
        assert time.monotonic() < deadline, f"{harness.num_open_requests()} requests are left"
        harness.run(asyncio.sleep(0.05))
    again = harness.generate(*(request for request, _ in whole[:8]))
    assert [tokens(answers) for answers in again] == [tokens(answers) for _, answers in whole[:8]]


def test_an_update_with_wrong_weights_is_refused_and_a_right_one_repairs_it(
    harness: EngineHarness, tmp_path: Path
) -> None:
    new = changed_model(harness.model_dir, 200)
    renamed = dict(new.named_parameters())
    renamed["model.layers.1.mlp.gate.weight"] = renamed.pop("model.layers.1.mlp.gate_proj.weight")
    partial = dict(new.named_parameters())
    del partial["model.layers.1.self_attn.q_proj.bias"], partial["model.norm.weight"]
    reshaped = dict(new.named_parameters()) | {"model.norm.weight": new.model.norm.weight[:-8]}

    for weights, words in ((renamed, "gate"), (partial, "not sent.*norm"), (reshaped, "norm|load weight")):
        with pytest.raises(StrategyError, match=words):
            harness.run(harness.send(weights.items(), "file", tmp_path))
    assert harness.engine.policy_version == harness.version
    harness.run(harness.update(new, "memory", tmp_path))
    (answers,) = harness.generate(harness.request(prompt(LONG_PROMPT)))
    assert_log_probs(new, prompt(LONG_PROMPT), answers[0])


CHANGES = {  # what training changed, and what is left as it is
    "one of three matrices that engines fuse": ["model.layers.1.self_attn.q_proj.weight"],
    "one of two, and a matrix alone": ["model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.o_proj.weight"],
    "the embedding, and the last norm": ["model.embed_tokens.weight", "model.norm.weight"],
}


def partly_changed(harness: EngineHarness, changed: list[str], seed: int) -> "PreTrainedModel":
    """The engine's present model, of which these weights are others."""
    new, now = changed_model(harness.model_dir, seed), dict(harness.model.named_parameters())
    for name, parameter in new.named_parameters():
        if name not in changed:
            parameter.data.copy_(now[name].data)
    return new


def test_an_update_of_some_weights_leaves_the_others_as_they_are(harness: EngineHarness, tmp_path: Path) -> None:
    """With what the engine may have fused with them; before and after a stay away from its devices."""
    assert harness.engine.takes_parts
    harness.run(harness.update(changed_model(harness.model_dir, 300), "memory", tmp_path))
    for number, changed in enumerate(CHANGES.values()):
        if number == 2:
            harness.run(harness.leave())
            harness.run(harness.come_back())
        old, new = harness.model, partly_changed(harness, changed, 301 + number)
        weights = dict(new.named_parameters())
        sent = with_partners(weights, changed)
        assert len(sent) < len(weights) / 3
        some = [(name, tensor) for name, tensor in weights.items() if name in sent]
        harness.run(harness.send(some, ROUTES[number % 3], tmp_path, harness.version + 1, whole=False))
        harness.version, harness.model = harness.version + 1, new
        (answers,) = harness.generate(harness.request(prompt(LONG_PROMPT)))
        assert_log_probs(new, prompt(LONG_PROMPT), answers[0])
        by_old = forward_log_probs(old, prompt(LONG_PROMPT), answers[0].token_ids)
        assert np.abs(answers[0].log_probs - by_old).max() > 100 * TOLERANCE
    harness.run(harness.update(changed_model(harness.model_dir, 310), "memory", tmp_path))
    (answers,) = harness.generate(harness.request(prompt(LONG_PROMPT)))
    assert_log_probs(harness.model, prompt(LONG_PROMPT), answers[0])


def test_one_part_of_a_fused_layer_alone_is_exact_or_refused(harness: EngineHarness, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    new = partly_changed(harness, [name], 320)
    part = [(name, new.get_parameter(name))]
    if harness.name == "vllm":  # it packs fused layers as a whole
        with pytest.raises(StrategyError, match="1 parameters were not sent: model.layers.1.self_attn.qkv_proj"):
            harness.run(harness.send(part, "file", tmp_path, whole=False))
        harness.run(harness.update(new, "memory", tmp_path))
    else:
        harness.run(harness.send(part, "memory", tmp_path, harness.version + 1, whole=False))
        harness.version, harness.model = harness.version + 1, new
    (answers,) = harness.generate(harness.request(prompt(LONG_PROMPT)))
    assert_log_probs(new, prompt(LONG_PROMPT), answers[0])


def test_the_version_does_not_go_back(harness: EngineHarness, tmp_path: Path) -> None:
    harness.version += 5
    harness.run(harness.update(changed_model(harness.model_dir, 1), "file", tmp_path))
    with pytest.raises(StrategyError, match=f"version {harness.version - 1}, but the engine has {harness.version}"):
        harness.run(harness.send(harness.model.named_parameters(), "file", tmp_path, version=harness.version - 1))
    harness.run(harness.update(changed_model(harness.model_dir, 2), "file", tmp_path))


def test_an_engine_that_hangs_has_no_heartbeat(harness: EngineHarness) -> None:
    async def answers() -> None:
        answer = asyncio.create_task(harness.engine.generate(harness.request(prompt(5), max_new_tokens=200)))
        await harness.engine.heartbeat()
        with harness.stuck(), pytest.raises(TimeoutError):
            await asyncio.wait_for(harness.engine.heartbeat(), 0.5)
        await harness.engine.heartbeat()
        assert len((await answer)[0].token_ids) == 200

    harness.run(answers())


def test_the_process_can_still_log_once_its_engine_runs(harness: EngineHarness) -> None:
    """sglang sets the level of the root logger to ERROR."""
    assert logging.getLogger().isEnabledFor(logging.WARNING)


def test_a_failed_engine_fails_every_call_within_seconds(harness: EngineHarness) -> None:
    """The last test of this module: the engine is gone after it."""

    async def fail() -> list[BaseException]:
        calls = [harness.engine.generate(harness.request(prompt(n), max_new_tokens=450)) for n in (5, 9)]
        answers = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.05)
        harness.break_engine()
        results = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 30)
        return [result for result in results if isinstance(result, BaseException)]

    errors = harness.run(fail())
    assert [type(error) for error in errors] == [EngineDied] * 2
    with pytest.raises(EngineDied):
        harness.run(harness.engine.check_health())
    with pytest.raises(StrategyError):
        harness.generate(harness.request(prompt(5)))
    with pytest.raises(StrategyError):
        harness.run(harness.engine.begin_weight_update(), timeout_s=30)

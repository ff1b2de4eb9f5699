"""The distribution of drawn tokens, against probabilities computed by hand in float64."""

import numpy as np
import pytest
import torch

from roll.distributed.strategy.hf.sampling import SamplingParams, UniformStreams, draw_tokens

LOGITS = torch.tensor([2.0, 0.5, -1.0, 1.9, 0.0, -0.3, 1.0])
NUM_DRAWS = 20_000


def exact_probabilities(
    temperature: float, top_k: int = 0, top_p: float = 1.0, penalty: float = 1.0, seen: tuple[int, ...] = ()
) -> np.ndarray:
    """One token at a time, in the order repetition penalty, temperature, top-k, top-p."""
    logits = [float(x) for x in LOGITS]
    for token in seen:
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    weights = [np.exp(x / temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    kept = order[: top_k or len(order)]
    total = sum(weights[token] for token in kept)
    probabilities, mass = np.zeros(len(weights)), 0.0
    for token in kept:
        if mass < top_p:
            probabilities[token] = weights[token]
        mass += weights[token] / total
    return probabilities / probabilities.sum()


def draw_many(knobs: SamplingParams, num_draws: int = NUM_DRAWS) -> tuple[np.ndarray, torch.Tensor]:
    uniforms = torch.from_numpy(np.random.default_rng(7).random(num_draws))
    tokens, log_probs = draw_tokens(LOGITS.expand(num_draws, -1), uniforms, knobs)
    return np.bincount(tokens.numpy(), minlength=len(LOGITS)), log_probs


def assert_same_distribution(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square at 1e-6: a right sampler fails once in a million seeds (and this one is fixed)."""
    assert counts[probabilities == 0].sum() == 0
    possible = probabilities > 0
    expected = probabilities[possible] * counts.sum()
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    limits = {1: 23.9, 2: 27.6, 3: 30.7, 4: 33.4, 5: 35.9, 6: 38.3}  # chi-square quantiles at 1 - 1e-6
    assert statistic < limits[int(possible.sum()) - 1]


def rows(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((NUM_DRAWS,), value, dtype=dtype)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    counts, _ = draw_many(SamplingParams(temperature=rows(temperature)))
    assert_same_distribution(counts, exact_probabilities(temperature))


@pytest.mark.parametrize("top_k, top_p", [(3, 1.0), (0, 0.7), (4, 0.8), (2, 0.2)])
def test_top_k_and_top_p_keep_the_likeliest_tokens_in_their_proportions(top_k: int, top_p: float) -> None:
    knobs = SamplingParams(temperature=rows(1.3), top_k=rows(top_k, torch.int64), top_p=rows(top_p))
    counts, log_probs = draw_many(knobs)
    if (top_k, top_p) == (2, 0.2):
        assert counts[0] == NUM_DRAWS  # the likeliest token alone reaches p, and always stays
    else:
        assert_same_distribution(counts, exact_probabilities(1.3, top_k, top_p))
    full = torch.log_softmax(LOGITS.double() / 1.3, -1)
    assert torch.isclose(log_probs[:, None].double(), full[None], atol=1e-6).any(-1).all()


def test_greedy_and_penalised_draws_report_plain_log_probs() -> None:
    seen = torch.zeros(NUM_DRAWS, len(LOGITS), dtype=torch.bool)
    seen[:, [0, 2]] = True  # one logit above zero, one below
    counts, log_probs = draw_many(SamplingParams(repetition_penalty=rows(1.5), present_tokens=seen))
    assert_same_distribution(counts, exact_probabilities(1.0, penalty=1.5, seen=(0, 2)))
    full = torch.log_softmax(LOGITS.double(), -1)
    assert torch.isclose(log_probs[:, None].double(), full[None], atol=1e-6).any(-1).all()
    knobs = SamplingParams(temperature=torch.tensor([0.0, 0.0, 1.0]))
    tokens, log_probs = draw_tokens(
        LOGITS.expand(3, -1), torch.tensor([0.999, 0.001, 0.999], dtype=torch.float64), knobs
    )
    assert tokens.tolist() == [0, 0, 6]
    assert log_probs[0].item() == pytest.approx(torch.log_softmax(LOGITS, -1)[0].item(), abs=1e-6)


def test_banned_and_impossible_tokens_are_never_drawn() -> None:
    banned = torch.zeros(NUM_DRAWS, len(LOGITS), dtype=torch.bool)
    banned[:, [0, 3]] = True
    counts, _ = draw_many(SamplingParams(banned=banned))
    expected = exact_probabilities(1.0)
    expected[[0, 3]] = 0
    assert_same_distribution(counts, expected / expected.sum())
    logits = torch.tensor([[200.0, 0.0, 0.0, 0.0]])  # exp(-200) is 0 in float32
    banned = torch.tensor([[True, False, False, False]])
    tokens, log_probs = draw_tokens(logits, torch.tensor([0.5], dtype=torch.float64), SamplingParams(banned=banned))
    assert tokens.tolist() == [2]
    assert log_probs.tolist() == [-200.0]
    logits = torch.tensor([-torch.inf, 1.0, 0.0, -torch.inf]).expand(2, -1)
    largest = UniformStreams().draw(1, 0, 1) * 0 + (1 - 1e-12)
    uniforms = torch.from_numpy(np.array([0.0, largest[0]]))
    tokens, _ = draw_tokens(logits, uniforms, SamplingParams())
    assert tokens.tolist() == [1, 2]


def test_every_row_has_parameters_of_its_own() -> None:
    uniforms = torch.full((4,), 0.97, dtype=torch.float64)
    knobs = SamplingParams(
        temperature=torch.tensor([1.0, 0.0, 1.0, 4.0]),
        top_k=torch.tensor([0, 0, 1, 0]),
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.01]),
    )
    together, _ = draw_tokens(LOGITS.expand(4, -1), uniforms, knobs)
    cumulative = np.cumsum(np.exp(LOGITS.double().numpy()))
    plain = int(np.searchsorted(cumulative, 0.97 * cumulative[-1], side="right"))
    assert together.tolist() == [plain, 0, 0, 0]
    alone, _ = draw_tokens(LOGITS[None], uniforms[:1], SamplingParams())
    assert alone.tolist() == [plain]


def test_a_stream_depends_on_seed_and_index_only() -> None:
    streams = UniformStreams()
    first = streams.draw(5, 3, 8)
    streams.draw(9, 0, 100)
    assert (streams.draw(5, 3, 4) == first[:4]).all()  # a longer answer begins like a shorter one
    assert (UniformStreams().draw(5, 3, 8) == first).all()
    others = [streams.draw(5, 2, 8), streams.draw(4, 3, 8), streams.draw(5 + 2**64, 3, 8), streams.draw(None, 3, 8)]
    assert not any((other == first).any() for other in others)
    assert first.min() >= 0
    assert first.max() < 1


def test_neighbouring_streams_are_uncorrelated() -> None:
    streams = UniformStreams()
    draws = np.stack([streams.draw(seed, index, 500) for seed in range(4) for index in range(4)])
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 5 / np.sqrt(500)  # five standard errors
    assert draws.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / draws.size))

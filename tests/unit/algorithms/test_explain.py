"""The code of a run gives what the formulas of `roll explain` say: worked examples against float arithmetic."""

import math
from collections.abc import Callable

import pytest

from roll.commands.table import main
from roll.configs.tables.presets import PRESETS
from tests.helpers.worked import PARTS, RARE, RATIOS, REWARDS, VALUE, worked, worked_rows

N, S, LONGEST = sum(map(len, RATIOS)), len(RATIOS), 4
HALF = 0.5
DEVIATION = (1 / 3) ** 0.5  # of 1, 0, 0, 1, by n - 1


def geometric(row: int) -> float:
    product = 1.0
    for ratio in RATIOS[row]:
        product *= ratio
    return product ** (1 / len(RATIOS[row]))


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    """d/d log p of -min(r A, clip(r) A)."""
    binds = (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low)
    return 0.0 if binds else -ratio * advantage


def per_token(form: Callable[[int, float], float], weight: Callable[[int], float]) -> list[list[float]]:
    return [[weight(i) * form(i, ratio) for ratio in row] for i, row in enumerate(RATIOS)]


CENTRED = [reward - HALF for reward in REWARDS]
SCALED = [value / DEVIATION for value in CENTRED]
BY_LENGTH = sum(reward * len(row) for reward, row in zip(REWARDS, RATIOS, strict=True)) / N
OTHERS = [reward - (sum(REWARDS) - reward) / 3 for reward in REWARDS]


def in_mean(_: int) -> float:
    return 1 / N


def in_rows(i: int) -> float:
    return 1 / S / len(RATIOS[i])


def in_sums(_: int) -> float:
    return 1 / S


def near_one(i: int) -> float:
    """-A s of GSPO's clip at 3e-4 and 4e-4."""
    return clipped(geometric(i), SCALED[i], 3e-4, 4e-4)


def soft(ratio: float, advantage: float) -> float:
    """d/d log p of -4 / tau sigmoid(tau (r - 1)) A."""
    gate = 1 / (1 + math.exp(-(1.0 if advantage > 0 else 1.05) * (ratio - 1)))
    return -4 * gate * (1 - gate) * ratio * advantage


def bounded_mean(i: int, ratio: float) -> float:
    """-s A of GMPO's clip at e^.4 and e^-.4; 0 for a token that it binds."""
    highest, lowest = (math.exp(0.4), 0.0) if SCALED[i] > 0 else (math.inf, math.exp(-0.4))
    bounded = [min(max(r, lowest), highest) for r in RATIOS[i]]
    return -(math.prod(bounded) ** (1 / len(bounded))) * SCALED[i] if lowest < ratio < highest else 0.0


def left(i: int, ratio: float) -> float:
    """-r A of CPPO; 0 for the tokens of weight 1 or .8 that were .5 and have moved by .25 the way of their advantage:
    the second of the first answer, and the second of three, whose weight is .9."""
    return -ratio * SCALED[i] * ((i, ratio) not in ((0, 1.5), (1, 0.5)))


def held(i: int, ratio: float) -> float:
    """-r A, and the slope of |log r| for the one token of greatest covariance: the rare one, in an answer of reward 0;
    what it and its answer are below the mean is positive together."""
    is_rare = (i, RATIOS[i].index(ratio)) == RARE
    return -ratio * SCALED[i] + is_rare * math.copysign(1, ratio - 1)


def near_enough(i: int, ratio: float) -> float:
    """-r A of M2PO; 0 for the two tokens that go the way of their advantage, at 1.5 and .5: their (log r)^2 are .16 and
    .48, each above .04."""
    went = (SCALED[i] > 0 and ratio > 1) or (SCALED[i] < 0 and ratio < 1)
    return 0.0 if went else -ratio * SCALED[i]


EXPECTED = {
    "grpo": per_token(lambda i, r: clipped(r, SCALED[i], 0.2, 0.2), in_rows),
    "dr_grpo": per_token(lambda i, r: clipped(r, CENTRED[i], 0.2, 0.2), lambda i: 1 / S / LONGEST),
    "dapo": per_token(lambda i, r: clipped(r, SCALED[i], 0.2, 0.28), in_mean),
    "gspo": per_token(lambda i, _: near_one(i), in_rows),
    "rloo": per_token(lambda i, _: -OTHERS[i], in_sums),
    "opo": per_token(lambda i, _: -(REWARDS[i] - BY_LENGTH), in_sums),
    "gpg": per_token(lambda i, _: -CENTRED[i], in_mean),
    "grpo_passk": per_token(lambda i, _: 0.0, in_mean),  # of two best answers neither is ahead
    "asymre": per_token(lambda i, _: -(CENTRED[i] + 0.1), in_sums),
    "raft": per_token(lambda i, _: -float(i == 0), in_mean),
    "opmd": per_token(lambda i, _: -CENTRED[i] / 2, in_mean),
    "reinforce": per_token(lambda i, _: -REWARDS[i], in_sums),
    "cispo": per_token(lambda i, r: -min(r, 1.28) * SCALED[i], in_mean),
    "sapo": per_token(lambda i, r: soft(r, SCALED[i]), in_rows),
    "rec": per_token(lambda i, r: clipped(r, CENTRED[i], 0.2, 0.2) / r, in_mean),
    "sppo": per_token(lambda i, r: -CENTRED[i] * (1 / 1.3 <= r <= 1.3), in_mean),
    "dppo": per_token(lambda i, r: -r * SCALED[i] * ((i, r) not in ((0, 1.5), (1, 0.5))), in_mean),
    "cppo": per_token(left, in_rows),
    "m2po": per_token(near_enough, in_mean),
    "clip_cov": per_token(lambda i, r: clipped(r, SCALED[i], 0.2, 0.2), in_mean),  # no covariance is above 1
    "kl_cov": per_token(held, in_mean),
    "gmpo": per_token(bounded_mean, in_rows),
    "kimi15": per_token(lambda i, _: -CENTRED[i] + 0.1 * math.log(math.prod(RATIOS[i])), in_sums),
    "topr": per_token(lambda i, _: -CENTRED[i] * (min(1.0, math.prod(RATIOS[i])) if CENTRED[i] < 0 else 1.0), in_sums),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_gradient_is_that_of_the_formula(name: str) -> None:
    found = worked(name).gradients
    assert [pytest.approx(row, rel=1e-5, abs=1e-7) for row in EXPECTED[name]] == [list(row) for row in found]


def test_advantages_of_ppo_are_gae_whitened() -> None:
    """Deltas of a critic that says .4 everywhere: 0 within an answer, reward - .4 at its end."""
    lengths = map(len, RATIOS)
    flat = [
        0.95 ** (n - 1 - t) * (reward - VALUE) for n, reward in zip(lengths, REWARDS, strict=True) for t in range(n)
    ]
    mean = sum(flat) / N
    deviation = (sum((value - mean) ** 2 for value in flat) / (N - 1) + 1e-8) ** 0.5
    found = [value for row in worked("ppo").advantages for value in row]
    assert found == pytest.approx([(value - mean) / deviation for value in flat], rel=1e-4)


def test_advantages_of_gdpo_are_the_sum_of_compared_parts_whitened() -> None:
    """The part that gives at most .5 counts as much as the other."""
    of_answers = [0.0] * len(REWARDS)
    for part in zip(*PARTS, strict=True):
        mean = sum(part) / len(part)
        deviation = (sum((value - mean) ** 2 for value in part) / (len(part) - 1)) ** 0.5
        of_answers = [old + (value - mean) / (deviation + 1e-6) for old, value in zip(of_answers, part, strict=True)]
    deviation = (sum(value**2 for value in of_answers) / (len(of_answers) - 1) + 1e-8) ** 0.5  # their mean is 0
    expected = [value / deviation for value, row in zip(of_answers, RATIOS, strict=True) for _ in row]
    found = [value for row in worked("gdpo").advantages for value in row]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_every_algorithm_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in PRESETS[name].formula)
    assert all(key in shown for key in PRESETS[name].settings)


def test_pairs_and_given_answers_have_the_numbers_of_their_formulas() -> None:
    """h is log(.5 * .8 / (.4 * .8)) - log(.5 * .4 * .9 / (.5 * .5 * .9)) = log(1.25) - log(.8)."""
    h = math.log(1.25) - math.log(0.8)
    sigmoid = 1 / (1 + math.exp(-0.1 * h))
    slopes = {"dpo": 0.1 * (1 - sigmoid), "cdpo": 0.1 * (0.9 - sigmoid), "ipo": -2 * (h - 5)}
    for name, slope in slopes.items():
        found = worked_rows(PRESETS[name]).gradients
        assert found[0] == pytest.approx([-slope] * 2, rel=1e-5) and found[1] == pytest.approx([slope] * 3, rel=1e-5)
    assert worked_rows(PRESETS["dpo"]).loss == pytest.approx(-math.log(sigmoid), rel=1e-5)
    assert worked_rows(PRESETS["ipo"]).loss == pytest.approx((h - 5) ** 2, rel=1e-5)
    assert worked_rows(PRESETS["sft"]).loss == pytest.approx(-math.log(0.5 * 0.8 * 0.5 * 0.4 * 0.9) / 5, rel=1e-5)


def test_names_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in PRESETS)
    assert main(["explain", "dapoo"]) == 2
    assert "Did you mean dapo?" in capsys.readouterr().err


def test_help_lists_the_names_and_a_second_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in PRESETS)
    assert main(["explain", "dapo", "gspo"]) == 2
    assert "one name at a time" in capsys.readouterr().err

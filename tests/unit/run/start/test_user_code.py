"""Estimators and losses of the user's own that are wrong, before the run and in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roll.algorithms.advantage import AdvantageSettings, estimator, group_advantages
from roll.algorithms.credit import CreditSettings, assign_credit
from roll.algorithms.objectives import PolicyTokens
from roll.algorithms.user_objective import TAKEN, UserObjective
from roll.errors import AlgorithmError
from roll.types.batch import TokenScores
from roll.types.metrics import MetricSums
from tests.helpers.cases import cases
from tests.helpers.configs import config, problems
from tests.helpers.pages import importable, metric_entries
from tests.unit.algorithms.rows import alone, random_samples

ESTIMATORS = """
from roll.algorithms.advantage import estimator

@estimator()
def divides(attempts): return attempts.rewards / attempts.group.mean
@estimator()
def short(attempts): return attempts.rewards[:3]
@estimator()
def word(attempts): return "many"
@estimator()
def ragged(attempts): return [[1.0], [1.0, 2.0]]
@estimator()
def raises(attempts):
    return {}["x"]
@estimator()
def leaves(attempts): raise SystemExit(3)
@estimator()
def nothing(): ...
@estimator()
def needs(attempts, *, scale, rate=1.0): return attempts.rewards * scale
@estimator(needs_groups=True)
def grouped(attempts): return attempts.rewards
@estimator(needs_critic=True, whitens=True)
def valued(attempts): return attempts.rewards
@estimator(per_turn=True)
def turned(turns): return turns.returns
@estimator()
def negative(attempts): return attempts.rewards ** 0.5
@estimator()
def large(attempts): return attempts.rewards * 1e39
def plain(attempts): ...
constant = 3
"""
BARE = "from roll.algorithms.advantage import estimator\n\n@estimator\ndef x(attempts): return attempts.rewards\n"
LOSSES = """
from dataclasses import dataclass

import torch

@dataclass(frozen=True)
class Scaled:
    scale: float
    rate: float = 1.0
    def __post_init__(self):
        if self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale:g}")
    def __call__(self, tokens, metrics):
        return -self.scale * tokens.advantages * tokens.log_probs
class NotCalled: ...
class OneArgument:
    def __call__(self, tokens): ...
class Raises:
    def __call__(self, tokens, metrics):
        return 1 / 0
class Summed:
    def __call__(self, tokens, metrics): return tokens.log_probs.sum()
class Number:
    def __call__(self, tokens, metrics): return 0.5
class Detached:
    def __call__(self, tokens, metrics): return tokens.log_probs.detach()
class Divides:
    def __call__(self, tokens, metrics): return tokens.log_probs / tokens.log_ratio
class Rooted:
    def __call__(self, tokens, metrics): return tokens.log_ratio.abs().sqrt()
class Unreached:
    def __call__(self, tokens, metrics): return torch.ones_like(tokens.log_probs, requires_grad=True)
class Torn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, gradient): raise KeyError("torn")
class Backward:
    def __call__(self, tokens, metrics): return Torn.apply(tokens.log_probs)
@dataclass(frozen=True)
class Reports:
    name: str
    whole: bool = False
    twice: bool = False
    def __call__(self, tokens, metrics):
        sums = tokens.log_probs if self.whole else tokens.log_probs.sum()
        metrics.add(self.name, sums, 11)
        if self.twice:
            metrics.maximum(self.name, sums)
        return -tokens.log_probs
def function(tokens, metrics): return -tokens.log_probs
class Breaks:
    def __init__(self): raise OSError("no table")
class FarAway:
    def __call__(self, tokens, metrics): return tokens.log_probs * (5 - tokens.log_ratio) ** 0.5
"""
TRIED = "(Tried with made-up numbers, before the run.)"


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path) -> Iterator[None]:
    files = {
        "own_estimators": ESTIMATORS,
        "own_losses": LOSSES,
        "own_broken": "import nowhere_to_be_found\n",
        "own_bare": BARE,
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    with importable(tmp_path):
        yield


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("own_estimator:x", ["importing own_estimator failed with ModuleNotFoundError"]),
        ("own_broken:x", ["importing own_broken failed with ModuleNotFoundError: No module named 'nowhere_to_be"]),
        ("own_estimators:missing", ["own_estimators has no missing (", "own_estimators.py)"]),
        ("own_estimators.raises", ["is not one of gae, ", "nor a function of your own, package.module:function."]),
        ("own_estimators:constant", ["own_estimators:constant is a int; name a function."]),
        ("own_estimators:plain", ["does not declare what it is: put @estimator()", "docs/adding_an_estimator.md"]),
        ("own_estimators:nothing", ["own_estimators:nothing() must take the attempts as its first argument."]),
        ("own_estimators:needs", ["adv_args.scale is missing: own_estimators:needs(attempts, *, scale, rate=1.0)"]),
        ("own_estimators:raises", ["raised KeyError: 'x' (own_estimators.py, line 14).", TRIED]),
        ("own_estimators:leaves", ["raised SystemExit: 3 (own_estimators.py, line 16).", TRIED]),
        ("own_estimators:short", ["returned an array of shape (3,) and float64 for 24 attempts.", TRIED]),
        ("own_estimators:word", ["returned 'many' for 24 attempts. It must return one number for each.", TRIED]),
        ("own_estimators:ragged", ["returned a list that is not an array: ", TRIED]),
        (
            "own_estimators:divides",
            ["returned nan for 8 of 24 attempts, first for the reward 0 in a group with the rewards [0.0, 0.0, 0.0"],
        ),
        ("own_estimators:large", ["returned 1e+39 for 9 of 24 attempts, first for the reward 1 in a group", TRIED]),
        ("own_bare:x", ["own_bare failed with TypeError: write @estimator() with brackets", "(own_bare.py, line 3)"]),
        ("own_estimators:valued", ["own_estimators:valued needs a critic, and there is no `critic` section."]),
        ("own_estimators:turned", ["own_estimators:turned is for agentic runs."]),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_estimator_that_cannot_work_is_refused_with_its_place(name: str, parts: list[str]) -> None:
    (text,) = problems({"adv_estimator": name})
    assert text.startswith(("adv_estimator: ", "adv_args."))
    assert all(part in text for part in parts), text


@cases("keys, parts")
def test_a_loss_that_cannot_work_is_refused_with_its_place(keys: dict[str, Any], parts: list[str]) -> None:
    (text,) = problems(keys)
    assert all(part in text for part in parts), text


def test_code_of_ones_own_is_known_to_the_plan() -> None:
    assert problems({"adv_args": {"floor": 1}}) == [
        "adv_args are arguments of an adv_estimator of your own; grpo takes none. Remove them."
    ]
    assert problems({"pg_variant": "kimi15", "pg_args": {"tau": 1}}) == [
        "pg_args are arguments of a pg_variant of your own. kimi15 has keys of its own: kimi15_tau. Remove pg_args."
    ]
    critic = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0, 1]}
    critic["training_args"] = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    given = {"adv_estimator": "own_estimators:valued", "critic": critic}
    assert problems(given) == []
    assert config(given).estimator.needs_critic and config(given).estimator.keys == ("gamma", "lambd")


def test_what_an_estimator_says_of_itself_is_checked_like_a_built_in_one() -> None:
    alone_in_its_group = {"num_return_sequences_in_group": 1, "rollout_batch_size": 64}
    (text,) = problems({"adv_estimator": "own_estimators:grouped", **alone_in_its_group})
    assert text.startswith("adv_estimator: own_estimators:grouped compares a reward with the others of its group")
    assert problems({"adv_estimator": "own_estimators:needs", "adv_args": {"scale": 2}, **alone_in_its_group}) == []
    (text,) = problems({"adv_estimator": "own_estimators:grouped", "norm_std_type": "group"})
    assert "own_estimators:grouped says by itself what a reward is worth" in text
    with pytest.raises(ValueError, match="per_turn and needs_critic exclude each other"):
        estimator(per_turn=True, needs_critic=True)
    with pytest.raises(ValueError, match="steps_only is about turns"):
        estimator(steps_only=True)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_estimator_that_fails_in_a_step_names_the_rewards() -> None:
    """Rewards below 0, which no trial before the run has shown it."""
    settings = AdvantageSettings("own_estimators:negative")
    assert problems({"adv_estimator": "own_estimators:negative"}) == []
    with pytest.raises(AlgorithmError) as caught:
        group_advantages(np.array([1.0, np.nan, 4.0, -0.5]), np.array([7, 9, 9, 9]), settings)
    assert str(caught.value) == (
        "adv_estimator: own_estimators:negative returned nan for 1 of 3 attempts, first for the reward -0.5 in a group "
        "with the rewards [4.0, -0.5]. Return 0 if there is nothing to learn."
    )
    values, _ = group_advantages(np.array([1.0, np.nan, 4.0]), np.array([7, 9, 9]), settings)
    assert values.tolist() == [1, 0, 2]
    assert group_advantages(np.array([np.nan]), np.array([0]), settings)[0].tolist() == [0]


def test_an_estimator_that_needs_a_critic_gets_gae_and_whitening() -> None:
    rng = np.random.default_rng(1)
    samples = random_samples(rng, [3, 5])
    scores = TokenScores(values=rng.normal(size=samples.num_tokens).astype(np.float32))
    rewards = np.array([1.0, -1.0], np.float32)
    own, _ = assign_credit(samples, scores, rewards, CreditSettings("own_estimators:valued", lambd=0.8), alone)
    known, _ = assign_credit(samples, scores, rewards, CreditSettings("gae", lambd=0.8, whiten_advantages=True), alone)
    assert own.returns is not None
    np.testing.assert_array_equal(own.advantages, known.advantages)
    np.testing.assert_array_equal(own.returns, known.returns)


def tokens(log_ratio: float) -> PolicyTokens:
    mask = torch.tensor([[True, True, False]])
    log_probs = torch.tensor([[-1.0, -2.0, 0.0]], requires_grad=True)
    return PolicyTokens(log_probs, torch.tensor([[0.0, log_ratio, 0.0]]), torch.tensor([[1.0, -1.0, 0.0]]), mask)


def test_a_loss_that_fails_in_a_step_names_the_token() -> None:
    objective = UserObjective("own_losses:FarAway", {})
    assert problems({"pg_variant": "own_losses:FarAway"}) == []
    with pytest.raises(AlgorithmError) as caught:
        objective(tokens(6.0), MetricSums())
    assert str(caught.value) == (
        "pg_variant: own_losses:FarAway returned nan for 1 of 2 tokens, first for the log-prob -2, the log ratio 6 and "
        "the advantage -1."
    )
    assert not objective(tokens(float("nan")), MetricSums()).isfinite().all(), "a policy that is nan is not its fault"


def test_metrics_of_a_loss_are_numbers_under_their_own_names() -> None:
    losses = UserObjective("own_losses:FarAway", {})(tokens(1.0), MetricSums())
    assert losses[0].tolist() == pytest.approx([-(5**0.5), -4.0, 0.0])
    metrics = MetricSums()
    UserObjective("own_losses:Reports", {"name": "gap"})(tokens(1.0), metrics)
    total, count = metrics.means["gap"]
    assert isinstance(total, torch.Tensor) and not total.requires_grad
    assert (float(total), count) == (-3.0, 11.0)
    names = [entry.split("/") for entry in metric_entries()]
    inside = {
        "train_infer_" + name[1] for name in names if name[0] == "train_infer" and name[1].startswith("log_prob_diff")
    }
    assert {name[1] for name in names if name[0] == "actor"} | inside == TAKEN

"""What the expected update of each loss does: rows of the table of test_expected_updates.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch

from roll.algorithms.credit import CreditSettings, assign_credit
from roll.algorithms.distillation import DistillLoss, Divergence
from roll.algorithms.kl import KLEstimator
from roll.algorithms.loss import Aggregation, Loss, LossAggMode, SupervisedLoss
from roll.algorithms.policy_loss import (
    ExpertLoss,
    ImportanceSampling,
    KLLossEstimator,
    PolicyLoss,
    TokenWeights,
    ValueLoss,
)
from roll.algorithms.preference import BradleyTerryLoss, DPOLoss
from roll.configs.tables.policy_losses import (
    POLICY_FORMS,
    DPPODivergence,
    KdObjective,
    RECClip,
    RECRegularizer,
    RECWeight,
)
from roll.configs.tables.presets import PRESETS
from roll.rl.settings import _objective  # pyright: ignore[reportPrivateUsage]
from roll.types.batch import LossScale, TokenOutputs, TokenScores, TrainBatch
from roll.types.collate import pad
from tests.helpers.configs import config
from tests.helpers.log_probs import with_others
from tests.parity.algorithms.small_policy import (
    ALL,
    LIKELY,
    LOGITS,
    RESPONSES,
    REWARDS,
    SECOND,
    TARGET,
    UPHILL,
    Gradient,
    at_places,
    expected_reward,
    flat,
    kl,
    log_softmax,
    numeric,
    probabilities,
    pushed,
    rows_of,
)
from tests.unit.algorithms.rows import alone

SUMS = Aggregation("seq-mean-token-sum")
CENTRED = REWARDS - expected_reward(LOGITS)
Full = Callable[[torch.Tensor], torch.Tensor]
"""A number for each token of the policy from its log-probs [6]; the same for all tokens of a place."""


def gradient(
    loss: Loss,
    now: np.ndarray = LOGITS,
    advantages: np.ndarray = CENTRED,
    weights: np.ndarray = LIKELY,
    scale: LossScale | None = None,
    full: Full | None = None,
    **columns: np.ndarray,
) -> Gradient:
    """d loss / d logits, each response weighed, each a batch of its own. `columns` of a TrainBatch by token."""
    total = np.zeros(6)
    for i, weight in enumerate(weights):
        one = np.array([i])
        rows = rows_of(one, one)
        made = {name: flat(column, one) for name, column in columns.items()}
        chosen = np.zeros(rows.num_tokens, bool)  # no token is singled out
        batch = TrainBatch(rows, np.float32(advantages[i]) * rows.response_mask, chosen=chosen, **made)
        micro, logits = pad(batch, np.array([0])), torch.tensor(now, requires_grad=True)
        log_probs = torch.log_softmax(logits.reshape(2, 3), -1).ravel()
        tokens = list(RESPONSES[i])

        def laid_out(values: torch.Tensor, tokens: list[int] = tokens) -> torch.Tensor:
            return torch.cat((values.new_zeros(1), values[tokens]))[None]

        places = -(log_probs.exp() * log_probs).reshape(2, 3).sum(1).repeat_interleave(3)
        divergence = None if full is None else laid_out(full(log_probs))
        outputs = TokenOutputs(log_probs=laid_out(log_probs), entropy=laid_out(places), divergence=divergence)
        value, _ = loss(outputs, micro, scale or LossScale(1, 1))
        (slope,) = torch.autograd.grad(value, logits, allow_unused=True)
        total += 0 if slope is None else weight * slope.numpy()
    return total


def same(found: Gradient, expected: Gradient) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-6)


def agrees(found: Gradient, direction: Gradient, least: float) -> None:
    assert found @ direction > least * np.linalg.norm(found) * np.linalg.norm(direction) > 0


# Policy losses: the policy gradient where nothing has moved, uphill where one update has been made.

OPMD_SHARE = 0.5  # of the gradient of the expected reward: 1 / (1 + tau)
AFTER_ONE = LOGITS + 0.2 * UPHILL / np.linalg.norm(UPHILL)


def loss_of(name: str, **more: Any) -> PolicyLoss:
    keys = {key: more.pop(key) for key in list(more) if key in POLICY_FORMS[name].keys}
    return PolicyLoss(_objective(config({"pg_variant": name, **keys})), aggregation=SUMS, **more)


def step_of(name: str, now: np.ndarray, **keys: Any) -> Gradient:
    return -gradient(loss_of(name, **keys), now, old_log_probs=log_softmax(LOGITS))


def raises_reward(name: str, **keys: Any) -> None:
    same(step_of(name, LOGITS, **keys), (OPMD_SHARE if name == "opmd" else 1) * UPHILL)
    agrees(step_of(name, AFTER_ONE, **keys), numeric(expected_reward, AFTER_ONE), 0.6)


def favours_high_advantages() -> None:
    agrees(step_of("rec", LOGITS, rec_weight="advantage"), UPHILL, 0.9)


def regularizes(name: RECRegularizer) -> None:
    """What the term adds holds the policy near the one that sampled."""
    more = step_of("rec", TARGET, rec_regularizer=name) - step_of("rec", TARGET)
    pull = numeric(at_places(reverse, LOGITS), TARGET)  # of KL(old, new)
    if name == "forward-kl":
        same(more, -0.1 * pull)
    else:
        agrees(more, -pull, 0.8)


def weighs(name: ImportanceSampling) -> None:
    """Without a clip: the policy gradient on policy. Off policy the ratio of the whole response makes it exact; each of
    its tokens has all of it, so that their mean counts."""
    wide, old = loss_of("ppo", pg_clip=1e6, importance_sampling=name), log_softmax(LOGITS)
    if name == "product":
        wide = replace(wide, aggregation=Aggregation("seq-mean-token-mean"))
    same(-gradient(wide, old_log_probs=old), UPHILL)
    if name == "product":
        same(-gradient(wide, TARGET, old_log_probs=old), numeric(expected_reward, TARGET))


def aggregates(mode: LossAggMode) -> None:
    """An update of 10 tokens in 4 rows. The mean over a row's tokens counts a token of a long row less."""
    loss = PolicyLoss(aggregation=Aggregation(mode, 8.0))
    step = -gradient(loss, scale=LossScale(10, 4))
    share = {"token-mean": 1 / 10, "seq-mean-token-sum": 1 / 4, "seq-mean-token-sum-norm": 1 / 32}
    if mode in share:
        same(step, share[mode] * UPHILL)
    else:
        lengths = np.array([len(response) for response in RESPONSES])
        same(step, numeric(lambda z: float(probabilities(z) @ (CENTRED / lengths))) / 4)
        agrees(step, UPHILL, 0.8)


# KL to a reference, in the loss and in the reward.

REFERENCE = log_softmax(TARGET)


def kl_loss(name: KLLossEstimator) -> Gradient:
    loss = PolicyLoss(kl_loss_coef=1.0, kl_loss_estimator=name, aggregation=SUMS)
    reference = torch.from_numpy(REFERENCE)

    def full(log_probs: torch.Tensor) -> torch.Tensor:
        terms = log_probs.exp() * (log_probs - reference)
        return terms.reshape(2, 3).sum(1).repeat_interleave(3)

    return gradient(loss, advantages=np.zeros(5), full=full if name == "full" else None, ref_log_probs=REFERENCE)


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.abs(p - q).sum())


def reverse(p: np.ndarray, q: np.ndarray) -> float:
    return kl(q, p)


OF_KL_LOSSES: dict[str, Callable[[np.ndarray, np.ndarray], float] | None] = {
    **dict.fromkeys(("k1", "kl")),  # no gradient
    **dict.fromkeys(("k2", "mse", "full"), kl),
    **dict.fromkeys(("k3", "low_var_kl"), reverse),
    "abs": total_variation,
}


def lowers_kl(name: KLLossEstimator) -> None:
    divergence = OF_KL_LOSSES[name]
    same(kl_loss(name), np.zeros(6) if divergence is None else numeric(at_places(divergence)))


def penalty_step(name: KLEstimator, reference: np.ndarray) -> Gradient:
    """The step that the KL in the reward adds, with a coefficient of 1."""
    settings = CreditSettings("reinforce", add_token_level_kl=True, kl_coef=1.0, kl_penalty=name)
    scores = TokenScores(old_log_probs=flat(log_softmax(LOGITS), ALL), ref_log_probs=flat(log_softmax(reference), ALL))
    batch, _ = assign_credit(rows_of(ALL, ALL), scores, np.zeros(5), settings, alone)
    return pushed(batch.advantages, ALL, LIKELY)


def of_responses(reference: np.ndarray) -> Gradient:
    """The gradient of the KL between whole responses."""
    return numeric(lambda logits: kl(probabilities(logits), probabilities(reference)))


def penalises(name: KLEstimator) -> None:
    if name in ("k1", "kl"):
        same(penalty_step(name, TARGET), -of_responses(TARGET))
    else:
        does_not_pull(name)


def does_not_pull(name: KLEstimator) -> None:
    """It counts a token alike on either side of the reference: turned round, the step does not turn."""
    near = 0.01 * TARGET
    there, back = penalty_step(name, LOGITS + near), penalty_step(name, LOGITS - near)
    np.testing.assert_allclose(there, back, atol=0.05 * np.abs(there).max() + 1e-6)
    pull = of_responses(LOGITS + near)
    assert (there @ pull < 0) != (back @ -pull < 0), "on one side it drives the policy away"


# Distillation: the named divergence, over the vocabulary and over the teacher's likeliest tokens and the rest.

SKEW = Divergence().skew


def mixed(a: np.ndarray, b: np.ndarray, share: float) -> np.ndarray:
    return share * a + (1 - share) * b


NAMED: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "forward_kl": reverse,
    "reverse_kl": kl,
    "js_divergence": lambda p, q: (kl(p, mixed(p, q, 0.5)) + kl(q, mixed(p, q, 0.5))) / 2,
    "skewed_forward_kl": lambda p, q: kl(q, mixed(q, p, SKEW)),
    "skewed_reverse_kl": lambda p, q: kl(p, mixed(p, q, SKEW)),
}


def distilled(name: KdObjective, top_k: int) -> Gradient:
    teacher = torch.from_numpy(REFERENCE).reshape(2, 3)

    def full(log_probs: torch.Tensor) -> torch.Tensor:
        student, of = log_probs.reshape(2, 3), Divergence(name)
        if not top_k:
            return of.of_all(student, teacher).repeat_interleave(3)
        tokens = teacher.topk(top_k, -1).indices
        return of.of_likeliest(with_others(student, tokens), with_others(teacher, tokens)).repeat_interleave(3)

    return gradient(DistillLoss(1.0, SUMS), full=full)


def coarse(divergence: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[np.ndarray, np.ndarray], float]:
    def of(p: np.ndarray, q: np.ndarray) -> float:
        top = q.argmax()
        return divergence(*(np.array([x[top], 1 - x[top]]) for x in (p, q)))

    return of


def distils(name: KdObjective) -> None:
    """adaptive_kl is a mean of both directions, weighed place by place: it lowers each of them."""
    for top_k, wrap in ((0, lambda of: of), (1, coarse)):
        if name == "adaptive_kl":
            for direction in (kl, reverse):
                agrees(distilled(name, top_k), numeric(at_places(wrap(direction))), 0.8)
        else:
            same(distilled(name, top_k), numeric(at_places(wrap(NAMED[name]))))


# Rows that are there before the run.

DATA = probabilities(TARGET)  # responses of an expert


def fits_data(loss: Loss) -> None:
    same(gradient(loss, weights=DATA), numeric(lambda z: kl(DATA, probabilities(z))))


def fits_uncertain_tokens() -> None:
    """Each token's likelihood, weighed by p (1 - p) of the present policy."""
    p = np.exp(log_softmax(LOGITS))
    frozen = p * (1 - p)

    def weighed(logits: np.ndarray) -> float:
        terms = frozen * log_softmax(logits)
        return -float(DATA @ [sum(terms[token] for token in response) for response in RESPONSES])

    step = gradient(ExpertLoss("uncertain", SUMS), weights=DATA)
    same(step, numeric(weighed))
    agrees(step, numeric(lambda z: kl(DATA, probabilities(z))), 0.8)


# Pairs: each of two different responses, labelled by a judge who prefers by Bradley and Terry, sigmoid(r - r').

PAIRS = [(i, j) for i in range(5) for j in range(5) if i != j]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def pair_gradient(loss: DPOLoss, better: int, worse: int, logits: np.ndarray = LOGITS) -> Gradient:
    given = torch.tensor(logits, requires_grad=True)
    log_probs = torch.log_softmax(given.reshape(2, 3), -1).ravel()
    sums = torch.stack([log_probs[list(RESPONSES[k])].sum() for k in (better, worse)])
    reference = torch.tensor([sum(REFERENCE[token] for token in RESPONSES[k]) for k in (better, worse)])
    value, _ = loss.of_rows(sums, sums - reference, torch.tensor([len(RESPONSES[k]) for k in (better, worse)]))
    return torch.autograd.grad(value, given)[0].numpy()


def prefers(name: str) -> None:
    """It raises what the judge likes, and stops where beta (log p - log p_ref) is the judge's reward but for a
    constant: for cdpo if `label_smoothing` of the labels are wrong, for ipo where h is (2 share - 1) / (2 beta)."""
    preset = PRESETS[name].settings
    loss = DPOLoss(preset["beta"], preset["ipo"], preset["label_smoothing"], reference_free=preset["reference_free"])
    liked = [
        DATA[i] * DATA[j] * sigmoid(float(REWARDS[i] - REWARDS[j])) * pair_gradient(loss, i, j, TARGET)
        for i, j in PAIRS
    ]
    agrees(-np.sum(liked, 0), numeric(expected_reward, TARGET), 0.8)

    gaps, wrong, total = loss.beta * (log_softmax(LOGITS) - REFERENCE), loss.label_smoothing, np.zeros(6)
    implied = np.array([sum(gaps[token] for token in response) for response in RESPONSES])
    for i, j in PAIRS:
        h = float(implied[i] - implied[j])
        share = (1 + 2 * h) / 2 if loss.ipo else (sigmoid(h) - wrong) / (1 - 2 * wrong)
        total += share * pair_gradient(loss, i, j)
    same(total, np.zeros(6))


def models_rewards() -> None:
    """The reward model's loss stops where its rewards are the judge's, but for a constant."""
    rewards = torch.tensor(REWARDS + 3, requires_grad=True)
    terms = [
        sigmoid(float(REWARDS[i] - REWARDS[j])) * BradleyTerryLoss().of_rows(rewards[[i, j]], torch.zeros(2))[0]
        for i, j in PAIRS
    ]
    (slope,) = torch.autograd.grad(torch.stack(terms).sum(), rewards)
    np.testing.assert_allclose(slope.numpy(), 0, atol=1e-7)


def values_places(clip: float | None) -> None:
    """The critic's loss stops at the expected return of each place, and lowers the squared error before."""
    exact = (expected_reward(LOGITS), float(LIKELY[2:] @ REWARDS[2:]) / SECOND)
    assert np.abs(value_slope(np.array(exact), clip)).max() < 1e-6
    assert (value_slope(np.array(exact) + np.array([0.3, -0.2]), clip) * [1, -1] > 0).all()


def value_slope(values: np.ndarray, clip: float | None) -> np.ndarray:
    given, total = torch.tensor(values, requires_grad=True), torch.zeros((), dtype=torch.float64)
    for i, weight in enumerate(LIKELY):
        one = np.array([i])
        rows = rows_of(one, one)
        returns = np.float32(REWARDS[i]) * rows.response_mask
        before = flat(np.repeat(values, 3), one)
        micro = pad(TrainBatch(rows, np.zeros_like(returns), values=before, returns=returns), np.array([0]))
        laid_out = torch.cat((given.new_zeros(1), given[[token // 3 for token in RESPONSES[i]]]))[None]
        total = total + weight * ValueLoss(clip)(TokenOutputs(values=laid_out), micro, LossScale(1, 1))[0]
    return torch.autograd.grad(total, given)[0].numpy()


def raises_entropy() -> None:
    loss = PolicyLoss(entropy_loss_coef=1.0, aggregation=SUMS)

    def entropy(p: np.ndarray, _: np.ndarray) -> float:
        return -float((p * np.log(p)).sum())

    same(-gradient(loss, advantages=np.zeros(5)), numeric(at_places(entropy)))


def rec_weighs(name: RECWeight) -> None:
    if name == "advantage":
        favours_high_advantages()
    else:
        raises_reward("rec", rec_weight=name)


def rec_regularizes(name: RECRegularizer) -> None:
    if name == "none":
        raises_reward("rec")
    else:
        regularizes(name)


def learns_from_rows(name: str) -> None:
    if PRESETS[name].pipeline == "sft":
        fits_data(SupervisedLoss(SUMS))
    else:
        prefers(name)


def fits_weighed(name: TokenWeights) -> None:
    if name == "none":
        fits_data(ExpertLoss("none", SUMS))
    else:
        fits_uncertain_tokens()


OTHERS: dict[str, Callable[[], None]] = {
    "entropy_loss_coef": raises_entropy,
    "reward model": models_rewards,
    "value_clip": lambda: values_places(0.2),
    "critic": lambda: values_places(None),
}
LOSS_SHELVES: dict[str, tuple[Iterable[str], Callable[[Any], None]]] = {
    "pg_variant": (POLICY_FORMS, raises_reward),
    "rec_clip_mode": (get_args(RECClip), lambda name: raises_reward("rec", rec_clip_mode=name)),
    "rec_weight": (get_args(RECWeight), rec_weighs),
    "rec_regularizer": (get_args(RECRegularizer), rec_regularizes),
    "dppo_divergence": (get_args(DPPODivergence), lambda name: raises_reward("dppo", dppo_divergence=name)),
    "importance_sampling": (get_args(ImportanceSampling), weighs),
    "loss_agg_mode": (get_args(LossAggMode), aggregates),
    "kl_loss_type": ((*get_args(KLEstimator), "full"), lowers_kl),
    "kl_penalty": (get_args(KLEstimator), penalises),
    "kd_objective": (get_args(KdObjective), distils),
    "runs on rows": ([row.name for row in PRESETS.values() if row.pipeline in ("sft", "dpo")], learns_from_rows),
    "mix.token_weights": (get_args(TokenWeights), fits_weighed),
    "other losses": (OTHERS, lambda name: OTHERS[name]()),
}
"""Of each key its values, and what the expected update of one does."""

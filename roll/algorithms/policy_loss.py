"""Losses of reinforcement learning: the policy's, the critic's, and that of a policy with rows of an expert."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from roll.algorithms.kl import KLEstimator, estimate_kl
from roll.algorithms.loss import Aggregation, Loss, Need, inside
from roll.algorithms.objectives import ClippedRatio, Objective, PolicyTokens
from roll.algorithms.off_policy import TrainInferCorrection, correct_mismatch, ratio_of, row_means, row_sums, spread
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

ImportanceSampling = Literal["token", "seq", "segment", "product"]
KLLossEstimator = KLEstimator | Literal["full"]
PPO = ClippedRatio()
BY_ROW = Aggregation()


@dataclass(frozen=True)
class PolicyLoss:
    """A policy objective and what is commonly added to it:

        rl_loss_coef * (policy loss + kl_loss_coef * KL(policy || reference)) - entropy_loss_coef * entropy

    The policy loss per token is that of `objective`, by default PPO's, of the ratio p / p_old and the advantage.
    `importance_sampling: seq` takes the geometric mean of the row's ratios for every token (GSPO), `product` their
    product, `segment` the geometric mean of each turn's own. Without old log-probs the ratio is 1 and its gradient that
    of log p. `loss_weights` weigh the policy loss alone. All aggregate alike. `old_is_rollout`: the old log-probs are
    the engine's own, so the gap between engine and trainer is taken from the present policy; updates after a step's
    first add what they have changed. Of tokens up to `max_lag` steps old that gap is told by age. The estimator `full`
    is no estimate, but the KL over the vocabulary, which the strategy computes from what the reference told.
    """

    objective: Objective = PPO
    importance_sampling: ImportanceSampling = "token"
    aggregation: Aggregation = BY_ROW
    kl_loss_coef: float = 0.0
    kl_loss_estimator: KLLossEstimator = "k3"
    entropy_loss_coef: float = 0.0
    rl_loss_coef: float = 1.0
    report_entropy: bool = False
    correction: TrainInferCorrection | None = None
    old_is_rollout: bool = False
    max_lag: int = 0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"log_probs", "entropy"} if self.entropy_loss_coef or self.report_entropy else {"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask, metrics = batch.response_mask, MetricSums()
        num_tokens, num_counted = mask.sum(), self.aggregation.count(mask)
        divisor = self.aggregation.denominator(scale)
        log_probs = inside(outputs.log_probs, mask, "PolicyLoss", "log_probs")
        detached = log_probs.detach()
        old = (
            detached
            if batch.old_log_probs is None
            else inside(batch.old_log_probs, mask, "PolicyLoss", "old_log_probs")
        )

        advantages = inside(batch.advantages, mask, "PolicyLoss", "advantages")
        log_ratio = self._log_ratio(log_probs - old, mask, metrics)
        is_product = self.importance_sampling == "product"
        tokens = PolicyTokens(log_probs, log_ratio, advantages, mask, is_product, batch.chosen)
        losses = self.objective(tokens, metrics)
        rollout = inside(batch.rollout_log_probs, mask, "PolicyLoss", "rollout_log_probs")
        trained_on = log_probs if batch.old_log_probs is None or self.old_is_rollout else old
        if self.correction is not None:
            losses = losses * correct_mismatch(trained_on, rollout, mask, self.correction, metrics)
        policy_loss = self.aggregation.total(losses, mask, batch.loss_weights)
        metrics.add("pg_loss", policy_loss.detach(), num_counted)
        loss = self.rl_loss_coef * policy_loss

        kl = self._kl_to_reference(log_probs, outputs, batch)
        if kl is not None:
            kl_loss = self.aggregation.total(kl, mask, None)
            metrics.add("kl_loss", kl_loss.detach(), num_counted)
            loss = loss + self.rl_loss_coef * self.kl_loss_coef * kl_loss
        elif self.kl_loss_coef:
            needed = "the reference's targets" if self.kl_loss_estimator == "full" else "ref_log_probs"
            raise ValueError(f"PolicyLoss.kl_loss_coef needs {needed}")

        if "entropy" in self.needs:
            entropy = inside(outputs.entropy, mask, "PolicyLoss", "entropy")
            metrics.add("entropy_mean", entropy.detach().sum(), num_tokens)
            if self.entropy_loss_coef:
                loss = loss - self.entropy_loss_coef * self.aggregation.total(entropy, mask, None)

        self._tell_gap((trained_on.detach() - rollout).abs(), batch, metrics)
        return loss / divisor, metrics

    def _kl_to_reference(
        self, log_probs: torch.Tensor, outputs: TokenOutputs, batch: MicroBatch
    ) -> torch.Tensor | None:
        """KL to the reference of each token. It has a gradient only if it is part of the loss; None if there are no
        reference log-probs."""
        if self.kl_loss_estimator == "full":
            if outputs.divergence is None:
                return None
            kl = inside(outputs.divergence, batch.response_mask, "PolicyLoss", "a divergence")
        elif batch.ref_log_probs is None:
            return None
        else:
            reference = inside(batch.ref_log_probs, batch.response_mask, "PolicyLoss", "ref_log_probs")
            kl = estimate_kl(log_probs, reference, self.kl_loss_estimator)
        return kl if self.kl_loss_coef else kl.detach()

    def _tell_gap(self, gap: torch.Tensor, batch: MicroBatch, metrics: MetricSums) -> None:
        """Add metrics of the log-prob gap between trainer and engine. The gap of tokens that the present weights
        sampled is due to the engine; older tokens have their own metrics, by lag."""
        mask = batch.response_mask
        if batch.lag is not None:
            for lag in range(1, self.max_lag + 1):
                of_age = mask & (batch.lag == lag)
                metrics.add(f"train_infer_log_prob_diff_mean/lag_{lag}", (gap * of_age).sum(), of_age.sum())
            mask = mask & (batch.lag == 0)
            gap = gap * mask
        metrics.add("train_infer_log_prob_diff_mean", gap.sum(), mask.sum())
        metrics.maximum("train_infer_log_prob_diff_max", gap.amax())

    def _log_ratio(self, log_ratio: torch.Tensor, mask: torch.Tensor, metrics: MetricSums) -> torch.Tensor:
        """[B, T]: the tokens' own, or what they share."""
        num_tokens = mask.sum()
        approx_kl = ratio_of(log_ratio.detach()) - 1 - log_ratio.detach()  # KL(old || new) by k3: old is what sampled
        metrics.add("approx_kl", approx_kl.sum(), num_tokens)
        if self.importance_sampling == "seq":
            log_ratio = row_means(log_ratio, mask).expand_as(log_ratio)
        elif self.importance_sampling == "product":
            log_ratio = row_sums(log_ratio).expand_as(log_ratio)
        elif self.importance_sampling == "segment":
            log_ratio = spread(log_ratio, mask, "segment")
        ratio = torch.where(mask, ratio_of(log_ratio.detach()), 0.0)
        metrics.add("ratio_mean", ratio.sum(), num_tokens)
        metrics.maximum("ratio_max", ratio.amax())
        return log_ratio


@dataclass(frozen=True)
class ValueLoss:
    """The critic's loss: mean over the response tokens of (V - return)^2 / 2. With `value_clip` c it is the larger of
    that and the same with V kept within c of the value before the update (Schulman's PPO code; Engstrom et al., arXiv
    2005.12729)."""

    value_clip: float | None = None

    needs = frozenset[Need]({"values"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask, metrics = batch.response_mask, MetricSums()
        num_tokens = mask.sum()
        values = inside(outputs.values, mask, "ValueLoss", "values")
        returns = inside(batch.returns, mask, "ValueLoss", "returns")
        squares = (values - returns).square()
        if self.value_clip is not None:
            before = inside(batch.values, mask, "ValueLoss", "values before the update")
            moved = values - before
            # where nothing is clipped, V itself: before + moved is V but for rounding, which would count as a clip
            bound = before + moved.clamp(-self.value_clip, self.value_clip)
            clipped_squares = (torch.where(moved.abs() > self.value_clip, bound, values) - returns).square()
            metrics.add("value_clip_fraction", (clipped_squares > squares).detach().sum(), num_tokens)
            squares = torch.maximum(squares, clipped_squares)
        total = 0.5 * squares.sum()

        errors = returns - values.detach()
        metrics.add("value_loss", total.detach(), num_tokens)
        metrics.add("value_mean", values.detach().sum(), num_tokens)
        metrics.add("return_mean", returns.sum(), num_tokens)
        metrics.add("return_square_mean", returns.square().sum(), num_tokens)
        metrics.add("value_error_mean", errors.sum(), num_tokens)
        metrics.add("value_error_square_mean", errors.square().sum(), num_tokens)
        return total / max(scale.num_tokens, 1), metrics


def explained_variance(metrics: Mapping[str, float]) -> float | None:
    """1 - Var(return - V) / Var(return) from ValueLoss's merged metrics: 1 is a perfect critic, 0 one that only knows
    the mean. None where returns do not vary, or nothing was trained on."""
    if "return_mean" not in metrics:
        return None
    variance = metrics["return_square_mean"] - metrics["return_mean"] ** 2
    error_variance = metrics["value_error_square_mean"] - metrics["value_error_mean"] ** 2
    return None if variance <= 1e-12 else 1 - error_variance / variance


# The loss of an update in which rows of an expert join those that the policy sampled.

TokenWeights = Literal["none", "uncertain"]
TOKEN_MEAN = Aggregation("token-mean")


@dataclass(frozen=True)
class ExpertLoss:
    """Negative log-likelihood of an expert's tokens; `uncertain` weighs it by p (1 - p), p the token's probability,
    through which no gradient goes (CHORD, arXiv 2508.11408). At the temperature of the update, as all of it is: the
    policy is what samples there.

    Example: a token with p = .5 has the loss .693, and weighed .173, with the gradient -.25 by its log-prob.
    """

    token_weights: TokenWeights = "none"
    aggregation: Aggregation = TOKEN_MEAN

    needs = frozenset[Need]({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        mask, metrics = batch.response_mask, MetricSums()
        log_probs = inside(outputs.log_probs, mask, "ExpertLoss", "log_probs")
        losses = -log_probs
        if self.token_weights == "uncertain":
            probs = log_probs.detach().exp()
            weights = probs * (1 - probs)
            metrics.add("expert_token_weight_mean", (weights * mask).sum(), mask.sum())
            losses = losses * weights
        total = self.aggregation.total(losses, mask, batch.loss_weights)
        metrics.add("expert_loss", total.detach(), self.aggregation.count(mask))
        metrics.add("expert_nll_mean", -log_probs.detach().sum(), mask.sum())
        return total / self.aggregation.denominator(scale), metrics


@dataclass(frozen=True)
class MixedLoss:
    """(1 - weight) * policy loss + weight * expert loss. A micro batch is all of the one kind or of the other: rows
    without advantages are the expert's, and each kind divides by counts of its own."""

    policy: Loss
    expert: ExpertLoss
    weight: float

    @property
    def needs(self) -> frozenset[Need]:
        return self.policy.needs | self.expert.needs

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        if batch.advantages is not None:
            loss, metrics = self.policy(outputs, batch, scale)
            return (1 - self.weight) * loss, metrics
        assert scale.expert is not None, "an update with an expert's rows counts them"
        loss, metrics = self.expert(outputs, batch, scale.expert)
        return self.weight * loss, metrics

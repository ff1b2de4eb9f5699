"""Alarms of a run whose engines and trainer disagree."""

import logging

from roll.errors import StrategyError
from roll.rl.parts import Metrics, StepContext, StepPart

logger = logging.getLogger(__name__)

GAP = "train_infer/log_prob_diff_mean"
GAP_MAX = "train_infer/log_prob_diff_max"


class GapAlarm(StepPart):
    """Says it once when rollout engine and trainer begin to disagree, and again if they do so after they agreed."""

    def __init__(self, threshold: float, keeps_kv: bool = False, runs_ahead: bool = False, samples_anew: bool = True):
        """`keeps_kv`: answers go on over keys and values of old weights, which is a difference in itself. `runs_ahead`:
        only tokens of the weights that learn are compared. Elsewhere all of them are, which tells something where the
        engines have these weights and rollouts are not recorded ones (`samples_anew`)."""
        self._threshold, self._runs_ahead, self._samples_anew = threshold, runs_ahead, samples_anew
        self._cause = (
            "With kv_on_update: keep their tokens are sampled over keys and values of older weights: recompute avoids "
            "that, and a lower learning_rate makes the difference smaller"
            if keeps_kv
            else "Rollout engine and trainer disagree about the sampled tokens: compare their dtypes and model "
            "settings, or correct for it with train_infer_correction"
        )
        self._is_on = False

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        has_weights = self._samples_anew and at.engine_version == at.step
        if GAP in metrics and (self._runs_ahead or has_weights):  # else weights differ, and so should log-probs
            self.check(metrics[GAP])

    def check(self, difference: float) -> None:
        if difference > self._threshold and not self._is_on:
            logger.warning(
                "%s is %.3g, above log_prob_diff_warning: %g. %s.",
                GAP,
                difference,
                self._threshold,
                self._cause,
            )
        self._is_on = difference > self._threshold


class ExactAlarm(StepPart):
    """Ends a run with `exact_log_probs` in which engine and trainer gave a token of the present weights two numbers."""

    def __init__(self, runs_ahead: bool):
        """`runs_ahead`: only tokens of the weights that learn are compared, whatever the engines have by now."""
        self._runs_ahead = runs_ahead

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        is_of_weights = self._runs_ahead or at.engine_version == at.step
        if is_of_weights and metrics.get(GAP_MAX, 0.0):
            raise StrategyError(
                f"exact_log_probs: {GAP_MAX} is {metrics[GAP_MAX]:.3g} in step {at.step + 1}, and was to be 0: engine "
                "and trainer computed with other kernels or other weights. Run both on the same kind of machine with "
                "the same OMP_NUM_THREADS, or set exact_log_probs to false"
            )

"""The table of policy losses: the keys of each, what is built from them, and what checks have to know."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from roll.configs.problems import did_you_mean
from roll.utils.imports import resolve
from roll.utils.text import show

DPPODivergence = Literal["tv", "kl"]
RECClip = Literal["none", "one-side", "two-side", "ring"]
RECWeight = Literal["none", "importance_sampling", "advantage"]
RECRegularizer = Literal["none", "forward-kl", "k2"]
KdObjective = Literal[
    "forward_kl", "reverse_kl", "js_divergence", "skewed_forward_kl", "skewed_reverse_kl", "adaptive_kl"
]


@dataclass(frozen=True)
class PolicyForm:
    """One value of `pg_variant`. `objective`, package.module:object, is called with the values of `keys` in their
    order and gives what a token adds to the loss."""

    name: str
    objective: str
    keys: tuple[str, ...] = ()
    """The keys of a YAML that belong to it; those of the role begin with `actor_train.`, of which the name has none."""
    reads_ratio: bool = True
    """The ratio of new to old policy enters, so that importance_sampling has a say."""
    reads_probabilities: bool = False
    """The probabilities of a token enter, old and new, so that the ratio has to be the token's own."""
    needs_old_log_probs: bool = False
    """Whether something about a whole update is computed from old log-probs before it begins."""
    passes_before_updates: bool = False
    """True for a loss that needs one more pass before each update, under the weights as they are."""
    is_zero_without_advantage: bool = True
    """A token whose advantage is 0 has no loss, whatever its ratio, and no say in the loss of others."""
    regularizer: str = ""
    """The key of a term that every token has unless it is none."""

    @property
    def is_user_defined(self) -> bool:
        """True for a class of the user's, which is called with pg_args."""
        return self.name not in POLICY_FORMS


_REC_RANGE = ("rec_epsilon_low", "rec_epsilon_high", "rec_epsilon_low_prime", "rec_epsilon_high_prime")
IN_ORDER = (("tis_lower_bound", "tis_upper_bound"), ("clip_cov_lb", "clip_cov_ub"))
"""Keys of which the first must not be above the second."""
IN_ORDER_OF_A_RING = tuple(zip(_REC_RANGE[:2], _REC_RANGE[2:], strict=True))
_REC_TERMS = ("rec_weight", "rec_weight_temp", "rec_regularizer", "rec_regularizer_coef")


_CPPO = (
    "cppo_threshold",
    "cppo_weight_floor",
    "cppo_budget",
    "cppo_budget_quantile",
    "cppo_budget_scale",
    "cppo_highest_weight",
)
_RANGE = ("pg_clip", "use_pg_clip_range", "pg_clip_low", "pg_clip_high")


_ROWS = (
    PolicyForm("ppo", "roll.algorithms.objectives:ppo", (*_RANGE, "dual_clip_loss", "dual_clip_ratio_c")),
    PolicyForm("vanilla", "roll.algorithms.objectives:PolicyGradient", reads_ratio=False),
    PolicyForm("opmd", "roll.algorithms.objectives:PolicyGradient", ("opmd_tau",), reads_ratio=False),
    PolicyForm("tis", "roll.algorithms.objectives:BoundedWeight", ("tis_lower_bound", "tis_upper_bound")),
    PolicyForm(
        "topr",
        "roll.algorithms.objectives:TaperedWeight",
        ("actor_train.topr_positive_weight", "actor_train.topr_negative_weight"),
    ),
    PolicyForm(
        "cispo",
        "roll.algorithms.objectives:cispo",
        ("cispo_epsilon_low", "cispo_epsilon_high", "cispo_use_unified_mask"),
    ),
    PolicyForm(
        "kimi15",
        "roll.algorithms.objectives:SquaredPenalty",
        ("kimi15_tau",),
        is_zero_without_advantage=False,
    ),
    PolicyForm("gmpo", "roll.algorithms.objectives:ClippedGeometricMean", ("gmpo_clip_low", "gmpo_clip_high")),
    PolicyForm("sapo", "roll.algorithms.objectives:SoftGate", ("sapo_tau_positive", "sapo_tau_negative")),
    PolicyForm(
        "rec",
        "roll.algorithms.objectives:RatioGate",
        ("rec_clip_mode", *_REC_RANGE, *_REC_TERMS),
        regularizer="rec_regularizer",
    ),
    PolicyForm("sppo", "roll.algorithms.objectives:ClippedLogRatio", ("sppo_epsilon",)),
    PolicyForm(
        "dppo",
        "roll.algorithms.divergence_gates:DivergenceGate",
        ("dppo_divergence", "dppo_clip_low", "dppo_clip_high", "dppo_highest_weight"),
        reads_probabilities=True,
    ),
    PolicyForm(
        "cppo",
        "roll.algorithms.divergence_gates:PrefixBudget",
        _CPPO,
        reads_probabilities=True,
    ),
    PolicyForm(
        "m2po",
        "roll.algorithms.second_moment:SecondMomentBound",
        ("m2po_threshold",),
        reads_probabilities=True,
        passes_before_updates=True,
    ),
    PolicyForm(
        "clip_cov",
        "roll.algorithms.objectives:clip_cov",
        (*_RANGE, "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
        needs_old_log_probs=True,
        is_zero_without_advantage=False,
    ),
    PolicyForm(
        "kl_cov",
        "roll.algorithms.objectives:PenalizedCovariance",
        ("kl_cov_ratio", "ppo_kl_coef"),
        needs_old_log_probs=True,
        is_zero_without_advantage=False,
    ),
)
POLICY_FORMS: Mapping[str, PolicyForm] = {row.name: row for row in _ROWS}
"""Policy losses by name, in the order in which messages list them."""


def policy_form_of(name: str) -> PolicyForm:
    """The row of a pg_variant: a name of the table, or package.module:Class."""
    if ":" not in name:
        return POLICY_FORMS[name]
    is_zero = bool(getattr(resolve(name), "is_zero_without_advantage", False))
    return PolicyForm(name, name, is_zero_without_advantage=is_zero)


def known_pg_variant(name: str) -> str:
    """The name, if it is one of the table, or a path that can be imported; else ValueError that says what there is
    instead, or what is wrong with the path."""
    if ":" in name:
        try:
            variant = resolve(name)
        except ImportError as error:
            raise ValueError(str(error)) from error
        if not callable(variant):
            raise ValueError(f"{name} is a {type(variant).__name__}; name a class whose objects are called")
    elif name not in POLICY_FORMS:
        known = f"{', '.join(POLICY_FORMS)}, nor a class of your own, package.module:Class"
        raise ValueError(f"{show(name)} is not one of {known}.{did_you_mean(name, POLICY_FORMS)}")
    return name


def last_name(key: str) -> str:
    """The last part of a dotted key. Example: kimi15_tau of kimi15_tau, topr_positive_weight of
    actor_train.topr_positive_weight."""
    return key.rpartition(".")[2]

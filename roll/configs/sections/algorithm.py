"""Settings of the mathematics: advantages, policy loss, KL terms, and the roles they need."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.sections.cluster import PgVariant, WorkerConfig
from roll.configs.sections.data import Place
from roll.configs.sections.experience import is_started
from roll.configs.sections.teachers import MixConfig, OnPolicyDistillation
from roll.configs.tables.estimators import Estimator, OPMDBaseline, RAFTKeep, Whitening, estimator_of
from roll.configs.tables.policy_losses import (
    DPPODivergence,
    PolicyForm,
    RECClip,
    RECRegularizer,
    RECWeight,
    last_name,
    policy_form_of,
)
from roll.configs.tables.presets import known_algorithm
from roll.configs.tables.roles import ROLES, Role, teacher_role

# Settings of `train_infer_correction`.

Granularity = Literal["token", "segment", "geometric", "sequence"]


class ISWeightConfig(Settings):
    """`train_infer_correction.is_weight`: importance weights between trainer and rollout engine."""

    enabled: bool | None = setting(
        None,
        "Weight the loss by the ratio of trainer and rollout probabilities. Default: where rollouts run ahead "
        "(async_generation_ratio above 0) and the engine's log-probs are not old log-probs already.",
    )
    weight_type: Granularity = setting("token", "What the ratio is taken over.")
    upper_bound: float | None = setting(1.2, "Ratios are cut here.")
    detach: bool = setting(
        True, "No gradient through the weight; there is none: it is computed from old log-probs, which are constants."
    )


class TrainInferFilterConfig(Settings):
    """One of `train_infer_correction.filters`: leaves out what trainer and rollout engine disagree on."""

    enabled: bool = setting(False, "Switch this filter on.")
    agg_type: Granularity = setting("token", "What the disagreement is taken over.")
    ratio_enabled: bool = setting(True, "Filter by probability ratio.")
    ratio_low: float = setting(0.8, "Smallest ratio kept.")
    ratio_high: float = setting(1.2, "Largest ratio kept.")
    diff_enabled: bool = setting(False, "Filter by probability difference.")
    diff_low: float = setting(-0.2, "Smallest difference kept.")
    diff_high: float = setting(0.2, "Largest difference kept.")


class TrainInferCorrectionConfig(Settings):
    """`train_infer_correction`: what to do about the two engines' different log-probs."""

    is_weight: ISWeightConfig = setting({}, "Importance weights.")
    filters: tuple[TrainInferFilterConfig, ...] = setting((), "Filters, applied in turn.")


MODEL_LENGTH_KEYS = ("max_model_len", "context_length")
KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

KlEstimator = Annotated[
    Literal["k1", "k2", "k3", "abs", "full"],
    BeforeValidator(lambda name: KL_NAMES.get(name, name) if isinstance(name, str) else name),
]
# In a YAML null means "not given", here as everywhere; the word `none` switches a norm off, which None stands for.
NAMES_NONE = BeforeValidator(
    lambda name: {None: "default", "none": None}.get(name, name) if name is None or isinstance(name, str) else name
)
MeanScope = Annotated[Literal["default", "batch", "group", "running", "leave_one_out"] | None, NAMES_NONE]
StdScope = Annotated[Literal["default", "batch", "group", "running"] | None, NAMES_NONE]
AdvEstimator = Annotated[str, AfterValidator(lambda name: estimator_of(name).name)]
LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def engine_length(worker: WorkerConfig) -> int | None:
    """Most tokens of prompt and answer that the engine's settings allow, if they say."""
    limits = [worker.strategy_config.get(key) for key in MODEL_LENGTH_KEYS]
    return min((limit for limit in limits if type(limit) is int), default=None)


class AlgorithmConfig(OnPolicyDistillation):
    """Settings that RLVR and agentic runs share: roles and mathematics."""

    role_table = ROLES
    algorithms = "rl"

    # roles
    reward_pretrain: Place | None = setting(
        None, "Directory or hub id of the reward models, and of the critic's starting weights (default: pretrain)."
    )
    actor_train: WorkerConfig = setting({}, "The policy where it learns.")
    actor_infer: WorkerConfig = setting({}, "The policy where it samples.")
    critic: WorkerConfig | None = setting(None, "The value model; started when adv_estimator needs one, as gae does.")
    reference: WorkerConfig | None = setting(
        None,
        "The frozen starting policy; started when a KL term needs it. With LoRA it is the policy without its adapters, "
        "and nothing is started.",
    )

    algorithm: Annotated[str, AfterValidator(partial(known_algorithm, pipeline="rl"))] | None = setting(
        None,
        "An algorithm by name, which fills in the keys of its advantages, loss and filters; what the YAML says itself "
        "stays. The plan shows what it sets, `roll explain NAME` the formula. docs/algorithms.md.",
    )

    # advantages
    adv_estimator: AdvEstimator = setting(
        "grpo",
        "How credit is computed: a name, or a function of your own as package.module:function (docs/"
        "adding_an_estimator.md). grpo: reward against its group's mean and deviation. rloo: against the mean of the "
        "others in its group. remax: against a greedy response to the same prompt, sampled in addition. opo: against "
        "its group's mean weighted by length. optimal_token_baseline: each token against the mean of its group at that "
        "token, weighted by how much gradients vary up to it. gdpo: each part of the reward that gdpo_reward_keys "
        "names against its group, then their sum, whitened. gpg: against its group's mean, over the share of samples "
        "in groups whose rewards differ. grpo_passk: the lead of a group's best over its second. asymre: against its "
        "group's mean plus asymre_baseline_shift. raft: 1 for samples to learn, 0 for others. opmd: against "
        "opmd_baseline. reinforce and its ++ forms: discounted reward. gae: with a critic. gigpo, step_reinforce and "
        "agentic_reinforce are for "
        "agentic runs. Default: gae when a critic is given, grpo otherwise.",
    )
    adv_args: dict[str, Any] = setting({}, "Keyword arguments of an adv_estimator of your own.")
    asymre_baseline_shift: float = setting(
        -0.1,
        "With adv_estimator asymre: what is added to the mean of the group. Below 0, right responses count more than "
        "wrong ones; the more so, the older the responses are.",
    )
    raft_keep: RAFTKeep = setting(
        "best",
        "With adv_estimator raft: which samples are learned. best: the first best one of each group. positive: those "
        "with a reward above 0.",
    )
    opmd_baseline: OPMDBaseline = setting(
        "mean",
        "With adv_estimator opmd: what is subtracted from a reward, over its group. logavgexp: opmd_baseline_tau * "
        "log(mean of exp(reward / opmd_baseline_tau)).",
    )
    opmd_baseline_tau: float = setting(
        1.0, "With opmd_baseline logavgexp: near 0 it is the best reward of the group, large their mean.", gt=0
    )
    gdpo_reward_keys: tuple[str, ...] = setting(
        (),
        "With adv_estimator gdpo: the parts of the reward, each a metric that every reward gives of a response: "
        "reward_<part> of a domain's parts, or what a function returns beside its score.",
    )
    gdpo_reward_weights: tuple[float, ...] | None = setting(
        None, "With adv_estimator gdpo: the weight of each part, in the order of gdpo_reward_keys. None: 1 each."
    )
    gamma: float = setting(1.0, "Discount per token (reinforce, gae).", ge=0, le=1)
    lambd: float = setting(0.95, "Lambda of GAE: 1 trusts the return, 0 the critic.", ge=0, le=1)
    norm_mean_type: MeanScope = setting(
        "default",
        "Subtract from each reward the mean of this scope (leave_one_out: of the others in the group); none: nothing. "
        "default, null: as "
        "adv_estimator has it (grpo and reinforce_plus_plus_baseline group, rloo leave_one_out, the others none).",
    )
    norm_std_type: StdScope = setting(
        "default",
        "Divide by the deviation of this scope; none: by nothing (with grpo: Dr. GRPO). default, null: as "
        "adv_estimator has it (grpo and grpo_passk group, the others none).",
    )
    reward_clip: float | None = setting(None, "Rewards are clipped to [-this, this].", gt=0)
    whiten_rewards: bool = setting(False, "Whiten token rewards over the batch.")
    whiten_advantages: Whitening = setting(
        False,
        "Whiten advantages over all response tokens of the batch; rows: so that every response counts once, however "
        "long. false: as adv_estimator has it (gdpo and reinforce_plus_plus_baseline rows, reinforce_plus_plus true).",
    )
    advantage_clip: float | None = setting(None, "Advantages are clipped to [-this, this].", gt=0)

    # policy loss
    pg_variant: PgVariant | None = setting(
        None,
        "Form of the policy loss: a name, or a class of your own as package.module:Class (docs/adding_a_loss.md). r is "
        "the ratio of new to old policy. ppo: clipped ratio. vanilla: policy gradient without ratio. tis: weighted by "
        "r within tis_lower_bound and tis_upper_bound. cispo: weighted by r within 1 - cispo_epsilon_low and 1 + "
        "cispo_epsilon_high. topr: negative advantages weighted by min(r, 1). "
        "kimi15: a penalty on (log r)^2. sapo: a soft gate on r. gmpo: the geometric mean of a sample's clipped r. "
        "rec: the policy gradient, off where r is out of its range. sppo: -A log r within a range. "
        "dppo: weighted by r, off where the token's probability has changed too much. "
        "cppo: the same, by the token's place and by what the tokens before it have changed. "
        "m2po: weighted by r, off for the tokens that have moved furthest the way of their advantage. "
        "opmd: policy gradient / (1 + opmd_tau). clip_cov and kl_cov: tokens whose log-prob and advantage vary "
        "together are left out, or held near. Default: ppo.",
    )
    pg_args: dict[str, Any] = setting({}, "Arguments of a pg_variant of your own.")
    ppo_epochs: int = setting(1, "Passes over a step's samples.", ge=1)
    pg_clip: float = setting(0.2, "The policy ratio is clipped to [1 - this, 1 + this].", gt=0)
    use_pg_clip_range: bool = setting(False, "Clip to [1 - pg_clip_low, 1 + pg_clip_high] instead.")
    pg_clip_low: float = setting(0.2, "With use_pg_clip_range: the ratio is clipped at 1 minus this.", gt=0)
    pg_clip_high: float = setting(0.2, "With use_pg_clip_range: the ratio is clipped at 1 plus this.", gt=0)
    dual_clip_loss: bool = setting(False, "Bound the loss of negative advantages by dual_clip_ratio_c x advantage.")
    dual_clip_ratio_c: float = setting(
        3.0, "c of dual_clip_loss: the loss of a token is at most -c x advantage if the advantage is below 0.", gt=1
    )
    tis_lower_bound: float = setting(0.0, "With pg_variant tis: smallest weight.", ge=0)
    tis_upper_bound: float = setting(1.0, "With pg_variant tis: largest weight.", gt=0)
    cispo_epsilon_low: float = setting(0.1, "With pg_variant cispo: how far the weight may go below 1.", ge=0)
    cispo_epsilon_high: float = setting(0.1, "With pg_variant cispo: how far the weight may go above 1.", ge=0)
    cispo_use_unified_mask: bool = setting(
        False, "With pg_variant cispo: tokens out of bounds on the side of their advantage do not learn, as in PPO."
    )
    kimi15_tau: float = setting(0.1, "With pg_variant kimi15: weight of the penalty.", ge=0)
    opmd_tau: float = setting(
        1.0, "With pg_variant opmd: the strength of its regularisation towards the present policy.", ge=0
    )
    sapo_tau_positive: float = setting(
        1.0, "With pg_variant sapo: how fast the gate closes as r leaves 1, where the advantage is above 0.", gt=0
    )
    sapo_tau_negative: float = setting(1.05, "With pg_variant sapo: the same for other advantages.", gt=0)
    gmpo_clip_low: float = setting(
        0.4, "With pg_variant gmpo: log r of a token is at least minus this, where the advantage is below 0.", gt=0
    )
    gmpo_clip_high: float = setting(
        0.4, "With pg_variant gmpo: log r of a token is at most this, where the advantage is above 0.", gt=0
    )
    rec_clip_mode: RECClip = setting(
        "one-side",
        "With pg_variant rec: where a token does not learn. one-side: where the clip of ppo binds. two-side: where r "
        "is below 1 - rec_epsilon_low or above 1 + rec_epsilon_high. ring: there, unless its advantage brings it back "
        "from far off. none: nowhere.",
    )
    rec_epsilon_low: float = setting(0.2, "With pg_variant rec: how far r may go below 1.", gt=0, le=1)
    rec_epsilon_high: float = setting(0.2, "With pg_variant rec: how far r may go above 1.", gt=0)
    rec_epsilon_low_prime: float = setting(
        0.6, "With rec_clip_mode ring: below 1 minus this, tokens whose advantage is above 0 learn.", gt=0, le=1
    )
    rec_epsilon_high_prime: float = setting(
        2.0, "With rec_clip_mode ring: above 1 plus this, tokens whose advantage is below 0 learn.", gt=0
    )
    rec_weight: RECWeight = setting(
        "none",
        "With pg_variant rec: what a token's loss is multiplied by. importance_sampling: r. advantage: e^(advantage "
        "/ rec_weight_temp), so that good responses count more than bad ones.",
    )
    rec_weight_temp: float = setting(1.0, "With rec_weight advantage: the temperature.", gt=0)
    rec_regularizer: RECRegularizer = setting(
        "none",
        "With pg_variant rec: a term of every token that holds the policy near the old one, whatever the clip says. "
        "forward-kl: -log p. k2: (log r)^2.",
    )
    rec_regularizer_coef: float = setting(0.1, "With rec_regularizer: its weight in the loss.", ge=0)
    sppo_epsilon: float = setting(0.3, "With pg_variant sppo: r counts within 1 / (1 + this) and 1 + this.", gt=0)
    dppo_divergence: DPPODivergence = setting(
        "tv",
        "With pg_variant dppo: how the change of a token is measured. tv: the difference of its two probabilities. kl: "
        "the KL divergence of this token against all others.",
    )
    dppo_clip_low: float = setting(
        0.2, "With pg_variant dppo: beyond this a token without a positive advantage is no longer trained.", gt=0
    )
    dppo_clip_high: float = setting(
        0.2, "With pg_variant dppo: beyond this a token with a positive advantage is no longer trained.", gt=0
    )
    dppo_highest_weight: float = setting(20.0, "With pg_variant dppo: largest weight.", gt=0)
    cppo_threshold: float = setting(
        0.15,
        "With pg_variant cppo: a token whose probability, times a weight, has moved by more than this learns no more "
        "to go that way.",
        gt=0,
    )
    cppo_weight_floor: float = setting(
        0.8,
        "With pg_variant cppo: the weight is 1 at a sample's first token and falls to this at its last.",
        gt=0,
        le=1,
    )
    cppo_budget: float = setting(
        0.02,
        "With pg_variant cppo: what the tokens before may have moved on average, by the same weights, before the "
        "threshold falls. A sample whose own quantile is larger gets up to twice as much.",
        ge=0,
    )
    cppo_budget_quantile: float = setting(
        0.9, "With pg_variant cppo: which quantile of a sample's moves its budget is.", ge=0, le=1
    )
    cppo_budget_scale: float = setting(1.0, "With pg_variant cppo: factor of that quantile.", ge=0)
    cppo_highest_weight: float = setting(20.0, "With pg_variant cppo: largest weight by r.", gt=0)
    m2po_threshold: float = setting(
        0.04,
        "With pg_variant m2po: tokens that go the way of their advantage are left out of an update, the greatest (log "
        "r)^2 first, until the mean of the others is at most this.",
        ge=0,
    )
    clip_cov_ratio: float = setting(
        2e-4,
        "With pg_variant clip_cov: share of the response tokens of an update, at least one, that do not learn. They "
        "are chosen by the covariance of old log-prob and advantage over the whole update.",
        gt=0,
        le=1,
    )
    clip_cov_lb: float = setting(
        1.0, "With pg_variant clip_cov: they are among those whose covariance is above this, spread evenly over them."
    )
    clip_cov_ub: float = setting(5.0, "With pg_variant clip_cov: and below this.")
    kl_cov_ratio: float = setting(
        2e-4,
        "With pg_variant kl_cov: share of the response tokens of an update, at least one, those of greatest "
        "covariance, that are held near the old policy. They are chosen as with clip_cov_ratio.",
        gt=0,
        le=1,
    )
    ppo_kl_coef: float = setting(1.0, "With pg_variant kl_cov: weight of |log r| on them.", ge=0)
    loss_agg_mode: LossAggMode = setting(
        "seq-mean-token-mean",
        "token-mean: mean over all response tokens of the update. seq-mean-token-mean: mean of each sample's mean. "
        "seq-mean-token-sum: "
        "mean of each sample's sum. seq-mean-token-sum-norm: the same divided by loss_scale_factor.",
    )
    loss_scale_factor: float | None = setting(
        None,
        "With loss_agg_mode seq-mean-token-sum-norm: what a sample's sum is divided by. None: the longest possible "
        "response. ROLL and verl do not divide by the samples: that length over the samples of a micro batch gives "
        "their scale (docs/algorithms.md, Aggregation).",
        gt=0,
    )
    importance_sampling: Literal["token", "seq", "segment", "product"] = setting(
        "token",
        "Policy ratio per token; seq: one per sample, the length-normalised product of its token ratios; segment: the "
        "same within each turn; product: one per sample, the product itself.",
    )
    entropy_loss_coef: float = setting(0.0, "Weight of the entropy bonus.", ge=0)
    skip_idle_rows: bool | None = setting(
        None,
        "Do not compute the rows of an update that cannot move its gradient: those whose advantages are all exactly 0, "
        "as in groups whose rewards are equal. The gradient is the same; actor/ and train_infer/ metrics of tokens "
        "then speak of the other rows, and actor/skipped_fraction of how many were left out. None: where the loss has "
        "no other term and enable_reference is off; true is refused where it has one.",
    )
    mix: MixConfig = setting({}, "An expert's rows in every update, beside those that the policy samples. docs/mix.md.")
    critic_warmup: int = setting(0, "Steps at the start in which only the critic learns.", ge=0)
    value_clip: float | None = setting(None, "New values may move from the old ones by this much. None: freely.", gt=0)

    # KL
    use_kl_loss: bool = setting(False, "Add kl_loss_coef x KL(policy, reference) to the loss.")
    kl_loss_coef: float = setting(0.0, "Weight of the KL loss.", ge=0)
    kl_loss_type: KlEstimator = setting(
        "k3",
        "Estimator of the KL loss: k1 (kl), k2 (mse), k3 (low_var_kl), abs; full: no estimate, but the KL over the "
        "whole vocabulary, from the reference's hidden states and head (docs/algorithms.md).",
    )
    add_token_level_kl: bool = setting(
        False, "Subtract init_kl_coef x KL(old policy, reference) from every token's reward."
    )
    init_kl_coef: float = setting(0.2, "Weight of the KL in the reward; used only with add_token_level_kl.", ge=0)
    kl_penalty: KlEstimator = setting(
        "k1", "Estimator of the KL in the reward: k1, since k2, k3 and abs do not pull to the reference there."
    )
    target_kl: float | None = setting(
        None, "Adapt init_kl_coef so that the KL approaches this. None: it stays fixed.", gt=0
    )
    kl_horizon: int = setting(10000, "Samples over which that adaptation takes effect.", ge=1)
    enable_reference: bool = setting(False, "Start the reference and report the KL even if no term uses it.")

    # where old log-probs come from
    enable_old_logprobs_recompute: bool = setting(False, "Always compute old log-probs in a pass of their own.")
    force_disable_old_logprobs_recompute: bool = setting(
        False,
        "Never: take the rollout engine's log-probs as old log-probs where a step needs them (several updates, a KL in "
        "the reward, or model_update_frequency above 1).",
    )
    train_infer_correction: TrainInferCorrectionConfig = setting({}, "Correction between rollout engine and trainer.")
    exact_log_probs: bool = setting(
        False,
        "Have trainer and rollout engine compute a token's log-prob to the same bits, whatever the batch, the pack or "
        "the cache: train_infer/log_prob_diff_max is 0, or the run stops. With hf_infer, and fsdp2_train or "
        "deepspeed_train, in fp32 or bf16; proven on CPUs and, with fsdp2_train, on one GPU (docs/trainers.md).",
    )
    log_prob_diff_warning: float | None = setting(
        None,
        "Warn when the mean difference between the rollout engine's and the trainer's log-probs of the sampled tokens "
        "(train_infer/log_prob_diff_mean) rises above this. None: .1 if one of them computes in bf16, .03 in fp16, "
        ".005 in fp32. Pretrained models of 135M to 270M have .035 to .05 in bf16 (single tokens .4) and 1e-5 in fp32; "
        "old weights or old keys and values make it larger. An asynchronous run compares only tokens of the weights "
        "that learn, so it never warns if its engines always lag behind.",
        gt=0,
    )

    @property
    def engine_length(self) -> int | None:
        """Most tokens of prompt and answer that the rollout engine's own settings allow, if they say."""
        return engine_length(self.actor_infer)

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """Groups per step: rollout_batch_size, in agentic runs divided by the size of a group."""

    @property
    @abstractmethod
    def group_size(self) -> int:
        """Samples per group."""

    @property
    @abstractmethod
    def batch_keys(self) -> tuple[str, str]:
        """The keys that num_groups and group_size come from, for messages."""

    @property
    def roles(self) -> Mapping[str, Role]:
        return {**super().roles, **{name: teacher_role(name) for name in self.teacher_roles}}

    @property
    def sections(self) -> Mapping[str, WorkerConfig]:
        return {**super().sections, **self.teacher_roles}

    @property
    def model_roles(self) -> Mapping[str, WorkerConfig]:
        taught = set(self.taught)
        is_needed = {
            "critic": self.needs_critic,
            "reference": self.needs_reference and not self.policy_is_reference,
            **{name: name in taught for name in self.teacher_roles},
        }
        return {
            name: worker
            for name, worker in super().model_roles.items()
            if is_needed.get(name, True) and is_started(self.roles[name], self.mode)
        }

    @property
    def kl_terms(self) -> tuple[str, ...]:
        """The KL terms in use. A coefficient alone switches nothing on."""
        terms: list[str] = []
        if self.use_kl_loss and self.kl_loss_coef > 0:
            terms.append("use_kl_loss")
        if self.add_token_level_kl and self.init_kl_coef > 0:
            terms.append("add_token_level_kl")
        return tuple(terms)

    @property
    def needs_reference(self) -> bool:
        return bool(self.kl_terms) or (self.enable_reference and not self.teacher_is_reference)

    @property
    def teacher_is_reference(self) -> bool:
        """True if enable_reference means the teacher, as in ROLL, which runs a teacher as its reference."""
        return self.reference is None and self.distils and any(self.taught)

    @property
    def policy_is_reference(self) -> bool:
        return self.needs_reference and self.actor_train.model_args.has_lora

    @property
    def needs_critic(self) -> bool:
        return self.estimator.needs_critic

    @property
    def shared_template(self) -> str | None:
        """Chat template of all rows, where there is one; wins over data_args.template."""
        return None

    @property
    def is_multi_turn(self) -> bool:
        """True if an attempt takes several answers: a limit on one answer is then not the length of the response."""
        return False

    @property
    def update_rounding(self) -> Literal["whole", "up", "down", "nearest"]:
        """How many updates a step has whose samples do not split into whole ones; whole: that is an error."""
        return "whole"

    @property
    def num_groups_per_domain(self) -> Mapping[str, int] | None:
        """Groups of each domain in a step, where something else than the data decides about it."""
        return None

    @property
    def reward_norms(self) -> tuple[str | None, str | None]:
        """Sets of samples over which the reward's mean and deviation are taken; "default" is adv_estimator's own."""
        return self.norm_mean_type, self.norm_std_type

    @property
    def estimator(self) -> Estimator:
        """Properties of adv_estimator."""
        return estimator_of(self.adv_estimator)

    @property
    def estimator_args(self) -> dict[str, Any]:
        """Arguments of the estimator's function: adv_args of the user's own, else the keys that belong to it."""
        row = self.estimator
        return (
            self.adv_args if row.is_user_defined else {key: self.value(key) for key in row.weights if not row.per_turn}
        )

    @property
    def policy_form(self) -> PolicyForm:
        """Properties of the pg_variant in use."""
        return policy_form_of(self.actor_train.pg_variant or self.pg_variant or "ppo")

    def policy_keys(self, form: PolicyForm) -> dict[str, Any]:
        """The values of a form's keys, by their last names."""
        return {last_name(key): self.value(key) for key in form.keys}

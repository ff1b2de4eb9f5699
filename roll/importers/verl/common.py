"""Sections of verl's keys, and what decides whether keys ask for anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roll.importers.row_files import conditions_of
from roll.importers.rows import ChangesRun, CombinedKeys, Condition, SourceLookup, data

ENGINE_GROUP = "model_engine"
"""verl's choice of files for an engine, by which actor, reference and critic have the same strategy."""
_ENGINE_GROUPS = {"dp": "fsdp"}


def strategy_of_group(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the strategy that the choice of an engine's files implies."""
    value = values.get(ENGINE_GROUP)
    return {} if value is None else {f"{ACTOR}.strategy": _ENGINE_GROUPS.get(str(value), value)}


_SCHEDULES = ("lr_scheduler", "lr_scheduler_type", "lr_decay_style", "warmup_style")


def schedule_of(source: SourceLookup, optimizer: str) -> str:
    """The schedule that counts, of the keys that versions have for it: a given one before a default."""
    keys = sorted((f"{optimizer}.{key}" for key in _SCHEDULES), key=lambda key: not source.is_set(key))
    return str(next(filter(None, map(source, keys)), "constant"))


def floor(section: str, role: str) -> Callable[[SourceLookup], CombinedKeys]:
    """Megatron's least learning rate, as a share of the peak."""
    at = f"{section}.optim" if section else "optim"

    def combine(source: SourceLookup) -> CombinedKeys:
        rate, least = source.amount(f"{at}.lr"), source.amount(f"{at}.min_lr", 0)
        if least == 0:
            return CombinedKeys({}, "a schedule ends at 0")
        name = schedule_of(source, at)
        if name == "constant":
            return CombinedKeys({}, "a constant rate does not fall")
        if name != "cosine":
            raise ChangesRun("only a cosine ends above 0: its end is lr_scheduler_kwargs.min_lr_ratio")
        key, ratio = f"{role}.training_args.lr_scheduler_kwargs.min_lr_ratio", least / rate
        return CombinedKeys({key: ratio}, f"{key}: {ratio:g} = {least:g} / {rate:g}.")

    return combine


SPLITS = (
    *(f"num_layers_in_{end}_pipeline_stage" for end in ("first", "last")),
    *(f"account_for_{what}_in_pipeline_split" for what in ("embedding", "loss")),
)


def balance(section: str, role: str) -> Callable[[SourceLookup], CombinedKeys]:
    """Weigh the loss that keeps experts of Megatron's evenly loaded; `section` has its override_transformer_config."""
    kind, weight = (f"{section}.override_transformer_config.{name}" for name in _BALANCE)

    def combine(source: SourceLookup) -> CombinedKeys:
        of_kind, coefficient = source(kind), source.amount(weight, 0)
        if of_kind == "none":
            return CombinedKeys({}, "no loss of balance", idle={weight: f"{_BALANCE[0]} is none"})
        if of_kind in _LOSSES and source.is_set(weight) and coefficient == 0:
            return CombinedKeys({}, "no loss of balance")
        if of_kind not in (None, "aux_loss"):
            text = f"experts are balanced by aux_loss alone, whose weight is {role}.model_args.moe_aux_loss_coef"
            return CombinedKeys({}, "", changes=dict.fromkeys((kind, weight), text))
        if of_kind and not source.is_set(weight):
            text = f"its weight is the model's own there: set {weight}, which is {role}.model_args.moe_aux_loss_coef"
            return CombinedKeys({}, "", changes={kind: text})
        if coefficient == 0:
            return CombinedKeys({}, "no loss of balance")
        key = f"{role}.model_args.moe_aux_loss_coef"
        unsure = "" if of_kind else f"some bridges of verl's leave the loss out where {_BALANCE[0]} is not set"
        return CombinedKeys({key: coefficient}, f"{key}: {coefficient:g}.", difference=unsure)

    return combine


_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss")
_BALANCE = ("moe_router_load_balancing_type", "moe_aux_loss_coeff")


AVERAGES_PASSES = "the loss is a mean of means"
"""A default that stands for verl's fine-tuning on FSDP alone, and for no key."""
OWN_REWARD = "reward of the checkout"
"""A default that stands for the arguments of verl_function, and for no key."""
NO_DUAL_CLIP = "the loss of the checkout has no dual clip"
"""A default that stands for the checkout's code, and for no key."""
IS_OLD = "before 0.2"
"""A default that stands for the version, and for no key."""

# Sections of verl's keys, and what decides whether they ask for anything.

ACTOR, ROLLOUT, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic"
MODEL = "actor_rollout_ref.model"
SECTION = f"{MODEL}.lora"  # of Megatron's adapters
MEGATRON = "megatron"


OF_KWARGS = "reward_model.reward_kwargs.overlong_buffer_cfg"
OVERLONG = (
    "reward_model.overlong_buffer",
    OF_KWARGS,
    "custom_reward_function.overlong_buffer",
)
"""Sections in which versions of verl have DAPO's soft penalty."""
MOST_TOKENS = "reward_model.reward_kwargs.max_resp_len"


_WITHOUT_PENALTY = (None, "naive", "prime", "remote")
"""verl's own classes around rewards that read no buffer; none is naive."""


def overlong_buffer(source: SourceLookup) -> str:
    """The section of the penalty that counts; empty where it is off."""
    given = (at for at in OVERLONG if source(f"{at}.enable") and source(f"{at}.len") and penalty_factor(source, at))
    return next((at for at in given if at != OF_KWARGS or not unread_buffer(source)), "")


def penalty_factor(source: SourceLookup, buffer: str) -> float:
    """The weight of the penalty, which the recipe of DAPO has 0 by default."""
    return source.amount(f"{buffer}.penalty_factor", 0.0 if buffer == OVERLONG[0] else 1.0)


def unread_buffer(source: SourceLookup) -> str:
    """Why the arguments of the class around rewards have no effect; empty where it reads them."""
    names = [source(key) for key in ("reward_model.reward_manager", "reward_manager.name")]
    name = next((each for each in names if each is not None), None)
    return f"verl's reward manager {name or 'naive'} has no such penalty, dapo has" if name in _WITHOUT_PENALTY else ""


PER_ANSWER = ("gspo", "sapo", "geo_mean")
"""Losses that verl averages over answers, whatever loss_agg_mode says."""


def has_critic(source: SourceLookup) -> str:
    enable = source(f"{CRITIC}.enable")
    name = source("algorithm.adv_estimator")
    is_there = name == "gae" if enable is None else enable
    return "" if is_there else f"no critic runs: algorithm.adv_estimator is {name}"


def has_reference(source: SourceLookup) -> str:
    is_there = source(f"{ACTOR}.use_kl_loss") or source("algorithm.use_kl_in_reward")
    return "" if is_there else "no KL term is on: no reference runs"


def _adapts_kl(source: SourceLookup) -> str:
    is_adaptive = source("algorithm.kl_ctrl.type") == "adaptive"
    return CONDITIONS["kl reward"](source) or ("" if is_adaptive else "kl_ctrl.type is fixed")


def terms_beside(source: SourceLookup) -> list[str]:
    """Terms of a loss that verl averages by loss_agg_mode beside a policy loss that is a mean over answers; none where
    that is the same."""
    if source(f"{ACTOR}.policy_loss.loss_mode") not in PER_ANSWER:
        return []
    if source(f"{ACTOR}.loss_agg_mode") == "seq-mean-token-mean":
        return []
    has_kl = source(f"{ACTOR}.use_kl_loss") and source.amount(f"{ACTOR}.kl_loss_coef") != 0
    has_entropy = source.amount(f"{ACTOR}.entropy_coeff") != 0
    return [*(["KL"] if has_kl else []), *(["entropy"] if has_entropy else [])]


def _aggregates(source: SourceLookup) -> str:
    mode = source(f"{ACTOR}.policy_loss.loss_mode")
    if mode not in PER_ANSWER:
        return ""
    terms = terms_beside(source)
    when = "in verl before 0.9.1 and here" if mode == "gspo" else "in any case"
    others = f"; there the key holds for {' and '.join(terms)}: see policy_loss.loss_mode" if terms else ""
    return f"loss_mode: {mode} is seq-mean-token-mean {when}{others}"


NO_ADAPTERS = "lora_rank is 0: no adapters"


def has_adapters(source: SourceLookup, model: str = MODEL) -> bool:
    """True if the flat keys ask for LoRA. An initial adapter means LoRA too, whatever lora_rank says."""
    return source.is_set(f"{model}.lora_adapter_path") or source.number(f"{model}.lora_rank", 0) > 0


def has_section(source: SourceLookup) -> bool:
    """True if the keys that only Megatron reads ask for LoRA."""
    return strategy_of(source, ACTOR) == MEGATRON and source.number(f"{SECTION}.rank", 0) > 0


def is_cosine(optimizer: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        return "" if schedule_of(source, optimizer) == "cosine" else "only a cosine ends above 0"

    return condition


def _falls(section: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        return "a constant rate does not fall" if schedule_of(source, f"{section}.optim") == "constant" else ""

    return condition


def no_ratio(source: SourceLookup, section: str) -> str:
    """Why the share of a warm-up does not count: a number of steps does. 0 steps are none for workers on FSDP, and not
    given for Megatron's."""
    key = f"{section}.optim.lr_warmup_steps"
    if not source.is_set(key) or not source(f"{section}.optim.lr_warmup_steps_ratio"):
        return ""
    steps = source.number(key)
    is_given = steps > 0 or (steps == 0 and strategy_of(source, section) != MEGATRON)
    return f"lr_warmup_steps: {steps} counts" if is_given else ""


def runs_on(section: str, megatron: bool) -> Condition:
    """Build a condition: a role trains with Megatron, or it does not."""

    def condition(source: SourceLookup) -> str:
        if section != ACTOR and (reason := (has_critic if section == CRITIC else has_reference)(source)):
            return reason
        name = strategy_of(source, section)
        return "" if (name == MEGATRON) == megatron else f"{section} runs on {name}"

    return condition


def drafts(source: SourceLookup) -> str:
    """Check that engines draft tokens with an MTP head; returns the reason if they do not."""
    on = source(f"{MODEL}.mtp.enable") and source(f"{MODEL}.mtp.enable_rollout")
    return "" if on else "model.mtp.enable_rollout is off: no engine uses the head"


def runs_validation(source: SourceLookup) -> str:
    """Why no validation takes place; empty where one does."""
    steps = [source(key, -1) for key in ("trainer.test_freq", "rollout.test_freq")]
    is_asked = source("trainer.val_before_train") or any(every not in (None, -1, 0) for every in steps)
    return validates(source) or ("" if is_asked else "test_freq and val_before_train are off: no validation")


ENDS_SOONER: str = data("words.yaml")["ends sooner"]


def counts_epochs(source: SourceLookup) -> str:
    if source("trainer.total_training_steps") is None:
        return ""
    return "trainer.total_training_steps counts here: its row says what ends a run there"


_NAMED = conditions_of("verl/conditions.yaml")
validates = _NAMED["validation"]
CONDITIONS: Mapping[str, Condition] = {
    **_NAMED,
    "critic": has_critic,
    "adaptive kl": _adapts_kl,
    "reference": has_reference,
    "own aggregation": _aggregates,
    "drafts": drafts,
    "open reward model": lambda source: _NAMED["reward model"](source) if source.is_set("reward_model.enable") else "",
    "lora": lambda source: "" if has_adapters(source) else NO_ADAPTERS,
    "lora section": lambda source: "" if has_section(source) else "no adapters of Megatron",
    "validations": runs_validation,
    "overlong": lambda source: "" if overlong_buffer(source) else "no penalty on long answers is on",
    "epochs": counts_epochs,
    "actor_train ratio": lambda source: no_ratio(source, ACTOR),
    "critic ratio": lambda source: has_critic(source) or no_ratio(source, CRITIC),
    "actor cosine": is_cosine(f"{ACTOR}.optim"),
    "critic cosine": lambda source: has_critic(source) or is_cosine(f"{CRITIC}.optim")(source),
    "actor falls": _falls(ACTOR),
    "critic falls": lambda source: has_critic(source) or _falls(CRITIC)(source),
    "actor fsdp": runs_on(ACTOR, megatron=False),
    "actor megatron": runs_on(ACTOR, megatron=True),
    "ref fsdp": runs_on(REF, megatron=False),
    "ref megatron": runs_on(REF, megatron=True),
    "critic fsdp": runs_on(CRITIC, megatron=False),
    "critic megatron": runs_on(CRITIC, megatron=True),
}


def strategy_of(source: SourceLookup, section: str) -> str:
    return str(source(f"{section}.strategy") or source(f"{ACTOR}.strategy"))

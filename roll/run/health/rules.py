"""Rules for what can be wrong with a run that goes on. To add a rule, write a function here or in reward_rules.py and
plant a run in tests/unit/run/health/test_rules.py; docs/health.md says what each finds.

Each function gets the `History` of a run and yields what it sees, with the causes in the order in which to try them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from roll.run.health import reward_rules as of_rewards
from roll.run.health.diagnosis import (
    CUT,
    ENTROPY,
    EQUAL,
    GAP,
    REWARD,
    Cause,
    Diagnosis,
    Rule,
    bound_to_reference,
    learning_role,
    lower_rate,
    odd_settings,
    standing,
)
from roll.run.health.history import History

# Numbers that are none, and nothing that is learned.


def not_finite(run: History) -> Iterator[Diagnosis]:
    broken = {name: step for name, step in run.broken.items() if name.startswith(("actor/", "critic/", "train/"))}
    if broken:
        name, step = min(broken.items(), key=lambda item: item[1])
        more = f", and {len(broken) - 1} other metrics" if len(broken) > 1 else ""
        large = [Cause("a reward that is very large", "reward_clip", "10")] if run.count(REWARD) else []
        half = Cause("16-bit training of a model that needs fp32", f"{learning_role(run)}.model_args.dtype", "fp32")
        yield Diagnosis(f"{name} is NaN or infinite since step {step}{more}", (lower_rate(run), *large, half))


def zero_gradient(run: History) -> Iterator[Diagnosis]:
    if run.last(EQUAL, 3) == 1:
        return  # all is solved, or there is no signal
    for name in ("actor/grad_norm", "train/grad_norm", "actor/num_updates"):
        if run.steady(name, 3) == 0:
            causes = [
                Cause("all parameters are frozen", "freeze_module_prefix"),
                Cause("rows of which no token counts: masked, cut or filtered (rollout/trained_rows_fraction)"),
            ]
            nothing = run.steady("actor/advantage_abs_mean", 3) == 0
            advantages = Cause("advantages that are all 0 (actor/advantage_abs_mean)", "adv_estimator")
            causes.insert(0 if nothing else 2, advantages)
            says = f"{name} is exactly 0 in the last 3 steps: the weights do not change"
            yield Diagnosis(says, tuple(causes))


# A policy that breaks.

_EARLY = 10  # steps


def _first_entropy(run: History) -> float | None:
    """The entropy of the first step that computed a tenth of its rows or more: that of a few rows is noise."""
    skipped = dict(zip(*(of.get("actor/skipped_fraction", ()) for of in (run.steps, run.series)), strict=True))
    measured = zip(run.steps.get(ENTROPY, ()), run.series.get(ENTROPY, ()), strict=True)
    return next((value for step, value in measured if skipped.get(step, 0.0) < 0.9), None)


def collapse(run: History) -> Iterator[Diagnosis]:
    now, best = run.last(REWARD, 3), run.best(REWARD, 3)
    start, entropy = _first_entropy(run), run.last(ENTROPY, 2)
    if now is None or best is None or start is None or entropy is None or run.count(REWARD) < 5:
        return
    if max(run.series.get("actor/grad_norm", [1.0])) == 0:
        return  # nothing was learnt: the entropy is that of the few rows that are computed
    floor = min(run.series.get("rollout/reward_min", [0.0]))
    has_lost = best - floor > 0 and now - floor < 0.4 * (best - floor)
    is_poor = (standing(run) or 0) < 0.2
    signs, early = [], max(run.series[ENTROPY][:_EARLY])
    if entropy < 0.2 * start:
        signs.append(f"the entropy fell from {start:.2g} to {entropy:.2g}")
    for what, value in (("rose", entropy), (f"jumped in the first {_EARLY} steps", early)):
        if value > 2 * start and value > start + 0.5:
            signs.append(f"the entropy {what} from {start:.2g} to {value:.2g}")
            break
    cut, cut_first = run.last(CUT, 3), run.first(CUT, 1)
    if cut is not None and cut_first is not None and cut > 0.9 and cut_first < 0.5:
        signs.append(f"{cut:.0%} of the responses are cut, {cut_first:.0%} at first")
    gradients = run.series.get("actor/grad_norm", [])
    if len(gradients) > 4 and max(gradients[1:]) > 10 * statistics.median(gradients) > 0:
        signs.append(f"the gradient was {max(gradients[1:]):.2g} once, {statistics.median(gradients):.2g} as a rule")
    if signs and (has_lost or is_poor):
        lost = f"the reward fell from {best:.3g} to {now:.3g}" if has_lost else f"the reward is {now:.3g}"
        more = (
            bound_to_reference(run),
            Cause("too many updates of a batch", "ppo_epochs", "1"),
        )
        yield Diagnosis(f"{lost}, and {' and '.join(signs)}", (*odd_settings(run), lower_rate(run), *more))


_ROUNDING = {"fp32": 0.005, "fp16": 0.03, "bf16": 0.1}  # nats a token, of models with pretrained weights


def engine_differs(run: History) -> Iterator[Diagnosis]:
    dtypes = [run.at(role, "model_args", "dtype") for role in ("actor_train", "actor_infer")]
    limit = run.at("log_prob_diff_warning") or max(_ROUNDING.get(str(dtype), 0.1) for dtype in dtypes)
    gap = run.last(GAP, 5)
    if gap is not None and gap > limit:
        yield Diagnosis(
            f"engine and trainer differ by {gap:.2g} nats a token ({GAP}), above {limit:g}",
            (
                Cause("other dtypes in engine and trainer", "actor_infer.model_args.dtype"),
                Cause("keys and values of old weights", "kv_on_update", "recompute"),
                Cause("rounding that grows in a mixture or at a high rate: correct for it", "train_infer_correction"),
            ),
        )


# Updates.


def still_warming_up(run: History) -> Iterator[Diagnosis]:
    warm = [cause for cause in odd_settings(run) if cause.key.endswith("warmup_steps")]
    if warm and run.step > 0.5 * (run.at("max_steps") or math.inf):
        yield Diagnosis(f"after {run.step} steps, more than half of all, the learning rate still rises", (warm[0],))


def much_clipped(run: History) -> Iterator[Diagnosis]:
    if (share := run.last("actor/clip_fraction", 5)) is not None and share > 0.3:
        key = "pg_clip_high" if run.at("use_pg_clip_range") else "pg_clip"
        width, narrow = run.at(key), []
        if run.at("pg_variant") in (None, "ppo") and isinstance(width, int | float) and width < 0.05:
            narrow = [Cause(f"a clip range that is too narrow, {width:g}", key, "0.2")]
        yield Diagnosis(
            f"{share:.0%} of the tokens are clipped in the last 5 steps"
            f"{'' if narrow else ': the policy moves too far in one step'}",
            (
                *narrow,
                lower_rate(run, 3),
                Cause("too many updates of a batch", "ppo_epochs", "1"),
                Cause("rollouts of old weights", "async_generation_ratio", "0"),
            ),
        )


def far_from_reference(run: History) -> Iterator[Diagnosis]:
    for name in ("actor/kl_loss", "actor/kl_mean"):
        values = run.series.get(name, [])
        if len(values) >= 5 and statistics.fmean(values[-5:]) > 1 and values[-1] > 2 * statistics.median(values):
            more = Cause("the bound is too weak", "kl_loss_coef" if name.endswith("loss") else "init_kl_coef")
            yield Diagnosis(f"{name} is {statistics.fmean(values[-5:]):.2g} and grows", (lower_rate(run, 3), more))
            return


def other_reference(run: History) -> Iterator[Diagnosis]:
    moved = run.first("actor/approx_kl", 1) or 0.0
    for name in ("actor/kl_loss", "actor/kl_mean"):
        if run.steps.get(name, [0])[0] == 1 and (kl := run.series[name][0]) > 0.5 and abs(moved) < 0.1:
            yield Diagnosis(
                f"{name} was {kl:.2g} in the first step, in which the policy should be its reference",
                (
                    Cause("a reference that is another model", "reference.model_args.model_name_or_path"),
                    Cause("weights of the policy that were not loaded", "pretrain"),
                ),
            )
            return


def same_teacher(run: History) -> Iterator[Diagnosis]:
    for name in ("train/divergence_mean", "actor/teacher_kl_mean"):
        if run.steps.get(name, [0])[0] == 1 and abs(gap := run.series[name][0]) < 1e-3:
            says = f"{name} was {gap:.1g} in the first step: the teacher says what the student says"
            yield Diagnosis(says, (Cause("a teacher that is the student's own model", "teacher_pretrain"),))
            return


def groups_dropped(run: History) -> Iterator[Diagnosis]:
    if (kept := run.last("rollout/kept_groups_fraction", 5)) is not None and kept < 0.25:
        yield Diagnosis(
            f"the filter keeps {kept:.0%} of the groups: most of the sampling is for nothing",
            (
                Cause("tasks that are all too hard or all too easy", "actor_train.data_args.file_name"),
                Cause("a filter that is too narrow", "query_filter_config"),
            ),
        )


def old_rollouts(run: History) -> Iterator[Diagnosis]:
    if (share := run.last("actor/masked_stale_fraction", 5)) is not None and share > 0.3:
        yield Diagnosis(
            f"{share:.0%} of the tokens are too old to train on",
            (
                Cause("the engines run too far ahead", "async_generation_ratio"),
                Cause("a narrow limit", "max_token_staleness"),
            ),
        )
        return
    age, capped = run.last("rollout/staleness_mean", 5), run.last("actor/is_weight_clip_fraction", 5)
    if age is not None and age >= 4 and capped is not None and capped > 0.05:
        yield Diagnosis(
            f"responses are {age:.0f} steps old when they are trained on, and {capped:.0%} of their tokens have a "
            "weight that is capped",
            (Cause("the engines run too far ahead", "async_generation_ratio", "1"),),
        )


def useless_critic(run: History) -> Iterator[Diagnosis]:
    loss, returns = run.last("critic/value_loss", 3), run.best("critic/return_square_mean", 1)
    rate, key = run.at("critic", "training_args", "learning_rate"), "critic.training_args.learning_rate"
    if loss is not None and returns and loss > 10 * returns:
        says = f"critic/value_loss is {loss:.2g} over the last 3 steps, and returns squared are at most {returns:.2g}"
        yield Diagnosis(says, (Cause("the critic learns too fast", key, f"{rate / 10:.0e}" if rate else ""),))
        return
    name = "critic/explained_variance"
    if run.count(name) >= 20 and (share := run.last(name, 10)) is not None and share < 0.005:
        slow = isinstance(rate, int | float) and rate <= 1e-7
        yield Diagnosis(
            f"{name} is {share:.2g}: the critic's values are no better than the mean return",
            (
                Cause(
                    f"the critic learns too {'slowly' if slow else 'slowly or too fast'}", key, "1e-05" if slow else ""
                ),
                Cause("it needs steps of its own before the policy learns", "critic_warmup", "10"),
            ),
        )


# Runs on rows.


def loss_rises(run: History) -> Iterator[Diagnosis]:
    for name in ("train/nll_mean", "train/loss", "train/divergence_mean"):
        values = run.series.get(name, [])
        if len(values) > 10 and values[0] > 0:
            first, last = values[0], statistics.fmean(values[-10:])
            if min(values[-10:]) > 1.5 * first:
                yield Diagnosis(f"{name} rose from {first:.3g} to {last:.3g}", (lower_rate(run),))
            return


def forgets(run: History) -> Iterator[Diagnosis]:
    name = "train/nll_chosen_mean"
    first, last = run.first(name, 1), run.last(name, 3)
    if first is not None and last is not None and last > 3 * first and last > first + 2:
        yield Diagnosis(
            f"{name} rose from {first:.2g} to {last:.2g}: the chosen responses become unlikely, too",
            (
                lower_rate(run),
                Cause("a weak bound to the reference", "beta"),
                Cause("no SFT term", "sft_loss_coef", "0.1"),
            ),
        )


def overfit(run: History) -> Iterator[Diagnosis]:
    for name in ("nll_mean", "loss"):
        values, train = run.series.get(f"val/{name}", []), run.trend(f"train/{name}")
        if len(values) < 3 or train is None:
            continue
        if train.falls and values[-1] > 1.05 * min(values) and values[-1] >= values[-2] > min(values):
            epochs = Cause("the rows were seen too often", "num_train_epochs")
            says = f"val/{name} rose from {min(values):.3g} to {values[-1]:.3g} while train/{name} fell"
            yield Diagnosis(says, (epochs, lower_rate(run, 3)))
        return


def no_better_than_chance(run: History) -> Iterator[Diagnosis]:
    share = run.last("train/accuracy", 20)
    if run.count("train/accuracy") >= 40 and share is not None and abs(share - 0.5) < 0.05:
        yield Diagnosis(
            f"chosen and rejected are told apart in {share:.0%} of the pairs, as by chance",
            (
                Cause("chosen and rejected are exchanged, or equal, in the data", "chosen_key"),
                Cause("a learning rate that is too low", "actor_train.training_args.learning_rate"),
            ),
        )


def exchanged(run: History) -> Iterator[Diagnosis]:
    train, values = run.last("train/accuracy", 3), run.series.get("val/accuracy", [])
    if train is not None and train > 0.7 and len(values) > 1 and values[-1] < 0.3:
        yield Diagnosis(
            f"{train:.0%} of the training's pairs are told apart, and {values[-1]:.0%} of the held-out ones",
            (Cause("chosen and rejected are exchanged in the rows of one of the two", "chosen_key"),),
        )


# Machines.


def memory_grows(run: History) -> Iterator[Diagnosis]:
    for name in run.names("memory/", "_host_bytes"):
        values = run.series[name]
        if len(values) < 60:
            continue
        half = values[len(values) // 2 :]
        trend = run.trend(name, len(half))
        if trend is not None and trend.rises and trend.change > 0.3 * half[0]:
            role = name.removeprefix("memory/").removesuffix("_host_bytes")
            yield Diagnosis(
                f"the memory of {role} grew by {trend.change / 2**30:.1f} GiB over the second half of the run",
                (Cause("something keeps what it should let go: the user's code in this role first", role),),
            )
            return


_WEAK = "equal rewards, zero gradient, answers cut, no signal, entropy lost, entropy grows, longer only, same responses"
_OF_A_BROKEN_POLICY = frozenset(_WEAK.split(", "))
RULES = (
    Rule("not finite", not_finite, _OF_A_BROKEN_POLICY | {"collapsed"}),
    Rule("too easy", of_rewards.too_easy, frozenset({"few prompts"})),
    Rule("only costs", of_rewards.only_costs),
    Rule("prompts cut", of_rewards.prompts_cut),
    Rule("other reference", other_reference, _OF_A_BROKEN_POLICY | {"collapsed", "far away"}),
    Rule("same teacher", same_teacher, frozenset({"loss rises"})),
    Rule("few prompts", of_rewards.few_prompts),
    Rule("attempts fail", of_rewards.attempts_fail, frozenset({"long ones lost"})),
    Rule("wrong ones pay", of_rewards.wrong_ones_pay, _OF_A_BROKEN_POLICY | {"collapsed"}),
    Rule("pay differs", of_rewards.pay_differs, _OF_A_BROKEN_POLICY | {"collapsed"}),
    Rule("collapsed", collapse, _OF_A_BROKEN_POLICY),
    Rule("equal rewards", of_rewards.equal_rewards, _OF_A_BROKEN_POLICY),
    Rule("zero gradient", zero_gradient),
    Rule("useless critic", useless_critic, frozenset({"no signal"})),
    Rule("engine differs", engine_differs),
    Rule("answers cut", of_rewards.answers_cut),
    Rule("long ones lost", of_rewards.long_ones_lost),
    Rule("longer only", of_rewards.longer_not_better),
    Rule("entropy lost", of_rewards.entropy_lost),
    Rule("entropy grows", of_rewards.entropy_grows),
    Rule("same responses", of_rewards.same_responses),
    Rule("training earns less", of_rewards.training_earns_less, frozenset({"no signal"})),
    Rule("no signal", of_rewards.no_signal),
    Rule("one part pays", of_rewards.one_part_pays),
    Rule("domain starves", of_rewards.one_domain_starves),
    Rule("validation falls", of_rewards.validation_falls),
    Rule("long warm-up", still_warming_up),
    Rule("much clipped", much_clipped),
    Rule("far away", far_from_reference),
    Rule("groups dropped", groups_dropped),
    Rule("old rollouts", old_rollouts),
    Rule("calls fail", of_rewards.calls_fail),
    Rule("never ends", of_rewards.episodes_never_end),
    Rule("loss rises", loss_rises),
    Rule("exchanged", exchanged, frozenset({"overfit", "forgets"})),
    Rule("forgets", forgets),
    Rule("overfit", overfit),
    Rule("chance", no_better_than_chance),
    Rule("same rows", of_rewards.validated_on_training_rows),
    Rule("memory grows", memory_grows),
)
"""All rules; those that explain others come first."""

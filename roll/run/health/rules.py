"""Rules for what can be wrong with a run that goes on. To add a rule, write a function here and plant a run in
tests/unit/run/health/planted.py; docs/health.md says what each finds.

Each function gets the `History` of a run and yields what it sees, with the causes in the order in which to try them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from roll.run.health.diagnosis import (
    CUT,
    ENTROPY,
    EQUAL,
    GAP,
    REWARD,
    UNEQUAL_PAY,
    VALIDATION,
    Cause,
    Diagnosis,
    Rule,
    bound_to_reference,
    is_solved,
    learning_role,
    length_limit,
    lower_rate,
    odd_settings,
    place_of,
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
    if is_solved(run) and run.last(EQUAL, 3) == 1:
        return  # all is solved
    for name in ("actor/grad_norm", "train/grad_norm", "actor/num_updates"):
        if run.steady(name, 3) == 0:
            yield Diagnosis(
                f"{name} is exactly 0 in the last 3 steps: the weights do not change",
                (
                    Cause("all parameters are frozen", "freeze_module_prefix"),
                    Cause("rows of which no token counts: masked, cut or filtered (rollout/trained_rows_fraction)"),
                    Cause("advantages that are all 0 (actor/advantage_abs_mean)", "adv_estimator"),
                ),
            )


def _no_answer(run: History) -> Iterator[Cause]:
    if run.last("rollout/answer_found_mean", 5) == 0:
        text = "no response has the form in which the reward looks for an answer: its pattern, or what the prompt says"
        yield Cause(text, "rewards")


_NO_PARTS = ("time_s", "retries", "timeout_s")
_UNREAD = Cause("the reward does not find the answer: compare response and truth of a sample rollout", "rewards")


def equal_rewards(run: History) -> Iterator[Diagnosis]:
    low, high = run.steady("rollout/reward_min", 5), run.steady("rollout/reward_max", 5)
    if low is None or low != high or run.count("actor/expert_weight"):
        return  # an expert's rows teach whatever the rewards are
    always = min(run.series["rollout/reward_min"]) == max(run.series["rollout/reward_max"])
    since = "since the start" if always else "in the last 5 steps"
    if not always and low == max(run.series["rollout/reward_max"]):
        return  # all is solved
    causes = [
        *_no_answer(run),
        _UNREAD,
        Cause("the tasks are too hard: easier ones first, or SFT on good answers", "actor_train.data_args.file_name"),
    ]
    if (run.last(CUT, 5) or 0) > 0.3:
        causes.insert(0, _longer(run))
    if run.at("custom_envs"):
        unread = "moves that the environment cannot read: in another form, or cut; read an episode"
        causes.insert(0, Cause(unread, "max_tokens_per_step"))
    if not always:
        causes = [*odd_settings(run), lower_rate(run), *causes]
    elif low != 0:
        same = Cause("the reward does not look at the response, or its judge gives everybody the same", "rewards")
        causes = [same, Cause("all tasks are solved already", "actor_train.data_args.file_name")]
    yield Diagnosis(f"every response has the reward {low:g} {since}, so nothing is learned from rewards", tuple(causes))


def too_easy(run: History) -> Iterator[Diagnosis]:
    first, high = run.first(REWARD, 10), max(run.series.get("rollout/reward_max", [0.0]))
    if run.count(REWARD) >= 10 and first is not None and is_solved(run) and first > 0.95 * high > 0:
        form = "a reward that pays for the form, or that every response gets: compare response and truth of a sample"
        yield Diagnosis(
            f"the first 10 steps earned {first:.3g} of {high:g}, so there is nothing to learn",
            (Cause(form, "rewards"), Cause("tasks that are too easy", "actor_train.data_args.file_name")),
        )


# A policy that breaks.

_EARLY = 10  # steps


def collapse(run: History) -> Iterator[Diagnosis]:
    now, best = run.last(REWARD, 3), run.best(REWARD, 3)
    start, entropy = run.first(ENTROPY, 1), run.last(ENTROPY, 2)
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


# Responses.


def _longer(run: History) -> Cause:
    key, limit = length_limit(run)
    return Cause("the limit is too small", key, str(2 * limit) if limit else "")


def answers_cut(run: History) -> Iterator[Diagnosis]:
    names = (CUT, *run.names("env/", "/sequence_cut_mean"), *run.names("env/", "/answer_cut_mean"))
    cuts = {name: cut for name in names if (cut := run.last(name, 5)) is not None and cut > 0.3}
    if not cuts:
        return
    name, cut = max(cuts.items(), key=lambda item: item[1])
    place = standing(run)
    if place is not None and place > 1.1 - cut:
        return  # cut responses are paid, too
    key, limit = length_limit(run)
    at = f"{key}: {limit}" if name == CUT and limit else name
    causes = [_longer(run), Cause("a prompt that does not ask for short answers", "global_template")]
    if cut > 0.99:
        never = "the model never ends: another chat template, or a token that ends is missing"
        causes.insert(1, Cause(never, "global_template"))
    says = f"{cut:.0%} of the responses are cut ({at}) in the last 5 steps; most rewards pay nothing for them"
    yield Diagnosis(says, tuple(causes))


def long_ones_lost(run: History) -> Iterator[Diagnosis]:
    filtered = Cause("a filter that drops long responses", "query_filter_config")
    unfinished = Cause("unfinished groups are given up", "unfinished_groups", "carry")
    for name, cause in (("rollout/filter_length_bias", filtered), ("rollout/length_bias", unfinished)):
        if (share := run.last(name, 3)) is not None and share < 0.9:
            yield Diagnosis(f"trained responses have {share:.0%} of the length of those begun ({name})", (cause,))
            return


def longer_not_better(run: History) -> Iterator[Diagnosis]:
    name = "rollout/response_length_mean"
    length, reward = run.trend(name), run.trend(REWARD)
    first, last = run.first(name, 5), run.last(name, 5)
    if run.count(REWARD) < 20 or length is None or reward is None or first is None or last is None:
        return
    if length.rises and last > 1.5 * first and not reward.rises and not is_solved(run):
        yield Diagnosis(
            f"responses grew from {first:.0f} to {last:.0f} tokens, and the reward did not rise",
            (
                Cause("a loss that favours long responses", "loss_agg_mode", "token-mean"),
                Cause("no price for length", "rewards"),
                lower_rate(run, 3),
            ),
        )


def entropy_lost(run: History) -> Iterator[Diagnosis]:
    start, now, equal = run.first(ENTROPY, 3), run.last(ENTROPY, 5), run.last(EQUAL, 5)
    if start is None or now is None or run.count(ENTROPY) < 10 or is_solved(run):
        return
    if now < 0.1 * start and (equal is None or equal > 0.5):
        yield Diagnosis(
            f"the entropy fell from {start:.2g} to {now:.2g}: the responses to a prompt are nearly the same",
            (
                Cause("nothing keeps the policy broad", "entropy_loss_coef", "0.01"),
                Cause("the upper clip holds rare tokens down", "pg_clip_high", "0.28"),
                Cause("a low temperature", "actor_infer.generating_args.temperature", "1.0"),
                lower_rate(run, 3),
            ),
        )


def entropy_grows(run: History) -> Iterator[Diagnosis]:
    start, now, reward = run.first(ENTROPY, 3), run.last(ENTROPY, 5), run.trend(REWARD)
    if start is None or now is None or reward is None or reward.rises or run.count(ENTROPY) < 20:
        return
    if now > 2 * start and now > start + 0.5:
        yield Diagnosis(
            f"the entropy grew from {start:.2g} to {now:.2g}, and the reward does not rise",
            (
                Cause("an entropy bonus that is too large", "entropy_loss_coef", "0.0"),
                lower_rate(run, 3),
                Cause("old rollouts", "async_generation_ratio", "0"),
            ),
        )


# Rewards.


def no_signal(run: History) -> Iterator[Diagnosis]:
    equal, now, reward = run.last(EQUAL, 10), standing(run), run.trend(REWARD)
    if equal is None or equal < 0.6 or now is None or is_solved(run) or (reward is not None and reward.rises):
        return
    harder = Cause("larger groups find a rare right answer", "num_return_sequences_in_group")
    choose = Cause("drop groups without a signal and sample others", "query_filter_config.type", "mean_filter")
    if now < 0.15:
        what = "nearly all of them are wrong"
        never = (place_of(run, run.best(REWARD, 5)) or 0) < 0.02
        hard = Cause("the tasks are too hard for this model", "actor_train.data_args.file_name")
        causes = (_UNREAD, hard, harder) if never else (hard, harder, choose)
    else:
        what = "some tasks are always solved, the others never"
        causes = (choose, harder, Cause("a low temperature", "actor_infer.generating_args.temperature", "1.0"))
    causes = (*odd_settings(run), *causes)
    yield Diagnosis(f"in {equal:.0%} of the groups all rewards are equal (last 10 steps): {what}", causes)


def one_part_pays(run: History) -> Iterator[Diagnosis]:
    parts = [name for name in run.names("rollout/reward_", "_mean") if _part(name) not in _NO_PARTS]
    if len(parts) < 2 or run.count(REWARD) < 20:
        return
    idle = [name for name in parts if max(map(abs, run.series[name])) < 0.02]
    pays = {name: run.last(name, 10) or 0.0 for name in parts}
    most = max(pays, key=lambda name: pays[name])
    if idle and pays[most] > 0.1:
        form = Cause("the form is learnt and the task is not: it is too hard, or never rewarded", "rewards")
        heavy = Cause("the weight of the form is too large", "rewards")
        says = f"{_part(most)} pays {pays[most]:.2g}, {' and '.join(map(_part, idle))} nothing in all steps"
        yield Diagnosis(says, (form, heavy))


def _part(name: str) -> str:
    return name.removeprefix("rollout/reward_").removesuffix("_mean")


def wrong_ones_pay(run: History) -> Iterator[Diagnosis]:
    name = "rollout/success_mean"
    before, now, trend = run.best(name, 5), run.last(name, 10), run.trend(name)
    low, high = run.first(REWARD, 5), run.last(REWARD, 10)
    if run.count(name) < 20 or before is None or now is None or trend is None or low is None or high is None:
        return
    samples = (run.at("rollout_batch_size") or 8) * (run.at("num_return_sequences_in_group") or 8)
    is_lost = before * samples >= 2 and run.last(name, 20) == 0  # there were ten in five steps
    if (is_lost or (trend.falls and before >= 0.1 and now < 0.3 * before)) and high > low:
        parts = [part for part in run.names("rollout/reward_", "_mean") if _part(part) not in _NO_PARTS]
        rise = {_part(part): (run.last(part, 10) or 0) - (run.first(part, 5) or 0) for part in parts}
        most = max(rise, key=lambda part: rise[part], default="")
        more = f": {most} pays {rise[most]:+.2g}" if most else ""
        says = f"right responses fell from {before:.2g} to {now:.2g} ({name}), and the reward rose by {high - low:.2g}"
        yield Diagnosis(says, (Cause(f"a part of the reward that wrong responses earn{more}", "rewards"),))


def pay_differs(run: History) -> Iterator[Diagnosis]:
    spread, of_all = run.last(UNEQUAL_PAY, 5), run.last("rollout/reward_std", 5)
    if spread is not None and of_all and spread > 0.4 * of_all:
        yield Diagnosis(
            f"equal responses to a prompt differ in their rewards by {spread:.2g}, all responses by {of_all:.2g}",
            (
                Cause("a reward that draws at random, or a judge that does not agree with itself", "rewards"),
                Cause("a reward that depends on something else than the response", "rewards"),
            ),
        )


def same_responses(run: History) -> Iterator[Diagnosis]:
    share, reward = run.last("rollout/duplicate_responses_fraction", 5), run.trend(REWARD)
    if share is None or share < 0.7 or reward is None or reward.rises or is_solved(run):
        return
    if (run.last("rollout/response_length_mean", 5) or 0) <= 10:
        return  # a letter or a number has few forms
    hot = Cause("a low temperature", "actor_infer.generating_args.temperature", "1.0")
    yield Diagnosis(
        f"{share:.0%} of the responses repeat another one to their prompt word by word, and the reward does not rise",
        (*odd_settings(run), hot, Cause("nothing keeps the policy broad", "entropy_loss_coef", "0.01")),
    )


def few_prompts(run: History) -> Iterator[Diagnosis]:
    if (share := run.last("rollout/repeated_prompts_fraction", 5)) is not None and share > 0.5:
        rows = "actor_train.data_args.file_name"
        easy = [Cause("tasks that are too easy: nearly all of the reward is earned", rows)] if is_solved(run) else []
        yield Diagnosis(
            f"{share:.0%} of the groups of a step have the prompt of another group: they are learnt by heart",
            (Cause("few training rows, or rows that repeat", rows), *easy),
        )


def one_domain_starves(run: History) -> Iterator[Diagnosis]:
    domains = list(run.names(f"{REWARD}/"))
    floor = min(run.series.get("rollout/reward_min", [0.0]))
    starving = [name for name in domains if run.steady(name, 10) == floor]
    if starving and len(starving) < len(domains):
        names = ", ".join(name.removeprefix(f"{REWARD}/") for name in starving)
        yield Diagnosis(
            f"{names}: no response earned anything in the last 10 steps, while others do",
            (
                Cause("its reward does not read these answers", "rewards"),
                Cause("its tasks are too hard", "domain_interleave_probs"),
            ),
        )


def attempts_fail(run: History) -> Iterator[Diagnosis]:
    names = ("rollout/failed_fraction", *run.names("env/", "/failed_fraction"))
    for name in names:
        if (share := run.last(name, 3)) is not None and share > 0.1:
            key = "rewards" if name.startswith("rollout") else "custom_envs"
            yield Diagnosis(
                f"{share:.0%} of the attempts failed in the last 3 steps ({name})",
                (Cause("a reward or environment that raises or times out: the log has the first traceback", key),),
            )
            return


def validation_falls(run: History) -> Iterator[Diagnosis]:
    values, reward = run.series.get(VALIDATION, []), run.trend(REWARD)
    if len(values) < 3 or reward is None or not reward.rises:
        return
    scale = max(run.series.get("rollout/reward_max", [1.0])) - min(run.series.get("rollout/reward_min", [0.0]))
    if max(values) - values[-1] > 0.15 * scale and values[-1] <= values[-2]:
        yield Diagnosis(
            f"validation fell from {max(values):.3g} to {values[-1]:.3g} while the reward rose by {reward.change:.2g}",
            (
                Cause("a reward that can be had without the task: read responses with high reward", "rewards"),
                Cause("few prompts that are seen again and again", "actor_train.data_args.file_name"),
                bound_to_reference(run),
            ),
        )


# Updates.


def still_warming_up(run: History) -> Iterator[Diagnosis]:
    warm = [cause for cause in odd_settings(run) if cause.key.endswith("warmup_steps")]
    if warm and run.step > 0.5 * (run.at("max_steps") or math.inf):
        yield Diagnosis(f"after {run.step} steps, more than half of all, the learning rate still rises", (warm[0],))


def much_clipped(run: History) -> Iterator[Diagnosis]:
    if (share := run.last("actor/clip_fraction", 5)) is not None and share > 0.3:
        yield Diagnosis(
            f"{share:.0%} of the tokens are clipped in the last 5 steps: the policy moves too far in one step",
            (
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


def useless_critic(run: History) -> Iterator[Diagnosis]:
    loss, returns = run.last("critic/value_loss", 3), run.best("critic/return_square_mean", 1)
    if loss is not None and returns and loss > 10 * returns:
        rate, key = run.at("critic", "training_args", "learning_rate"), "critic.training_args.learning_rate"
        says = f"critic/value_loss is {loss:.2g} over the last 3 steps, and returns squared are at most {returns:.2g}"
        yield Diagnosis(says, (Cause("the critic learns too fast", key, f"{rate / 10:.0e}" if rate else ""),))
        return
    name = "critic/explained_variance"
    if run.count(name) >= 20 and (share := run.last(name, 10)) is not None and share < 0:
        yield Diagnosis(
            f"{name} is {share:.2g}: the critic's values are worse than the mean return",
            (
                Cause("the critic learns too slowly or too fast", "critic.training_args.learning_rate"),
                Cause("it needs steps of its own before the policy learns", "critic_warmup", "10"),
            ),
        )


# Agents.


def calls_fail(run: History) -> Iterator[Diagnosis]:
    names = ("agentic/malformed_call_fraction", "agentic/tool_error_fraction", "agentic/refused_fraction")
    more = run.names("env/", "/tool_error_mean")
    for name in (*names, *more):
        if (share := run.last(name, 5)) is not None and share > 0.3:
            yield Diagnosis(
                f"{name} is {share:.0%} over the last 5 steps",
                (
                    Cause("a form of calls that the model does not know: show it one, or SFT first", "custom_envs"),
                    Cause("a tool that raises or refuses", "custom_envs"),
                ),
            )
            return


def episodes_never_end(run: History) -> Iterator[Diagnosis]:
    for name in run.names("env/", "/env_ended_mean"):
        if run.steady(name, 10) == 0:
            tag = name.split("/")[1]
            yield Diagnosis(
                f"no episode of {tag} was ended by its environment in the last 10 steps; all reached a limit",
                (
                    Cause("too few turns", f"custom_envs.{tag}.max_steps"),
                    Cause("actions that the environment does not understand: read an episode", f"custom_envs.{tag}"),
                ),
            )
            return


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
    Rule("too easy", too_easy, frozenset({"few prompts"})),
    Rule("few prompts", few_prompts),
    Rule("attempts fail", attempts_fail, frozenset({"long ones lost"})),
    Rule("wrong ones pay", wrong_ones_pay, _OF_A_BROKEN_POLICY | {"collapsed"}),
    Rule("pay differs", pay_differs, _OF_A_BROKEN_POLICY | {"collapsed"}),
    Rule("collapsed", collapse, _OF_A_BROKEN_POLICY),
    Rule("equal rewards", equal_rewards, _OF_A_BROKEN_POLICY),
    Rule("zero gradient", zero_gradient),
    Rule("useless critic", useless_critic, frozenset({"no signal"})),
    Rule("engine differs", engine_differs),
    Rule("answers cut", answers_cut),
    Rule("long ones lost", long_ones_lost),
    Rule("longer only", longer_not_better),
    Rule("entropy lost", entropy_lost),
    Rule("entropy grows", entropy_grows),
    Rule("same responses", same_responses),
    Rule("no signal", no_signal),
    Rule("one part pays", one_part_pays),
    Rule("domain starves", one_domain_starves),
    Rule("validation falls", validation_falls),
    Rule("long warm-up", still_warming_up),
    Rule("much clipped", much_clipped),
    Rule("far away", far_from_reference),
    Rule("groups dropped", groups_dropped),
    Rule("old rollouts", old_rollouts),
    Rule("calls fail", calls_fail),
    Rule("never ends", episodes_never_end),
    Rule("loss rises", loss_rises),
    Rule("exchanged", exchanged, frozenset({"overfit", "forgets"})),
    Rule("forgets", forgets),
    Rule("overfit", overfit),
    Rule("chance", no_better_than_chance),
    Rule("memory grows", memory_grows),
)
"""All rules; those that explain others come first."""

"""Rules for rewards, responses and episodes: what a policy is to learn from."""

from __future__ import annotations

from collections.abc import Iterator

from roll.run.health.diagnosis import (
    CUT,
    ENTROPY,
    EQUAL,
    REWARD,
    UNEQUAL_PAY,
    VALIDATION,
    Cause,
    Diagnosis,
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

_ROWS = "actor_train.data_args.file_name"

# Nothing to learn.


def _no_answer(run: History) -> Iterator[Cause]:
    if run.last("rollout/answer_found_mean", 5) == 0:
        text = "no response has the form in which the reward looks for an answer: its pattern, or what the prompt says"
        yield Cause(text, "rewards")


def _of_episodes(run: History) -> Iterator[Cause]:
    """Causes of episodes that earn nothing, by what is seen of their moves and their ends."""
    for tag in run.at("custom_envs") or ():
        read, ended = (run.last(f"env/{tag}/{name}_mean", 5) for name in ("action_is_valid", "env_ended"))
        if read is None or read < 0.5:
            unread = "moves that the environment cannot read: in another form, or cut; read an episode"
            yield Cause(unread, "max_tokens_per_step")
        if ended is not None and ended < 0.1:
            few = f"too few turns: {ended:.0%} of the episodes of {tag} were ended by their environment"
            yield Cause(few, f"custom_envs.{tag}.max_steps")


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
        Cause("the tasks are too hard: easier ones first, or SFT on good answers", _ROWS),
    ]
    if (run.last(CUT, 5) or 0) > 0.3:
        causes.insert(0, _longer(run))
    was_right = (place_of(run, run.best(REWARD, 3)) or 0) > 0.05
    causes = [*odd_settings(run), *([lower_rate(run)] if was_right else []), *_of_episodes(run), *causes]
    if always and low != 0:
        same = Cause("the reward does not look at the response, or its judge gives everybody the same", "rewards")
        causes = [same, Cause("all tasks are solved already", _ROWS)]
    yield Diagnosis(f"every response has the reward {low:g} {since}, so nothing is learned from rewards", tuple(causes))


def too_easy(run: History) -> Iterator[Diagnosis]:
    first, high = run.first(REWARD, 10), max(run.series.get("rollout/reward_max", [0.0]))
    if run.count(REWARD) >= 10 and first is not None and is_solved(run) and first > 0.95 * high > 0:
        form = "a reward that pays for the form, or that every response gets: compare response and truth of a sample"
        yield Diagnosis(
            f"the first 10 steps earned {first:.3g} of {high:g}, so there is nothing to learn",
            (Cause(form, "rewards"), Cause("tasks that are too easy", _ROWS)),
        )


def only_costs(run: History) -> Iterator[Diagnosis]:
    low, high = min(run.series.get("rollout/reward_min", [0.0])), max(run.series.get("rollout/reward_max", [1.0]))
    first = place_of(run, run.first(REWARD, 3))
    if run.count(REWARD) >= 5 and low < 0 and high <= 0 and first is not None and first > 0.8 and is_solved(run):
        yield Diagnosis(
            f"no response ever earned more than {high:g}, which most had from the start, and some cost up to {-low:g}",
            (
                Cause("a reward with the wrong sign: read a response that costs, it may be the right one", "rewards"),
                Cause("a reward that punishes, and pays nothing for what is right", "rewards"),
            ),
        )


def prompts_cut(run: History) -> Iterator[Diagnosis]:
    limit, length = run.at("prompt_length"), run.last("rollout/prompt_length_mean", 5)
    way = run.at("actor_train", "data_args", "truncation")
    if way in ("left", "right", "middle") and length is not None and length > 0.95 * (limit or length * 2):
        says = f"prompts have {length:.0f} tokens, and longer ones than {limit} are cut (truncation: {way})"
        yield Diagnosis(says, (Cause("the limit is too small: what is cut may be the task", "prompt_length"),))


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
    place, endless = standing(run), run.at("actor_infer", "generating_args", "ignore_eos")
    if place is not None and place > 1.1 - cut and not endless:
        return  # cut responses are paid, too
    key, limit = length_limit(run)
    at = f"{key}: {limit}" if name == CUT and limit else name
    causes = [_longer(run), Cause("a prompt that does not ask for short answers", "global_template")]
    if endless:
        never = "the token that ends is ignored, so every response goes on to the limit"
        causes.insert(0, Cause(never, "actor_infer.generating_args.ignore_eos", "false"))
    elif cut > 0.99:
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
        hard = Cause("the tasks are too hard for this model", _ROWS)
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
        easy = [Cause("tasks that are too easy: nearly all of the reward is earned", _ROWS)] if is_solved(run) else []
        yield Diagnosis(
            f"{share:.0%} of the groups of a step have the prompt of another group: they are learnt by heart",
            (Cause("few training rows, or rows that repeat", _ROWS), *easy),
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
        share, late, trend = run.last(name, 3), run.last(name, 10), run.trend(name)
        grows = late is not None and late > 0.02 and trend is not None and trend.rises
        if share is not None and (share > 0.1 or grows):
            key = "rewards" if name.startswith("rollout") else "custom_envs"
            more = ", more and more: they are left out of training, so nothing speaks against them" if grows else ""
            raises = "a reward or environment that raises, times out or returns NaN: the report has one of each cause"
            yield Diagnosis(
                f"{share:.0%} of the attempts failed in the last 3 steps ({name}){more}", (Cause(raises, key),)
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
                Cause("few prompts that are seen again and again", _ROWS),
                bound_to_reference(run),
            ),
        )


def training_earns_less(run: History) -> Iterator[Diagnosis]:
    values, steps, high = run.series.get(VALIDATION, []), run.steps.get(VALIDATION, []), run.last(REWARD, 20)
    before = [value for value, step in zip(values, steps, strict=True) if 0 < step <= run.step - 20]
    equal = run.last(EQUAL, 20)
    now, early, late = (
        place_of(run, value) for value in (high, before[-1] if before else None, (values or [None])[-1])
    )
    if now is None or early is None or late is None or equal is None or equal < 0.4:
        return
    if late > now + 0.3 and early > now:
        yield Diagnosis(
            f"the validation earns {values[-1]:.2g}, and earned {before[-1]:.2g} 20 steps ago; the training's last 20 "
            f"steps earn {high:.2g}, and in {equal:.0%} of their groups all rewards are equal",
            (
                Cause("wrong truths in the training rows: read rows that are never right", _ROWS),
                Cause("training rows that are much harder than the validation's", _ROWS),
            ),
        )


def validated_on_training_rows(run: History) -> Iterator[Diagnosis]:
    train, held_out = (run.at(role, "data_args") or {} for role in (learning_role(run), "validation"))
    same = all(train.get(name) == held_out.get(name) for name in ("split", "subset", "generator"))
    files = set(train.get("file_name") or ()) & set(held_out.get("file_name") or ())
    if files and same and any(run.names("val/")):
        says = f"the validation has the training rows of {min(files)}: it does not say what is learnt beyond them"
        yield Diagnosis(says, (Cause("the same rows in both", "validation.data_args.file_name"),))


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

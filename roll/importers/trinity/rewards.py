"""Trinity-RFT's workflows and reward functions: those of one answer become rewards of here, others make another run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.importers.rows import CombinedKeys, Condition, SourceLookup, data
from roll.importers.trinity.distillation import distils
from roll.importers.trinity.operators import is_newest

_INPUT = "buffer.explorer_input"
TASKS, SETS = f"{_INPUT}.taskset", f"{_INPUT}.eval_tasksets"
_AT = "rewards.trinity"
_WORKFLOW, _REWARD = "default_workflow_type", "default_reward_fn_type"
_OF_EVALUATION = f"{_INPUT}.default_eval_workflow_type"
_ARGS, _FLOW_ARGS = f"{TASKS}.reward_fn_args", f"{TASKS}.workflow_args"
_OVERLONG = ("enable_overlong_penalty", "penalty_factor", "max_response_length", "cache_length")

_TABLES = data("trinity/workflows.yaml")
_THINKS_FIRST: str = _TABLES["thinks first"]
_WORKFLOWS: Mapping[str, tuple[str, str]] = {
    name: (said["reward"], said["prompt"]) for name, said in _TABLES["workflows"].items()
}
"""Workflows of one question and one answer: the reward, and the system prompt where none is given."""
_NEAREST: Mapping[str, str] = _TABLES["nearest"]
_BOXED_FLOW = "math_boxed_workflow"
_EVALUATES = "math_eval_workflow"
_OWN_WORDS = "The workflow's system prompt is in words of ours: data_args.system_prompt takes another."
_ANOTHER = "an environment or rollout loop of yours (docs/adding_an_env.md, docs/adding_a_rollout_loop.md)"
_OF_MATHS = ("math_reward", "math_boxed_reward", "accuracy_reward", "math_dapo_reward")
_FORMAT = r".*?<think>.*?</think>\s*<answer>.*?</answer>[^\S\n]*(?:\n.*)?"
_STRICT = r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>(?:\n.*)?"
_PLAIN = r"(?:(?!</?think>).)*"
_THINKING = f"{_PLAIN}<think>{_PLAIN}</think>{_PLAIN}"  # each of them once
_VERDICT = "math-verify decides on the last box, or else on what the text says, behind the thinking."


@dataclass(frozen=True)
class _Made:
    """A reward here, parts beside it, and how they differ."""

    reward: str | None
    args: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Mapping[str, Any], ...] = ()
    near: str = ""


def _form(pattern: str, right: float, wrong: float) -> Mapping[str, Any]:
    args = {"pattern": pattern, "score": right, "otherwise": wrong}
    return {"reward": "regex", "name": "format_score", "reward_args": args}


def _boxed(source: SourceLookup) -> _Made:
    parts: tuple[Mapping[str, Any], ...] = ()
    if source(f"trinity.{_FLOW_ARGS}.with_think") and _plain(workflow(source)) == _BOXED_FLOW:
        parts = (_form(_THINKING, 0.0, -source.amount(f"trinity.{_FLOW_ARGS}.format_score_coef", 0.1)),)
    return _Made("math_rule", {"require_boxed": True}, parts, "math-verify decides, where there texts are compared.")


def _dapo(source: SourceLookup) -> _Made:
    parts: tuple[Mapping[str, Any], ...] = ()
    if source(f"trinity.{_ARGS}.enable_overlong_penalty"):
        most, cache = (source.size(f"trinity.{_ARGS}.{name}") for name in ("max_response_length", "cache_length"))
        weight = source.amount(f"trinity.{_ARGS}.penalty_factor", 1.0)
        parts = ({"reward": "overlong", "reward_args": {"max_tokens": most, "cache_tokens": cache}, "weight": weight},)
    if is_newest(source):
        return _Made("math_rule", {"wrong": -1.0}, parts, f"{_VERDICT} A wrong answer is -1, as there.")
    near = f"{_VERDICT} A wrong answer is 0, as in older versions there; newer ones: reward_args.wrong: -1."
    return _Made("math_rule", {}, parts, near)


_REWARDS: Mapping[str, Callable[[SourceLookup], _Made]] = {
    "math_reward": lambda source: _Made("math_rule", {}, (_form(_FORMAT, 0.1, -0.1),), _VERDICT),
    "accuracy_reward": lambda source: _Made("math_rule", {}, (), _VERDICT),
    "format_reward": lambda source: _Made("regex", _form(_STRICT, 0.1, -0.1)["reward_args"]),
    "math_boxed_reward": _boxed,
    "math_boxed_reward_naive_dapo": _boxed,
    "bots_math_boxed_reward": _boxed,
    "math_dapo_reward": _dapo,
    "countdown_reward": lambda source: _Made("countdown", {"format_score": 0.1}),
}
"""The names in Trinity's register. A path is called as it is."""


def workflow(source: SourceLookup) -> str:
    return str(source(f"trinity.{TASKS}.{_WORKFLOW}") or source(f"trinity.{_INPUT}.{_WORKFLOW}") or "math_workflow")


def _plain(name: str) -> str:
    return name.removeprefix("async_")


def _reward_name(source: SourceLookup) -> str:
    name = source(f"trinity.{TASKS}.{_REWARD}") or source(f"trinity.{_INPUT}.{_REWARD}")
    return str(name or _WORKFLOWS.get(_plain(workflow(source)), ("", ""))[0])


def is_of_one_answer(source: SourceLookup) -> bool:
    """False for workflows that are agents, environments, or call other models."""
    return _plain(workflow(source)) in _WORKFLOWS


def _rewards(source: SourceLookup) -> CombinedKeys:
    flow, name = workflow(source), _reward_name(source)
    lost: dict[str, str] = {}
    if not is_of_one_answer(source):
        nearest = next((text for part, text in _NEAREST.items() if part in flow), _ANOTHER)
        reason = f"workflow {flow} is not here, and rows are asked once: {nearest}"
        lost |= dict.fromkeys(_keys(source, _WORKFLOW), reason)
    if distils(source) and not name:
        made = _Made("none")
    elif "." in name or ":" in name:
        args = {key: value for key, value in source.section(f"trinity.{_ARGS}").items() if value is not None}
        made = _Made("trinity_reward", {"path": name} | ({"args": args} if args else {}))
    elif name in _REWARDS:
        made = _REWARDS[name](source)
        taken = _OVERLONG if made.parts and name == "math_dapo_reward" else ()
        more = [key for key in source.below(f"trinity.{_ARGS}") if key not in (*_OVERLONG, *taken)]
        lost |= {f"trinity.{_ARGS}.{key}": f"{name} has no such argument" for key in more}
    else:
        made = _Made("math_rule", near="" if name or lost else "The workflow names no reward: math_rule stands in.")
        missing = f"there is no reward {name} here, and math_rule stands in; a class of yours is named by its path"
        lost |= (
            dict.fromkeys(_keys(source, _REWARD), f"{missing}, package.module:Class (docs/rewards.md)") if name else {}
        )
        lost |= {f"trinity.{_ARGS}.{key}": f"arguments of {name or flow}" for key in source.below(f"trinity.{_ARGS}")}
    settings: dict[str, Any] = {f"{_AT}.reward": made.reward}
    settings |= {f"{_AT}.reward_args": dict(made.args)} if made.args else {}
    settings |= {f"{_AT}.reward_manager_config": [dict(part) for part in made.parts]} if made.parts else {}
    beside = "".join(f" + {part.get('name', part['reward'])}" for part in made.parts)
    text = f"{_AT}.reward: {made.reward}{beside} (docs/rewards.md)."
    return CombinedKeys(
        settings, text, f"{made.near} {_OWN_WORDS if _has_default_prompt(source) else ''}".strip(), changes=lost
    )


def _keys(source: SourceLookup, name: str) -> list[str]:
    return [f"trinity.{at}.{name}" for at in (TASKS, _INPUT) if source.is_set(f"trinity.{at}.{name}")]


def _eval_rewards(source: SourceLookup) -> CombinedKeys:
    """Validation is scored as training is."""
    training = {
        _WORKFLOW: workflow(source),
        "default_eval_workflow_type": workflow(source),
        _REWARD: _reward_name(source),
    }
    training |= {"with_think": bool(source(f"trinity.{_FLOW_ARGS}.with_think"))}
    training |= {"format_score_coef": source(f"trinity.{_FLOW_ARGS}.format_score_coef", 0.1)}
    lost, nears = {}, {}
    values = {f"{SETS}.{key}": value for key, value in source.below(f"trinity.{SETS}").items()}
    values |= {_OF_EVALUATION: source(f"trinity.{_OF_EVALUATION}")}
    for key, value in values.items():
        of_training = training.get(key.rpartition(".")[2])
        if value is not None and _plain(str(value)) == _EVALUATES and _reward_name(source) in _OF_MATHS:
            nears[f"trinity.{key}"] = (
                "A validation is scored by the reward of the training, math-verify on its answers."
            )
            continue
        if of_training is not None and value is not None and _plain(str(value)) != _plain(str(of_training)):
            lost[f"trinity.{key}"] = f"validation is answered and scored as training is, by {of_training}"
    return CombinedKeys({}, "as in training", lost=lost, differences=nears)


def _system_prompt(source: SourceLookup) -> CombinedKeys:
    everywhere = source(f"trinity.{_INPUT}.system_prompt") or _default_prompt(source, _FLOW_ARGS)
    text = source(f"trinity.{TASKS}.format.system_prompt") or everywhere
    settings = {"actor_train.data_args.system_prompt": text} if text else {}
    if source(f"trinity.{SETS}.0.path") and (prompt := system_prompt_of(source, 0)):
        settings["validation.data_args.system_prompt"] = prompt
    return CombinedKeys(settings, "data_args.system_prompt, before rows that bring none.")


def _has_default_prompt(source: SourceLookup) -> bool:
    prompt = source(f"trinity.{_INPUT}.system_prompt") or source(f"trinity.{TASKS}.format.system_prompt")
    return not prompt and bool(_default_prompt(source, _FLOW_ARGS))


def _default_prompt(source: SourceLookup, args: str) -> str:
    """The workflow's own where none is given: of some with any reward, of others only with their own."""
    flow = _plain(workflow(source))
    if flow == _BOXED_FLOW:
        return _THINKS_FIRST if source(f"trinity.{args}.with_think") else _WORKFLOWS[flow][1]
    reward, default = _WORKFLOWS.get(flow, ("", ""))
    return default if _reward_name(source) == reward else ""


def system_prompt_of(source: SourceLookup, number: int) -> str:
    """Return the system prompt of an evaluation set."""
    at = f"{SETS}.{number}"
    prompt = source(f"trinity.{at}.format.system_prompt") or source(f"trinity.{_INPUT}.system_prompt")
    return str(prompt or _default_prompt(source, f"{at}.workflow_args"))


def _is_shared(name: str) -> Condition:
    def condition(source: SourceLookup) -> str:
        return f"taskset.{name} counts" if source.is_set(f"trinity.{TASKS}.{name}") else ""

    return condition


REWARD_CONDITIONS: Mapping[str, Condition] = {f"shared {name}": _is_shared(name) for name in (_WORKFLOW, _REWARD)}
REWARD_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "trinity rewards": _rewards,
    "eval rewards": _eval_rewards,
    "system prompt": _system_prompt,
}

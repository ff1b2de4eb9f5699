"""Trinity-RFT's workflows that play an environment, or act in several turns: what they become in episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.importers import rows as words
from roll.importers.episodes import environment, of_episodes, without_equal_groups
from roll.importers.rows import (
    ApproximateValue,
    ChangesRun,
    CombinedKeys,
    NotHere,
    Row,
    SourceLookup,
    Table,
    changes,
    lacks,
    summed,
    to,
)
from roll.importers.trinity.pictures import no_pictures

_TRINITY_ONLY = "trinity."
_INPUT = "buffer.explorer_input"
_TASKS, _SETS = f"{_INPUT}.taskset", f"{_INPUT}.eval_tasksets"
_FLOW, _REWARD = "default_workflow_type", "default_reward_fn_type"
_ARGS, _SET_ARGS = f"{_TASKS}.workflow_args", f"{_SETS}.0.workflow_args"
_OF_MATHS = ("", "math_reward", "math_boxed_reward", "accuracy_reward", "math_dapo_reward")
_OPERATORS = "data_processor.task_pipeline"

_WALKS = (
    "You walk on a frozen lake, shown as a map: P is you, _ is ice, O is a hole, G is the goal. Go to G with few moves "
    "and fall into no hole. Think about the map first. End every answer with one move, Up, Down, Left or Right, "
    "between three backticks, as in ```Up```."
)
_REASONS = "You solve problems of mathematics. Reason step by step. When you know the answer, put it within \\boxed{}."
_TICKED = r".*```\s*(?:\w+\n)?(.*?)```"
_DRAWN = "Questions are drawn by the seed, with as many of them as the epochs have rows."
_AGENT = "AgentScope's agent is not here: a conversation of the same length is, and its words are ours."
_CALLS = "A tool is called as <python>program</python>, not in JSON."
_MAPS = "Maps are drawn by the seed, 4 x 4 with one cell in five a hole, where rows of the file say size, p and seed: "
_SHOP = (
    "Wishes are drawn by the seed, where the rows of the file name them; data/webshop is made of WebShop's files as "
)


@dataclass(frozen=True)
class _Played:
    """An environment; `args` of the workflow that it reads, and what the validation has otherwise."""

    env: Mapping[str, Any]
    near: str
    asks_rows: bool = False
    args: tuple[str, ...] = ()
    validated: Mapping[str, Any] = field(default_factory=dict)


def _frozen_lake(source: SourceLookup) -> _Played:
    env = {
        "env_type": "frozen_lake",
        "max_steps": source.size(f"{_TRINITY_ONLY}{_ARGS}.max_steps", 10),
        "agent_system_template": _WALKS,
        "agent_template": "{observation}\nMoves left: {actions_left}",
        "action_pattern": _TICKED,
        "env_config.is_slippery": bool(source(f"{_TRINITY_ONLY}{_ARGS}.is_slippery")),
        "env_config.maps": "training",
    }
    near = f"{_MAPS}env_config.size and p are those of others. The words are ours."
    return _Played(env, near, args=("max_steps", "is_slippery"), validated={"env_config.maps": "held_out"})


def _webshop(source: SourceLookup) -> _Played:
    env = {
        "env_type": "webshop",
        "max_steps": source.size(f"{_TRINITY_ONLY}{_ARGS}.max_env_steps", 15),
        "agent_system_template": "You buy in a shop what a customer wishes. Think first, then act.",
        "agent_template": "{env_instruction}\n{observation}\nYour action, between tags: <answer>search[words]</answer>",
        "env_config.data": "data/webshop",
        "env_config.split": "train",
    }
    near = f"{_SHOP}docs/adding_an_env.md says. The words are ours."
    validated = {"env_config.split": "val", "env_config.mode": "val"}
    return _Played(env, near, args=("max_env_steps",), validated=validated)


def _reasons(tools: bool) -> Callable[[SourceLookup], _Played]:
    def played(source: SourceLookup) -> _Played:
        turns = source.size(f"{_TRINITY_ONLY}{_ARGS}.max_turns", 10) if tools else 1
        env: dict[str, Any] = {
            "env_type": "roll_math",
            "max_steps": turns,
            "agent_system_template": system_prompt(source) or _REASONS,
            "agent_template": "{observation}",
        }
        if tools:
            env["tool_wrapper.wrapper_args.max_tool_uses"] = None
            env["tool_wrapper.tool_configs"] = [{"tool_id": "python_code"}]
        near = f"{_AGENT} {f'{_CALLS} ' if tools else ''}{_DRAWN}"
        return _Played(env, near, True, ("max_turns",) if tools else (), {"env_config.mode": "val"})

    return played


_WORKFLOWS: Mapping[str, Callable[[SourceLookup], _Played]] = {
    "frozen_lake_workflow": _frozen_lake,
    "webshop_workflow": _webshop,
    "as_react_workflow": _reasons(tools=False),
    "agentscope_react_workflow": _reasons(tools=False),
    "agentscope_react_math_workflow": _reasons(tools=True),
    "agentscope_reactv2_math_workflow": _reasons(tools=True),
    "agentscope_v2_react_math_workflow": _reasons(tools=True),
}
_ASK_ROWS = tuple(name for name in _WORKFLOWS if "react" in name)


def workflow_in(values: Mapping[str, Any]) -> str:
    """The workflow that keys of the source name, with Trinity's own prefix or without."""
    names = [f"{prefix}{at}.{_FLOW}" for at in (_TASKS, _INPUT) for prefix in (_TRINITY_ONLY, "")]
    return next((str(values[name]) for name in names if values.get(name)), "").removeprefix("async_")


def plays(values: Mapping[str, Any]) -> bool:
    return workflow_in(values) in _WORKFLOWS


def is_played(source: SourceLookup) -> bool:
    """True for a run of episodes, whose samples are those of a step, however many turns they have."""
    return plays({key: source(key) for key in (f"{_TRINITY_ONLY}{at}.{_FLOW}" for at in (_TASKS, _INPUT))})


def agents_table(table: Table, values: Mapping[str, Any]) -> Table:
    """The table of the same run in episodes."""
    flow = workflow_in(values)
    asks_rows = flow in _ASK_ROWS
    lengths = table.sums["lengths"]
    sums = {
        "episodes": _episodes(_WORKFLOWS[flow]),
        "lengths": _lengths(lengths),
        "epochs": _epochs(asks_rows),
        "filter": without_equal_groups,
        "tasks": _tasks(table.sums["tasks"], asks_rows),
        "task operators": _no_operators,
        "eval sets": _one_set,
        "trinity pictures": no_pictures,
    }
    return of_episodes(table, _rows(), sums, asks_rows)


def _episodes(played: Callable[[SourceLookup], _Played]) -> Callable[[SourceLookup], CombinedKeys]:
    def combine(source: SourceLookup) -> CombinedKeys:
        made = played(source)
        validated = dict(made.validated) if source(f"{_TRINITY_ONLY}{_SETS}.0.path") else None
        changed = dict(_lost_arguments(source, made.args))
        reward = str(source(f"{_TRINITY_ONLY}{_TASKS}.{_REWARD}") or source(f"{_TRINITY_ONLY}{_INPUT}.{_REWARD}") or "")
        if reward and not (made.asks_rows and reward in _OF_MATHS):
            reason = "an environment judges by itself; one of yours can call it: env_type: package.module:Class"
            reward_keys = [
                f"{_TRINITY_ONLY}{at}.{_REWARD}"
                for at in (_TASKS, _INPUT)
                if source.is_set(f"{_TRINITY_ONLY}{at}.{_REWARD}")
            ]
            changed |= dict.fromkeys(reward_keys, reason)
        if not made.asks_rows and system_prompt(source):
            keys = (f"{_INPUT}.system_prompt", f"{_TASKS}.format.system_prompt")
            reason = "custom_envs.Training.agent_system_template takes the words of a system message"
            changed |= {f"{_TRINITY_ONLY}{key}": reason for key in keys if source.is_set(f"{_TRINITY_ONLY}{key}")}
        text = f"custom_envs: {made.env['env_type']}, at most {made.env['max_steps']} turns."
        return CombinedKeys(environment(made.env, validated), text, made.near, changes=changed)

    return combine


def _lost_arguments(source: SourceLookup, known: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    train_args = source.below(f"{_TRINITY_ONLY}{_ARGS}")
    for name, value in train_args.items():
        if name not in known and value not in (None, False, "", {}):
            yield (
                f"{_TRINITY_ONLY}{_ARGS}.{name}",
                "the environment has no such setting (custom_envs.Training.env_config)",
            )
    for name, value in source.below(f"{_TRINITY_ONLY}{_SET_ARGS}").items():
        if value is not None and value != train_args.get(name):
            yield (
                f"{_TRINITY_ONLY}{_SET_ARGS}.{name}",
                f"a validation is played as the training is, with {train_args.get(name)}",
            )


def system_prompt(source: SourceLookup) -> str:
    return str(
        source(f"{_TRINITY_ONLY}{_TASKS}.format.system_prompt")
        or source(f"{_TRINITY_ONLY}{_INPUT}.system_prompt")
        or ""
    )


def _lengths(rows: Callable[[SourceLookup], CombinedKeys]) -> Callable[[SourceLookup], CombinedKeys]:
    """The conversation has the room of a prompt and an answer, and no more than max_model_len."""

    def combine(source: SourceLookup) -> CombinedKeys:
        lengths = dict(rows(source).settings)
        prompt, response = (
            int(lengths.get(f"{kind}_length") or source.number(f"data.max_{kind}_length"))
            for kind in ("prompt", "response")
        )
        most = source(f"{_TRINITY_ONLY}model.max_model_len")
        total = min(prompt + response, most) if isinstance(most, int) else prompt + response
        settings = {"prompt_length": min(prompt, total - 1), "sequence_length": total}
        return CombinedKeys(settings, f"sequence_length: {total}, the whole conversation.")

    return combine


def _epochs(asks_rows: bool) -> Callable[[SourceLookup], CombinedKeys]:
    def combine(source: SourceLookup) -> CombinedKeys:
        if not asks_rows:
            source.unresolved.add("buffer.total_steps")
            raise NotHere("an environment has no rows that epochs could count: give buffer.total_steps")
        epochs = source("trainer.total_epochs")
        return CombinedKeys({"num_train_epochs": epochs}, f"num_train_epochs: {epochs}.", _DRAWN)

    return combine


def _tasks(rows: Callable[[SourceLookup], CombinedKeys], asks_rows: bool) -> Callable[[SourceLookup], CombinedKeys]:
    def combine(source: SourceLookup) -> CombinedKeys:
        if asks_rows:
            result = rows(source)
            files = next(iter(result.settings.values()))
            if len(files) != 1:
                raise ChangesRun(f"an environment asks the rows of one file, and these are {len(files)}")
            at = "custom_envs.Training.env_config.dataset_name"
            return CombinedKeys({at: files[0]}, f"{at}: {files[0]}.", lost=result.lost)
        reason = "the environment draws its tasks by the seed and reads no file"
        return CombinedKeys({}, reason, lost={f"{_TRINITY_ONLY}{_TASKS}.path": reason})

    return combine


def _no_operators(source: SourceLookup) -> CombinedKeys:
    operator_keys = [key for key in source.below(f"{_TRINITY_ONLY}{_OPERATORS}") if key.startswith("operators.")]
    reason = "no operator chooses the tasks of an environment"
    return CombinedKeys({}, reason, changes={f"{_TRINITY_ONLY}{_OPERATORS}.{key}": reason for key in operator_keys})


def _one_set(source: SourceLookup) -> CombinedKeys:
    raise NotHere("one set is played beside the training; others go into eval_sets (docs/modes.md)")


def _rows() -> tuple[Row, ...]:
    at = f"{_TRINITY_ONLY}explorer"
    return (
        *(
            summed(f"{_TRINITY_ONLY}{where}.{name}", "episodes")
            for where in (_TASKS, _INPUT)
            for name in (_FLOW, _REWARD)
        ),
        summed(f"{_TRINITY_ONLY}{_ARGS}.**", "episodes"),
        summed(f"{_TRINITY_ONLY}{_SET_ARGS}.**", "episodes"),
        *(
            summed(f"{_TRINITY_ONLY}{key}", "episodes")
            for key in (f"{_INPUT}.system_prompt", f"{_TASKS}.format.system_prompt")
        ),
        changes(f"{_TRINITY_ONLY}{_TASKS}.reward_fn_args.**", "the environment judges, without such arguments"),
        summed("data.max_prompt_length", "lengths"),
        summed("data.max_response_length", "lengths"),
        summed("trainer.total_epochs", "epochs", 1, needs="epochs"),
        to(f"{at}.max_timeout", "train_env_manager.episode_timeout_s", via=words.number),
        to(f"{at}.max_retry_times", "train_env_manager.env_retries", via=int),
        lacks(f"{at}.dynamic_timeout.**", "episode_timeout_s is the limit of an episode", False, 0),
        Row(
            f"{_TRINITY_ONLY}{_TASKS}.task_selector.selector_type",
            note="tasks are drawn by the seed",
            outcome="approximated",
        ),
        to(
            f"{_TRINITY_ONLY}{_TASKS}.task_selector.seed",
            "seed",
            via=lambda seed: ApproximateValue(int(seed), "of all that a run draws"),
        ),
    )

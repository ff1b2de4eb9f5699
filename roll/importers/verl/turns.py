"""verl's turns: tools and interactions of an agent loop become an environment that is played in episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.importers.episodes import environment, of_episodes, without_equal_groups
from roll.importers.row_files import rows_of
from roll.importers.rows import CombinedKeys, SourceLookup, Table
from roll.importers.verl.combined_keys import reward_manager
from roll.importers.verl.common import ROLLOUT, overlong_buffer, validates
from roll.importers.verl.pictures import no_pictures
from roll.importers.verl.reward_sources import CODE, DAPO, sources_of
from roll.importers.verl.tools import Tools, search_tool, tools_of

TURNS, AGENT = f"{ROLLOUT}.multi_turn", f"{ROLLOUT}.agent"
TOOL_FILES = (f"{TURNS}.tool_config_path", f"{AGENT}.tool_config_path")
_INTERACTIONS = f"{TURNS}.interaction_config_path"
_LOOP = f"{AGENT}.default_agent_loop"
_SERVER = "retriever.url"
_OFF = (None, "", "single_turn_agent")
_MOST_TURNS = 100
"""Turns where the source sets no bound: the tokens of an episode end it before."""
_TRIES = 5  # as many as verl's own interaction has, where nothing is said
_SEARCH_ANSWER = "reward_model.ground_truth.target"
_HASHES = r".*####\s*(-?[\d.,]*\d)"
_DRAWN = "Questions are drawn by the seed, with as many of them as the epochs have rows."
_BY_SOURCE = "The reward: verl chooses it by the column {}, here {}."
_RIGHT = "an answer that {} the column {} earns 1, any other 0"
_TESTS = (
    "rows of {} have tests, which verl's reward runs on the program of the answer. The environment compares texts, "
    "and a right program would earn 0. Run it with an environment of yours that runs the tests "
    "(env_type: package.module:Class, docs/adding_an_env.md), or without turns: multi_turn.enable=false has "
    "code_sandbox"
)
_UNTOLD = (
    "neither rows nor names of files tell {}, by which verl chooses the reward. The environment compares answers in "
    "\\boxed{{}} by math-verify, which is right for maths alone: put the rows where data.train_files says, or accept "
    "it by --lossy"
)
_CALLS = "a call is <name>text</name>, as the first prompt says, where verl has JSON in the words of the model"
_NO_PENALTY = "no penalty for the length of an episode is here"
_SOME_ROWS = "val_batch_size / val_env_manager.group_size questions in turn, where verl asks all rows"
_USUAL_QUESTIONS = 128
_SHOWN = "Results of tools are shown whole; there the middle of a longer one is cut out."


_NAMED = (
    "Since verl 0.5 only rows whose column agent_name is tool_agent have turns with rollout.mode async, or all by "
    "agent.default_agent_loop; here all have."
)


def plays(values: Mapping[str, Any]) -> bool:
    """True where turns are on, and a file says what they are for."""
    if values.get(f"{TURNS}.enable") is False and values.get(_LOOP) in _OFF:
        return False
    servers = () if values.get("do_search") is False else (_SERVER,)
    return any(values.get(key) not in (None, "") for key in (*TOOL_FILES, _INTERACTIONS, *servers))


def turns_table(table: Table, values: Mapping[str, Any], script: Path | None) -> Table:
    """The table of the same run in episodes; what a file of tools says is read beside the script."""
    tools = {key: tools_of(values[key], script, "tools") for key in TOOL_FILES if values.get(key)}
    if values.get(_INTERACTIONS):
        tools[_INTERACTIONS] = tools_of(values[_INTERACTIONS], script, "interaction")
    if values.get(_SERVER) and values.get("do_search") is not False:
        tools[_SERVER] = search_tool("Search-R1", {"url": values[_SERVER], "topk": values.get("retriever.topk", 3)})
    sums = {"episodes": _Episodes(tools), "lengths": _lengths, "filter": without_equal_groups}
    sums |= {"pictures": no_pictures, "reward manager": _manager}
    return of_episodes(table, rows_of("verl/turns.yaml"), sums, asks_rows=True)


class _Episodes:
    """The environment: questions of the rows with the tools around them, and the same for the validation."""

    def __init__(self, tools: Mapping[str, Tools]):
        self._tools = tools

    def __call__(self, source: SourceLookup) -> CombinedKeys:
        tools = list(self._tools.values())
        searches, checks = any(each.searches for each in tools), any(each.checks for each in tools)
        env = self._question(source, searches, checks)
        nears = [near for each in tools for near in each.nears]
        configs = [tool for each in tools for tool in each.configs]
        if configs:
            env["tool_wrapper.wrapper_args.max_tool_uses"] = None
            env["tool_wrapper.tool_configs"] = configs
            nears.append(f"{_CALLS[0].upper()}{_CALLS[1:]}.")
        if checks:
            nears.append("What checks an answer there tells right from wrong here: the right answer ends the episode.")
        nears += [_DRAWN, _SHOWN] if configs else [_DRAWN]
        nears += [_NAMED] if source(f"{ROLLOUT}.mode") == "async" and source(_LOOP) in _OFF else []
        nears += [] if _has_own_reward(source) else [_judged(source, env)]
        if validates(source):
            settings = environment(env, None)
        else:
            nears.append(f"A validation asks {_SOME_ROWS}.")
            rows = source.number("data.val_batch_size") if source.is_set("data.val_batch_size") else None
            times = source.size(f"{ROLLOUT}.val_kwargs.n", 1)
            settings = environment(env, {"env_config.mode": "val"}, rows)
            settings |= {"val_batch_size": (rows or _USUAL_QUESTIONS) * times} if times > 1 or rows is not None else {}
        changed = {key: "; ".join(each.lost) for key, each in self._tools.items() if each.lost}
        is_told = searches or checks or _is_gsm8k(source) or _has_own_reward(source) or sources_of(source)
        if not (is_told or changed):
            changed["data.reward_fn_key"] = _UNTOLD.format(source("data.reward_fn_key"))
        changed |= _unread(source)
        text = f"custom_envs: {env['env_type']}, at most {env['max_steps']} turns."
        return CombinedKeys(settings, text, " ".join(nears), changes=changed)

    def _question(self, source: SourceLookup, searches: bool, checks: bool) -> dict[str, Any]:
        turns = _turns(source)
        env: dict[str, Any] = {"env_type": "roll_qa" if searches else "roll_math", "max_steps": turns}
        env["agent_template"] = "{observation}"
        env["env_config.question_key"] = source("data.prompt_key")
        env["env_config.answer_key"] = _SEARCH_ANSWER if searches else "reward_model.ground_truth"
        if not searches and _is_gsm8k(source):
            env |= {"action_pattern": _HASHES, "env_config.answer_format": "text"}
        if checks and not searches:
            env["env_config.tries"] = min(turns, _TRIES if turns == _MOST_TURNS else turns)
        return env


def _unread(source: SourceLookup) -> dict[str, str]:
    """Return keys that decide over rewards in verl, and that no environment here reads."""
    reason = "the environment judges; an environment of yours can call it: env_type: package.module:Class"
    sources = () if _has_own_reward(source) else sources_of(source).get(CODE, ())
    tested = {"data.reward_fn_key": _TESTS.format(", ".join(sources))} if sources else {}
    reasons = tested | ({"custom_reward_function.path": reason} if source("custom_reward_function.path") else {})
    reasons |= {"reward_model.enable": "no reward model scores episodes"} if source("reward_model.enable") else {}
    return reasons | ({f"{at}.enable": _NO_PENALTY} if (at := overlong_buffer(source)) else {})


def _has_own_reward(source: SourceLookup) -> bool:
    return bool(source("custom_reward_function.path") or source("reward_model.enable"))


def _judged(source: SourceLookup, env: Mapping[str, Any]) -> str:
    """Sentence on what earns a reward here, where verl would choose by the source of a row."""
    how = "has the words of" if env["env_type"] == "roll_qa" else "is, by math-verify, that of"
    if env["env_type"] != "roll_qa" and "action_pattern" not in env:
        how = f"in \\boxed{{}} {how}"
    said = _BY_SOURCE.format(source("data.reward_fn_key"), _RIGHT.format(how, env["env_config.answer_key"]))
    return f"{said} There a wrong answer of DAPO's sources earns -1." if DAPO in sources_of(source) else said


def _manager(source: SourceLookup) -> CombinedKeys:
    """verl's classes around rewards, of which those that verl has compute nothing that an environment lacks."""
    return replace(reward_manager(source), settings={}, text="the environment judges", differences={})


def _lengths(source: SourceLookup) -> CombinedKeys:
    """The answers and results of all turns share the length of a response there."""
    prompt, response = (source.size(f"data.max_{kind}_length") for kind in ("prompt", "response"))
    settings = {"prompt_length": prompt, "sequence_length": prompt + response}
    return CombinedKeys(
        settings, f"sequence_length: {prompt} + {response} = {prompt + response}, of all turns together."
    )


def _turns(source: SourceLookup) -> int:
    """Answers of an episode. A user who may speak n times gets n + 1 answers."""
    keys = [f"{TURNS}.{name}" for name in ("max_assistant_turns", "max_turns")]
    limits = [source.number(key) for key in keys if source.is_set(key)]
    if source.is_set(f"{TURNS}.max_user_turns"):
        limits.append(source.number(f"{TURNS}.max_user_turns") + 1)
    return min((number for number in limits if number > 0), default=_MOST_TURNS)


def _is_gsm8k(source: SourceLookup) -> bool:
    files = source("data.train_files") or ""
    return "gsm8k" in str(files).lower() or any("gsm8k" in str(source(key) or "").lower() for key in TOOL_FILES)

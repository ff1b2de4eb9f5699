"""`ifeval`: does the answer follow the instructions that its prompt gives?"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.rewards.ifeval.functions import FUNCTIONS
from roll.rewards.ifeval.instructions import INSTRUCTIONS


@dataclass(frozen=True)
class Instruction:
    id: str
    check: Callable[..., bool]
    args: Mapping[str, Any]

    def is_followed(self, text: str) -> bool:
        """An empty answer follows none."""
        return bool(text.strip()) and self.check(text, **self.args)


def loose_versions(text: str) -> list[str]:
    """Example: of the lines "*a*" and "b" they are both lines, "*a*", "b" and nothing, each with and without
    asterisks."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [version for cut in cuts for version in (cut, cut.replace("*", ""))]


def instructions_of(row: Mapping[str, Any]) -> list[Instruction]:
    """Raises ValueError for what is no instruction, or has not the arguments that it needs."""
    given = _data(row.get("ground_truth")) if row.get("instruction_id_list") is None else row
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, Mapping):
        raise ValueError(f"the row has no instruction_id_list, and its ground_truth is no instruction: {given!r:.200}")
    if "func_name" in given:
        args = {key: value for key, value in given.items() if key != "func_name"}
        return [_instruction(str(given["func_name"]), args, FUNCTIONS)]
    ids = _data(given.get("instruction_id_list", given.get("instruction_id")))
    ids = [ids] if isinstance(ids, str) else ids
    kwargs = _data(given.get("kwargs"))
    kwargs = [None] * len(ids or ()) if kwargs is None else [kwargs] if isinstance(kwargs, Mapping) else list(kwargs)
    if not ids or len(ids) != len(kwargs):
        raise ValueError(
            f"instruction_id_list {ids!r:.200} must name instructions, with one of kwargs {kwargs!r:.200} each"
        )
    return [_instruction(str(name), _data(args) or {}, INSTRUCTIONS) for name, args in zip(ids, kwargs, strict=True)]


def _instruction(name: str, args: Mapping[str, Any], known: Mapping[str, Callable[..., bool]]) -> Instruction:
    if name not in known:
        raise ValueError(f"{name!r} is no instruction of IFEval: {', '.join(known)}")
    args = {key: value for key, value in args.items() if value is not None}
    try:
        inspect.signature(known[name]).bind("", **args)
    except TypeError as error:
        raise ValueError(f"instruction {name} with {dict(args)!r:.200}: {error}") from None
    return Instruction(name, known[name], args)


def _data(value: Any) -> Any:
    """JSON text as data."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return json.loads(value)
    return value


def row_problem(row: Mapping[str, Any]) -> str | None:
    """What a preflight says of a row that cannot be judged."""
    try:
        instructions_of(row)
    except ValueError as error:
        return str(error)
    return None


@requires(("instruction_id_list", "ground_truth"))
@checks_rows(row_problem)
class IFEval:
    """The instructions that an answer follows, of those that the row gives: their share (`reward_type: soft`), or 1 if
    all and 0 if not (`hard`).

    What follows thinking is judged. `mode: strict` takes it as it is; `loose` is content if one of eight versions of it
    follows the instruction: with or without asterisks, the first line and the last line, as in the paper (section 2.2).

    A row has the columns of IFEval's data, `instruction_id_list` and `kwargs` (an object or null for each), or its
    ground truth is an object with these, or a function of RLVR-IFeval's with its arguments (`func_name`); as data or as
    JSON text. Arguments that are null count as absent.
    """

    def __init__(self, reward_type: Literal["hard", "soft"] = "hard", mode: Literal["strict", "loose"] = "strict"):
        if reward_type not in ("hard", "soft"):
            raise ValueError(
                f"reward_type: {reward_type!r} must be hard or soft; strict and loose are reward_args.mode"
            )
        if mode not in ("strict", "loose"):
            raise ValueError(f"mode: {mode!r} must be strict or loose")
        self._is_soft = reward_type == "soft"
        self._is_loose = mode == "loose"

    def __call__(self, sample: RewardInput) -> RewardResult:
        instructions = instructions_of({"ground_truth": sample.ground_truth, **sample.payload})
        text = sample.answer.strip("\n")
        versions = loose_versions(text) if self._is_loose else [text]
        verdicts = [any(map(instruction.is_followed, versions)) for instruction in instructions]
        share = sum(verdicts) / len(verdicts)
        metrics = {"instructions_followed": share, "success": float(all(verdicts))}
        told = {instruction.id: verdict for instruction, verdict in zip(instructions, verdicts, strict=True)}
        return RewardResult(share if self._is_soft else float(all(verdicts)), metrics, {"instructions": told})

"""Arguments of engines and environment variables of workers that were tested here: `engine_arguments.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from roll.configs.problems import Problem, nearest
from roll.utils.text import show

if TYPE_CHECKING:
    from roll.configs.sections.cluster import WorkerConfig

EVERY_ROLE = "every_role"
ALLOWED = "strategy_args.allow_untested_arguments"
_OFF: tuple[Any, ...] = (False, "", {}, [])
_OFF_WORDS = ("0", "false", "no", "n", "off")  # of a variable; an empty one counts as not set
_OWN_NAMES = {"fp32": ("float32", "float"), "bf16": ("bfloat16", "bf16"), "fp16": ("float16", "half")}
_SHARES = ("gpu_memory_utilization", "mem_fraction_static")
_COUNTS = ("tensor_parallel_size", "pipeline_parallel_size", "tp_size", "ep_size")
_UNTESTED = "it was not tested here, and may change what is sampled or break weight updates"


@dataclass(frozen=True)
class Rule:
    """The values that an argument or a variable may have, and the reason. The file explains the fields."""

    only: tuple[Any, ...] | None = None
    but: tuple[str, ...] = ()
    wrong: str = ""
    untested: str = ""
    ours: bool = False

    def takes(self, value: Any, dtype: str) -> bool:
        """Whether an argument may have this value. `dtype`: the role's."""
        if self.only is None:
            return not isinstance(value, str) or value.lower().replace("-", "_") not in self.but
        off = _OFF if False in self.only else ()
        names = _OWN_NAMES[dtype] if "own" in self.only else ()
        return any(value == right for right in (*off, *names, *self.only))

    def takes_text(self, value: str) -> bool:
        """Whether a variable may have this value."""
        text = value.strip().lower()
        return not text or self.only is None or text in self.only or (False in self.only and text in _OFF_WORDS)

    @property
    def remedy(self) -> str:
        """Advice at the end of a message."""
        right = [str(value) for value in self.only or () if not isinstance(value, bool) and value != "own"]
        return f"Remove it, or set it to {' or '.join(right)}" if right else "Remove it"

    def refusal(self, role_name: str, name: str, allowed: tuple[str, ...], hint: str = "") -> str | None:
        """Why a value that the rule does not take is refused, and what to do; None if the user lets it through."""
        if self.wrong:
            return f"{self.wrong}. {self.remedy}."
        if name in allowed:
            return None
        return f"{self.untested}.{hint} {self.remedy}, or let it through: {role_name}.{ALLOWED}: [{name}]."


UNTESTED = Rule((), untested=_UNTESTED)


@cache
def rules(engine: str, kind: Literal["arguments", "variables"]) -> Mapping[str, Rule]:
    """The rules of an engine by name; those of EVERY_ROLE are among its variables."""
    groups = list(_file().get(engine, {}).get(kind, ()))
    if kind == "variables" and engine != EVERY_ROLE:
        groups = [*_file()[EVERY_ROLE][kind], *groups]
    return {name: _rule(group) for group in groups for name in group["names"].split()}


def argument_problems(engine: str, role_name: str, role: WorkerConfig, own: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Yield the arguments in `strategy_config` that are wrong, or neither tested nor allowed. `own`: keys of roll's.

    `load_format: dummy` begins with random weights, which a trainer replaces for the policy's engines alone."""
    from roll.configs.tables.roles import ACTOR_INFER  # imports pydantic, which the doctor does without

    at, tested = f"{role_name}.strategy_args.strategy_config", rules(engine, "arguments")
    for name, value in role.strategy_config.items():
        rule = tested.get(name, UNTESTED)
        if name in own:
            continue
        if (wanted := _misfit(name, value)) and value is not None:
            yield Problem(f"{at}.{name}: {show(value)} must be {wanted}.", (f"{at}.{name}",))
        if value is None or rule.takes(value, role.model_args.dtype):
            continue
        slip = nearest(name, tested, cutoff=0.85) if rule is UNTESTED else None
        hint = f" Did you mean {slip}?" if slip else ""
        if why := rule.refusal(role_name, name, role.allowed_arguments, hint):
            yield Problem(f"{at}.{name} cannot be set: {why}", (f"{at}.{name}",))
    if role.strategy_config.get("load_format") == "dummy" and role_name != ACTOR_INFER.name:
        yield Problem(
            f"{at}.load_format: dummy starts with random weights, and no trainer sends weights to {role_name}. Remove "
            "it.",
            (f"{at}.load_format",),
        )


def _misfit(name: str, value: Any) -> str:
    """Words for what a share of memory or a parallel size must be; "" for one that fits, and for other arguments."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _SHARES:
        return "" if is_number and 0 < value <= 1 else "above 0 and at most 1"
    return "" if name not in _COUNTS or (type(value) is int and value >= 1) else "a whole number of at least 1"


def refused_variables(
    engine: str, role_name: str, variables: Mapping[str, str], allowed: tuple[str, ...] = (), inherited: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values are refused, and why, in the order of `variables`. `inherited`: they come from
    the shell or image. Images set many that nobody tested, and roll itself replaces some, so these are not judged."""
    tested, prefixes = rules(engine, "variables"), tuple(_file().get(engine, {}).get("prefixes", ()))
    for name, value in variables.items():
        rule = tested.get(name)
        if rule is None and name.startswith(prefixes) and not inherited:
            rule = UNTESTED
        if rule is None or (inherited and rule.ours) or rule.takes_text(value):
            continue
        if why := rule.refusal(role_name, name, allowed):
            yield name, why


def inherited_text(variable: str, role: str, why: str) -> str:
    """Say what is wrong with a variable of the environment in which a role's processes start."""
    return f"{variable} is set in the shell or image, and {role} would inherit it: {why}"


def _rule(group: Mapping[str, Any]) -> Rule:
    only, but = group.get("only"), tuple(group.get("but", ()))
    if only is None and not but and ("wrong" in group or "untested" in group):
        only = (False,)
    return Rule(
        None if only is None else tuple(only),
        but,
        group.get("wrong", ""),
        group.get("untested", ""),
        group.get("ours", False),
    )


@cache
def _file() -> Mapping[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("engine_arguments.yaml").read_text(encoding="utf-8"))

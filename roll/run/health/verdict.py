"""Verdict on a run: whether it learns, and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from roll.run.health.diagnosis import REWARD, Cause, Diagnosis, is_solved, lower_rate, odd_settings
from roll.run.health.history import History
from roll.run.health.rules import RULES

PAGE = "docs/health.md"
_LEAST = 20  # steps, before a curve without a trend is called flat
_GOOD_IF_LOW = ("actor/teacher_kl_mean", "train/nll_mean", "train/loss", "train/divergence_mean")


@dataclass(frozen=True)
class Symptom:
    """Finding of a rule, and the rule's label."""

    label: str
    diagnosis: Diagnosis

    def lines(self) -> Iterator[str]:
        """The finding, and its causes in the order in which to try them."""
        yield f"{self.label}: {self.diagnosis.says}."
        yield from (f"  {number}. {cause}" for number, cause in enumerate(self.diagnosis.causes, 1))


@dataclass(frozen=True)
class Verdict:
    """`label`: of the first symptom; without one "learning", "solved", "flat", "worse", "short" or "untrained". `says`:
    of the curve."""

    label: str
    says: str
    symptoms: tuple[Symptom, ...]

    @property
    def is_ill(self) -> bool:
        return bool(self.symptoms)

    def lines(self) -> list[str]:
        """Lines that a person reads. Where no rule applies, they say so."""
        found = [line for symptom in self.symptoms for line in symptom.lines()]
        return [self.says, *found] if found else [f"{self.says}; no rule applies"]


def symptoms(run: History) -> tuple[Symptom, ...]:
    """Findings of the rules, those that explain others first."""
    found, explained = list[Symptom](), set[str]()
    for rule in RULES:
        for diagnosis in rule.find(run) if rule.label not in explained else ():
            causes = tuple(cause for cause in diagnosis.causes if not _holds(run, cause))
            found.append(Symptom(rule.label, replace(diagnosis, causes=causes)))
            explained |= rule.consequences
    return tuple(found)


def _holds(run: History, cause: Cause) -> bool:
    """Return whether the run has the proposed value already."""
    now = run.at(*cause.key.split("."))
    if isinstance(now, bool) or not isinstance(now, int | float):
        return bool(cause.value) and str(now).lower() == cause.value
    try:
        return float(cause.value) == now
    except ValueError:
        return False


def verdict(run: History) -> Verdict:
    found = symptoms(run)
    label, says = _course(run)
    if not found and label == "flat":
        found = (_flat(run, says),)
    return Verdict(found[0].label if found else label, says, found)


def _course(run: History) -> tuple[str, str]:
    """The label of a run without symptoms, and the evidence."""
    name = next((name for name in (REWARD, *_GOOD_IF_LOW) if run.count(name)), None)
    if name is None:
        return "untrained", "nothing was trained yet"
    trend, steps = run.trend(name), run.count(name)
    if trend is None:
        return "short", f"{steps} steps are too few to tell whether it learns"
    says = f"{name} changed by {trend.change:+.3g} +- {trend.error:.2g} (95 %) over {steps} steps"
    better, worse = (trend.falls, trend.rises) if name in _GOOD_IF_LOW else (trend.rises, trend.falls)
    if is_solved(run) and name == REWARD:
        return "solved", says
    if better or worse:
        return "learning" if better else "worse", says
    return ("flat" if steps >= _LEAST else "short"), says


def _flat(run: History, says: str) -> Symptom:
    """A curve without a trend, which no rule explains."""
    rate = lower_rate(run, 1)
    faster = lower_rate(run, 0.3)
    causes = (
        *odd_settings(run),
        Cause("a learning rate that is too low", rate.key, faster.value),
        Cause("few responses a step: the noise hides what is learned", "rollout_batch_size"),
        Cause("not enough steps", "max_steps"),
    )
    return Symptom("flat", Diagnosis(says, causes))

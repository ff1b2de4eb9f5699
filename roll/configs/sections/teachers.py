"""Settings of a mix: rows of an expert in the updates of reinforcement learning."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator

from roll.configs.base import Settings, setting
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import DataArgs, Names
from roll.configs.sections.rollout import RolloutConfig


def _names(rows: dict[str, "ExpertRowsConfig"]) -> dict[str, "ExpertRowsConfig"]:
    for name in rows:
        if not name.replace("-", "_").isidentifier():
            raise ValueError(
                f"{name!r} must be a name of letters, digits, _ and -, without a digit in front: metrics carry it"
            )
    return rows


class ExpertRowsConfig(Settings):
    """One of `mix.rows`, by its name: where an expert's answers are, and how many an update has of them."""

    share: float = setting(
        ...,
        "Share of these among the rows of an update, beside those that the policy sampled; the plan says how many rows "
        "that makes. 0: none.",
        ge=0,
        lt=1,
    )
    data_args: DataArgs = setting({}, "The rows: messages that end with the assistant, or a prompt and a response.")
    prompt_key: str = setting("instruction", "Column with the prompt, of rows that hold no messages.")
    query_key: str | None = setting(None, "Column with more of the prompt, which follows it on a line of its own.")
    response_key: str = setting("output", "Column with the response.")
    system_key: str | None = setting(None, "Column with the system prompt. None: none but the template's own.")
    tools_key: str | None = setting(
        "tools",
        "Column with the tools that a row offers, if it has any: a list of JSON schemas, or its text. null: none.",
    )
    train_on: Literal["all", "last"] = setting(
        "all", "For rows with messages: learn every turn of the assistant, or the last one alone."
    )


class MixConfig(Settings):
    """`mix`: loss of an update = (1 - weight) x that of reinforcement learning + weight x that of the expert's rows.
    docs/mix.md."""

    weight: float = setting(0.1, "Weight of the expert's rows, mu. 0: they are not read.", ge=0, le=1)
    warmup_steps: int = setting(
        0, "Steps in which weight is reached in a straight line: weight x step / warmup_steps.", ge=0
    )
    decay_steps: int = setting(
        0, "Steps after that in which it falls to final_weight, along half a cosine. 0: it stays.", ge=0
    )
    final_weight: float = setting(0.0, "With decay_steps: the weight from then on.", ge=0, le=1)
    token_weights: Literal["none", "uncertain"] = setting(
        "none",
        "uncertain: the loss of each token of an expert counts p (1 - p) times, p its probability under the policy, "
        "through which no gradient goes: little where the policy is sure of it, or has never heard of it.",
    )
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = setting(
        "token-mean", "How the losses of the expert's tokens become one number, as the run's own loss_agg_mode has it."
    )
    rows: Annotated[dict[str, ExpertRowsConfig], AfterValidator(_names)] = setting(
        {}, "Where the rows come from, by names of your own. None: nothing is mixed in."
    )

    @property
    def drawn(self) -> Mapping[str, ExpertRowsConfig]:
        """Expert rows that the run reads."""
        if not self.weight and not (self.decay_steps and self.final_weight):
            return {}
        return {name: rows for name, rows in self.rows.items() if rows.share}

    @property
    def data_args(self) -> Mapping[str, DataArgs]:
        """Arguments of the files that are read, by their YAML path."""
        return {f"mix.rows.{name}.data_args": rows.data_args for name, rows in self.drawn.items()}

    def rows_per_update(self, samples: int) -> dict[str, int]:
        """The rows by name that join so many sampled ones, at least one of each.

        Example: shares .2 and .1 beside 70 samples are 20 and 10 rows, of 100 in all.
        """
        remaining = 1 - sum(rows.share for rows in self.drawn.values())
        return {name: max(1, round(samples * rows.share / remaining)) for name, rows in self.drawn.items()}

    def weight_at(self, step: int) -> float:
        """The weight in a step, of which the first is 1.

        Example: weight .5, warmup_steps 2, decay_steps 2, final_weight .1: .25, .5, .3, .1, .1.
        """
        if step < self.warmup_steps:
            return self.weight * step / self.warmup_steps
        if not self.decay_steps:
            return self.weight
        done = min(1.0, (step - max(1, self.warmup_steps)) / self.decay_steps)
        return self.final_weight + (self.weight - self.final_weight) * (1 + math.cos(math.pi * done)) / 2


# Words of distillation that settings and mathematics share.

OPDAdvantage = Literal["log_ratio", "js_divergence"]


# Settings of on-policy distillation: a teacher scores what the policy sampled, token by token.


class TeacherConfig(WorkerConfig):
    """`teacher`, or one of `teachers`: a role that scores what the policy sampled."""

    opd_kl_coef: float | None = setting(None, "Weight of this teacher. Default: the run's opd_kl_coef.", ge=0)
    tag_included: Names = setting((), "In `teachers`: the domains that it teaches beside the one of its name.")


class OnPolicyDistillation(RolloutConfig):
    """Its keys, and which role teaches what."""

    use_opd: bool = setting(
        False,
        "On-policy distillation beside the reward: opd_kl_coef x (log-prob of the teacher - log-prob of the policy) is "
        "added to the advantage of every token. docs/distillation.md.",
    )
    is_pure_opd: bool = setting(False, "As use_opd, but without the reward: rewards are reported and not trained on.")
    opd_kl_coef: float = setting(1.0, "With use_opd or is_pure_opd: the weight of the teacher.", ge=0)
    opd_advantage: OPDAdvantage = setting(
        "log_ratio",
        "With use_opd or is_pure_opd: what opd_kl_coef weighs. log_ratio: log-prob of the teacher - log-prob of the "
        "policy. js_divergence: the same for their Jensen-Shannon divergence, (1 - opd_js_weight) x (log-prob of their "
        "mixture - log-prob of the policy). docs/distillation.md.",
    )
    opd_js_weight: float = setting(
        0.5,
        "With opd_advantage js_divergence: the teacher's share of the mixture that both are compared with.",
        gt=0,
        lt=1,
    )
    teacher: TeacherConfig | None = setting(
        None, "The teacher of all domains, or of those that `teachers` leave over; with the policy's vocabulary."
    )
    teachers: dict[str, TeacherConfig] = setting(
        {}, "Several teachers by the name of their domain. ROLL's `teacher` with names in it is understood."
    )

    @property
    @abstractmethod
    def domains(self) -> tuple[str, ...]:
        """Names of the domains that are scored."""

    @property
    def distils(self) -> bool:
        """True if a teacher has a say in advantages."""
        return self.use_opd or self.is_pure_opd

    @property
    def teacher_roles(self) -> Mapping[str, TeacherConfig]:
        """The sections of teachers by their YAML path, whether they are started or not."""
        alone = {} if self.teacher is None else {"teacher": self.teacher}
        return {**alone, **{f"teachers.{name}": worker for name, worker in self.teachers.items()}}

    @property
    def teacher_of(self) -> Mapping[str, str]:
        """The role that teaches each domain, where the run has one for it; nothing where nothing is distilled."""
        if not self.distils:
            return {}
        named = {
            domain: f"teachers.{name}"
            for name, worker in self.teachers.items()
            for domain in (*worker.tag_included, name)
        }
        others = "teacher" if self.teacher is not None else None
        if others is None and len(self.teachers) == 1:
            others = f"teachers.{next(iter(self.teachers))}"
        pairs = ((domain, named.get(domain, others)) for domain in self.domains)
        return {domain: role for domain, role in pairs if role is not None}

    def teacher_weight(self, role: str) -> float:
        """The weight of what this teacher says."""
        coef = self.teacher_roles[role].opd_kl_coef
        return self.opd_kl_coef if coef is None else coef

    @property
    def taught(self) -> Iterator[str]:
        """The roles that teach, each once."""
        return iter(dict.fromkeys(self.teacher_of.values()))

"""Settings of on-policy distillation: a teacher scores what the policy sampled, token by token."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from roll.configs.base import setting
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import Names
from roll.configs.sections.rollout import RolloutConfig


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
    is_pure_opd: bool = setting(
        False, "The same instead of the reward, which is measured where there is one and teaches nothing."
    )
    opd_kl_coef: float = setting(1.0, "With use_opd or is_pure_opd: the weight of the teacher.", ge=0)
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
        found = ((domain, named.get(domain, others)) for domain in self.domains)
        return {domain: role for domain, role in found if role is not None}

    def teacher_weight(self, role: str) -> float:
        """The weight of what this teacher says."""
        own = self.teacher_roles[role].opd_kl_coef
        return self.opd_kl_coef if own is None else own

    @property
    def taught(self) -> Iterator[str]:
        """The roles that teach, each once."""
        return iter(dict.fromkeys(self.teacher_of.values()))

"""Teachers before anything starts: contradictions in the settings of on-policy distillation, and in those that compare
whole distributions."""

from collections.abc import Iterator

from roll.configs.plan.derive import compares_vocabulary
from roll.configs.plan.layout import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import STRATEGIES, feature_problem, spec_of
from roll.configs.tables.features import FeaturePlugin

SWITCHES = ("use_opd", "is_pure_opd")


def opd_problems(config: RunConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if not isinstance(config, AlgorithmConfig):
        return
    yield from _full_kl_problems(config)
    if not config.distils:
        return
    switch = SWITCHES[config.is_pure_opd]
    if not config.teacher_roles:
        yield Problem(
            f"{switch}: no teacher is configured. Add a section `teacher` (model_args.model_name_or_path, "
            "strategy_args.strategy_name: hf_infer and a device_mapping), or remove it.",
            (switch, "teacher", "teachers"),
        )
        return
    names = ", ".join(config.domains) or "none"
    if missing := [domain for domain in config.domains if domain not in config.teacher_of]:
        yield Problem(
            f"teachers: {', '.join(missing)} has no teacher. Add a teacher of that name, add the domain to the "
            "tag_included of one, or add a section `teacher` for all others.",
            ("teachers", "teacher", "rewards"),
        )
    if len(config.teachers) > 1 or config.teacher is not None:
        for name, worker in config.teachers.items():
            for domain in (name, *worker.tag_included):
                if domain not in config.domains and not (domain == name and worker.tag_included):
                    text = f"teachers.{name} is for {domain}, but there is no such domain. Domains: {names}."
                    yield Problem(text, (f"teachers.{name}", "rewards"))
    claims: dict[str, list[str]] = {}
    for name, worker in config.teachers.items():
        for domain in dict.fromkeys((*worker.tag_included, name)):
            claims.setdefault(domain, []).append(f"teachers.{name}")
    for domain, roles in claims.items():
        if len(roles) > 1:
            text = f"{' and '.join(roles)} both teach {domain}, but a domain has one teacher only."
            yield Problem(f"{text} Take {domain} out of a tag_included.", tuple(roles))
    if config.is_pure_opd and config.needs_critic:
        yield Problem(
            f"is_pure_opd: adv_estimator: {config.adv_estimator} has a critic, which would learn from rewards that are "
            "not used. Remove the section critic, or set adv_estimator: reinforce.",
            ("is_pure_opd", "adv_estimator", "critic"),
        )


def opd_warnings(config: RunConfig) -> Iterator[str]:
    """Keys and sections without effect."""
    if not isinstance(config, AlgorithmConfig):
        return
    if config.distils:
        for role, worker in config.teacher_roles.items():
            if worker.tag_included and (role == "teacher" or len(config.teacher_roles) == 1):
                why = "the section teacher is for all other domains" if role == "teacher" else "it is the only one"
                yield f"{role}.tag_included does nothing: {why}."
        if config.is_changed("opd_js_weight") and config.opd_advantage != "js_divergence":
            yield f"opd_js_weight does nothing with opd_advantage: {config.opd_advantage}."
        idle = [role for role in config.teacher_roles if role not in set(config.taught)]
        yield from (f"{role} is not started: no domain is left for it." for role in idle)
        return
    yield from (f"{role} is not started: use_opd and is_pure_opd are off." for role in config.teacher_roles)
    for key in ("opd_kl_coef", "opd_advantage", "opd_js_weight"):
        if config.is_changed(key):
            yield f"{key} does nothing: use_opd and is_pure_opd are off."


# Checks of teachers and students that compare whole distributions: which strategies can send a teacher's head, and
# which can hold it.


def whole_head_problems(
    key: str, value: str, teacher: Choice, student: tuple[str, WorkerConfig], instead: str
) -> Iterator[Problem]:
    """Finds what keeps `key` from whole distributions. `value`: what it asks for. The student by its YAML path;
    `instead`: what to set that needs no whole head."""
    student_at, learns = student
    is_ours = spec_of(teacher.worker.strategy_name).name in STRATEGIES  # one of the user's own says so when it is asked
    if is_ours and (
        problem := feature_problem(teacher, Feature.TEACHER_HIDDEN_STATES, value, key, remedy=f"set {instead}")
    ):
        yield problem
    sizes = parallel_sizes(learns)
    if sizes.tensor > 1:
        sizes_key = f"{student_at}.strategy_args.strategy_config"
        text = f"{key}: {value} takes the head of {student_at} whole on a rank, and tensor parallel divides it by"
        yield Problem(f"{text} {sizes.tensor} ({sizes_key}). Set {instead}, or no tensor parallel.", (sizes_key, key))


# What a KL over the whole vocabulary needs, and who cannot have it.

_ESTIMATORS = "k1, k2, k3 or abs"


def _full_kl_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if "add_token_level_kl" in config.kl_terms and config.kl_penalty == "full":
        yield Problem(
            "kl_penalty: full: the KL in the reward uses old log-probs, which exist for sampled tokens only. "
            f"Choose {_ESTIMATORS}, or compare whole distributions in the loss: use_kl_loss with kl_loss_type: "
            "full.",
            ("kl_penalty", "add_token_level_kl", "kl_loss_type"),
        )
    if not compares_vocabulary(config):
        return
    if config.policy_is_reference:
        yield Problem(
            "kl_loss_type: full needs hidden states and the head of a separate reference; with "
            "actor_train.model_args.lora_target the reference is the policy without its adapters, which gives "
            f"log-probs only. Choose {_ESTIMATORS}, or train all weights.",
            ("kl_loss_type", "actor_train.model_args.lora_target"),
        )
    elif config.reference is not None:
        reference, policy = Choice(config.roles["reference"], config.reference), ("actor_train", config.actor_train)
        yield from whole_head_problems("kl_loss_type", "full", reference, policy, f"kl_loss_type: {_ESTIMATORS}")


PLUGIN = FeaturePlugin(problems=opd_problems, warnings=opd_warnings)

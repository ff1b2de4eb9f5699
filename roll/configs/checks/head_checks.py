"""Checks of teachers and students that compare whole distributions: which strategies can send a teacher's head, and
which can hold it."""

from collections.abc import Iterator

from roll.configs.plan.parallel import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import STRATEGIES, feature_problem, spec_of


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
    if sizes.tensor > 1 and not sizes.whole_head:
        sizes_key = f"{student_at}.strategy_args.strategy_config"
        text = f"{key}: {value} takes the head of {student_at} whole on a rank, and tensor parallel divides it by"
        yield Problem(f"{text} {sizes.tensor} ({sizes_key}). Set {instead}, or no tensor parallel.", (sizes_key, key))

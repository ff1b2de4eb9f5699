"""Where whole distributions of one model meet those of another that learns: who can hand over a head, and who can hold
it."""

from collections.abc import Iterator

from roll.configs.cluster import WorkerConfig
from roll.configs.plan.parallel import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.strategies.table import STRATEGIES, spec_of


def whole_head_problems(
    asked: str, key: str, teacher: tuple[str, WorkerConfig], student: tuple[str, WorkerConfig], instead: str
) -> Iterator[Problem]:
    """`asked`: what `key` asks for, as a sentence begins. Teacher and student by their YAML path; `instead`: what to
    set that needs no whole head."""
    (teacher_at, tells), (student_at, learns) = teacher, student
    spec, name_key = spec_of(tells.strategy_name), f"{teacher_at}.strategy_args.strategy_name"
    if spec.name in STRATEGIES and not spec.hands_over_head:
        able = ", ".join(name for name, each in STRATEGIES.items() if each.hands_over_head)
        text = f"{asked} takes hidden states and the head of the {teacher_at}, and {name_key}: {spec.name} hands over"
        yield Problem(f"{text} neither. Use {able}, or set {instead}.", (name_key, key))
    sizes = parallel_sizes(learns)
    if sizes.tensor > 1 and not sizes.whole_head:
        sizes_key = f"{student_at}.strategy_args.strategy_config"
        text = (
            f"{asked} takes the head of {student_at} whole on a rank, and tensor parallel divides it by {sizes.tensor}"
        )
        yield Problem(f"{text} ({sizes_key}). Set {instead}, or no tensor parallel.", (sizes_key, key))

"""The learning rates of a run in words."""

from collections.abc import Iterator

from roll.configs.load.given import Given
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig
from roll.configs.sections.training import TrainingArgs
from roll.utils.text import short

DEFAULT = " (default)"


def rate_rows(config: RunConfig, plan: RunPlan, given: Given) -> Iterator[tuple[str, ...]]:
    """The learning rate of every role that learns; the rows under "Algorithm" of a run without another algorithm."""
    for place, (role, worker) in enumerate(config.learning_roles.items()):
        key = f"{role}.training_args.learning_rate"
        lora = " with LoRA" if worker.model_args.has_lora else ""
        rate = f"{short(worker.training_args.learning_rate)}{'' if key in given else DEFAULT}"
        yield "learning rate" if not place else "", f"{role} {rate}{lora}, {_shape(worker.training_args)}"


def _shape(args: TrainingArgs) -> str:
    least = args.lr_scheduler_kwargs.get("min_lr_ratio", 0.0)
    falls = {"linear": "linear", "cosine": "cosine"}.get(args.lr_scheduler_type)
    return f"{falls} to {short(args.learning_rate * least)}" if falls else "constant"

"""What the rewards of a configuration say of themselves, as texts."""

from roll.pipeline.rlvr.judge_checks import unreachable_judges
from roll.pipeline.rlvr.reward_checks import code_problems
from roll.pipeline.rlvr.rlvr_config import RLVRConfig


def preflight(config: RLVRConfig) -> list[str]:
    """Every problem that an import shows; without one, judges that do not answer."""
    return [problem.text for problem in code_problems(config)] or list(unreachable_judges(config))

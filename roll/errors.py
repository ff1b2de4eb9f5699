"""The kinds of error a run can end with. Every message says what is wrong, where (the YAML key), and what to do."""


class RollError(Exception):
    """Base of every error that roll raises on purpose."""


class ConfigError(RollError):
    """The configuration or its plan cannot work. `problems` lists every problem found, one message each."""

    def __init__(self, *problems: str):
        self.problems = problems
        super().__init__(*problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class MissingPackage(ImportError):
    """A shipped adapter needs a package that is not installed here."""


class ResourceError(RollError):
    """Nodes, devices, ports or memory that the plan needs are not there."""


class StorageError(RollError):
    """A directory of the run cannot be written: it is full, or not ours."""


class StrategyError(RollError):
    """A strategy, or its engine, failed or was asked for something it cannot do."""


class EngineDied(StrategyError):
    """A rollout engine is gone, or broken for good: another one, or a new one, may take over its requests."""


class WorkerError(RollError):
    """A worker raised or died. Names the role, the rank and the root cause; the run cannot go on."""


class TokensElsewhere(RollError, AttributeError):
    """Tokens or texts of an attempt were read that are in the object store. It is an AttributeError as well, so that
    `hasattr` and `getattr` with a default tell whether they are here."""


class PictureError(RollError):
    """A picture of a task cannot be shown: the task fails, and is counted; the run goes on."""


class RewardError(RollError):
    """User code that scores a trajectory failed, or failed too often."""


class EnvError(RollError):
    """User code that plays an environment failed, or failed too often."""


class AlgorithmError(RollError):
    """User code that computes advantages or a loss failed, or gave what nothing can be made of."""


class TaskError(RollError):
    """Code that runs beside the main thread, and that nobody waits for, failed: the run cannot go on."""


def describe(error: BaseException) -> str:
    """`Kind: text` of any exception, also of one whose text cannot be made."""
    try:
        text = str(error)
    except BaseException:
        text = "(its message cannot be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""How many groups of trajectories may be under way, and how old they may grow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RolloutBounds:
    """`num_groups` are trained on in a step; `ahead` more may be under way; the weights are published after every
    `sync_interval` steps; no token is older than `max_staleness` steps when it is trained on. Raises ValueError where a
    step could wait for ever: what is under way has to fit into the steps that its age leaves it.

    Example: 8 groups a step that may be 1 step old: at most 16 under way.
    """

    num_groups: int
    ahead: int = 0
    sync_interval: int = 1
    max_staleness: int = 0

    def __post_init__(self) -> None:
        most = (self.max_staleness + 1) * self.num_groups
        if self.capacity > most:
            raise ValueError(
                f"{self.capacity} groups would be under way, of which only {most} can be trained on in time"
            )

    @property
    def capacity(self) -> int:
        """Groups that run, are finished, or are taken by a step and not yet published over.

        Example: 8 groups a step and 4 ahead: 12; published every second step: 20.
        """
        return self.sync_interval * self.num_groups + self.ahead

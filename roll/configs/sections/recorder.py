"""`recorder`: which rollouts of a step are kept to be looked at, and what of them."""

from typing import Literal

from roll.configs.base import Settings, setting

Choice = Literal["first", "random", "best", "worst"]


class RecorderConfig(Settings):
    """`recorder`: sample rollouts in rollout_dump_dir, for `roll report` and for people."""

    num_groups: int = setting(4, "Groups that are recorded of every step, and of every validation; 0: none.", ge=0)
    num_samples_per_group: int = setting(8, "Attempts that are recorded of each of them, at most.", ge=1)
    choose: Choice = setting(
        "first",
        "Which ones; the domains take turns in any case. first: as the step has them. random: any, drawn with seed. "
        "best, worst: those with the highest or the lowest mean reward, and of these the attempts likewise; what "
        "failed counts as lowest.",
    )
    log_prob_steps: int = setting(
        0,
        "Every so many steps the sampled tokens of these attempts are recorded with the log-prob that engine and "
        "trainer give them. Where a step computes none before training, this takes a forward pass over these rows. 0 "
        "or -1: never.",
        ge=-1,
    )
    tracked_samples: int = setting(
        0,
        "Of the recorded attempts so many go to the trackers as well, one of each group in turn: as a table to wandb, "
        "mlflow and swanlab, as text to tensorboard. 0: none leave this machine.",
        ge=0,
    )
    tracked_steps: int = setting(
        10, "With tracked_samples: those of every so many steps, and of each validation.", ge=1
    )

    def is_tracked(self, step: int, kind: str) -> bool:
        """True if trackers get samples of a step, or of a validation after it."""
        return self.tracked_samples > 0 and (kind != "train" or step % self.tracked_steps == 0)

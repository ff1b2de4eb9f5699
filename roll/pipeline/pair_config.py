"""Settings of runs that learn from pairs of answers, whatever they make of them."""

from collections.abc import Mapping
from typing import ClassVar

from roll.configs.base import setting
from roll.configs.cluster import WorkerConfig
from roll.configs.data import DataArgs
from roll.configs.limits import LARGEST
from roll.configs.roles import Role
from roll.configs.run import RunConfig

VALIDATION = Role(
    "validation",
    "none",
    also_reads=frozenset({"data_args"}),
    why_not="validation has no workers of its own: the model that learns scores its pairs",
)


class PairConfig(RunConfig):
    """Rows, their columns and their length. `learner`: the role that learns."""

    learner: ClassVar[str]

    validation: WorkerConfig | None = setting(None, "Held-out pairs (data_args). None: no validation.")
    sequence_length: int = setting(
        1024, "Longest row in tokens; see data_args.truncation and docs/data.md.", ge=2, le=LARGEST
    )
    global_template: str | None = setting(None, "Chat template of all rows; wins over data_args.template.")

    # columns
    prompt_key: str = setting(
        "prompt", "Column with the prompt, a text or messages; not read where the answers are whole conversations."
    )
    query_key: str | None = setting(None, "Column with more of the prompt, which follows it on a line of its own.")
    chosen_key: str = setting("chosen", "Column with the better answer, a text or messages.")
    rejected_key: str = setting("rejected", "Column with the worse answer, a text or messages.")
    system_key: str | None = setting(None, "Column with the system prompt. None: none but the template's own.")

    @property
    def trained_length(self) -> int:
        return self.sequence_length

    @property
    def missing_validation(self) -> str:
        return "validation" if self.validation is None else ""

    @property
    def data_args(self) -> Mapping[str, DataArgs]:
        """Those that are read, by their YAML path."""
        places = {f"{self.learner}.data_args": self.value(self.learner).data_args}
        return places if self.validation is None else places | {"validation.data_args": self.validation.data_args}

    @property
    def margin_column(self) -> str | None:
        """With how much better the better answer is, where that is read."""
        return None

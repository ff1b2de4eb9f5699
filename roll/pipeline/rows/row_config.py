"""Settings of runs whose rows are there before them, whatever they learn of them."""

from collections.abc import Mapping
from typing import ClassVar

from roll.configs.base import LARGEST, setting
from roll.configs.plan.run_plan import RunPlan, build_run_plan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import DataArgs
from roll.configs.sections.run import RunConfig
from roll.configs.tables.roles import Role

VALIDATION = Role(
    "validation",
    "none",
    also_reads=frozenset({"data_args"}),
    why_not="validation has no workers of its own: the model that learns scores its rows",
)


class RowConfig(RunConfig):
    """Rows, the columns that all kinds have, and their length. `learner`: the role that learns. `columns`,
    package.module:function, is loaded where rows are read: it makes what reads a row, of these settings."""

    rows_path = "roll.pipeline.rows.row_checks:places"
    learner: ClassVar[str]
    columns: ClassVar[str]

    validation: WorkerConfig | None = setting(None, "Held-out rows (data_args). None: no validation.")
    sequence_length: int = setting(
        1024, "Longest row in tokens; see data_args.truncation and docs/data.md.", ge=2, le=LARGEST
    )
    global_template: str | None = setting(None, "Chat template of all rows; wins over data_args.template.")
    query_key: str | None = setting(None, "Column with more of the prompt, which follows it on a line of its own.")
    system_key: str | None = setting(None, "Column with the system prompt. None: none but the template's own.")
    tools_key: str | None = setting(
        "tools",
        "Column with the tools that a row offers, if it has any: a list of JSON schemas, or its text. null: none.",
    )

    @property
    def trained_length(self) -> int:
        return self.sequence_length

    @property
    def missing_validation(self) -> str:
        return "validation" if self.validation is None else ""

    @property
    def data_args(self) -> Mapping[str, DataArgs]:
        places = {f"{self.learner}.data_args": self.value(self.learner).data_args}
        return places if self.validation is None else places | {"validation.data_args": self.validation.data_args}


def row_plan(config: RowConfig) -> RunPlan:
    """An update per step; with a validation, the model scores as well."""
    return build_run_plan(config, frozenset() if config.validation is None else frozenset({config.learner}))


# Settings of runs that learn from pairs of answers, whatever they make of them.


class PairConfig(RowConfig):
    """The columns of a pair."""

    columns = "roll.pipeline.rows.row_sources:columns"

    prompt_key: str = setting(
        "prompt", "Column with the prompt, a text or messages; not read where the responses are whole conversations."
    )
    chosen_key: str = setting("chosen", "Column with the better response, a text or messages.")
    rejected_key: str = setting("rejected", "Column with the worse response, a text or messages.")

    @property
    def margin_column(self) -> str | None:
        """Column that says by how much the better response is better; None if none is read."""
        return None

"""The builder: a form and the text of a YAML, each of which changes the other, with problems and plan below."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.events import UploadEventArguments, ValueChangeEventArguments

from roll.errors import ConfigError
from roll.report.palette import BAD
from roll.run.spec import PIPELINES
from roll.studio.form import Field, Form, form_of
from roll.studio.launch import Launched, launch
from roll.studio.pages.frame import frame, later
from roll.studio.pages.runs import short_place
from roll.studio.plans import Plan, make_plan, named_keys
from roll.studio.run_list import RunList, key_of
from roll.studio.yaml_edit import (
    NO_DRAFT,
    Draft,
    KeyPath,
    broken_line,
    draft_of,
    examples,
    get,
    imported,
    kind_of_text,
    line_of,
    set_key,
    tree_of,
    value_of,
    written,
)
from roll.utils.background import start
from roll.utils.text import visible

# The form of a YAML: the keys that most set, those that this one sets, and a search for any other.

_UNSET = ""


@dataclass(frozen=True)
class _Row:
    """A key in the form: what it is filled in with, and the label for what is wrong with it."""

    element: Element
    wrong: ui.label

    def show(self, problem: str) -> None:
        """Marks the field with a sentence; "" takes the mark away."""
        if problem:
            self.element.props("error hide-bottom-space")
        else:
            self.element.props(remove="error")
        self.wrong.set_text(visible(problem))
        self.wrong.set_visibility(bool(problem))


class FormView:
    """`changed` gets the new text when somebody has filled in a field."""

    def __init__(self, changed: Callable[[str], Awaitable[None]]):
        self._changed = changed
        self._text = ""
        self._form: Form | None = None
        self._wrong: Mapping[str, str] = {}
        self._matches: list[tuple[str, _Row]] = []
        self._rows: list[tuple[str, _Row]] = []
        self._search = ui.input("search any key", on_change=self._find).classes("full-width")
        self._search.props("dense outlined clearable debounce=300")
        self._results = ui.column().classes("full-width").style("gap: 4px")
        self._body = ui.column().classes("full-width").style("gap: 4px")

    def show(self, text: str, kind: str) -> None:
        """The fields with what a text says; as they were where it is no YAML just now."""
        try:
            tree = tree_of(text)
        except ConfigError:
            return
        self._text, self._form = text, form_of(kind)
        most = self._form.most_used()
        known = {field.path for field in most}
        others = [field for field in self._form.set_in(tree) if field.path not in known]
        self._body.clear()
        with self._body:
            self._rows = self._section("most used", most, tree)
            ordered = sorted(others, key=lambda field: field.section)
            for section, fields in groupby(ordered, key=lambda field: field.section):
                self._rows += self._section(section or "top of the YAML", list(fields), tree)
        self._find()

    def mark(self, problems: Mapping[str, str]) -> None:
        """Marks the fields of these keys with what is wrong, and no other."""
        self._wrong = problems
        for key, row in (*self._rows, *self._matches):
            row.show(problems.get(key, ""))

    def _find(self) -> None:
        self._results.clear()
        self._matches = []
        query = self._search.value or ""
        if self._form is None or not query.strip():
            return
        tree = tree_of(self._text)
        with self._results:
            matches = self._form.search(query, tree)
            title = f"found: {len(matches)}" if matches else "no key has these words"
            self._matches = self._section(title, matches, tree)

    def _section(self, title: str, fields: list[Field], tree: dict[str, Any]) -> list[tuple[str, _Row]]:
        with (
            ui.expansion(visible(title), value=True).classes("full-width card").props("dense").style("padding: 2px 8px")
        ):
            return [(field.key, self._row(field, get(tree, field.path))) for field in fields]

    def _row(self, field: Field, value: Any) -> _Row:
        with ui.column().classes("full-width q-mb-sm").style("gap: 0"):
            wrong = ui.label().classes("text-caption text").style(f"color: {BAD}")
            element = self._input(field, value, visible(field.key), wrong).mark(field.key)
            wrong.move(target_index=1)
            default = "" if field.default is None or "Default:" in field.help else f" Default: {written(field.default)}"
            ui.label(visible(field.help + default)).classes("soft text-caption text")
        row = _Row(element, wrong)
        row.show(self._wrong.get(field.key, ""))
        return row

    def _input(self, field: Field, value: Any, label: str, wrong: ui.label) -> Element:
        async def change(event: ValueChangeEventArguments[Any]) -> None:
            await self._set(field, event.value, wrong)

        if field.kind == "switch" and (value is None or isinstance(value, bool)):
            is_on = bool(field.default) if value is None else value
            return ui.switch(label, value=is_on, on_change=change).props("dense").classes("q-my-xs")
        shown = _UNSET if value is None else value if isinstance(value, str) else written(value)
        if field.choices:
            options = list(dict.fromkeys([_UNSET, *field.choices, shown]))
            mode = "add-unique" if field.kind == "text" else None
            select = ui.select(
                options, value=shown, label=label, on_change=change, with_input=True, new_value_mode=mode
            )
            return select.classes("full-width").props("dense outlined stack-label options-dense")
        text = ui.input(label, value=shown, on_change=change).classes("full-width")
        return text.props("dense outlined stack-label debounce=300 spellcheck=false")

    async def _set(self, field: Field, entered: Any, wrong: ui.label) -> None:
        is_text = field.kind == "text" or isinstance(entered, bool) or entered in field.choices  # "off" is no false
        try:
            value = None if entered in (None, _UNSET) else entered if is_text else value_of(str(entered))
            self._text = set_key(self._text, field.path, value)
        except ConfigError as error:
            wrong.set_text(visible(str(error)))
            wrong.set_visibility(True)
            return
        await self._changed(self._text)


_PAUSE_S = 0.3  # without a key pressed in the text, before the plan is made; fields wait as long by themselves
_FIRST_DRAFT = "tiny-sort/tiny_sort"
_MOST_UPLOAD_BYTES = 2_000_000
_MOST_RUNS = 50  # to begin from


_STYLE = f"""
.builder {{ display: grid; grid-template-columns: minmax(0, 46fr) minmax(0, 54fr); gap: 14px; width: 100%;
  height: calc(100vh - 205px); }}
.builder > div {{ min-height: 0; overflow-y: auto; }}
.builder .beside {{ display: grid; grid-template-rows: minmax(0, 58fr) minmax(0, 42fr); gap: 12px; overflow: hidden; }}
.builder .beside > * {{ min-width: 0; min-height: 0; }}
.builder .below {{ overflow-y: auto; }} .builder .dim {{ opacity: .4; }} .narrow {{ display: none; }}
.builder .q-toggle__label {{ overflow-wrap: anywhere; }}
.builder .cm-editor {{ height: 100%; }} .wrong-line {{ background: {BAD}2e; box-shadow: inset 3px 0 {BAD}; }}
body.body--dark .builder .cm-editor {{ background: #fff; filter: invert(.88) hue-rotate(180deg); }}
@media (max-width: 700px) {{
  .builder {{ grid-template-columns: minmax(0, 1fr); height: auto; }} .builder > div {{ overflow: visible; }}
  .builder .beside {{ grid-template-rows: 320px auto; }} .narrow {{ display: flex; }}
  .builder.text .fields, .builder.form .beside {{ display: none; }}
}}
"""


def add(folder: Path, launches: dict[str, Launched], run_list: RunList) -> None:
    @ui.page("/new")
    def page(run: str = "") -> None:
        async def build() -> None:
            drafts, first = await asyncio.to_thread(_first_look, run_list, run)
            Builder(folder, launches, drafts).begin(first)

        ui.add_css(_STYLE)
        with frame("New run", "New run"):
            later(build)


def _first_look(run_list: RunList, key: str) -> tuple[list[Draft], Draft | None]:
    """The runs, the latest first, then the examples, and the draft of the run with a key; reads the forms of all kinds
    as well, so that later ones are at hand."""
    for kind in PIPELINES:
        form_of(kind)
    runs: dict[str, Draft] = {}
    for each, files in run_list.files():
        if len(runs) < _MOST_RUNS or each == key:
            draft = draft_of(files, f"run {short_place(files.directory, run_list.folders)}")
            runs |= {each: draft} if draft is not None else {}
    return [*runs.values(), *examples()], runs.get(key)


class Builder:
    """The text is what counts; the form shows it and changes it key by key."""

    def __init__(self, folder: Path, launches: dict[str, Launched], drafts: list[Draft]):
        self._folder, self._launches = folder, launches
        self._drafts = {draft.name: draft for draft in drafts}
        self._text, self._draft = "", NO_DRAFT
        self._edits = 0
        self._planning: asyncio.Task[Plan] | None = None
        ui.context.client.on_delete(self._leave)
        kinds = [*PIPELINES]
        with ui.row().classes("items-center full-width").style("gap: 10px"):
            ui.label("New run").classes("text-h5 q-mr-sm")
            self._kind = ui.select(kinds, value=kinds[0], label="kind of run", on_change=self._choose_kind)
            self._example = ui.select([], label="begin from", on_change=self._choose_example, with_input=True)
            for field, width in ((self._kind, "130px"), (self._example, "320px")):
                field.props("dense outlined options-dense").style(f"width: {width}; max-width: 100%")
            ui.space()
            self._elsewhere = ui.checkbox("for another machine", on_change=self._plan_anew)
            self._elsewhere.tooltip("The plan does not look for files that only the other machine has.")
            ui.button("Import", on_click=self._open_import, icon="upload").props("flat no-caps")
            ui.button("Download", on_click=self._download, icon="download").props("flat no-caps")
            self._run = ui.button("Run", on_click=self._open_run, icon="play_arrow").props("no-caps")
            self._run.disable()
        with ui.row().classes("items-center full-width"):
            shown = ui.toggle({"form": "Form", "text": "YAML and plan"}, value="form").props("no-caps dense")
            shown.classes("narrow")  # a phone shows one of the two
            shown.on_value_change(lambda: self._panes.classes(replace=f"builder {shown.value}"))
            self._state = ui.label().classes("text-weight-medium")
            self._place = ui.label().classes("soft mono text")
        with ui.element("div").classes("builder form") as self._panes:
            with ui.element("div").classes("fields"):
                self._form = FormView(self._set_text)
            with ui.element("div").classes("beside"):
                self._editor = ui.codemirror("", language="YAML", on_change=self._typed)
                self._editor.classes("full-width card").style("height: 100%; padding: 0; font-size: 12px")
                with ui.element("div").classes("below") as self._outcome:
                    self._problems = ui.column().classes("full-width").style("gap: 6px")
                    self._plan = ui.label().classes("mono text card full-width")

    def begin(self, first: Draft | None = None) -> None:
        """Begins from a draft: that one, else an example. Planning what a run says may run code of whoever wrote it, so
        that somebody must choose the run."""
        others = (draft for draft in self._drafts.values() if not draft.is_of_run)
        first = first or self._drafts.get(_FIRST_DRAFT) or next(others, None)
        if first is not None and first.kind in PIPELINES:
            self._kind.set_value(first.kind)
        self._offer()
        if first is None:
            self._form.show(self._text, self._kind.value)
        else:
            self._example.set_value(first.name)

    def _offer(self) -> None:
        kind = self._kind.value
        self._example.set_options([name for name, draft in self._drafts.items() if draft.kind in (kind, "stages")])

    def _choose_kind(self) -> None:
        if kind_of_text(self._text) == self._kind.value:  # chosen because of the text
            return
        self._offer()
        drafts = (draft for draft in self._drafts.values() if draft.kind == self._kind.value and not draft.is_of_run)
        self._example.set_value(next((draft.name for draft in drafts), None))

    async def _choose_example(self) -> None:
        if self._example.value in self._drafts:
            self._begin_in(self._drafts[self._example.value])
            await self._replace(self._draft.text)

    def _begin_in(self, draft: Draft) -> None:
        self._draft = draft
        code = f", with code from {', '.join(draft.folders)}" if draft.folders else ""
        self._place.set_text(visible(f"in {draft.directory or Path.cwd()}{code}" if draft.is_of_run else ""))

    async def _replace(self, text: str) -> None:
        """Another text as a whole."""
        if self._state.is_deleted:  # the page was left
            return
        self._text = text
        self._editor.set_value(text)
        self._mark({}, {})
        self._show_form()
        await self._think(0.0)

    async def _plan_anew(self) -> None:
        await self._think(0.0)

    async def _typed(self, event: ValueChangeEventArguments[str]) -> None:
        if event.value == self._text:  # what the form wrote
            return
        self._text = event.value
        if await self._think(_PAUSE_S):
            self._show_form()

    async def _set_text(self, text: str) -> None:
        """Shows the text that the form made."""
        self._text = text
        self._editor.set_value(text)
        await self._think(_PAUSE_S)

    def _show_form(self) -> None:
        kind = kind_of_text(self._text)
        if kind is not None and kind != self._kind.value:
            self._kind.set_value(kind)
            self._offer()
        self._form.show(self._text, self._kind.value)

    async def _think(self, pause_s: float) -> bool:
        """Makes the plan once nobody has typed for a moment; False where somebody has, or has left the page."""
        self._edits += 1
        mine, text = self._edits, self._text
        if self._planning is not None:
            self._planning.cancel()
        self._run.disable()
        self._outcome.classes(add="dim")
        self._state.set_text("planning ...")
        self._state.classes(replace="text-weight-medium soft")
        await asyncio.sleep(pause_s)
        if mine != self._edits or self._state.is_deleted:
            return False
        self._planning = start(make_plan(text, "new", bool(self._elsewhere.value), self._draft))
        with suppress(asyncio.CancelledError):
            plan = await self._planning
            if mine == self._edits and not self._state.is_deleted:
                self._show_plan(plan)
        return mine == self._edits and not self._state.is_deleted

    def _leave(self) -> None:
        if self._planning is not None:
            self._planning.cancel()

    def _show_plan(self, plan: Plan) -> None:
        count = len(plan.problems)
        wrong = f"It cannot start: {count} problems" if count > 1 else "It cannot start: 1 problem"
        message, color = ("The plan works.", "text-positive") if plan.is_good else (wrong, "text-negative")
        self._state.set_text(message)
        self._state.classes(replace=f"text-weight-medium {color}")
        self._outcome.classes(remove="dim")
        self._run.set_enabled(plan.is_good and not self._elsewhere.value)
        places = [(problem, self._keys(problem)) for problem in plan.problems]
        self._problems.clear()
        wrong_lines: dict[int, str] = {}
        with self._problems:
            for problem, paths in places:
                lines = [line for path in paths if (line := line_of(self._text, path)) is not None]
                if not lines and (line := broken_line(self._text)) is not None:
                    lines = [line]
                for line in lines:
                    wrong_lines.setdefault(line, visible(problem))
                self._problem(visible(problem), lines)
        self._mark({".".join(path): text for text, paths in reversed(places) for path in paths}, wrong_lines)
        self._plan.set_text(visible(plan.text))
        self._plan.set_visibility(bool(plan.text))

    def _mark(self, fields: Mapping[str, str], lines: Mapping[int, str]) -> None:
        """Marks fields by their keys, and lines of the text, with what is wrong, and no others."""
        self._form.mark(fields)
        self._editor.decorations = [{"kind": "line", "line": line, "class": "wrong-line"} for line in lines]
        self._editor.line_tooltips = dict(lines)

    def _problem(self, text: str, lines: Sequence[int]) -> None:
        """A card with what is wrong, and links to the lines of the text."""
        with ui.element("div").classes("card full-width").style(f"border-left: 4px solid {BAD}"):
            for line in dict.fromkeys(lines):
                button = ui.button(f"line {line}", on_click=partial(self._editor.reveal_line, line))
                button.props("flat dense no-caps size=sm").classes("q-mr-sm")
            ui.label(text).classes("text").style("display: inline")

    def _keys(self, problem: str) -> list[KeyPath]:
        """The keys of this kind of run, or of the text, that a problem names."""
        form = form_of(self._kind.value)
        try:
            tree = tree_of(self._text)
        except ConfigError:
            return []

        def is_key(path: KeyPath) -> bool:
            above = get(tree, path[:-1])
            return form.field(path) is not None or (isinstance(above, dict) and path[-1] in above)

        return named_keys(problem, is_key)

    def _download(self) -> None:
        ui.download.content(self._text, "run.yaml", "application/yaml")

    def _open_run(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card().style("width: 460px; max-width: 92vw"):
            ui.label("Run this configuration").classes("text-h6")
            name = ui.input("name").props("autofocus outlined dense").classes("full-width")
            place = ui.label().classes("soft")
            name.on_value_change(lambda: place.set_text(f"It writes to {self._folder / (name.value or '...')}."))
            wrong = ui.label().classes("text-red-8 text")

            async def go() -> None:
                try:
                    launched = await asyncio.to_thread(launch, self._folder, name.value or "", self._text, self._draft)
                except ConfigError as error:
                    wrong.set_text("\n".join(error.problems))
                    return
                key = key_of(launched.directory)
                self._launches[key] = launched
                if not wrong.is_deleted:
                    ui.navigate.to(f"/run/{key}")

            with ui.row().classes("full-width justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
                ui.button("Start", on_click=go).props("no-caps")

    def _open_import(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card().style("width: 760px; max-width: 92vw"):
            ui.label("Import a configuration").classes("text-h6")
            ui.label("A YAML or a shell script of verl, a YAML of Trinity-RFT or of an older ROLL.").classes("soft")
            label = ui.label().classes("mono text full-width")
            wrong = ui.label().classes("text-red-8 text")

            async def take(event: UploadEventArguments) -> None:
                try:
                    text, report = await asyncio.to_thread(imported, event.file.name, await event.file.read())
                except ConfigError as error:
                    wrong.set_text(visible("\n".join(error.problems)))
                    return
                finally:
                    upload.reset()
                wrong.set_text("")
                label.set_text(visible(report))
                self._begin_in(NO_DRAFT)
                await self._replace(text)

            upload = ui.upload(on_upload=take, auto_upload=True, max_file_size=_MOST_UPLOAD_BYTES)
            upload.style("display: none")
            choose = ui.button("Choose a file", icon="upload_file").props("no-caps outline").move(target_index=2)
            choose.on("click", js_handler=f"() => getElement({upload.id}).$refs.qRef.pickFiles()")
            ui.button("Close", on_click=dialog.close).props("flat no-caps")

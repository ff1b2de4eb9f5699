"""The builder: a form and the text of a YAML, each of which changes the other, with problems and plan below."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.events import UploadEventArguments, ValueChangeEventArguments

from roll.errors import ConfigError
from roll.run.spec import PIPELINES
from roll.studio.form import Field, Form, form_of
from roll.studio.launch import Launched, Plan, launch, plan_of
from roll.studio.pages.frame import frame, later
from roll.studio.run_list import key_of
from roll.studio.yaml_edit import Draft, examples, get, imported, kind_of_text, set_key, tree_of, value_of, written
from roll.utils.background import start
from roll.utils.text import visible

# The form of a YAML: the keys that most set, those that this one sets, and a search for any other.

_UNSET = ""


class FormView:
    """`changed` gets the new text when somebody has filled in a field."""

    def __init__(self, changed: Callable[[str], Awaitable[None]]):
        self._changed = changed
        self._text = ""
        self._form: Form | None = None
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
            self._section("most used", most, tree)
            ordered = sorted(others, key=lambda field: field.section)
            for section, fields in groupby(ordered, key=lambda field: field.section):
                self._section(section or "top of the YAML", list(fields), tree)
        self._find()

    def _find(self) -> None:
        self._results.clear()
        query = self._search.value or ""
        if self._form is None or not query.strip():
            return
        tree = tree_of(self._text)
        with self._results:
            matches = self._form.search(query, tree)
            self._section(f"found: {len(matches)}" if matches else "no key has these words", matches, tree)

    def _section(self, title: str, fields: list[Field], tree: dict[str, Any]) -> None:
        with (
            ui.expansion(visible(title), value=True).classes("full-width card").props("dense").style("padding: 2px 8px")
        ):
            for field in fields:
                self._row(field, get(tree, field.path), field.key)

    def _row(self, field: Field, value: Any, label: str) -> None:
        with ui.column().classes("full-width q-mb-sm").style("gap: 0"):
            self._input(field, value, visible(label)).classes("full-width").props("dense outlined stack-label")
            default = "" if field.default is None or "Default:" in field.help else f" Default: {written(field.default)}"
            ui.label(visible(field.help + default)).classes("soft text-caption")

    def _input(self, field: Field, value: Any, label: str) -> Element:
        shown = _UNSET if value is None else value if isinstance(value, str) else written(value)
        options = ["true", "false"] if field.kind == "switch" else list(field.choices)

        async def change(event: ValueChangeEventArguments[Any]) -> None:
            await self._set(field, event.value, element)

        if field.kind in ("switch", "choice"):
            options = list(dict.fromkeys([_UNSET, *options, shown]))
            element = ui.select(options, value=shown, label=label, on_change=change)
            element.props("options-dense")
        else:
            element = ui.input(label, value=shown, on_change=change).props("debounce=500 spellcheck=false")
        return element.mark(field.key)

    async def _set(self, field: Field, entered: Any, element: Element) -> None:
        try:
            value = value_of(entered) if entered not in (None, _UNSET) and field.kind != "text" else entered or None
            self._text = set_key(self._text, field.path, value)
        except ConfigError as error:
            element.props(f"error error-message={written(visible(str(error)))!r}")
            return
        element.props(remove="error error-message")
        await self._changed(self._text)


_PAUSE_S = 0.8  # without a key pressed, before the plan is made
_MOST_UPLOAD_BYTES = 2_000_000


def add(folder: Path, launches: dict[str, Launched]) -> None:
    @ui.page("/new")
    def page() -> None:
        async def build() -> None:
            Builder(folder, launches, await asyncio.to_thread(_first_look)).begin()

        with frame("New run", "New run"):
            later(build)


def _first_look() -> list[Draft]:
    """The examples; reads the forms of all kinds as well, so that later ones are at hand."""
    for kind in PIPELINES:
        form_of(kind)
    return examples()


class Builder:
    """The text is what counts; the form shows it and changes it key by key."""

    def __init__(self, folder: Path, launches: dict[str, Launched], drafts: list[Draft]):
        self._folder, self._launches = folder, launches
        self._drafts = {draft.name: draft for draft in drafts}
        self._text = ""
        self._edits = 0
        self._planning: asyncio.Task[Plan] | None = None
        ui.context.client.on_delete(self._leave)
        kinds = [*PIPELINES]
        with ui.row().classes("items-center full-width").style("gap: 10px"):
            ui.label("New run").classes("text-h5 q-mr-sm")
            self._kind = ui.select(kinds, value=kinds[0], label="kind of run", on_change=self._choose_kind)
            self._example = ui.select([], label="begin from", on_change=self._choose_example, with_input=True)
            for field, width in ((self._kind, "130px"), (self._example, "320px")):
                field.props("dense outlined options-dense").style(f"width: {width}")
            ui.space()
            self._elsewhere = ui.checkbox("for another machine", on_change=self._plan_anew)
            self._elsewhere.tooltip("The plan does not look for files and logins that only the other machine has.")
            ui.button("Import", on_click=self._open_import, icon="upload").props("flat no-caps")
            ui.button("Download", on_click=self._download, icon="download").props("flat no-caps")
            self._run = ui.button("Run", on_click=self._open_run, icon="play_arrow").props("no-caps")
        with ui.splitter(value=46).classes("full-width").style("height: calc(100vh - 150px)") as splitter:
            with splitter.before, ui.scroll_area().style("height: 100%").classes("q-pr-sm"):
                self._form = FormView(self._set_text)
            with (
                splitter.after,
                ui.splitter(value=58, horizontal=True).classes("q-pl-sm").style("height: 100%") as right,
            ):
                with right.before:
                    self._editor = ui.codemirror("", language="YAML", on_change=self._typed)
                    self._editor.classes("full-width card").style("height: 100%; padding: 0; font-size: 12px")
                with right.after, ui.scroll_area().style("height: 100%"):
                    self._state = ui.label().classes("text-weight-medium")
                    self._problems = ui.column().classes("full-width").style("gap: 6px")
                    self._plan = ui.label().classes("mono text card full-width")

    def begin(self) -> None:
        self._offer()
        first = next((name for name, draft in self._drafts.items() if draft.kind == self._kind.value), None)
        self._example.set_value(first)
        if first is None:
            self._form.show(self._text, self._kind.value)

    def _offer(self) -> None:
        kind = self._kind.value
        self._example.set_options([name for name, draft in self._drafts.items() if draft.kind in (kind, "stages")])

    def _choose_kind(self) -> None:
        if kind_of_text(self._text) == self._kind.value:  # chosen because of the text
            return
        self._offer()
        names = [name for name, draft in self._drafts.items() if draft.kind == self._kind.value]
        self._example.set_value(names[0] if names else None)

    async def _choose_example(self) -> None:
        if self._example.value in self._drafts:
            await self._replace(self._drafts[self._example.value].text)

    async def _replace(self, text: str) -> None:
        """Another text as a whole."""
        if self._state.is_deleted:  # the page was left
            return
        self._text = text
        self._editor.set_value(text)
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
        await asyncio.sleep(pause_s)
        if mine != self._edits or self._state.is_deleted:
            return False
        self._state.set_text("planning ...")
        self._state.classes(replace="text-weight-medium soft")
        self._planning = start(plan_of(text, "new", bool(self._elsewhere.value)))
        with suppress(asyncio.CancelledError):
            plan = await self._planning
            if mine == self._edits and not self._state.is_deleted:
                self._show_plan(plan)
        return mine == self._edits and not self._state.is_deleted

    def _leave(self) -> None:
        if self._planning is not None:
            self._planning.cancel()

    def _show_plan(self, plan: Plan) -> None:
        message, color = ("The plan works.", "text-green-8") if plan.is_good else ("It cannot start:", "text-red-8")
        self._state.set_text(message)
        self._state.classes(replace=f"text-weight-medium {color}")
        self._problems.clear()
        with self._problems:
            for problem in plan.problems:
                ui.label(visible(problem)).classes("text card full-width").style("border-left: 4px solid #cf4332")
        self._plan.set_text(visible(plan.text))
        self._plan.set_visibility(bool(plan.text))

    def _download(self) -> None:
        ui.download.content(self._text, "run.yaml", "application/yaml")

    def _open_run(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card().style("min-width: 420px"):
            ui.label("Run this configuration").classes("text-h6")
            name = ui.input("name").props("autofocus outlined dense").classes("full-width")
            place = ui.label().classes("soft")
            name.on_value_change(lambda: place.set_text(f"It writes to {self._folder / (name.value or '...')}."))
            wrong = ui.label().classes("text-red-8 text")

            async def go() -> None:
                try:
                    launched = await asyncio.to_thread(launch, self._folder, name.value or "", self._text)
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
        with ui.dialog(value=True) as dialog, ui.card().style("min-width: 760px; max-width: 90vw"):
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
                wrong.set_text("")
                label.set_text(visible(report))
                await self._replace(text)

            upload = ui.upload(
                on_upload=take, auto_upload=True, max_file_size=_MOST_UPLOAD_BYTES, label="choose a file"
            )
            upload.classes("full-width").move(target_index=2)
            ui.button("Close", on_click=dialog.close).props("flat no-caps")

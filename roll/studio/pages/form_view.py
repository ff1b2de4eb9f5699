"""The form of a YAML: the keys that most set, those that this one sets, and a search for any other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.events import ValueChangeEventArguments

from roll.errors import ConfigError
from roll.studio.form import Field, Form, form_of
from roll.studio.yaml_edit import get, set_key, tree_of, value_of, written
from roll.utils.text import visible

_UNSET = ""


class FormView:
    """`changed` gets the new text when somebody has filled in a field."""

    def __init__(self, changed: Callable[[str], Awaitable[None]]):
        self._changed = changed
        self._text = ""
        self._form: Form | None = None
        self._search = ui.input("search any key", on_change=self._find).classes("full-width")
        self._search.props("dense outlined clearable debounce=300")
        self._found = ui.column().classes("full-width").style("gap: 4px")
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
        self._found.clear()
        words = self._search.value or ""
        if self._form is None or not words.strip():
            return
        tree = tree_of(self._text)
        with self._found:
            found = self._form.search(words, tree)
            self._section(f"found: {len(found)}" if found else "no key has these words", found, tree)

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

    async def _set(self, field: Field, given: Any, element: Element) -> None:
        try:
            value = value_of(given) if given not in (None, _UNSET) and field.kind != "text" else given or None
            self._text = set_key(self._text, field.path, value)
        except ConfigError as error:
            element.props(f"error error-message={written(visible(str(error)))!r}")
            return
        element.props(remove="error error-message")
        await self._changed(self._text)

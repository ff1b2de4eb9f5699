"""The JSON schema of a kind of run's YAML, for editors: they complete keys, show what each means, and mark slips.

It lets more pass than a dry run, never less: values that a key turns into its own form, `${...}`, null, and at the top
of the YAML helper variables."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from roll.configs.base import Settings, nested_class
from roll.configs.load.known_keys import foreign_keys, inert_keys
from roll.configs.sections.run import StageConfig

_ANYTHING: tuple[JsonSchemaValue, ...] = ({"type": "null"}, {"type": "string", "pattern": r"\$\{"})


class _Open(GenerateJsonSchema):
    """Makes a schema that also accepts the loose forms of a key that a validator normalises first."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner, form = self.generate_inner(schema["schema"]), cast("dict[str, Any]", schema["schema"])
        while form["type"].startswith("function-"):
            form = form["schema"]
        return inner if form["type"] in ("model", "model-fields") else {"anyOf": [inner, {}]}


def schema_of(cls: type[Settings]) -> dict[str, Any]:
    """The schema of a YAML with these settings, or of stages of them."""
    schema: dict[str, Any] = cls.model_json_schema(schema_generator=_Open)
    classes = {each.__name__: each for each in _classes(cls)}
    for name, section in schema["$defs"].items():
        if name in classes:
            _complete(section, classes[name])
    _complete(schema, cls)
    entry: dict[str, Any] = StageConfig.model_json_schema(schema_generator=_Open)
    del entry["additionalProperties"]
    stages = "Kinds of training that run one after the other, each with what it changes. docs/stages.md."
    schema["properties"]["stages"] = {
        "description": stages,
        "type": "array",
        "items": {"allOf": [{"$ref": "#"}, entry]},
    }
    schema["additionalProperties"] = True
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _complete(section: dict[str, Any], cls: type[Settings]) -> None:
    """Opens the keys of one section, and adds those that do nothing or are of other systems. What must be there may
    come from a fragment."""
    section.pop("required", None)
    section.pop("description", None)
    properties: dict[str, Any] = section.setdefault("properties", {})
    for key, value in properties.items():
        properties[key] = _opened(value)
    for key, inert in inert_keys(cls).items():
        properties[key] = {"description": f"{inert.help} It does nothing here."}
    for key in foreign_keys(cls) - properties.keys():
        properties[key] = {}


def _opened(value: Mapping[str, Any]) -> dict[str, Any]:
    described = {key: value[key] for key in ("description", "default") if key in value}
    form = {key: inner for key, inner in value.items() if key not in (*described, "title")}
    return {**described, "anyOf": [*(_entries_opened(each) for each in form.get("anyOf", [form])), *_ANYTHING]}


def _entries_opened(form: Mapping[str, Any]) -> dict[str, Any]:
    """The same of what a list or a mapping holds."""
    inner = {key: form[key] for key in ("items", "additionalProperties") if isinstance(form.get(key), dict)}
    return {**form, **{key: _opened(value) for key, value in inner.items()}}


def _classes(cls: type[Settings]) -> Iterator[type[Settings]]:
    """A class of settings, and those of the sections in it."""
    yield cls
    for field in cls.model_fields.values():
        if (inner := nested_class(field.annotation)) is not None:
            yield from _classes(inner)

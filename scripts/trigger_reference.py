"""The page ``docs/reference/triggers.md``: the fields of a triggers block and its presets, from their models."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from airflow_provider_rfr.webhooks._fields import Signing, Success, When
from airflow_provider_rfr.webhooks._model import TriggerModel
from airflow_provider_rfr.webhooks.block import Endpoint, Retry, TriggerBlock
from airflow_provider_rfr.webhooks.presets import PRESETS, Preset
from scripts.model_schema import field_notes
from scripts.trigger_schema import _SPELLING, schema_text

_HEAD: Final = """# Fields of webhooks

The fields of a [triggers block](../webhooks_configuration.md), and the parameters of each preset. Names are read in
`camelCase` and in `snake_case`, except for `timeoutSecs` and `maxRetries`. Durations are a whole number and `s`, `m`,
`h` or `d`. `airflow rfr triggers schema` prints the JSON schema for editors and forms, in which secrets are marked.

<!-- Written by python -m scripts.reference, from airflow_provider_rfr/webhooks. -->
"""
_TABLE: Final = "| Field | Default | Meaning |\n|---|---|---|"
_ENDPOINT: Final = """
Each endpoint has one of `url` and `connection`, unless its preset knows the address, and one of `payload`,
`payloadTemplate` and `preset`.
"""
_PRESETS: Final = """
`with` holds the parameters. Their texts are templates, except for names and secrets. Text beyond a receiver's limit is
cut. Fields of the endpoint take precedence over those of its preset.
"""
_INSIDE: Final[Mapping[str, type[TriggerModel]]] = {
    "retry": Retry,
    "when": When,
    "success": Success,
    "signing": Signing,
}


def trigger_fields() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _HEAD
    yield "## Block"
    yield ""
    yield from _table(TriggerBlock)
    yield ""
    yield "## Endpoint"
    yield _ENDPOINT
    yield from _table(Endpoint)
    yield ""
    yield "## Presets"
    yield _PRESETS
    for name, preset in sorted(PRESETS.items()):
        yield f"### `{name}`"
        yield ""
        yield f"{_about(preset)} {_call(preset)}"
        yield ""
        yield from _table(preset)
        yield ""


def _about(preset: type[Preset]) -> str:
    return " ".join(_text(preset).split("\n\n")[0].split())


def _call(preset: type[Preset]) -> str:
    receiver = preset.receiver
    path = re.sub(r"\{(\w+)\}", lambda match: "{" + _spelled(match[1]) + "}", receiver.path)
    answers = " and ".join(f"`{status}`" for status in receiver.success.status)
    condition = f" whose answer says `{receiver.success.equals}`" if receiver.success.equals else ""
    called = f"It calls `{receiver.base}{path}`; " if receiver.base or path else "It calls the address itself; "
    return f"{called}delivered is {answers}{condition}."


def _table(model: type[TriggerModel]) -> Iterator[str]:
    yield _TABLE
    # Required fields come first.
    yield from sorted(_rows(model, ""), key=lambda row: " | required | " not in row)


def _rows(model: type[TriggerModel], prefix: str) -> Iterator[str]:
    schema = _schema_of(model)
    fields = schema["properties"]
    notes = {
        name if name in fields else _spelled(name): note.replace("``", "`") for name, note in field_notes(model).items()
    }
    for name in model.spellings():
        if name in _INSIDE:
            yield from _rows(_INSIDE[name], f"{name}.")
        elif name in fields:
            node = fields[name]
            is_required = name in schema.get("required", ()) and not prefix
            default = "required" if is_required else _default(node)
            yield f"| `{prefix}{name}` | {default} | {_meaning(notes[name].replace('``', '`'), node)} |"


def _schema_of(model: type[TriggerModel]) -> Mapping[str, Any]:
    schema: dict[str, Any] = json.loads(schema_text())
    return schema if model is TriggerBlock else schema["$defs"][model.__name__]


def _default(node: Mapping[str, Any]) -> str:
    default = node.get("default")
    if default in (None, "", []):
        return ""
    if isinstance(default, list):
        return ", ".join(f"`{value}`" for value in default)
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _meaning(note: str, node: Mapping[str, Any]) -> str:
    """Return the cell that explains a field: its note, its values or bounds, and whether it is secret."""
    values = node.get("enum", ())
    if values and not all(value in note for value in values) and "preset" not in note:
        note += ": " + ", ".join(f"`{value}`" for value in values)
    if "minimum" in node and ("maximum" in node or "exclusiveMaximum" in node):
        note += f"; {node['minimum']} to {node.get('maximum', node.get('exclusiveMaximum', 1) - 1)}"
    if node.get("secret"):
        note += "; secret"
    return note[:1].upper() + note[1:]


def _spelled(name: str) -> str:
    return _SPELLING.get(name, to_camel(name))


def _text(model: type) -> str:
    return inspect.cleandoc(model.__doc__ or "").replace("``", "`")

"""Parts of a DAG's parameter form: values are checked when somebody triggers a run, before there is any task."""

from __future__ import annotations

from typing import Any

from airflow_provider_rfr.refresh.config import RefreshOptions

_START, _REST = r"(?:[A-Za-z_]|\{stream\})", r"(?:[A-Za-z0-9_-]|\{stream\})"
TARGET_PATTERN = rf"^{_START}{_REST}*(?:\.{_START}{_REST}*)+$"
"""``namespace.table``, with ``{stream}`` anywhere in it."""


def options_schema(*without: str) -> dict[str, Any]:
    """JSON schema of the refresh's options, as keywords of a ``Param``: unknown names and wild values are refused.

    :param without: options that the form has a field of its own for
    """
    schema = RefreshOptions.model_json_schema()
    left = {name: field for name, field in schema["properties"].items() if name not in without}
    return {"type": "object", "properties": left, "additionalProperties": False, "$defs": schema["$defs"]}

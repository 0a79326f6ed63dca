"""What JSON schemas find wrong with a configuration and with a manifest: field and problem, and no value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def config_problems(specification: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Field and problem of what does not fit the manifest's specification; no value is named."""
    from jsonschema import Draft7Validator

    for error in Draft7Validator(specification).iter_errors(config):
        place = ".".join(["config", *map(str, error.absolute_path)])
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield from ((f"{place}.{name}", "is missing") for name in missing)
        else:
            yield place, f"does not fit the manifest's specification, {_said(error)}"


def manifest_problem(error: Any) -> str | None:
    """Place and problem, if an error says that a manifest does not fit the CDK's schema; no value is named."""
    from jsonschema import ValidationError

    while error is not None and not (isinstance(error, ValidationError) and error.absolute_path):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    while error.context:
        # Of several components that it may be, the one of its type; else it is of none of them.
        others = {each.schema_path[0] for each in error.context if "type" in each.relative_path}
        fitting = [each for each in error.context if each.schema_path[0] not in others]
        if not fitting:
            types = {kind for each in error.context if each.validator == "enum" for kind in each.validator_value}
            return f"{_place(error)}.type: must be one of {', '.join(sorted(types))}"
        error = max(fitting, key=lambda each: len(each.absolute_path))
    return f"{_place(error)}: does not fit the CDK's schema, {_said(error)}"


def _place(error: Any) -> str:
    return ".".join(map(str, error.absolute_path))


def _said(error: Any) -> str:
    """What a schema says, e.g. ``type: integer``."""
    wanted = error.validator_value
    return f"{error.validator}: {', '.join(map(str, wanted)) if isinstance(wanted, list) else wanted}"[:300]

"""Finds problems in configurations and manifests by JSON schema. Messages name fields but never values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def config_problems(specification: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield field and problem for each mismatch with the manifest's specification. No value is named."""
    from jsonschema import Draft7Validator

    for error in Draft7Validator(specification).iter_errors(config):
        place = ".".join(["config", *map(str, error.absolute_path)])
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield from ((f"{place}.{name}", "is missing") for name in missing)
        else:
            yield place, f"does not fit the manifest's specification, {_constraint(error)}"


def manifest_problem(error: Any) -> str | None:
    """Return place and problem of a manifest that does not fit the CDK's schema; None for any other error.

    No value is named.
    """
    from jsonschema import ValidationError

    while error is not None and not (isinstance(error, ValidationError) and error.absolute_path):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    while error.context:
        # Several components are allowed here: report the errors of the one whose type matches.
        others = {cause.schema_path[0] for cause in error.context if "type" in cause.relative_path}
        fitting = [cause for cause in error.context if cause.schema_path[0] not in others]
        if not fitting:
            types = {kind for cause in error.context if cause.validator == "enum" for kind in cause.validator_value}
            return f"{_place(error)}.type: must be one of {', '.join(sorted(types))}"
        error = max(fitting, key=lambda cause: len(cause.absolute_path))
    return f"{_place(error)}: does not fit the CDK's schema, {_constraint(error)}"


def _place(error: Any) -> str:
    return ".".join(map(str, error.absolute_path))


def _constraint(error: Any) -> str:
    """Return the violated rule of the schema, e.g. ``type: integer``."""
    wanted = error.validator_value
    return f"{error.validator}: {', '.join(map(str, wanted)) if isinstance(wanted, list) else wanted}"[:300]

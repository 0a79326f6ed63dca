"""A source's configuration: which of it is secret, and whether it fits what the manifest specifies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_rfr.http.redaction import is_secret


def merged(config: Mapping[str, Any], secrets: Mapping[str, Any]) -> dict[str, Any]:
    """Both in one; a mapping in both is merged too, as secrets are often below ``credentials``."""
    found = dict(config)
    for name, value in secrets.items():
        before = found.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[name] = merged(before, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return found


def specification(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema of the configuration; empty where the manifest has none."""
    spec = manifest.get("spec")
    found = spec.get("connection_specification") if isinstance(spec, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def without_secrets(config: Mapping[str, Any], secrets: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """What of the configuration may be stored: neither ``secrets``, nor what is secret by the specification or by
    its name."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        below = list(_properties(spec, name))
        hidden = secrets.get(name)
        if isinstance(value, Mapping):
            inner = {"oneOf": below}
            found[name] = without_secrets(value, hidden if isinstance(hidden, Mapping) else {}, inner)
        elif name not in secrets and not is_secret(name) and not any(each.get("airbyte_secret") for each in below):
            found[name] = value
    return found


def secret_values(config: Mapping[str, Any], public: Mapping[str, Any]) -> Iterator[Any]:
    """The values that ``without_secrets`` has taken out."""
    for name, value in config.items():
        if name not in public:
            yield value
        elif isinstance(value, Mapping):
            yield from secret_values(value, public[name])


def _properties(spec: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """What a schema says of a property, in each of its alternatives."""
    properties = spec.get("properties")
    if isinstance(properties, Mapping) and isinstance(properties.get(name), Mapping):
        yield properties[name]
    for key in ("oneOf", "anyOf", "allOf"):
        for each in spec.get(key) or ():
            if isinstance(each, Mapping):
                yield from _properties(each, name)

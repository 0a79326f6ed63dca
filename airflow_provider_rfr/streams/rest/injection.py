"""Puts a page token or a page size into a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from airflow_provider_rfr.streams.rest.definition_base import Place
from airflow_provider_rfr.streams.rest.paths import assign, parse_path
from airflow_provider_rfr.streams.rest.transport import Draft

Put: TypeAlias = Callable[[Draft, Any], None]


def put_at(place: Place | None) -> Put:
    """A function that sets a value at the place; one that does nothing for no place."""
    if place is None:
        return _nowhere
    if place.query is not None:
        name = place.query
        return lambda draft, value: draft.query.__setitem__(name, value)
    if place.header is not None:
        header = place.header
        return lambda draft, value: draft.headers.__setitem__(header, str(value))
    if place.json_ is not None:
        path = parse_path(place.json_)

        def into_json(draft: Draft, value: Any) -> None:
            if not isinstance(draft.json, dict):
                draft.json = {}
            assign(draft.json, path, value)

        return into_json
    field = str(place.form)

    def into_form(draft: Draft, value: Any) -> None:
        draft.form = {**(draft.form or {}), field: value}

    return into_form


def _nowhere(draft: Draft, value: Any) -> None:
    return None

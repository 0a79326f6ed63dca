"""Finds the records in an answer, and keeps those that the filter wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.rest.answer import Answer
from airflow_provider_rfr.streams.rest.interpolation import Template
from airflow_provider_rfr.streams.rest.paths import MISSING, Path, describe, lookup_each, where_missing


@dataclass(frozen=True, slots=True)
class Selector:
    """A path and an optional condition.

    :ivar missing_is_empty: nothing (or null) at the path means no records, rather than an error
    """

    path: Path = ()
    condition: Template | None = None
    missing_is_empty: bool = False

    def select(self, answer: Answer) -> list[dict[str, Any]]:
        """All records of the answer, before the filter; one object counts as a list of one.

        :raises SourceError: there is nothing at the path, or something that is no record
        """
        if not answer.has_content:
            return []
        parts: list[list[dict[str, Any]]] = []
        for found in lookup_each(answer.json(), self.path):
            if isinstance(found, list):
                parts.append(found)
            elif isinstance(found, dict):
                parts.append([found])
            elif not (self.missing_is_empty and (found is None or found is MISSING)):
                raise self._not_records(found, answer)
        # The usual case: the parsed list itself, not a copy.
        records = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        for record in records:
            if type(record) is not dict:
                raise self._not_records(records, answer)
        return records

    def keep(
        self, records: list[dict[str, Any]], variables: Mapping[str, Any], request: str | None
    ) -> list[dict[str, Any]]:
        """The records that fulfil the condition.

        :raises SourceError: the condition can't be told for a record
        """
        if self.condition is None:
            return records
        kept: list[dict[str, Any]] = []
        known = dict(variables)
        for number, record in enumerate(records, start=1):
            known["record"] = record
            problem = ""
            try:
                if self.condition(known):
                    kept.append(record)
            except SourceDefinitionError as error:
                problem = error.problem
            if problem:
                raise SourceError(f"records.filter fails at record {number}: {problem}", request=request)
        return kept

    def _not_records(self, found: Any, answer: Answer) -> SourceError:
        place = f"records.path {'.'.join(self.path)!r}" if self.path else "the answer"
        if isinstance(found, list):
            wrong = next((n, item) for n, item in enumerate(found, start=1) if type(item) is not dict)
            problem = f"{place} has {describe(wrong[1])} as item {wrong[0]}, where a record is an object"
        elif found is MISSING:
            problem = f"{place} leads to nothing: {where_missing(answer.json(), self.path)}"
        else:
            problem = f"{place} leads to {describe(found)}, not to records"
        return SourceError(problem, status=answer.status, request=answer.request)

"""Changes to each record.  They work in place: the records of a page belong to it alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.interpolation import RECORD_NAMES, Template, compile_value
from airflow_provider_rfr.streams.rest.paths import MISSING, Path, assign, lookup, parse_path, take


class Transformation(ABC):
    """One change."""

    @abstractmethod
    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        """:raises SourceDefinitionError: the record lacks what a template needs"""


@dataclass(frozen=True, slots=True)
class Add(Transformation):
    """Set fields, in order; a later one sees the earlier ones."""

    fields: tuple[tuple[Path, Template], ...]

    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        for path, template in self.fields:
            assign(record, path, template(variables))


@dataclass(frozen=True, slots=True)
class Remove(Transformation):
    """Remove fields; one that isn't there is no error."""

    fields: tuple[Path, ...]

    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        for path in self.fields:
            take(record, path)


@dataclass(frozen=True, slots=True)
class Rename(Transformation):
    """Move fields; one that isn't there is no error, one that is in the way is."""

    fields: tuple[tuple[Path, Path], ...]

    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        for old, new in self.fields:
            if lookup(record, old) is MISSING or old == new:
                continue
            if lookup(record, new) is not MISSING:
                raise SourceDefinitionError(
                    "transformations", f"rename: {'.'.join(old)} would overwrite {'.'.join(new)}"
                )
            assign(record, new, take(record, old))


def transform(
    records: Sequence[dict[str, Any]],
    transformations: Sequence[Transformation],
    variables: Mapping[str, Any],
    request: str | None,
) -> None:
    """Apply all transformations to all records.

    :raises SourceError: one fails; the error names the record
    """
    known = dict(variables)
    for number, record in enumerate(records, start=1):
        known["record"] = record
        problem = ""
        try:
            for transformation in transformations:
                transformation.apply(record, known)
        except SourceDefinitionError as error:
            problem = f"{error.path}: {error.problem}"
        if problem:
            raise SourceError(f"record {number} can't be transformed: {problem}", request=request)


def build_transformations(
    definitions: Sequence[model.Transformation], place: str, config: Mapping[str, Any] | None
) -> tuple[Transformation, ...]:
    """The transformations of a definition, compiled."""
    return tuple(_build(item, f"{place}.{number}", config) for number, item in enumerate(definitions))


def _build(item: model.Transformation, place: str, config: Mapping[str, Any] | None) -> Transformation:
    if isinstance(item, model.RemoveFields):
        return Remove(tuple(parse_path(path) for path in item.fields))
    if isinstance(item, model.RenameFields):
        return Rename(tuple((parse_path(old), parse_path(new)) for old, new in item.fields.items()))
    return Add(
        tuple(
            (parse_path(path), compile_value(value, f"{place}.fields.{path}", RECORD_NAMES, config))
            for path, value in item.fields.items()
        )
    )

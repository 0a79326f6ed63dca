"""Everything that is declared, as one immutable value; or every mistake in it, with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from airflow_provider_rfr import __version__
from airflow_provider_rfr.builtins.columns import Finding
from airflow_provider_rfr.builtins.declaration.loader_catalog import catalog_problems
from airflow_provider_rfr.builtins.declaration.loader_object import Declared
from airflow_provider_rfr.builtins.declaration.loader_rules import canonical, findings
from airflow_provider_rfr.builtins.declaration.loader_sources import Collected
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Place
from airflow_provider_rfr.exceptions import DeclarationError, DeclarationProblem

OWN_PROJECT: Final = "rfr"
Source = Path | str | BuiltinObject | Iterable["Source"]


def load_objects(
    *sources: Source,
    project: str = OWN_PROJECT,
    version: str | None = None,
    entry_points: bool | None = None,
    instances: Mapping[str, Mapping[str, str]] | None = None,
) -> CatalogSpec:
    """Read declarations; nothing has to be registered besides.

    :param sources: YAML files, folders of them (with those inside), objects, or lists of any of these
    :param project: whose objects they are; ids of objects that write none are made from it
    :param version: of the code that declares them; this package's, where it is not given
    :param entry_points: take in what this package and other installed ones declare; by default in the project ``rfr``
        alone, since what they declare is there once in a lake
    :param instances: for the objects that are generated: by what ``per_instance`` names, the instances' names by their
        ids, e.g. ``{"lake": {"eu": "Europe West"}}``. A YAML document of kind ``instances`` says the same
    :raises DeclarationError: with all problems
    """
    version = __version__ if version is None else version
    collected = Collected(project)
    if entry_points or (entry_points is None and project == OWN_PROJECT):
        collected.add_ours()
        collected.add_entry_points()
    for source in sources:
        collected.add(source)
    for name, each in (instances or {}).items():
        collected.add_instances(name, each, Place())
    declared = [replace(each, obj=canonical(each.obj)) for each in collected.declared]
    problems = [*collected.problems, *_problems(declared, collected, version)]
    if problems:
        raise DeclarationError(sorted(dict.fromkeys(problems), key=_by_place))
    objects = tuple(sorted((each.obj for each in declared), key=lambda obj: obj.key))
    return CatalogSpec(project, version, objects, MappingProxyType(collected.instances))


def _problems(declared: list[Declared], collected: Collected, version: str) -> list[DeclarationProblem]:
    found = []
    flawed = set(collected.flawed)
    for each in declared:
        own = [each.problem(*_told(finding)) for finding in findings(each.obj, version)]
        found += own
        flawed.update([each.obj.key] if own else ())
    return [*found, *catalog_problems(declared, version, flawed=frozenset(flawed), whole=collected.whole)]


def _told(finding: Finding) -> tuple[str, str, str]:
    return finding.path, finding.problem, finding.remedy


def _by_place(problem: DeclarationProblem) -> tuple[str, int, str]:
    file, _, line = problem.place.rpartition(":")
    return (file, int(line), problem.name) if line.isdigit() else (problem.place, 0, problem.name)

"""Loading declarations from files, folders, objects, other packages and this one, as one immutable value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import starmap
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

from airflow_provider_rfr import __version__
from airflow_provider_rfr.builtins.declaration._document import Declaration, Declared, Instances, Node, documents, read
from airflow_provider_rfr.builtins.declaration._rules import Catalog, checked, other_problems
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Instance, Place, Removed
from airflow_provider_rfr.exceptions import DeclarationError, Problem

GROUP = "airflow_provider_rfr.builtins"
"""Entry points of packages that declare objects: a package whose folder holds YAML files, objects, or a function that
returns either."""
_SUFFIXES: Final = (".yaml", ".yml")
_OWN_PROJECT: Final = "rfr"
Source = Path | str | BuiltinObject | Removed | Iterable["Source"]


class _Collector:
    """Reads sources; each problem is a document, or a part of one, that became no declaration."""

    def __init__(self, project: str) -> None:
        self.declared: list[Declared] = []
        self.removed: list[Removed] = []
        self.instances: list[Instances] = []
        self.problems: list[Problem] = []
        self._project = project
        self._files: set[Path] = set()

    def add(self, source: Any) -> None:
        if isinstance(source, (str, Path)):
            self._path(Path(source))
        elif isinstance(source, ModuleType):
            self.add(map(Path, getattr(source, "__path__", ())))
        elif isinstance(source, Declaration):
            self._take(source)
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
            for each in source:
                self.add(each)
        else:
            self._miss(str(Place()), f"a source is {type(source).__name__}", "give a folder, a YAML file or an object")

    def add_ours(self) -> None:
        """Add what this package declares, which may be inside of an archive."""
        folder = files("airflow_provider_rfr.builtins").joinpath("own")
        for each in sorted(folder.iterdir(), key=lambda file: file.name):
            if each.name.endswith(_SUFFIXES):
                self._text(each.read_text("utf-8"), f"airflow_provider_rfr/builtins/own/{each.name}")

    def add_entry_points(self) -> None:
        for each in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            try:
                found = each.load()
                self.add(found() if callable(found) else found)
            except Exception as error:  # noqa: BLE001
                place = f"entry point {each.name} ({each.value})"
                self._miss(place, f"it can't be loaded: {type(error).__name__}: {error}")

    def _path(self, path: Path) -> None:
        found = [path]
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
            # A hidden folder may be the source itself.
            found = [each for each in found if not re.search(r"(^|/)\.", each.relative_to(path).as_posix())]
        if not found:
            self._miss(str(path), "the folder has no YAML files")
        for each in found:
            try:
                if (real := each.resolve()) not in self._files:
                    self._files.add(real)
                    self._text(each.read_text("utf-8-sig"), str(each))
            except OSError as error:
                self._miss(str(each), f"it can't be read: {error.strerror}")
            except UnicodeDecodeError:
                self._miss(str(each), "it is not text in UTF-8")

    def _text(self, text: str, file: str) -> None:
        for node, flaws in documents(text):
            found = None if flaws else read(node, Place(file, node.line), self._project, flaws)
            name = node.value.get("name") if isinstance(node.value, dict) else None
            whose = name.value if name is not None and isinstance(name.value, str) else ""
            for each in flaws:
                self._miss(str(Place(file, each.line)), each.problem, each.remedy, whose)
            if found is not None:
                self._take(found, node)

    def _take(self, found: Declaration, node: Node | None = None) -> None:
        if isinstance(found, BuiltinObject):
            self.declared.append(Declared(found, node or Node(found.place.line or 1, None)))
        elif isinstance(found, Removed):
            self.removed.append(found)
        else:
            self.instances.append(found)

    def _miss(self, place: str, problem: str, remedy: str = "", name: str = "") -> None:
        self.problems.append(Problem(name, problem, remedy, place))


def load_objects(
    *sources: Source,
    project: str = _OWN_PROJECT,
    version: str | None = None,
    entry_points: bool | None = None,
) -> CatalogSpec:
    """Read declarations; nothing has to be registered besides.

    :param sources: YAML files, folders of them (with those inside), objects, or lists of any of these
    :param project: whose objects they are; ids of objects that write none are made from it
    :param version: of the code that declares them; this package's, where it is not given
    :param entry_points: take in what this package and other installed ones declare; by default in the project ``rfr``
        alone, since what they declare is there once in a lake
    :raises DeclarationError: with all problems
    """
    collected = _Collector(project)
    if entry_points or (entry_points is None and project == _OWN_PROJECT):
        collected.add_ours()
        collected.add_entry_points()
    collected.add(sources)
    declared, problems, flawed = list[Declared](), [*collected.problems], set[str]()
    for each in collected.declared:
        obj, found = checked(each.obj)
        declared.append(replace(each, obj=obj))
        problems += [each.problem(one.field, one.problem, one.remedy) for one in found]
        flawed.update([obj.key] if found else ())
    problems += Catalog(declared, flawed=flawed, whole=not collected.problems).problems()
    problems += other_problems(collected.removed, collected.instances)
    if problems:
        raise DeclarationError.of(sorted(dict.fromkeys(problems), key=_by_place))
    listed = {one.name: tuple(starmap(Instance, sorted(one.instances.items()))) for one in collected.instances}
    objects = sorted((each.obj for each in declared), key=lambda each: each.key)
    removed = sorted(collected.removed, key=lambda each: each.key)
    version = __version__ if version is None else version
    return CatalogSpec(project, version, tuple(objects), MappingProxyType(listed), tuple(removed))


def _by_place(problem: Problem) -> tuple[list[str | int], str]:
    """Sorts the numbers in a place as numbers: line 9 comes before line 10."""
    parts = re.split(r"(\d+)", problem.place)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], problem.field

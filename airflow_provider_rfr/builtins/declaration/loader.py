"""Loading declarations from files, folders, objects, other packages and this one, as one immutable value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

from airflow_provider_rfr import __version__
from airflow_provider_rfr.builtins.declaration._document import (
    Declared,
    InstancesDocument,
    ObjectDocument,
    RemovedDocument,
    object_of,
    problems_in,
    read,
)
from airflow_provider_rfr.builtins.declaration._rules import canonical, catalog_problems, findings, removal_problems
from airflow_provider_rfr.builtins.declaration._yaml import Flaw, Node, YamlProblem, documents
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Instance, Place, Removed
from airflow_provider_rfr.exceptions import DeclarationError, Problem
from airflow_provider_rfr.lake.types import is_plain

GROUP = "airflow_provider_rfr.builtins"
"""Entry points of packages that declare objects: a package whose folder holds YAML files, objects, or a function that
returns either."""
_SUFFIXES = (".yaml", ".yml")
_DEEPEST = 4
"""Lists inside lists of sources."""


class Collected:
    """What was found.

    :ivar flawed: names, as they are compared, of objects that are not what their author meant
    :ivar whole: every document became an object
    """

    def __init__(self, project: str) -> None:
        self.declared: list[Declared] = []
        self.instances: dict[str, tuple[Instance, ...]] = {}
        self.removed: list[Removed] = []
        self.problems: list[Problem] = []
        self.flawed: set[str] = set()
        self.whole = True
        self._project = project
        self._read: set[Path] = set()
        self._listed: dict[str, Place] = {}

    def add(self, source: Any, depth: int = 0) -> None:
        if isinstance(source, BuiltinObject):
            self.declared.append(Declared(source))
        elif isinstance(source, Removed):
            self.removed.append(source)
        elif isinstance(source, (str, Path)):
            path = Path(source)
            found = [path]
            if path.is_dir():
                found = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
                found = [
                    each for each in found if not any(part.startswith(".") for part in each.relative_to(path).parts)
                ]
            for each in found:
                self._file(each)
            if not found:
                self._miss("the folder has no YAML files", place=str(path))
        elif isinstance(source, ModuleType):
            self.add([Path(each) for each in getattr(source, "__path__", ())], depth + 1)
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, dict)) and depth < _DEEPEST:
            for each in source:
                self.add(each, depth + 1)
        else:
            self._miss(f"a source is {type(source).__name__}", "give a folder, a YAML file or a BuiltinObject")

    def add_instances(self, name: str, instances: Mapping[Any, Any], place: Place) -> None:
        """Add a list of instances, from YAML or from Python: their names by their ids."""
        found: list[tuple[str, str]] = []
        if not is_plain(name):
            found.append((f"{name!r} is not a name", "write what per_instance says, e.g. lake"))
        for key, called in instances.items():
            if not isinstance(key, str) or not key.strip():
                found.append((f"the id {key!r} of an instance is not text", "write ID: NAME"))
            elif not isinstance(called, str) or not called.strip():
                found.append((f"the name {called!r} of {key} is not text", "write ID: NAME"))
        if name in self._listed:
            found.append((f"there is a list of each {name} already: {self._listed[name]}", "keep one of the two"))
        self.problems += [Problem(name, *each, place=str(place)) for each in found]
        if not found:
            self._listed[name] = place
            self.instances[name] = tuple(Instance(*each) for each in sorted(instances.items()))

    def add_ours(self) -> None:
        folder = files("airflow_provider_rfr.builtins").joinpath("own")
        for each in sorted(folder.iterdir(), key=lambda file: file.name):
            if each.name.endswith(_SUFFIXES):
                self._text(each.read_text("utf-8"), f"airflow_provider_rfr/builtins/own/{each.name}", ours=True)

    def add_entry_points(self) -> None:
        for each in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            place = f"entry point {each.name} ({each.value})"
            found = self._called(each.load, place)
            self.add(self._called(found, place) if callable(found) else found if found is not None else ())

    def _called(self, function: Callable[[], Any], place: str) -> Any:
        """The result of a function of another package; an exception becomes a problem."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001
            self._miss(f"it can't be loaded: {type(error).__name__}: {error}", place=place)
            return ()

    def _file(self, path: Path) -> None:
        try:
            real = path.resolve()
            if real in self._read:
                return
            self._read.add(real)
            text = path.read_text("utf-8-sig")
        except OSError as error:
            self._miss(f"it can't be read: {error.strerror}", place=str(path))
        except UnicodeDecodeError:
            self._miss("it is not text in UTF-8", place=str(path))
        else:
            self._text(text, str(path), ours=False)

    def _text(self, text: str, file: str, *, ours: bool) -> None:
        try:
            for node, given in documents(text):
                kind, flaws = node.value.get("kind") if isinstance(node.value, dict) else None, [*given]
                self._document(node, flaws, kind.value if kind is not None else None, file, ours=ours)
        except YamlProblem as problem:
            self.whole = False
            self.problems += problems_in([problem.flaw], file, "")

    def _document(self, node: Node, flaws: list[Flaw], kind: Any, file: str, *, ours: bool) -> None:
        place = Place(file, node.line)
        found: Any = None
        if not flaws:
            model = {"instances": InstancesDocument, "removed": RemovedDocument}.get(kind, ObjectDocument)
            found = read(model, node, flaws)
        self.problems += problems_in(flaws, file, _name(node.value))
        if isinstance(found, ObjectDocument):
            self.declared.append(Declared(object_of(found, place, self._project), node, ours))
        elif isinstance(found, RemovedDocument):
            self.removed.append(Removed(found.name, place))
        elif isinstance(found, InstancesDocument):
            self.add_instances(found.name, found.instances, place)
        else:
            self.whole = False

    def _miss(self, problem: str, remedy: str = "", *, place: str = "") -> None:
        self.whole = False
        self.problems.append(Problem("", problem, remedy, place or str(Place())))


def _name(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else ""


_OWN_PROJECT: Final = "rfr"
Source = Path | str | BuiltinObject | Removed | Iterable["Source"]


def load_objects(
    *sources: Source,
    project: str = _OWN_PROJECT,
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
    if entry_points or (entry_points is None and project == _OWN_PROJECT):
        collected.add_ours()
        collected.add_entry_points()
    for source in sources:
        collected.add(source)
    for name, each in (instances or {}).items():
        collected.add_instances(name, each, Place())
    declared = [replace(each, obj=canonical(each.obj)) for each in collected.declared]
    problems, flawed = [*collected.problems], set(collected.flawed)
    for one in declared:
        own = [one.problem(found.field, found.problem, found.remedy) for found in findings(one.obj)]
        problems += own
        flawed.update([one.obj.key] if own else ())
    problems += catalog_problems(declared, flawed=frozenset(flawed), whole=collected.whole)
    problems += removal_problems(collected.removed)
    if problems:
        raise DeclarationError.of(sorted(dict.fromkeys(problems), key=_by_place))
    objects = tuple(sorted((each.obj for each in declared), key=lambda each: each.key))
    gone = tuple(sorted(collected.removed, key=lambda each: each.key))
    return CatalogSpec(project, version, objects, MappingProxyType(collected.instances), gone)


_PLACE: Final = re.compile(r"(.*?):(\d+)(?::(\d+))?")


def _by_place(problem: Problem) -> tuple[str, int, int, str]:
    found = _PLACE.fullmatch(problem.place)
    return (
        (found[1], int(found[2]), int(found[3] or 0), problem.field) if found else (problem.place, 0, 0, problem.field)
    )

"""The loader of declarations from files, folders, objects, other packages and this one, as one immutable value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import chain, starmap
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

from airflow_provider_rfr import __version__
from airflow_provider_rfr.builtins.declaration._document import Declared, Instances, Mark, documents, read
from airflow_provider_rfr.builtins.declaration._rules import catalog_problems, checked, other_problems
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Instance, Place, Removed
from airflow_provider_rfr.exceptions import DeclarationError, Problem

GROUP = "airflow_provider_rfr.builtins"
"""Entry points of packages that declare objects: a package whose folder holds YAML files, objects, or a function that
returns either."""
_SUFFIXES: Final = (".yaml", ".yml")
_OWN_PROJECT: Final = "rfr"
Source = Path | str | BuiltinObject | Removed | Iterable["Source"]
_Found = Declared | Removed | Instances | Problem


class _Loader:
    def __init__(self, project: str) -> None:
        self._project = project
        self._files: set[Path] = set()

    def read(self, source: Any) -> Iterator[_Found]:
        if isinstance(source, (str, Path)):
            yield from self._path(Path(source))
        elif isinstance(source, ModuleType):
            yield from self.read(map(Path, getattr(source, "__path__", ())))
        elif isinstance(source, BuiltinObject):
            yield Declared(source, {(): Mark(source.place.line or 1)})
        elif isinstance(source, Removed):
            yield source
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
            for declared in source:
                yield from self.read(declared)
        else:
            problem = f"a source is {type(source).__name__}"
            yield Problem("", problem, "give a folder, a YAML file or an object", str(Place()))

    def installed(self) -> Iterator[_Found]:
        """Yield the declarations of this package, which may be in an archive, and of other packages by entry points."""
        folder = files("airflow_provider_rfr.builtins").joinpath("own")
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(_SUFFIXES):
                yield from self._text(file.read_text("utf-8"), f"airflow_provider_rfr/builtins/own/{file.name}")
        for entry_point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            try:
                found = entry_point.load()
                yield from self.read(found() if callable(found) else found)
            except Exception as error:  # noqa: BLE001
                place = f"entry point {entry_point.name} ({entry_point.value})"
                yield Problem("", f"it can't be loaded: {type(error).__name__}: {error}", place=place)

    def _path(self, path: Path) -> Iterator[_Found]:
        found = [path]
        if path.is_dir():
            found = sorted(path for path in path.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
            # A hidden folder may be the source itself.
            found = [file for file in found if not re.search(r"(^|/)\.", file.relative_to(path).as_posix())]
        if not found:
            yield Problem("", "the folder has no YAML files", place=str(path))
        for file in found:
            try:
                if (real := file.resolve()) not in self._files:
                    self._files.add(real)
                    yield from self._text(file.read_text("utf-8-sig"), str(file))
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
                yield Problem("", f"it can't be read: {why}", place=str(file))

    def _text(self, text: str, file: str) -> Iterator[_Found]:
        for document in documents(text):
            place = Place(file, document.marks[()].line)
            found = None if document.flaws else read(document, place, self._project)
            name = document.value.get("name") if isinstance(document.value, dict) else ""
            for line, problem, remedy in document.flaws:
                yield Problem(name if isinstance(name, str) else "", problem, remedy, str(Place(file, line)))
            if found is not None:
                yield Declared(found, document.marks) if isinstance(found, BuiltinObject) else found


def load_objects(
    *sources: Source, project: str = _OWN_PROJECT, version: str | None = None, entry_points: bool | None = None
) -> CatalogSpec:
    """Read declarations; nothing has to be registered besides.

    :param sources: YAML files, folders of them (with those inside), objects, or lists of any of these
    :param project: whose objects they are; ids of objects that write none are made from it
    :param version: of the code that declares them; this package's, where it is not given
    :param entry_points: take in what this package and other installed ones declare; by default in the project ``rfr``
        alone, since what they declare is there once in a lake
    :raises DeclarationError: with all problems
    """
    loader = _Loader(project)
    with_installed = project == _OWN_PROJECT if entry_points is None else entry_points
    found = [*(loader.installed() if with_installed else ()), *loader.read(sources)]
    problems = [item for item in found if isinstance(item, Problem)]
    checks = [checked(item) for item in found if isinstance(item, Declared)]
    removed = sorted((item for item in found if isinstance(item, Removed)), key=lambda item: item.key)
    listed = [item for item in found if isinstance(item, Instances)]
    every = catalog_problems(checks, is_whole=not problems), other_problems(removed, listed)
    problems += chain(*(wrong for _, wrong in checks), *every)
    if problems:
        raise DeclarationError.of(sorted(dict.fromkeys(problems), key=_by_place))
    objects = sorted((check.obj for check, _ in checks), key=lambda each: each.key)
    instances = {one.name: tuple(starmap(Instance, sorted(one.instances.items()))) for one in listed}
    version = __version__ if version is None else version
    return CatalogSpec(project, version, tuple(objects), MappingProxyType(instances), tuple(removed))


def _by_place(problem: Problem) -> tuple[list[str | int], str]:
    """Return a sort key in which the numbers of a place compare as numbers: line 9 comes before line 10."""
    parts = re.split(r"(\d+)", problem.place)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], problem.field

"""Where declarations come from: files, folders, objects, other packages, and this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_provider_rfr.builtins.declaration.loader_instances import instance_findings, is_list, listed
from airflow_provider_rfr.builtins.declaration.loader_object import Declared, declared, told
from airflow_provider_rfr.builtins.declaration.loader_yaml import Flaw, Node, YamlProblem, documents
from airflow_provider_rfr.builtins.spec import BuiltinObject, Instance, Place
from airflow_provider_rfr.exceptions import DeclarationProblem

GROUP = "airflow_provider_rfr.builtins"
"""Entry points of packages that declare objects: a package whose folder holds YAML files, objects, or a function that
returns either."""
SUFFIXES = (".yaml", ".yml")
DEEPEST = 4
"""Lists inside lists of sources."""


class Collected:
    """What was found.

    :ivar flawed: names, as they are compared, of objects that are not what their author meant
    :ivar whole: every document became an object
    """

    def __init__(self, project: str) -> None:
        self.declared: list[Declared] = []
        self.instances: dict[str, tuple[Instance, ...]] = {}
        self.problems: list[DeclarationProblem] = []
        self.flawed: set[str] = set()
        self.whole = True
        self._project = project
        self._read: set[Path] = set()
        self._listed: dict[str, Place] = {}

    def add(self, source: Any, depth: int = 0) -> None:
        """Take in one source."""
        if isinstance(source, BuiltinObject):
            self.declared.append(Declared(source))
        elif isinstance(source, (str, Path)):
            self._path(Path(source))
        elif isinstance(source, ModuleType):
            self.add([Path(each) for each in getattr(source, "__path__", ())], depth + 1)
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, dict)) and depth < DEEPEST:
            for each in source:
                self.add(each, depth + 1)
        else:
            self._miss(f"a source is {type(source).__name__}", "give a folder, a YAML file or a BuiltinObject")

    def add_instances(self, name: str, instances: Mapping[str, str], place: Place) -> None:
        """Take in a list of instances: their names by their ids."""
        found = [(each.problem, each.remedy) for each in instance_findings(name, instances)]
        if name in self._listed:
            found.append((f"there is a list of each {name} already: {self._listed[name]}", "keep one of the two"))
        self.problems += [DeclarationProblem(str(place), name, *each) for each in found]
        if not found:
            self._listed[name] = place
            self.instances[name] = tuple(Instance(*each) for each in sorted(instances.items()))

    def add_ours(self) -> None:
        """Take in what this package declares."""
        folder = files("airflow_provider_rfr.builtins").joinpath("own")
        for each in sorted(folder.iterdir(), key=lambda file: file.name):
            if each.name.endswith(SUFFIXES):
                self._text(each.read_text("utf-8"), f"airflow_provider_rfr/builtins/own/{each.name}", ours=True)

    def add_entry_points(self) -> None:
        """Take in what other installed packages declare."""
        for each in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            place = f"entry point {each.name} ({each.value})"
            found = self._called(each.load, place)
            self.add(self._called(found, place) if callable(found) else found if found is not None else ())

    def _called(self, function: Callable[[], Any], place: str) -> Any:
        """What a function of somebody else's returns; whatever it raises is one of the problems."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001
            self._miss(f"it can't be loaded: {type(error).__name__}: {error}", place=place)
            return ()

    def _path(self, path: Path) -> None:
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES and each.is_file())
            shown = [each for each in found if not any(part.startswith(".") for part in each.relative_to(path).parts)]
            if not shown:
                self._miss("the folder has no YAML files", place=str(path))
            for each in shown:
                self._file(each)
        else:
            self._file(path)

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
            self._miss("it is no text in UTF-8", place=str(path))
        else:
            self._text(text, str(path), ours=False)

    def _text(self, text: str, file: str, *, ours: bool) -> None:
        try:
            for node, flaws in documents(text):
                if is_list(node):
                    self._list(node, [*flaws], file)
                else:
                    self._object(node, [*flaws], file, ours=ours)
        except YamlProblem as problem:
            self.whole = False
            self.problems += told([problem.flaw], file, "")

    def _list(self, node: Node, flaws: list[Flaw], file: str) -> None:
        found = listed(node, flaws) if not flaws else None
        self.problems += told(flaws, file, _name(node.value))
        if found is not None and not flaws:
            self.add_instances(*found, Place(file, node.line))

    def _object(self, node: Node, flaws: list[Flaw], file: str, *, ours: bool) -> None:
        obj = declared(node, flaws, file=file, project=self._project, ours=ours) if not flaws else None
        name = obj.obj.name if obj is not None else _name(node.value)
        self.problems += told(flaws, file, name)
        if obj is not None:
            self.declared.append(obj)
            self.flawed.update([obj.obj.key] if flaws else ())
        else:
            self.whole = False

    def _miss(self, problem: str, remedy: str = "", *, place: str = "") -> None:
        self.whole = False
        self.problems.append(DeclarationProblem(place or str(Place()), "", problem, remedy))


def _name(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else ""

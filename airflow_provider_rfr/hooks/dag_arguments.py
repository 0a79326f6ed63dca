"""Helpers for arguments of operators: templates that are rendered later, relative paths, names of tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError

RUN_SETTINGS = "rfr"
"""The key of a run's configuration below which settings of that run alone are."""
_SKIPPED = ("airflow", "airflow_provider_rfr")
"""Top-level packages whose stack frames are between an operator and the module that calls it."""
_UNMAP = "airflow.sdk.definitions.mappedoperator"


def is_pending(value: Any) -> bool:
    """Tell whether Airflow has yet to render the value, or a part of it."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_pending(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_pending(item) for item in value)
    return hasattr(value, "resolve")


def calling_folder() -> Path | None:
    """Return the folder of the module that calls the operator; None for a mapped task, which Airflow itself makes."""
    frame = sys._getframe(1)
    while (name := str(frame.f_globals.get("__name__", ""))) != _UNMAP:
        file = frame.f_globals.get("__file__")
        if file and name.partition(".")[0] not in _SKIPPED:
            return Path(file).parent
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def file_folders(task: Any = None) -> tuple[Path, ...]:
    """Return the folders in which relative paths are looked up: that of the DAG's file, then the calling module's.

    While a DAG is parsed, its ``fileloc`` is the file that called ``DAG()``, which may be a factory's. Outside a parse,
    a task that is in no DAG yet has no such file.

    :param task: a task whose constructor has set ``_calling_folder`` to :func:`calling_folder`; None for the DAG that
        is being made
    """
    # Imported here, because it loads jsonschema, which no parse without a DAG has to wait for.
    from airflow.sdk.definitions._internal.contextmanager import DagContext

    calling = calling_folder() if task is None else task._calling_folder
    module = sys.modules.get(DagContext.current_autoregister_module_name or "")
    dag = DagContext.get_current() if task is None else task._dag
    file = getattr(module, "__file__", None) or (dag.fileloc if dag is not None else None)
    folders = (Path(file).parent if file else None, calling)
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


def possible_places(path: str | Path, folders: Sequence[Path]) -> list[Path]:
    """Return the possible places of a file or folder: an absolute path itself, a relative one in each of the folders.

    :param folders: empty if a relative path is relative to the working folder
    """
    expanded = Path(path).expanduser()
    return [folder / expanded for folder in folders] if folders and not expanded.is_absolute() else [expanded]


def place_of(path: str | Path, folders: Sequence[Path]) -> Path:
    """Return the first possible place that exists; if none does, the first one."""
    places = possible_places(path, folders)
    return next((place for place in places if place.exists()), places[0])


def path_from_dag(path: str | Path, folders: Sequence[Path]) -> str | Path:
    """Return the path relative to the first folder, the DAG's; unchanged if it is absolute or does not exist.

    Airflow calls the operator of a mapped task, which therefore looks up relative paths next to the DAG's file only.
    """
    place = place_of(path, folders)
    is_found = not Path(path).expanduser().is_absolute() and place.exists()
    return os.path.relpath(place, folders[0]) if is_found and folders else path


def has_result(target: Any) -> bool:
    """Tell whether any of the tasks that the rendered value refers to has returned something."""
    if isinstance(target, Sequence) and not isinstance(target, str):
        return any(map(has_result, target))
    return target is not None


def table_names(target: Any) -> list[str]:
    """Return the tables without duplicates, in order.

    :param target: ``namespace.table``, text with commas, a list, or the return value of a refresh
    :raises ConfigurationError: it names no table
    """
    from airflow_provider_rfr.lake.types import check_identifier

    names = list(dict.fromkeys(_names(target)))
    if not names:
        raise ConfigurationError("target", "names no table", "write namespace.table, or give what a refresh returned")
    return [check_identifier(name) for name in names]


def _names(target: Any) -> Iterator[str]:
    if isinstance(target, str):
        yield from (name.strip() for name in target.split(",") if name.strip())
    elif isinstance(target, Mapping):
        streams = target.get("streams")
        for figures in streams.values() if isinstance(streams, Mapping) else (target,):
            if isinstance(figures, Mapping) and isinstance(figures.get("target"), str):
                yield figures["target"]
    elif isinstance(target, (Sequence, Set)):
        for part in target:
            yield from _names(part)


_FILES = ("file", "manifest", "components")


def paths_in(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a source that are paths, or templates of paths; a text with line breaks is a document."""
    return {name: text for name in _FILES if isinstance(text := source.get(name), str) and "\n" not in text}


def located(source: Mapping[str, Any], file: str | None, place: str) -> dict[str, Any]:
    """Return a declared source with absolute paths: a relative one is relative to the declaration's own file.

    :param file: the file that declares it; None for a declaration in Python, whose paths stay as they are
    :param place: place of the declaration, for errors
    :raises ConfigurationError: a file does not exist
    """
    paths = paths_in(source) if file is not None else {}
    for key, text in paths.items():
        if is_pending(text):
            continue
        path = (Path(file or "").resolve().parent / Path(text).expanduser()).resolve()
        if not path.is_file() and not Path(text).expanduser().is_absolute():
            remedy = "write it relative to the declaration's file"
            raise ConfigurationError(f"source.source.{key}", f"{path} does not exist", remedy, place)
        paths[key] = str(path)
    return {**source, **paths}

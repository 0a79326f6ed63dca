"""Arguments of operators: templates that are rendered later, paths relative to the DAG's file, names of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError


def is_pending(value: Any) -> bool:
    """Whether Airflow has yet to render the value, or something in it."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_pending(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_pending(item) for item in value)
    return hasattr(value, "resolve")


def dag_folder(task: Any) -> Path | None:
    """The folder of the DAG's file; None for an operator or a sensor that is in no DAG yet."""
    fileloc = task._dag.fileloc if task._dag is not None else None
    return Path(fileloc).parent if fileloc else None


def has_result(target: Any) -> bool:
    """Whether any of the tasks that the rendered value refers to has returned something."""
    if isinstance(target, Sequence) and not isinstance(target, str):
        return any(map(has_result, target))
    return target is not None


def table_names(target: Any) -> list[str]:
    """The tables, each once, in order.

    :param target: ``namespace.table``, text with commas, a list, or the return value of a refresh
    :raises ConfigurationError: it names no table
    """
    from airflow_provider_rfr.lake.names import check_identifier

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
        for each in target:
            yield from _names(each)


FILES = ("file", "manifest", "components")
"""Fields of a source that may be paths."""


def located(source: Mapping[str, Any], file: str | None, place: str) -> dict[str, Any]:
    """Return a declared source with absolute paths: a relative one is relative to the declaration's own file.

    :param file: that declares it; None: it is declared in Python, where paths are as they are
    :param place: where it is declared, for errors
    :raises ConfigurationError: a file does not exist
    """
    paths = {key: source[key] for key in FILES if isinstance(source.get(key), str)} if file is not None else {}
    for key, text in paths.items():
        if is_pending(text) or "\n" in text:
            continue
        path = (Path(file or "").resolve().parent / Path(text).expanduser()).resolve()
        if not path.is_file() and not Path(text).expanduser().is_absolute():
            remedy = "write it relative to the declaration's file"
            raise ConfigurationError(f"source.source.{key}", f"{path} does not exist", remedy, place)
        paths[key] = str(path)
    return {**source, **paths}

"""The loader of a source's streams: from a Python class, a YAML file, a definition, or an Airbyte manifest.

A source is a mapping with exactly one of ``class``, ``file``, ``definition`` and ``manifest``. It may have ``config``
and ``secrets``, and with a manifest ``components``, ``components_keep_state`` and ``allowed_hosts``.  Streams see
config and secrets merged; secrets never enter a fingerprint, a message or a repr.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_rfr.documents import read_yaml, suggestion
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.core import Stream
from airflow_provider_rfr.streams.rest.definition import read_document, whole_definition
from airflow_provider_rfr.streams.rest.stream import build_stream, build_streams

_ORIGINS: Final = ("class", "file", "definition", "manifest")
_OF_MANIFESTS: Final = ("components", "components_keep_state", "allowed_hosts")
_KEYS: Final = (*_ORIGINS, *_OF_MANIFESTS, "config", "secrets")
_IMPORT_PATH: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_Stamp = tuple[int, int] | None
_REMEMBERED: Final = 512
_definitions: dict[str, tuple[dict[str, _Stamp], dict[str, Any]]] = {}
"""A cache of definitions by file, with the stamps (size and time) of the files that each was read from."""
_CLASS_REMEDY: Final = "write package.module:Name, importable where the refresh runs"


def load_streams(source: Mapping[str, Any]) -> dict[str, Stream]:
    """Load all streams of a source, by name.

    :raises ConfigurationError: the source can't be read as written (SourceDefinitionError: its document)
    """
    origin = _origin(source)
    config, secrets = _settings(source, "config"), _settings(source, "secrets")
    if origin == "class":
        return _python_streams(source["class"], config, secrets)
    if origin == "manifest":
        # Imported here, because it is a seventh of the modules that a process imports to read pages.
        from airflow_provider_rfr.streams.airbyte.source import build_manifest_streams

        return dict(build_manifest_streams({**source, "config": config, "secrets": secrets}))
    document, file = _document_of(source)
    return dict(build_streams(document, config, secrets, file))


def load_stream(source: Mapping[str, Any], name: str) -> Stream:
    """Load one stream of a source.

    :raises ConfigurationError: the source is wrong, or has no such stream
    """
    # Builds this stream alone: a source may have hundreds, and building all of them takes seconds.
    origin = _origin(source)
    config, secrets = _settings(source, "config"), _settings(source, "secrets")
    if origin == "manifest":
        from airflow_provider_rfr.streams.airbyte.source import build_manifest_stream

        return build_manifest_stream({**source, "config": config, "secrets": secrets}, name)
    if origin != "class":
        document, file = _document_of(source)
        return build_stream(document, name, config, secrets, file)
    streams = _python_streams(source["class"], config, secrets)
    if name not in streams:
        raise ConfigurationError("streams", f"the source has no stream {name!r}", suggestion(name, streams))
    return streams[name]


def _document_of(source: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return the definition of a source, and the file that it is in, if any."""
    if source.get("file") is None:
        return source["definition"], None
    file = str(source["file"])
    return read_document(file), file


def is_manifest(file: Path) -> bool:
    """Tell whether the file is a manifest of Airbyte; False for one that can't be read, which others will report."""
    try:
        document = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, Mapping) and (document.get("type") == "DeclarativeSource" or "check" in document)


def inline_source(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source without references to local files.

    ``file`` becomes ``definition``, schemas included; a manifest becomes a mapping, and its components their text.

    :raises ConfigurationError: the source, or its document, is wrong
    """
    origin = _origin(source)
    if origin == "class":
        return dict(source)
    if origin == "manifest":
        from airflow_provider_rfr.streams.airbyte.source import whole_manifest

        return whole_manifest(source)
    whole = _definition_of(str(source["file"])) if origin == "file" else whole_definition(source["definition"])
    return {"definition": whole, **{key: value for key, value in source.items() if key not in _ORIGINS}}


def _definition_of(file: str) -> dict[str, Any]:
    """Return the whole definition of a file, from a cache as long as it and its schema files do not change.

    A DAG's file may have hundreds of operators with one source, and is parsed again by each task.
    """
    stamps, whole = _definitions.get(file, ({}, {}))
    if not stamps or any(_stamp(path) != stamp for path, stamp in stamps.items()):
        # Stamps are taken before the files are read, so that a change in between is noticed the next time.
        stamps = {file: _stamp(file)}
        document = read_document(file)
        # The document is not validated yet, so anything may be in place of the streams.
        streams = document.get("streams") if isinstance(document, Mapping) else None
        written = streams.values() if isinstance(streams, Mapping) else streams if isinstance(streams, list) else ()
        schemas = [stream.get("json_schema_file") for stream in written if isinstance(stream, Mapping)]
        paths = [str(Path(file).parent / name) for name in schemas if isinstance(name, str)]
        stamps |= {path: _stamp(path) for path in paths}
        whole = whole_definition(document, file=file)
        if len(_definitions) >= _REMEMBERED:
            _definitions.clear()
        _definitions[file] = stamps, whole
    return copy.deepcopy(whole)


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _origin(source: Mapping[str, Any]) -> str:
    if not isinstance(source, Mapping):
        problem = f"must be a mapping, is {type(source).__name__}"
        raise ConfigurationError("source", problem, f"allowed: {', '.join(_KEYS)}")
    for key in source:
        if key not in _KEYS:
            raise ConfigurationError(f"source.{key}", "unknown field", suggestion(str(key), _KEYS))
    named = [key for key in _ORIGINS if source.get(key) is not None]
    if len(named) != 1:
        problem = f"has {' and '.join(named)}" if named else "does not say where its streams are"
        raise ConfigurationError("source", problem, "name exactly one of class, file, definition and manifest")
    for key in _OF_MANIFESTS:
        if source.get(key) is not None and named[0] != "manifest":
            raise ConfigurationError(f"source.{key}", "goes with manifest only")
    if named[0] == "file" and not isinstance(source["file"], (str, Path)):
        raise ConfigurationError("source.file", f"must be a path, is {type(source['file']).__name__}")
    return named[0]


def _settings(source: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = source.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"source.{key}", f"must be a mapping, is {type(value).__name__}")
    return dict(value)


def _python_streams(path: Any, config: Mapping[str, Any], secrets: Mapping[str, Any]) -> dict[str, Stream]:
    imported = _imported(path)
    if inspect.isclass(imported) and not issubclass(imported, Stream):
        raise ConfigurationError("source.class", f"{imported.__qualname__} is not a subclass of Stream")
    if inspect.isabstract(imported):
        problem = f"{imported.__qualname__} lacks {', '.join(sorted(imported.__abstractmethods__))}"
        raise ConfigurationError("source.class", problem)
    if callable(imported) and not isinstance(imported, Stream):
        parameters = inspect.signature(imported).parameters.values()
        takes_config = any(
            parameter.name == "config" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
        )
        imported = imported(config={**config, **secrets}) if takes_config else imported()
    instances = [imported] if isinstance(imported, Stream) or not isinstance(imported, Iterable) else list(imported)
    streams: dict[str, Stream] = {}
    for stream in instances:
        if not isinstance(stream, Stream):
            problem = f"{path} gives {type(stream).__name__}, not a Stream"
            raise ConfigurationError("source.class", problem, "return a Stream, or several")
        if stream.name in streams:
            raise ConfigurationError("source.class", f"{path} gives two streams named {stream.name!r}")
        if stream.public_config is None:
            stream.public_config = {key: value for key, value in config.items() if key not in secrets}
        streams[stream.name] = stream
    return streams


def _imported(path: Any) -> Any:
    if not isinstance(path, str) or not _IMPORT_PATH.fullmatch(path):
        raise ConfigurationError("source.class", f"{path!r} is not an import path", _CLASS_REMEDY)
    module_name, _, name = path.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigurationError("source.class", f"{path}: {error}", _CLASS_REMEDY) from error
    for part in name.split("."):
        if not hasattr(value, part):
            names = [item for item in vars(value) if not item.startswith("_")]
            raise ConfigurationError("source.class", f"{module_name} has no {name!r}", suggestion(name, names))
        value = getattr(value, part)
    return value

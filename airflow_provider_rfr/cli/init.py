"""``airflow rfr init``: write the files of a first load, or copy ready DAGs."""

from __future__ import annotations

import os
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from airflow_provider_rfr.cli.common import command, plain, print_data
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, Problem

_CONNECTIONS: Final = "connections.yaml"
_TEMPLATES: Final = Path(__file__).with_name("templates")
_PACKAGE: Final = Path(__file__).parents[1]
_SAMPLE: Final = {"conn_type": "rfr_api", "host": "http://127.0.0.1:8091", "password": "any-key"}


@command
def init(args: Namespace) -> None:
    """Write the files and print the next steps; nothing is written if one of the files exists."""
    from airflow.configuration import conf

    folder = args.folder or Path(conf.get("core", "dags_folder"))
    if args.dag and args.from_manifest:
        raise ConfigurationError("--from-manifest", "does not go with --dag", "call init for each of them")
    steps: list[tuple[str, str]] = []
    if args.dag:
        # Inside the package where it was installed, next to it in a clone.
        ready = next(path for path in (_PACKAGE / "dags", _PACKAGE.parent / "dags") if path.is_dir())
        names = sorted(path.stem for path in ready.glob("[!_]*.py"))
        if args.dag not in names:
            raise ConfigurationError("--dag", f"there is no ready DAG {args.dag!r}", suggestion(args.dag, names))
        files = {f"{args.dag}.py": (ready / f"{args.dag}.py").read_text(encoding="utf-8")}
    elif args.from_manifest:
        files, steps = _of_manifest(args.from_manifest, folder)
    else:
        files = {"shop.yaml": (_TEMPLATES / "shop.yaml").read_text(encoding="utf-8")}
        files |= _common_files("shop", _SAMPLE, {"file": "shop.yaml"}, ["customers", "orders"])
        sample = "python -m airflow_provider_rfr.sample_api --port 8091"
        purpose = f"Make the connections; they lead to the sample API, which another terminal runs ({sample})"
        check = f"airflow rfr source check {_word(folder / 'shop.yaml')} --api-conn-id shop_api"
        steps = _steps("shop", folder, purpose, check)
    paths = _write(folder, files)
    if not print_data({"files": list(map(str, paths)), "next": [step for _, step in steps]}, args):
        print(*(plain(f"wrote {path}") for path in paths), sep="\n")
        for number, (purpose, step) in enumerate(steps, 1):
            print(f"\n{number}. {plain(purpose)}:\n   {plain(step)}")


def _of_manifest(manifest: Path, folder: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return files that load the streams of a manifest, by name, and the next steps, each with its purpose.

    :raises ConfigurationError: the manifest can't be read
    """
    from airflow_provider_rfr.streams.airbyte.source import check_manifest, whole_manifest
    from airflow_provider_rfr.streams.airbyte.spec import connection_field, sample_config, secret_places, specification

    written = whole_manifest({"manifest": manifest})["manifest"]
    spec = specification(written)
    config = sample_config(spec)
    # All streams, readable or not: with the user's own values more can be read than with made-up ones.
    streams = [report.name for report in check_manifest({"manifest": written, "config": config})]
    # The DAG is named after the file, or after the connector's folder, as an identifier.
    stem = manifest.resolve().parent.name if manifest.stem == "manifest" else manifest.stem
    name = re.sub(r"\W+", "_", stem.lower().removeprefix("source-"), flags=re.ASCII).strip("_") or "source"
    if name in ("triggers", "connections"):
        name += "_api"  # the files of these names are written, too
    connection: dict[str, Any] = {"conn_type": "rfr_api"}
    secrets = set(secret_places(spec, config))
    for place, value in _leaves(config):
        *above, last = connection_field(place, secret=place in secrets).split(".")
        inner = connection
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = f"write {place[-1]} here" if place in secrets else value
    copy = f"{name}{manifest.suffix}"
    files = {copy: manifest.read_text(encoding="utf-8")}
    files |= _common_files(name, connection, {"manifest": copy}, streams)
    purpose = f"Write your values into {folder / 'connections.yaml'}, and make the connections"
    check = f"airflow rfr source check {_word(folder / copy)} --api-conn-id {name}_api"
    return files, _steps(name, folder, purpose, check)


def _leaves(config: Mapping[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, *above, name)
        else:
            yield (*above, name), value


def _common_files(
    name: str, connection: Mapping[str, Any], source: Mapping[str, str], streams: list[str]
) -> dict[str, str]:
    [(key, file)] = source.items()
    api = yaml.safe_dump({f"{name}_api": dict(connection)}, sort_keys=False, allow_unicode=True).rstrip()
    # Literals of Python, in double quotes where those need no escapes.
    quoted = [
        f'"{stream}"' if stream.isprintable() and not {'"', "\\"} & set(stream) else repr(stream) for stream in streams
    ]
    values = {"name": name, "key": key, "file": file, "streams": quoted, "api": api}
    return {
        f"{name}.py": _rendered("dag.py", values),
        "triggers.yaml": _rendered("triggers.yaml", values),
        _CONNECTIONS: _rendered(_CONNECTIONS, values),
    }


def _rendered(template: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # The files are Python and YAML, not HTML.
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return environment.get_template(f"{template}.jinja").render(values)


def _steps(name: str, folder: Path, connections: str, check: str) -> list[tuple[str, str]]:
    load = f"airflow dags test {name}"
    return [
        (connections, f"mkdir -p /tmp/rfr && airflow connections import {_word(folder / 'connections.yaml')}"),
        ("Read the first page of each stream", check),
        (f"Load the tables; {folder} has to be in Airflow's DAG folder", load),
    ]


def _word(path: Path) -> str:
    return shlex.quote(str(path))


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write the files; none of them if one exists already.

    :raises ConfigurationError: files exist already, all of which are named, or the folder can't be written
    """
    paths = [folder / name for name in files]
    remedy = "name another folder, or move the file away"
    if existing := [
        Problem(str(path), "exists already, and is not overwritten", remedy) for path in paths if path.exists()
    ]:
        raise ConfigurationError.of(existing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, files.values(), strict=True):
            # Users write secrets into this file, so only its owner may read it.
            mode = 0o600 if path.name == _CONNECTIONS else 0o666
            with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(
            str(error.filename or folder), f"can't be written: {error.strerror}", "name another folder"
        ) from None
    return paths

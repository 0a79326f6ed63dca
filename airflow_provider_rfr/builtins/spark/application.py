"""The Spark application of built-in objects: one deploy, or one refresh of materialized views, by a document.

It ends with one line of figures.

The operator ships the document in a private file; a user may write one."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_rfr.builtins.spark._engine import RegisteredView, SparkSqlEngine
from airflow_provider_rfr.builtins.spark._session import SparkSettings, without
from airflow_provider_rfr.builtins.spec import Kind, nearest
from airflow_provider_rfr.builtins.state import decode
from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.lake.inventory import holds_views

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.builtins.execution.refresh import Refreshed
    from airflow_provider_rfr.builtins.execution.work import Applied
    from airflow_provider_rfr.builtins.planning.plan import Plan, Policies
    from airflow_provider_rfr.builtins.spec import CatalogSpec
    from airflow_provider_rfr.builtins.state import RegistryState
    from airflow_provider_rfr.store.engine import ControlStore

_T = TypeVar("_T")

_OF_DEPLOY: Final = ("version", "objects", "spec", "policies", "plan", "actor")
_FIELDS: Final = ("lake", "store", "project", *_OF_DEPLOY, "refresh", "jars", "spark", "run")


@dataclass(frozen=True, slots=True)
class _RefreshRequest:
    """Which materialized views to refresh; see :func:`airflow_provider_rfr.builtins.execution.refresh.refresh`."""

    names: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class _MigrationDocument:
    """One deploy, or one refresh.

    :ivar store: address of the control store; it may hold a password
    :ivar objects: YAML files and folders of declarations; what the package and entry points declare comes besides
    :ivar spec: what is declared, in the place of ``objects``, where the files are not on the driver's machine
    :ivar plan: what to do; None: what a plan of now says
    :ivar refresh: refresh these, and deploy nothing; None: deploy
    :ivar supervisor: process, its start and its host, without which the driver is to end
    """

    lake: LakeSettings
    store: str = field(repr=False)
    project: str = "rfr"
    version: str | None = None
    objects: tuple[Path, ...] = ()
    spec: CatalogSpec | None = None
    policies: Policies | None = None
    plan: Plan | None = None
    refresh: _RefreshRequest | None = None
    actor: str = ""
    spark: SparkSettings = field(default_factory=SparkSettings)
    supervisor: tuple[int, int, str] | None = None

    def catalog_spec(self) -> CatalogSpec:
        """What is declared.

        :raises DeclarationError: with every mistake
        """
        from airflow_provider_rfr.builtins.declaration.loader import load_objects

        if self.spec is not None:
            return self.spec
        return load_objects(*self.objects, project=self.project, version=self.version)


def read_document(path: Path) -> _MigrationDocument:
    """The document of a YAML or JSON file; paths in it are relative to its folder.

    :raises ConfigurationError: it can't be read, or a field of it is wrong; no value is shown
    """
    from airflow_provider_rfr.builtins.planning.plan import Plan, Policies
    from airflow_provider_rfr.builtins.spec import CatalogSpec

    try:
        said = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        # What a parser says of a mistake shows the line, and that may hold a password.
        problem = f"can't be read: {type(error).__name__}"
        raise ConfigurationError("config", problem, "give a YAML or JSON file") from None
    given = _mapping("config", said)
    if unknown := sorted(given.keys() - set(_FIELDS)):
        raise ConfigurationError(str(unknown[0]), "is not a field", nearest(str(unknown[0]), _FIELDS))
    if given.get("spec") is not None and given.get("objects"):
        raise ConfigurationError("spec", "can't be combined with objects", "give one of the two")
    jars = tuple(map(str, _list("jars", given.get("jars"))))
    spark = {str(name): str(value) for name, value in _mapping("spark", given.get("spark") or {}).items()}
    lake = _mapping("lake", given.get("lake"))
    properties = {str(key): str(value) for key, value in _mapping("lake.properties", lake.get("properties")).items()}
    return _MigrationDocument(
        LakeSettings(str(lake.get("name") or "rfr"), properties),
        _text("store", given.get("store")),
        str(given.get("project") or "rfr"),
        None if given.get("version") is None else str(given["version"]),
        tuple(path.parent / str(each) for each in _list("objects", given.get("objects"))),
        None if given.get("spec") is None else _decoded("spec", CatalogSpec, given["spec"]),
        None if given.get("policies") is None else _decoded("policies", Policies, given["policies"]),
        None if given.get("plan") is None else Plan.from_json(_mapping("plan", given["plan"])),
        _refresh_of(given),
        str(given.get("actor") or ""),
        SparkSettings(spark, jars),
        _supervisor(_mapping("run", given.get("run") or {}).get("supervisor")),
    )


def _refresh_of(given: Mapping[str, Any]) -> _RefreshRequest | None:
    if given.get("refresh") is None:
        return None
    if both := [name for name in _OF_DEPLOY if given.get(name) is not None]:
        raise ConfigurationError("refresh", f"can't be combined with {both[0]}", "a refresh runs what is deployed")
    said = _mapping("refresh", given["refresh"])
    names = tuple(map(str, _list("refresh.names", said.get("names"))))
    return _RefreshRequest(names, said.get("force") is True)


def _decoded(name: str, kind: Any, said: Any) -> Any:
    try:
        return decode(kind, _mapping(name, said))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            name, f"can't be read: {error}", f"give what encode() makes of {kind.__name__}"
        ) from None


def _supervisor(said: Any) -> tuple[int, int, str] | None:
    if said is None:
        return None
    given = _mapping("run.supervisor", said)
    try:
        return int(given["pid"]), int(given["started"]), str(given["host"])
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError("run.supervisor", "is invalid", "give pid, started and host") from None


def _mapping(name: str, said: Any) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise ConfigurationError(name, "is missing" if said is None else "is not a mapping", "write it as a mapping")
    return said


def _list(name: str, said: Any) -> list[Any]:
    if said is None:
        return []
    if not isinstance(said, list):
        raise ConfigurationError(name, "is not a list", "write it as a list")
    return said


def _text(name: str, said: Any) -> str:
    if not isinstance(said, str) or not said:
        raise ConfigurationError(name, "is missing" if said is None else "is not text", "write e.g. sqlite:///FILE")
    return said


log = logging.getLogger("airflow_provider_rfr")

_EXIT_OK, _EXIT_FAILED = 0, 1


def main(document: _MigrationDocument, *, began: float) -> int:
    """Deploy or refresh, and print one JSON object as the last line; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        if document.refresh is None:
            figures = _figures(_run(document, _deploy))
        else:
            done = _run(document, partial(_refresh, document.refresh))
            figures = {"views": {each.name: asdict(each) for each in done}}
        figures["seconds"] = round(time.monotonic() - began, 3)
    except Exception as error:
        log.debug("it could not be done", exc_info=error)
        return failed(error, (*secrets_in(document.lake.properties), *secrets_in({"store": document.store})))
    print(json.dumps(figures), flush=True)
    return _EXIT_OK


def failed(error: BaseException, secrets: tuple[str, ...] = ()) -> int:
    """Print what went wrong as one JSON object; returns the exit code."""
    cause = error.__cause__
    message = str(error) or type(error).__name__
    said = {
        "type": type(error).__name__,
        "cause": type(cause).__name__ if cause is not None else None,
        "message": without(message, secrets),
    }
    print(json.dumps({"error": said}), flush=True)
    return _EXIT_FAILED


def _figures(applied: Applied) -> dict[str, Any]:
    return {
        "deploy_id": applied.deploy_id,
        "plan_hash": applied.plan_hash,
        "state": applied.state,
        "steps": len(applied.steps),
        "done": dict(Counter(each.how for each in applied.steps)),
        "revision": applied.revision,
    }


def _run(document: _MigrationDocument, work: Callable[[_MigrationDocument, Catalog, ControlStore], _T]) -> _T:
    """The result of the work on the document's catalog and control store."""
    from airflow_provider_rfr.lake.catalog import open_catalog
    from airflow_provider_rfr.store.engine import open_store

    store = open_store(document.store)
    try:
        return work(document, open_catalog(document.lake), store)
    finally:
        store.close()


def _deploy(document: _MigrationDocument, catalog: Catalog, store: ControlStore) -> Applied:
    from airflow_provider_rfr.builtins.execution.deploy import apply
    from airflow_provider_rfr.builtins.execution.observe import observe
    from airflow_provider_rfr.builtins.planning.planner import plan as make_plan

    spec = document.catalog_spec()
    recorded, live = observe(catalog, store, project=spec.project)
    plan = document.plan or make_plan(spec, recorded, live, policies=document.policies)
    with closing(_engine(document, catalog, recorded)) as engine:
        own = document.plan is None
        return apply(plan, catalog=catalog, store=store, spec=spec, sql=engine, actor=document.actor, replan=own)


def _refresh(
    asked: _RefreshRequest, document: _MigrationDocument, catalog: Catalog, store: ControlStore
) -> tuple[Refreshed, ...]:
    from airflow_provider_rfr.builtins.execution.observe import read_recorded
    from airflow_provider_rfr.builtins.execution.refresh import refresh

    with store.read() as connection:
        recorded = read_recorded(connection, document.project)
    where: dict[str, Any] = {"project": document.project, "catalog": catalog, "store": store}
    with closing(_engine(document, catalog, recorded)) as engine:
        return refresh(asked.names, sql=engine, force=asked.force, **where)


def _engine(document: _MigrationDocument, catalog: Catalog, recorded: RegistryState) -> SparkSqlEngine:
    views = registered_views(recorded) if not holds_views(catalog) else ()
    return SparkSqlEngine(document.lake, document.spark, registered=views)


def registered_views(recorded: RegistryState) -> tuple[RegisteredView, ...]:
    """The views that earlier deploys left, for catalogs that can't hold any."""
    views = (each for each in recorded.objects if each.kind is Kind.VIEW and each.sql is not None)
    return tuple(
        RegisteredView(each.name, each.sql or "", tuple(column.name for column in each.columns)) for each in views
    )

"""The hook that plans and deploys built-in objects, by their declarations, a lake's catalog and a control store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.dag_arguments import file_folders, located, place_of, possible_places
from airflow_provider_rfr.hooks.lake import LakeHook, secrets_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.builtins import Policies
    from airflow_provider_rfr.builtins.deploy import Applied
    from airflow_provider_rfr.builtins.maintenance import Collected
    from airflow_provider_rfr.builtins.model import ActualState, CatalogSpec, RegistryState
    from airflow_provider_rfr.builtins.plan import Plan
    from airflow_provider_rfr.builtins.refresh import Refreshed
    from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine
    from airflow_provider_rfr.lake import LakeSettings
    from airflow_provider_rfr.store.engine import ControlStore

PROJECT = "rfr"


class BuiltinsHook(BaseHook):
    """A hook that plans and deploys declared objects.

    :param objects: YAML files or folders of them, in addition to the declarations of the package and entry points
    :param project: project that the objects belong to; default ``rfr``
    :param version: version of the code that declares them; None for this package's
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default``
    :param control_store_conn_id: connection of the control store; None for the default
    :param folders: folders in which relative paths are looked up; empty for the working folder
    :raises ConfigurationError: a file or folder does not exist
    """

    def __init__(
        self,
        objects: Sequence[str | Path] | str = (),
        *,
        project: str = PROJECT,
        version: str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        super().__init__()
        self.project = project
        self._objects = paths_of(objects, folders)
        self._version = version
        self._lake_conn_id = lake_conn_id
        self._control_store_conn_id = control_store_conn_id

    @classmethod
    def of_task(cls, task: Any) -> BuiltinsHook:
        """Return a hook with a task's arguments; relative paths are looked up in its :func:`file_folders`."""
        return cls(
            task.objects or (),
            project=task.project,
            version=task.declared_version or None,
            lake_conn_id=task.lake_conn_id,
            control_store_conn_id=task.control_store_conn_id,
            folders=file_folders(task),
        )

    @cached_property
    def spec(self) -> CatalogSpec:
        """Return the declarations.

        :raises DeclarationError: with every mistake, its file and its line
        """
        from airflow_provider_rfr.builtins import load_objects

        return load_objects(*self._objects, project=self.project, version=self._version)

    @cached_property
    def lake(self) -> LakeSettings:
        """Return the lake's settings; their secrets are masked in logs from here on."""
        settings = LakeHook(self._lake_conn_id).get_lake_settings()
        mask_secrets(secrets_of(settings))
        return settings

    @cached_property
    def store(self) -> ControlStore:
        return ControlStoreHook(self._control_store_conn_id).get_store()

    @property
    def store_url(self) -> str:
        """Return the store's address with its password, for a driver's private file."""
        return ControlStoreHook(self._control_store_conn_id).url_for_driver

    @cached_property
    def catalog(self) -> Catalog:
        from airflow_provider_rfr.lake.catalog import open_catalog

        with _catalog_errors(self.lake):
            return open_catalog(self.lake)

    def recorded(self) -> RegistryState:
        """Return the registry's state: the objects as the last deploys recorded them."""
        from airflow_provider_rfr.builtins.maintenance import read_recorded

        with self.store.read() as connection:
            return read_recorded(connection, self.project)

    def observe(self, spec: CatalogSpec | None = None) -> tuple[RegistryState, ActualState]:
        """Return the registry state and the actual state.

        :param spec: the declarations to plan: columns that they require are searched for NULLs
        :raises RfrError: the lake or the control store can't be read
        """
        from airflow_provider_rfr.builtins.maintenance import observe

        store = self.store
        with _catalog_errors(self.lake):
            return observe(self.catalog, store, project=self.project, spec=spec)

    def plan(self, policies: Policies | None = None) -> Plan:
        """Return the plan of a deploy.

        :raises ConfigurationError: an object's namespace is the catalog's name, or a file of a source does not exist
        :raises RfrError: the lake or the control store can't be read
        """
        from airflow_provider_rfr.builtins.planner import plan

        # Spark reads the first part of a name as the catalog, if there is one of that name.
        catalog = self.lake.name.casefold()
        for obj in self.spec.objects:
            if obj.key.partition(".")[0] == catalog:
                remedy = "take another namespace, or give the lake's connection the extra catalog_name"
                problem = f"{obj.name}: {catalog} is the catalog's name"
                raise ConfigurationError("name", problem, remedy, str(obj.place))
            if isinstance(source := (obj.source or {}).get("source"), Mapping):
                located(source, obj.place.file, f"{obj.place}: {obj.name}")
        recorded, live = self.observe(self.spec)
        return plan(self.spec, recorded, live, policies=policies)

    def apply(self, plan: Plan, *, sql: SparkSqlEngine | None = None, actor: str = "", replan: bool = False) -> Applied:
        """Apply the plan in this process.

        :param sql: the engine for steps that need SQL, see :meth:`needs_spark`
        :param actor: who or what deploys, for the journal
        :param replan: for a plan that nobody approved: if another deploy came first, plan again and apply the rest
        :raises BlockedPlanError: the plan is blocked
        :raises StalePlanError: the state has changed since the plan was made
        """
        from airflow_provider_rfr.builtins.deploy import apply

        spec, catalog, store = self.spec, self.catalog, self.store
        return apply(plan, catalog=catalog, store=store, spec=spec, sql=sql, actor=actor, replan=replan)

    def done_by(self, actor: str) -> dict[str, Plan]:
        """Return the plans that this actor has applied, by id of the deploy.

        A try after one that died right after its deploy has nothing to deploy, but still has to send the events.
        """
        from airflow_provider_rfr.builtins.maintenance import plan_of
        from airflow_provider_rfr.store.deploys import done_by

        with self.store.read() as connection:
            plans = {deploy.deploy_id: plan_of(deploy) for deploy in done_by(connection, self.project, actor)}
        return {deploy_id: plan for deploy_id, plan in plans.items() if plan is not None}

    @staticmethod
    def needs_spark(plan: Plan) -> bool:
        """Tell whether a step of the plan needs SQL; columns, settings and empty tables do not."""
        from airflow_provider_rfr.builtins.steps import takes_sql

        return any(map(takes_sql, plan.steps))

    def spark_engine(self, settings: Mapping[str, str], jars: Sequence[str] = ()) -> SparkSqlEngine:
        """Return an engine for SQL in this process, for use outside of tasks. Close it afterwards.

        :param settings: Spark's own, e.g. ``spark.master``
        :param jars: Iceberg's runtime and the database's driver, where Maven Central can't be reached
        """
        from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine

        return SparkSqlEngine(self.lake, settings, jars)

    def refresh_views(
        self, names: Sequence[str] = (), *, sql: SparkSqlEngine, force: bool = False
    ) -> tuple[Refreshed, ...]:
        """Refresh materialized views, as they are deployed, in this process.

        :param names: names of the views; empty, the default, for all of the project
        :param force: refresh a view even if its inputs have no new commit
        :raises ConfigurationError: a name is not that of a deployed materialized view
        :raises StepError: one can't be refreshed now, because a deploy or others change it
        """
        from airflow_provider_rfr.builtins.refresh import refresh

        where: dict[str, Any] = {"project": self.project, "catalog": self.catalog, "store": self.store}
        return refresh(names, sql=sql, force=force, **where)

    def due_views(self, names: Sequence[str] = ()) -> dict[str, bool]:
        """Tell by name whether the inputs of materialized views changed since their rows were computed; without Spark.

        :param names: names of the views; empty, the default, for all of the project
        :raises ConfigurationError: a name is not that of a deployed materialized view
        :raises StepError: one can't be refreshed now, because a deploy changes it
        """
        from airflow_provider_rfr.builtins.refresh import due

        with _catalog_errors(self.lake):
            return due(names, project=self.project, catalog=self.catalog, store=self.store)

    def collect_garbage(self) -> Collected:
        """Delete objects that earlier deploys retired.

        An object must carry this project's marker, and nothing may need it any more.
        """
        from airflow_provider_rfr.builtins.maintenance import gc

        return gc(project=self.project, catalog=self.catalog, store=self.store)


@contextmanager
def _catalog_errors(lake: LakeSettings) -> Iterator[None]:
    """Replace errors of the catalog's client, whose texts may hold its address with credentials."""
    try:
        yield
    except RfrError:
        raise
    except Exception as error:
        problem = f"the lake {lake.name} can't be read ({type(error).__name__}); is its catalog there?"
        raise RfrError(problem) from error


def policies_of(arguments: Mapping[str, Any] | None) -> Policies:
    """Return the decisions for one deploy, from a DAG's arguments or a form.

    :raises ConfigurationError: an unknown name, or an invalid value
    """
    from dataclasses import fields

    from airflow_provider_rfr.builtins import Policies

    names = [field.name for field in fields(Policies)]
    chosen = {name: value for name, value in (arguments or {}).items() if value is not None}
    if unknown := [name for name in chosen if name not in names]:
        raise ConfigurationError(f"policies.{unknown[0]}", "is unknown", f"one of {', '.join(names)}")
    for name in ("accept_data_loss", "adopt", "break_views"):
        if isinstance(chosen.get(name), (list, tuple, set)):
            chosen[name] = frozenset(chosen[name])
    return Policies(**chosen)


def paths_of(objects: Iterable[str | Path] | str, folders: Sequence[Path]) -> list[Path]:
    """Return the files and folders of declarations.

    :raises ConfigurationError: one does not exist
    """
    names = [objects] if isinstance(objects, (str, Path)) else list(objects)
    paths = []
    for name in (str(name) for name in names if str(name).strip()):
        path = place_of(name, folders)
        if not path.exists():
            places = possible_places(name, folders)
            problem = f"{' and '.join(map(str, places))} {'does' if len(places) == 1 else 'do'} not exist"
            raise ConfigurationError("objects", problem, "name a YAML file, or a folder of them")
        paths.append(path)
    return paths

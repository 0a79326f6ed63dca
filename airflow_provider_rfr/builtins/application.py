"""The Spark application of built-in objects: one deploy, or one refresh of materialized views, by a document.

It ends with one line of figures. The operator ships the document in a private file; a user may write one."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from airflow_provider_rfr.builtins.declarations import load_objects
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.engine import SparkSqlEngine
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.model import CatalogSpec
from airflow_provider_rfr.builtins.plan import Plan, Policies
from airflow_provider_rfr.builtins.planner import plan as make_plan
from airflow_provider_rfr.builtins.refresh import refresh
from airflow_provider_rfr.documents import problems_of, read_yaml
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import Redactor, secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.store.engine import open_store

log = logging.getLogger("airflow_provider_rfr")

# YAML's true is "true" for Spark and for PyIceberg.
_Setting = Annotated[str, BeforeValidator(lambda said: str(said).lower() if isinstance(said, bool) else said)]
_Plan = Annotated[Plan, BeforeValidator(lambda said: Plan.from_json(said) if isinstance(said, Mapping) else said)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class _Lake(_Part):
    name: str = "rfr"
    properties: dict[str, _Setting] = Field(repr=False)


class _Refresh(_Part):
    names: tuple[str, ...] = ()
    force: bool = False


class _SupervisorProcess(NamedTuple):
    pid: int
    started: int
    host: str


class MigrationDocument(_Part):
    """One deploy, or one refresh.

    :ivar store: address of the control store; it may hold a password
    :ivar objects: YAML files and folders of declarations; what the package and entry points declare comes besides
    :ivar spec: what is declared, in the place of ``objects``, where the files are not on the driver's machine
    :ivar plan: what to do; None: what a plan of now says
    :ivar refresh: deploy nothing, and refresh these materialized views, or all of the project if it names none
    :ivar run: of the operator: the process without which the driver is to end
    """

    lake: _Lake
    store: str = Field(min_length=1, repr=False)
    project: str = "rfr"
    version: str | None = None
    objects: tuple[Path, ...] = ()
    spec: CatalogSpec | None = None
    policies: Policies | None = None
    plan: _Plan | None = None
    actor: str = ""
    refresh: _Refresh | None = None
    spark: dict[str, _Setting] = {}
    jars: tuple[str, ...] = ()
    run: dict[Literal["supervisor"], _SupervisorProcess] = {}

    def catalog_spec(self) -> CatalogSpec:
        """Return the declared objects.

        :raises DeclarationError: the declarations are invalid; it lists every problem
        """
        return self.spec or load_objects(*self.objects, project=self.project, version=self.version)


def read_document(path: Path) -> MigrationDocument:
    """Read the document of a YAML or JSON file; paths in it are relative to its folder.

    :raises ConfigurationError: it can't be read, or fields of it are wrong; no value is shown
    :raises PlanError: its plan was changed
    """
    try:
        document = MigrationDocument.model_validate(read_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problems = problems_of(error, MigrationDocument).values()
        raise ConfigurationError.of(replace(problem, field=problem.field or "config") for problem in problems) from None
    except (OSError, ValueError) as error:
        # What a parser says of a mistake shows the line, and that may hold a password.
        problem = f"can't be read: {type(error).__name__}"
        raise ConfigurationError("config", problem, "give a YAML or JSON file") from None
    return document.model_copy(update={"objects": tuple(path.parent / obj for obj in document.objects)})


def main(document: MigrationDocument, *, began: float) -> int:
    """Deploy or refresh, print one JSON object as the last line, and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        figures = _work(document)
    except Exception as error:
        log.debug("it could not be done", exc_info=error)
        return failed(error, secrets_in({**document.lake.properties, "control store": document.store}))
    print(json.dumps({**figures, "seconds": round(time.monotonic() - began, 3)}), flush=True)
    return 0


def failed(error: BaseException, secrets: tuple[str, ...] = ()) -> int:
    """Print the error as one JSON object, without secrets, and return the exit code."""
    kind, cause = type(error).__name__, type(error.__cause__).__name__ if error.__cause__ else None
    details = {"type": kind, "cause": cause, "message": Redactor(secrets).text(str(error) or kind)}
    print(json.dumps({"error": details}), flush=True)
    return 1


def _work(document: MigrationDocument) -> dict[str, Any]:
    """Do the work that the document asks for, and return the figures."""
    lake = LakeSettings(document.lake.name, document.lake.properties)
    engine = SparkSqlEngine(lake, document.spark, document.jars)
    with closing(open_store(document.store)) as store, closing(engine) as sql:
        where: dict[str, Any] = {"catalog": open_catalog(lake), "store": store}
        if (asked := document.refresh) is not None:
            views = refresh(asked.names, project=document.project, sql=sql, force=asked.force, **where)
            return {"views": {view.name: asdict(view) for view in views}}
        spec, plan, replan = document.catalog_spec(), document.plan, document.plan is None
        if plan is None:
            plan = make_plan(spec, *observe(**where, project=spec.project, spec=spec), policies=document.policies)
        applied = apply(plan, spec=spec, sql=sql, actor=document.actor, replan=replan, **where)
    return {**asdict(replace(applied, steps=())), "steps": len(applied.steps)}

"""``airflow rfr doctor``: check that this machine and Airflow's connections meet the needs of refreshes and webhooks.

The checks take the first steps of a refresh or a delivery, by the same code: read the connection, list the catalog,
write one small object below the warehouse and delete it, open the control store, connect to the hosts of webhooks. With
``--dag`` they try the connections of one DAG's tasks, and read the first page of each of their streams.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from contextvars import copy_context
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider_rfr.cli.common import command, print_data, say
from airflow_provider_rfr.cli.dags import find_dag, is_mapped, tasks_of_package
from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    CatalogError,
    ConfigurationError,
    PreflightError,
    RfrError,
    TriggerConfigError,
)
from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.preflight import JAVA_REMEDY, check_java, check_localhost, check_pyspark, installed_version
from airflow_provider_rfr.timeouts import in_threads, within

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from airflow_provider_rfr.hooks.api import ApiHook, HttpHook
    from airflow_provider_rfr.hooks.control_store import ControlStoreHook
    from airflow_provider_rfr.hooks.lake import LakeHook
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
    from airflow_provider_rfr.webhooks.block import Endpoint, TriggerBlock

_OK, _MISSING, _SKIPPED = "ok", "missing", "skipped"
_MARKS: Final = {_OK: ("\N{CHECK MARK}", "ok"), _MISSING: ("\N{BALLOT X}", "NO"), _SKIPPED: ("-", "-")}
_PACKAGE: Final = "airflow-provider-rfr"
_SHOWN_VERSIONS: Final = (
    *("apache-airflow", "apache-airflow-providers-apache-spark", "pyspark", "pyiceberg", "pyarrow"),
    _PACKAGE,
)
_CONNECT_SECONDS: Final = 5.0
_STORE_SECONDS: Final = 20.0
_MASTER: Final = re.compile(
    r"yarn|local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|(spark|k8s)://[^:/]+.*"
)
"""Masters that Spark accepts."""
_PASTED: Final = re.compile(r"\brun: |\bwrite |\badd the line |pip install |did you mean |allowed: ")
"""Signs that a remedy already holds something to paste: a command, or a value to write."""
_REPLACED_BY_DAG: Final = ("Spark", "catalog", "warehouse", "connection")
"""Checks of default connections, which ``--dag`` leaves out because the DAG's tasks name their own."""
_CHECKS_OF_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "conn_id": ("Spark",),
    "lake_conn_id": ("catalog", "warehouse"),
    "control_store_conn_id": ("control store",),
}
_CONNECTIONS: Final = ("conn_id", "lake_conn_id", "api_conn_id", "airflow_api_conn_id", "control_store_conn_id")
_STORE_REMEDY: Final = (
    "correct the connection rfr_control_store, or run: export"
    " AIRFLOW__RFR__CONTROL_STORE=postgresql+psycopg2://user:password@db.example.com/rfr"
)
_EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "spark": {"host": "local[*]"},
    "rfr_lake": {"host": "sqlite:////data/catalog.db", "extra": {"warehouse": "file:///data/warehouse"}},
}
"""Example fields by type of connection, for remedies; all other types are for HTTP."""
_NO_HOST: Final = "its address has a host or a port that no machine can have"
_HOST_REMEDY: Final = (
    "write the trigger's address, e.g. url: https://hooks.example.com/orders, or let this machine reach it"
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check of this machine or of a connection.

    :ivar outcome: ``ok``, ``missing``, or ``skipped`` where there is nothing to check
    :ivar remedy: a command to run, or a value to write; empty unless the outcome is ``missing``
    """

    check: str
    outcome: str
    detail: str
    remedy: str = ""


_Check = Callable[[str, Namespace], Iterator[CheckResult]]
_Remedy = Callable[[Namespace], str]
_CHECKS: Final[dict[str, tuple[_Check, _Remedy]]] = {}


def _check(name: str, remedy: str | _Remedy) -> Callable[[_Check], _Check]:
    """Register a check under its name, with the remedy of results that have none of their own."""
    of_args = (lambda args: remedy) if isinstance(remedy, str) else remedy

    def add(check: _Check) -> _Check:
        _CHECKS[name] = check, of_args
        return check

    return add


@command
def doctor(args: Namespace) -> int:
    """Print the result of each check; exit code 1 if anything is missing.

    With ``--dag``, the connections of the DAG's tasks replace the default ones.
    """
    is_usual = args.dag is None
    left_out = ("DAG",) if is_usual else _REPLACED_BY_DAG
    findings = []
    for name, (check, remedy) in _CHECKS.items():
        if name in left_out:
            continue
        for finding in _checked(name, remedy(args), check(name, args)):
            findings.append(finding)
            if args.output in ("json", "yaml"):
                continue
            mark, word = _MARKS[finding.outcome]
            try:
                mark.encode(sys.stdout.encoding or "ascii")
            except UnicodeEncodeError:
                mark = word
            say(f"{mark} {finding.check}: {finding.detail}")
            if finding.remedy:
                print("   ", end="")
                say(finding.remedy)
    missing = sum(finding.outcome == _MISSING for finding in findings)
    if not print_data({"ok": not missing, "checks": [asdict(finding) for finding in findings]}, args):
        result = f"{missing} of {len(findings)} checks found something to do" if missing else "nothing is missing"
        say(f"{result}; --dag DAG_ID checks what a DAG's own tasks use" if is_usual else result)
    return 1 if missing else 0


def _checked(name: str, remedy: str, findings: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """Yield the findings of a check; a failed check is a finding, and the other checks go on."""
    try:
        yield from findings
    except (PreflightError, CatalogError) as error:
        text, _, own = str(error).partition("; ")
        yield CheckResult(name, _MISSING, text, _pasted(own, remedy))
    except ConfigurationError as error:
        for problem in error.problems:
            words = [word for word in (problem.place, problem.field, problem.problem) if word and word != name]
            yield CheckResult(name, _MISSING, ": ".join(words), _pasted(problem.remedy, remedy))
    except RfrError as error:
        yield CheckResult(name, _MISSING, str(error), remedy)
    except Exception as error:  # noqa: BLE001 - whatever fails is a finding; texts of others may hold secrets
        yield CheckResult(name, _MISSING, f"it failed with {type(error).__name__}", remedy)


def _pasted(own: str, remedy: str) -> str:
    """Return an error's own remedy, followed by the check's if the former has neither a command nor a value."""
    return own if _PASTED.search(own) else "; ".join(filter(None, (own, remedy)))


@_check("versions", f"run: pip install --upgrade {_PACKAGE}")
def _versions(name: str, args: Namespace) -> Iterator[CheckResult]:
    """Check that the installed packages are those that this package requires."""
    needed = _requirements()
    if not needed:
        yield CheckResult(name, _SKIPPED, f"{_PACKAGE} is not installed, it runs from its sources")
        return
    wrong = {}
    for requirement in needed:
        if requirement.name.startswith("pyspark"):
            continue  # has a check of its own, because the remedy for one of its packages would break the other
        marker = requirement.marker
        # Packages that only an extra requires may be missing, but if installed they have to fit.
        asked = marker is None or marker.evaluate({"extra": ""})
        if marker is not None and not asked and marker.evaluate({"extra": "dev"}):
            continue  # exact versions for the tests of this package; users may have others
        version = installed_version(requirement.name)
        is_wrong = version is not None and not requirement.specifier.contains(version, prereleases=True)
        if is_wrong or (version is None and asked):
            problem = f"{requirement.name} is {version or 'not there'}"
            # By name, because several extras may require the same package.
            wrong[requirement.name] = CheckResult(
                name, _MISSING, problem, f"run: pip install '{requirement.name}{requirement.specifier}'"
            )
    yield from wrong.values()
    if not wrong:
        shown = ", ".join(
            f"{package} {version}" for package in _SHOWN_VERSIONS if (version := installed_version(package)) is not None
        )
        yield CheckResult(name, _OK, f"Python {sys.version.split()[0]}, {shown}")


def _requirements() -> list[Requirement]:
    """Return the requirements of this package and its extras; empty if it is not installed.

    Left out are the extras for one version of Spark, which contradict each other: ``pyspark`` has the range of all.
    """
    from packaging.requirements import Requirement

    try:
        found = [Requirement(requirement) for requirement in metadata.requires(_PACKAGE) or ()]
        return [requirement for requirement in found if 'extra == "spark' not in str(requirement.marker)]
    except metadata.PackageNotFoundError:
        return []


@_check("Java", JAVA_REMEDY)
def _java(name: str, args: Namespace) -> Iterator[CheckResult]:
    yield CheckResult(name, _OK, check_java())


@_check("pyspark", f"run: pip install '{_PACKAGE}[spark41]'")
def _pyspark(name: str, args: Namespace) -> Iterator[CheckResult]:
    version = check_pyspark()
    check_localhost()
    asked = next((requirement for requirement in _requirements() if requirement.name == "pyspark"), None)
    if version and asked is not None and not asked.specifier.contains(version, prereleases=True):
        yield CheckResult(name, _MISSING, f"pyspark is {version}", f"run: pip install '{_PACKAGE}[spark41]'")
    else:
        yield CheckResult(
            name, _OK, f"pyspark {version}" if version else "no pyspark here, so Spark has to be elsewhere"
        )


@_check("Spark", lambda args: _remedy_of_connection(args.spark_conn_id, "spark"))
def _spark(name: str, args: Namespace) -> Iterator[CheckResult]:
    """Check the connection, its master, ``spark-submit``, and that a standalone master listens."""
    from airflow_provider_rfr.connections.airflow.lookup import connection_named, extras_of, require_type
    from airflow_provider_rfr.hooks.spark import refuse_spark_connect
    from airflow_provider_rfr.http.redaction import without_credentials
    from airflow_provider_rfr.operators.submit import spark_environment

    remedy = f"run: airflow connections add {args.spark_conn_id} --conn-type spark --conn-host 'local[*]'"
    connection = connection_named(args.spark_conn_id, name, remedy)
    refuse_spark_connect(connection)
    require_type(connection, "spark")
    spark_environment(str(extras_of(connection).get("spark-binary", "spark-submit")), os.environ)
    # The master as the hook of Spark's provider builds it: a port without a scheme means a standalone master.
    host = connection.host or ""
    scheme = "" if host and ("://" in host or not connection.port) else "spark://"
    master = f"{scheme}{host}" + (f":{connection.port}" if connection.port else "")
    if not _MASTER.fullmatch(master):
        known = "let its host be yarn, local[*], spark://host:7077 or k8s://https://host"
        remedy = f"{known}; {_remedy_of_connection(args.spark_conn_id, 'spark')}"
        shown = without_credentials(master).partition("?")[0]
        problem = f"{args.spark_conn_id} leads to {shown!r}, which Spark does not know as a master"
        yield CheckResult(name, _MISSING, problem, remedy)
        return
    master = without_credentials(master)
    if master.startswith("spark://") and (silence := _why_no_master_listens(master)) is not None:
        remedy = f"start the master, or {_remedy_of_connection(args.spark_conn_id, 'spark')}"
        yield CheckResult(name, _MISSING, f"nothing listens at {master}: {silence}", remedy)
        return
    yield CheckResult(name, _OK, f"{args.spark_conn_id} leads to {master}")


def _why_no_master_listens(master: str) -> str | None:
    """Return the reason why no master listens; None if at least one does."""
    problem = ""
    for part in master.removeprefix("spark://").split(","):
        try:
            address = urlsplit(f"spark://{part}")
            if not address.hostname or not address.port:
                raise ValueError("Spark assumes no port")
            socket.create_connection((address.hostname, address.port), _CONNECT_SECONDS).close()
            return None
        except ValueError:
            problem = f"{part!r} is not a host and a port"
        except OSError as error:
            problem = error.strerror or type(error).__name__
    return problem


@_check(
    "catalog",
    lambda args: _remedy_of_connection(args.lake_conn_id, "rfr_lake"),
)
def _catalog(name: str, args: Namespace) -> Iterator[CheckResult]:
    from airflow_provider_rfr.hooks.lake import LakeHook, namespaces_in_words

    try:
        count = LakeHook(args.lake_conn_id).check_catalog()
    except CatalogError as error:
        args.catalog_is_silent = isinstance(error.__context__, TimeoutError)
        raise
    yield CheckResult(name, _OK, f"{args.lake_conn_id} has {namespaces_in_words(count)}")


@_check(
    "warehouse",
    lambda args: f"let this machine write there; {_remedy_of_connection(args.lake_conn_id, 'rfr_lake')}",
)
def _warehouse(name: str, args: Namespace) -> Iterator[CheckResult]:
    from airflow_provider_rfr.hooks.lake import LakeHook

    if getattr(args, "catalog_is_silent", False):
        yield CheckResult(name, _SKIPPED, f"{args.lake_conn_id} does not answer, as the check of the catalog says")
        return
    hook = LakeHook(args.lake_conn_id)
    try:
        hook.get_lake_settings()
    except ConfigurationError:
        yield CheckResult(name, _SKIPPED, f"{args.lake_conn_id} can't be read, as the check of the catalog says")
        return
    if hook.check_warehouse():
        yield CheckResult(name, _OK, "an object was written and deleted")
    else:
        yield CheckResult(name, _SKIPPED, "its name is the catalog's own, so only a refresh can write there")


@_check("connection", "run: airflow db check")
def _connections(name: str, args: Namespace) -> Iterator[CheckResult]:
    """Try each connection of our types as its test button does; the named lake has checks of its own."""
    from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

    from airflow_provider_rfr.connections.airflow.gateways import connections_of_types
    from airflow_provider_rfr.hooks.api import ApiHook, HttpHook
    from airflow_provider_rfr.hooks.lake import LakeHook

    kinds: dict[str, type[ApiHook | HttpHook | LakeHook]] = {
        hook.conn_type: hook for hook in (ApiHook, HttpHook, LakeHook)
    }
    try:
        connections = connections_of_types(kinds)
    except SQLAlchemyError as error:
        if isinstance(error, ProgrammingError) or "no such table" in str(error):
            yield CheckResult(name, _MISSING, "Airflow's database has no tables", "run: airflow db migrate")
        else:
            yield CheckResult(name, _MISSING, "Airflow's database does not answer", "run: airflow db check")
        return
    others = sorted((conn_id, kind) for conn_id, kind in connections.items() if conn_id != args.lake_conn_id)
    if not others:
        yield CheckResult(name, _SKIPPED, f"no other connection has type {', '.join(kinds)}")
    hooks = [kinds[kind](conn_id) for conn_id, kind in others]
    # A new thread has an empty context, in which Airflow's warnings about short secrets are not silenced.
    tried = in_threads(lambda item: item[0].run(_tried, item[1]), [(copy_context(), hook) for hook in hooks])
    for (conn_id, kind), trial in zip(others, tried, strict=True):
        yield _of_trial(conn_id, kind, trial)


def _of_trial(conn_id: str, kind: str, trial: tuple[bool | None, str]) -> CheckResult:
    works, message = trial
    if works is None:
        return CheckResult(f"connection {conn_id} ({kind})", _SKIPPED, message)
    problem, _, own = message.partition("; ")
    remedy = own or _remedy_of_connection(conn_id, kind, problem)
    return CheckResult(f"connection {conn_id} ({kind})", _OK if works else _MISSING, problem, "" if works else remedy)


def _remedy_of_connection(conn_id: str, kind: str, problem: str = "") -> str:
    """Return the command that corrects the connection in the place where it is stored."""
    from airflow_provider_rfr.connections.airflow.lookup import CONNECTION_VARIABLE

    variable = f"{CONNECTION_VARIABLE}{conn_id.upper()}"
    fields = _EXAMPLES.get(kind, {"host": "https://api.example.com", "password": "..."})
    if variable in os.environ:
        return f"run: export {variable}='{json.dumps({'conn_type': kind, **fields})}'"
    command = f'airflow rfr connection alter "ALTER CONNECTION {conn_id} SET (%s)"'
    if re.search(r"\b40[13]\b", problem):
        command = 'NEW_PASSWORD="..." ' + command % "password = SECRET 'env:NEW_PASSWORD'"
    else:
        command %= f"host = '{fields['host']}'"
    return f"correct it under Admin > Connections, or run: {command}"


def _tried(hook: ApiHook | HttpHook | LakeHook) -> tuple[bool | None, str]:
    """Test a connection; return success, or None if only a source can tell, and a message. An error is a failure."""
    from airflow_provider_rfr.hooks.api import ApiHook

    try:
        if isinstance(hook, ApiHook) and "base_url" not in hook.get_source_config().config:
            return None, "it has no base URL to ask; airflow rfr source check reads a page with it"
        return hook.test_connection()
    except ConfigurationError as error:
        return False, str(error)
    except Exception as error:  # noqa: BLE001 - as in _checked
        return False, f"it failed with {type(error).__name__}"


@_check("control store", _STORE_REMEDY)
def _control_store(name: str, args: Namespace) -> Iterator[CheckResult]:
    from sqlalchemy.exc import DBAPIError

    from airflow_provider_rfr.hooks.control_store import ControlStoreHook
    from airflow_provider_rfr.store.engine import address_of

    hook = ControlStoreHook(args.control_store_conn_id)
    address_of(hook.url.render_as_string(hide_password=False))
    # The query of the URL may hold a password as well.
    shown = hook.url.set(query={}).render_as_string(hide_password=True)
    try:
        if hook.is_there():
            within(_STORE_SECONDS, lambda: _write_to(hook))
            yield CheckResult(name, _OK, f"{shown} can be written")
            return
        TemporaryFile(dir=Path(hook.url.database or "").parent).close()
        yield CheckResult(name, _OK, f"{shown} is made when it is used first")
    except (TimeoutError, DBAPIError) as error:
        # Only the first line, which never holds a password: the statement follows.
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        yield CheckResult(name, _MISSING, f"{shown} can't be written: {reason}", _STORE_REMEDY)
    except OSError as error:
        yield CheckResult(name, _MISSING, f"{shown} can't be made: {error.strerror}", _STORE_REMEDY)


def _write_to(hook: ControlStoreHook) -> None:
    with closing(hook.get_store()) as store:
        store.check_writable()


def _triggers(args: Namespace) -> TriggerBlock | None:
    """Return the triggers block, with its sealed values unopened; None if none is named."""
    from airflow_provider_rfr.hooks.webhooks import check_triggers, why_no_file

    path = args.triggers or os.environ.get("RFR_TRIGGERS_FILE")
    if not path:
        return None
    if (problem := why_no_file(path)) is not None:
        field = "--triggers" if args.triggers else "RFR_TRIGGERS_FILE"
        raise ConfigurationError(field, f"{path}: {problem}", f"write the path of a triggers file in {field}")
    try:
        return check_triggers(path)
    except TriggerConfigError as error:
        remedy = f"run: airflow rfr triggers validate {path}"
        raise ConfigurationError.of(
            replace(problem, remedy=problem.remedy or remedy) for problem in error.problems
        ) from None


@_check("triggers file", "run: airflow rfr triggers validate FILE")
def _triggers_file(name: str, args: Namespace) -> Iterator[CheckResult]:
    block = _triggers(args)
    if block is None:
        yield CheckResult(name, _SKIPPED, "none is given: use --triggers, or set RFR_TRIGGERS_FILE")
    else:
        yield CheckResult(name, _OK, f"nothing wrong, triggers: {len(block.endpoints)}")


@_check("sealed keys", "run: export SOPS_AGE_KEY_FILE=FILE, the file with the key")
def _sealed_keys(name: str, args: Namespace) -> Iterator[CheckResult]:
    from airflow_provider_rfr.webhooks.sealing import open_sealed

    try:
        block = _triggers(args)
    except RfrError:
        yield CheckResult(name, _SKIPPED, "the triggers file can't be read, as its check says")
        return
    if block is None:
        return  # as the check of the triggers file says
    if not block.is_sealed:
        yield CheckResult(name, _OK, "nothing in the triggers file is sealed")
    else:
        block.opened(open_sealed)
        yield CheckResult(name, _OK, "a key of this machine opens the triggers file")


@_check("webhook", "run: airflow rfr triggers validate FILE")
def _webhook_hosts(name: str, args: Namespace) -> Iterator[CheckResult]:
    from airflow_provider_rfr.webhooks.sealing import open_sealed

    try:
        block = _triggers(args)
        endpoints = block.opened(open_sealed).endpoints if block is not None else ()
    except RfrError:
        yield CheckResult(name, _SKIPPED, "the triggers file can't be read or opened, as the checks above say")
        return
    for endpoint in endpoints:
        yield _host_of_webhook(f"{name} {endpoint.name}", endpoint)


def _host_of_webhook(name: str, endpoint: Endpoint) -> CheckResult:
    """Connect to the host as a delivery does, with the same refused addresses, and close the connection."""
    from airflow_provider_rfr.hooks.api import http_settings
    from airflow_provider_rfr.hooks.webhooks import configured_hosts
    from airflow_provider_rfr.http.sockets import AddressRefused, Deadline, attempt_of_this_thread, connect
    from airflow_provider_rfr.webhooks.calls import resolve

    try:
        call = resolve(endpoint, http_settings, configured_hosts())
        address = urlsplit(call.url)
        place = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    except ConfigurationError as error:
        return CheckResult(name, _MISSING, f"{error.field}: {error.problem}", _pasted(error.remedy, _HOST_REMEDY))
    except ValueError:
        return CheckResult(name, _MISSING, _NO_HOST, _HOST_REMEDY)
    try:
        with attempt_of_this_thread(Deadline(2 * _CONNECT_SECONDS), call.guard, connect=_CONNECT_SECONDS):
            connect(*place).close()
    except AddressRefused as error:
        problem, _, remedy = str(error).partition("; ")
        opened = f"run: export AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS={call.host}, with the hosts that it has"
        return CheckResult(name, _MISSING, problem, _pasted(remedy, opened) if remedy else _HOST_REMEDY)
    except UnicodeError:
        return CheckResult(name, _MISSING, _NO_HOST, _HOST_REMEDY)
    except OSError as error:
        return CheckResult(name, _MISSING, f"{call.host}: {error.strerror or error}", _HOST_REMEDY)
    return CheckResult(name, _OK, f"{call.host} accepts connections")


@_check("DAG", "run: airflow dags list-import-errors")
def _dag(name: str, args: Namespace) -> Iterator[CheckResult]:
    """Try the connections of the DAG's tasks, each once, and read a page of each stream of its refreshes."""
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

    tasks = list(tasks_of_package(find_dag(args.dag)))
    if not tasks:
        yield CheckResult(name, _SKIPPED, f"{args.dag} has no task of this package")
        return
    yield CheckResult(name, _OK, f"{args.dag} has these tasks of this package: {', '.join(t.task_id for t in tasks)}")
    tried = set()
    for task in tasks:
        check = f"task {task.task_id}"
        if is_mapped(task):
            yield CheckResult(check, _SKIPPED, "it is mapped, so its arguments are known in a run only")
            continue
        pages: list[CheckResult] = []
        if isinstance(task, ResumableFullRefreshOperator):
            pages += _checked(check, _remedy_of_page(task), _first_pages(check, task))
            if any(page.outcome == _OK for page in pages):
                # The page proves the connection. Its own test can't, since only the stream knows how to send the key.
                tried.add(("api_conn_id", task.api_conn_id))
        for field in _CONNECTIONS:
            conn_id = getattr(task, field, None)
            if conn_id and is_pending(conn_id):
                yield CheckResult(check, _SKIPPED, f"{field} is a template, which only a run fills in")
            elif conn_id and (field, conn_id) not in tried:
                tried.add((field, conn_id))
                yield from _connection_of_task(field, conn_id)
        yield from pages


def _connection_of_task(field: str, conn_id: str) -> Iterator[CheckResult]:
    """Try a connection of a task by the check of the default one, or as its test button does.

    :param field: the operator's argument that names the connection
    """
    from airflow_provider_rfr.hooks.api import ApiHook, HttpHook

    if field in ("api_conn_id", "airflow_api_conn_id"):
        hook = ApiHook(conn_id) if field == "api_conn_id" else HttpHook(conn_id)
        yield _of_trial(conn_id, hook.conn_type, _tried(hook))
        return
    args = Namespace(spark_conn_id=conn_id, lake_conn_id=conn_id, control_store_conn_id=conn_id)
    for name in _CHECKS_OF_FIELDS[field]:
        check, remedy = _CHECKS[name]
        yield from _checked(name, remedy(args), check(name, args))


def _first_pages(name: str, task: ResumableFullRefreshOperator) -> Iterator[CheckResult]:
    from airflow_provider_rfr.connections.airflow.lookup import mask_secrets
    from airflow_provider_rfr.hooks.api import settings_of
    from airflow_provider_rfr.hooks.dag_arguments import file_folders
    from airflow_provider_rfr.http.redaction import redact
    from airflow_provider_rfr.operators.arguments import pending_arguments, shipped_source, stream_names
    from airflow_provider_rfr.refresh.config import secret_values

    if pending := pending_arguments(task, "api_conn_id", "streams", "source"):
        templates = f"{', '.join(pending)} {'is a template' if len(pending) == 1 else 'are templates'}"
        yield CheckResult(name, _SKIPPED, f"no page is read: {templates}, which only a run fills in")
        return
    try:
        settings = settings_of(task.api_conn_id)
    except ConfigurationError:
        yield CheckResult(name, _SKIPPED, f"no page is read: {task.api_conn_id} can't be read, as its check says")
        return
    mask_secrets(settings.secrets.values())
    source = settings.completed(shipped_source(task.source, file_folders(task)))
    secrets = secret_values(source["secrets"])
    for stream in stream_names(task.streams):
        check = f"{name}, stream {stream}"
        for result in _checked(check, _remedy_of_page(task, stream), _first_page(check, source, stream, task)):
            # Errors of a source may repeat the secrets that it was given.
            yield replace(result, detail=redact(result.detail, secrets), remedy=redact(result.remedy, secrets))


def _remedy_of_page(task: ResumableFullRefreshOperator, stream: str = "") -> str:
    """Return the command that reads the page again if the source is a file, else the remedy of the connection."""
    written = task.source if isinstance(task.source, Mapping) else {}
    file = written.get("file") or written.get("manifest")
    if isinstance(file, (str, Path)):
        words = ["airflow", "rfr", "source", "check", str(file), stream]
        words += ["--api-conn-id", task.api_conn_id] if task.api_conn_id else []
        return f"correct {file}, and run: {shlex.join(filter(None, words))}"
    if task.api_conn_id:
        return f"correct the task's source, or {_remedy_of_connection(task.api_conn_id, 'rfr_api')}"
    return f"correct the task's source, and run: airflow rfr doctor --dag {task.dag_id}"


def _first_page(
    name: str, source: Mapping[str, Any], stream: str, task: ResumableFullRefreshOperator
) -> Iterator[CheckResult]:
    """Read the first page of the stream's first partition and check it for the primary key; no rows are written."""
    from airflow_provider_rfr.hooks.api import read_first_page
    from airflow_provider_rfr.operators.incremental import IncrementalSyncOperator
    from airflow_provider_rfr.refresh.page_rows import check_key_of_page

    try:
        paged, page = read_first_page(source, stream)
    except AuthenticationError as error:
        remedy = _remedy_of_page(task, stream)
        if task.api_conn_id:
            remedy = _remedy_of_connection(task.api_conn_id, "rfr_api", "401")
        yield CheckResult(name, _MISSING, str(error), remedy)
        return
    if isinstance(task, IncrementalSyncOperator) and paged.incremental is None:
        raise ConfigurationError("incremental", *paged.why_not_incremental)
    if page is None:
        yield CheckResult(name, _OK, "it has no partitions, so there is no page to read")
        return
    check_key_of_page(paged.primary_key, page.records)
    count = len(page.records)
    skipped = f": {page.skipped}" if page.skipped else ""
    yield CheckResult(name, _OK, f"first page read, {count} {'record' if count == 1 else 'records'}{skipped}")

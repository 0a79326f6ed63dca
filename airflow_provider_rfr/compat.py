"""A compatibility layer for names that differ between Airflow 3.1, 3.2 and 3.3.

Exceptions and the configuration come from ``airflow.providers.common.compat.sdk``, which supports each version.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import threading
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_rfr.get_provider_info import get_provider_info

__all__ = [
    "AIRFLOW_V_3_2_PLUS",
    "AIRFLOW_V_3_3_PLUS",
    "NEVER_EXPIRE",
    "AirflowRescheduleException",
    "AssetOrTimeSchedule",
    "CronTriggerTimetable",
    "OnceTimetable",
    "RetryDecision",
    "RetryPolicy",
    "airflow_version",
    "lock_requests",
    "parsed_bundle",
    "providers_of_hooks",
    "tested",
    "with_connection_form",
]

_Hook = TypeVar("_Hook", bound=type)

if TYPE_CHECKING:
    from airflow.dag_processing.bundles.base import BaseDagBundle
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk import AssetOrTimeSchedule, Connection, CronTriggerTimetable, RetryDecision, RetryPolicy
    from airflow.sdk.definitions.timetables.simple import OnceTimetable
    from airflow.sdk.exceptions import AirflowRescheduleException
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    AIRFLOW_V_3_2_PLUS: bool
    AIRFLOW_V_3_3_PLUS: bool
else:
    try:
        from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
        from airflow.sdk.definitions.timetables.simple import OnceTimetable
        from airflow.sdk.exceptions import AirflowRescheduleException

        AIRFLOW_V_3_2_PLUS = True
    except ImportError:  # 3.1
        from airflow.exceptions import AirflowRescheduleException
        from airflow.timetables.assets import AssetOrTimeSchedule
        from airflow.timetables.simple import OnceTimetable
        from airflow.timetables.trigger import CronTriggerTimetable

        AIRFLOW_V_3_2_PLUS = False
    try:
        from airflow.sdk import RetryDecision, RetryPolicy
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        AIRFLOW_V_3_3_PLUS = True
    except ImportError:  # 3.1, 3.2
        NEVER_EXPIRE, RetryDecision, RetryPolicy = None, None, object
        AIRFLOW_V_3_3_PLUS = False


def airflow_version() -> str:
    """Return the version of the installed Airflow."""
    return version("apache-airflow-core")


def providers_of_hooks() -> Any:
    """Return Airflow's registry of providers, whose ``hooks`` has the hook of each type of connection."""
    registry: Callable[[], Any]
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

        registry = ProvidersManagerTaskRuntime
    except ImportError:  # 3.1
        from airflow.providers_manager import ProvidersManager

        registry = ProvidersManager
    return registry()


def lock_requests() -> None:
    """Let the threads of a task send requests to Airflow one after another; call it before such a thread starts.

    Airflow 3.1 has no lock for this, nor has ``airflow dags test`` of any version. Two threads that send at once get
    each other's answers, or wait forever.

    No lock helps against what ``airflow dags test`` does besides: it removes ``SUPERVISOR_COMMS`` during a request, so
    that another thread finds no connection. Threads that look up connections must do so one after another themselves.
    """
    unlocked = [("supervisor", "InProcessSupervisorComms")]
    if not AIRFLOW_V_3_2_PLUS:
        unlocked.append(("comms", "CommsDecoder"))
    for module, name in unlocked:
        # A task has loaded the module of the class that it uses.
        comms = getattr(sys.modules.get(f"airflow.sdk.execution_time.{module}"), name, None)
        if comms is not None and not hasattr(comms.send, "__wrapped__"):
            comms.send = _in_turn(comms.send)


def _in_turn(send: Callable[..., Any]) -> Callable[..., Any]:
    # Reentrant, because a signal handler may send while its own thread waits for an answer.
    lock = threading.RLock()

    @wraps(send)
    def locked(*args: Any, **options: Any) -> Any:
        with lock:
            return send(*args, **options)

    return locked


def parsed_bundle(bundle: BaseDagBundle) -> BundleDagBag:
    """Parse the DAG files of a bundle.

    This imports the ORM models of Airflow's metadata database, so it must not run in a task.
    """
    try:
        from airflow.dag_processing.dagbag import BundleDagBag
    except ImportError:  # 3.1
        from airflow.models.dagbag import BundleDagBag  # type: ignore[no-redef]

        return BundleDagBag(bundle.path, bundle_path=bundle.path)
    return BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)


def tested(connection: Connection) -> tuple[bool, str]:
    """Run the connection test of its hook; return success and a message. The connection is not stored.

    Before Airflow 3.3, the hook gets the unsaved connection from an ``AIRFLOW_CONN_*`` variable of this process, as in
    the connection test of Airflow's own API.
    """
    if AIRFLOW_V_3_3_PLUS:
        return connection.test_connection()
    conn_id = f"rfr_{secrets.token_hex(8)}"
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    os.environ[variable] = connection.as_json()
    try:
        hook = type(connection).get(conn_id).get_hook()
        if not hasattr(hook, "test_connection"):
            return False, f"Hook {type(hook).__name__} doesn't implement or inherit test_connection method"
        works, message = hook.test_connection()
        return works, message
    finally:
        del os.environ[variable]


def with_connection_form(hook: _Hook) -> _Hook:
    """Add the connection form to a hook class on Airflow 3.1, which does not read it from the provider's metadata."""
    if not AIRFLOW_V_3_2_PLUS:
        [described] = [
            found
            for found in get_provider_info()["connection-types"]
            if found["hook-class-name"] == f"{hook.__module__}.{hook.__qualname__}"
        ]
        behaviour = {name.replace("-", "_"): value for name, value in described["ui-field-behaviour"].items()}
        hook.get_ui_field_behaviour = staticmethod(lambda: behaviour)  # type: ignore[attr-defined]
        hook.get_connection_form_widgets = staticmethod(  # type: ignore[attr-defined]
            lambda: {name: _form_field(field) for name, field in described["conn-fields"].items()}
        )
    return hook


def _form_field(field: dict[str, Any]) -> Any:
    """Return a form field of the metadata as a field of WTForms, for which Airflow 3.1 substitutes its own classes."""
    validators: Any = importlib.import_module("wtforms.validators")
    fields: Any = importlib.import_module("wtforms")
    schema = field["schema"]
    is_secret = schema.get("format") == "password"
    return (fields.PasswordField if is_secret else fields.StringField)(
        field["label"],
        validators=[validators.any_of(schema["enum"])] if "enum" in schema else [],
        description=field.get("description", ""),
        default=schema.get("default"),
    )

"""The commands of ``airflow rfr``, for Airflow's parser; the module of a group is imported when a command is called."""

from __future__ import annotations

from argparse import SUPPRESS, Action, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow.cli.cli_config import ARG_OUTPUT, ActionCommand, Arg, GroupCommand, lazy_load_command


class _AsJson(Action):
    """A switch that stands for ``--output json``."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, "output", nargs=0, default=SUPPRESS, help=help)

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.output = "json"


def _switch(name: str, help: str, **more: Any) -> Arg:
    return Arg((name,), action="store_true", help=f"{help} (default: no)", **more)


def _file(name: str, help: str, *, metavar: str = "FILE", **more: Any) -> Arg:
    return Arg((name,), type=Path, metavar=metavar, help=help, **more)


def _repeated(name: str, metavar: str, help: str, default: str = "none", **more: Any) -> Arg:
    """Return an option that may be repeated.

    :param default: the default, for the help; empty for a required option
    """
    ending = "; may be repeated" + (f" (default: {default})" if default else "")
    return Arg((name,), action="append", metavar=metavar, help=f"{help}{ending}", **more)


def _command(
    name: str,
    help: str,
    *args: Arg,
    group: str,
    detail: str = "",
    example: str = "",
    function: str | None = None,
    module: str | None = None,
    last: tuple[Arg, ...] = (),
) -> ActionCommand:
    """Return a command of a group; it calls the function of its name, or ``function``, in the group's module.

    :param help: a sentence, without its full stop
    :param detail: more sentences, for the command's own help
    :param example: arguments after the command's name, for its help
    :param module: module of the function, if it is not named as the group
    :param last: arguments after those of the command
    """
    path = f"airflow_provider_rfr.cli.{module or group}.{function or name.replace('-', '_')}"
    words = ("airflow rfr", name if name == group else f"{group} {name}", example)
    arguments = (*args, *last)
    return ActionCommand(
        name=name,
        help=help,
        func=lazy_load_command(path),
        args=(*arguments, _ARG_JSON) if ARG_OUTPUT in arguments else arguments,
        description=f"{help}. {detail}".rstrip(),
        epilog=f"Example: {' '.join(filter(None, words))}",
    )


def _group(name: str, help: str, subcommands: Sequence[ActionCommand | GroupCommand]) -> GroupCommand:
    return GroupCommand(name=name, help=help, description=f"{help}.", subcommands=subcommands)


_ARG_JSON = Arg(("--json",), action=_AsJson, help="The same as --output json")
_ARG_LAKE = Arg(
    ("--lake-conn-id",),
    default="rfr_lake_default",
    help="Connection of the catalog, of type rfr_lake (default: %(default)s)",
)
_ARG_STORE = Arg(
    ("--control-store-conn-id",),
    help="Connection of the control store (default: rfr_control_store, else the option [rfr] control_store)",
)
_STORE = (_ARG_LAKE, _ARG_STORE)
_OF_LAKE = (_ARG_LAKE, ARG_OUTPUT)
_ARG_LIMIT = Arg(
    ("--limit",), type=int, metavar="N", default=100, help="How many to show, the newest first (default: %(default)s)"
)
_ARG_DRY_RUN = _switch("--dry-run", "Only print what would be done")

_ARG_PATH = _file("path", "A triggers block, YAML or JSON", metavar="PATH")
_ARG_TARGET = _repeated("--target", "TABLE", "namespace.table", "all tables")
_ARG_TRIGGER = Arg(
    ("--trigger",), metavar="NAME", help="Only this endpoint: its name, or BLOCK/NAME (default: all endpoints)"
)
_ARG_IDS = Arg(
    ("delivery_id",), nargs="*", metavar="ID", help="Ids of deliveries (default: all that the options select)"
)


def _state_of(*states: str, default: str) -> Arg:
    return Arg(("--state",), choices=states, help=f"Only deliveries in this state (default: {default})")


_ARG_ENDPOINT = Arg(("trigger",), metavar="NAME", help="Name of the endpoint, or BLOCK/NAME")
_ENDPOINT = (Arg(("target",), metavar="TABLE", help="namespace.table"), _ARG_ENDPOINT)

_triggers = partial(_command, group="triggers", last=(ARG_OUTPUT,))
_delivery = partial(_command, group="triggers", last=(*_STORE, ARG_OUTPUT))
_TRIGGERS = (
    _triggers(
        "render",
        "Render a template with variables",
        _file("--template", "The Handlebars template", required=True),
        _file("--variables", "Its variables, a JSON object", required=True),
        _switch("--json-body", "Escape values for JSON, as bodies of webhooks do", dest="json_mode"),
        example="--template body.hbs --variables variables.json",
    ),
    _triggers("validate", "Check a triggers block as a deploy does", _ARG_PATH, example="triggers.yaml"),
    _triggers("schema", "Print the JSON schema of a triggers block"),
    _triggers(
        "seal",
        "Print the file with its secrets sealed (SOPS, age)",
        _ARG_PATH,
        _repeated("--recipient", "AGE", "An age public key", "", required=True),
        _switch("--reseal", "Seal a sealed file again, for these recipients; needs a key that opens it"),
        example="--recipient age1kx0e5... triggers.yaml",
    ),
    _delivery(
        "deliver",
        "Send the deliveries that are due, once",
        _ARG_PATH,
        _ARG_TARGET,
        Arg(
            ("--start-from",),
            choices=("latest", "earliest"),
            default="latest",
            help="First commit that is delivered to an endpoint that is new to a table (default: %(default)s)",
        ),
        example="triggers.yaml --target raw.orders",
    ),
    _triggers(
        "test-fire",
        "Send an invented event to one endpoint",
        *(_ARG_PATH, _ARG_ENDPOINT),
        example="triggers.yaml startDownstream",
    ),
    _delivery(
        "list",
        "Show deliveries",
        *(_ARG_TARGET, _ARG_TRIGGER),
        _state_of("pending", "delivered", "dead", "cancelled", "merged", default="any"),
        _ARG_LIMIT,
        function="list_deliveries",
        example="--state dead",
    ),
    _delivery(
        "replay",
        "Queue deliveries again, under the same ids; `deliver` sends them",
        *(_ARG_IDS, _ARG_TARGET, _ARG_TRIGGER),
        _state_of("dead", "cancelled", "delivered", default="dead; of those named by id, any of these"),
        example="--trigger startDownstream",
    ),
    _delivery(
        "cancel",
        "Cancel pending and dead deliveries",
        *(_ARG_IDS, _ARG_TARGET, _ARG_TRIGGER),
        _state_of("pending", "dead", default="both"),
        Arg(("--reason",), default="", help="Reason to keep in the history (default: none)"),
        example="3f0c... --reason obsolete",
    ),
    _delivery("pause", "Hold back an endpoint's deliveries", *_ENDPOINT, example="raw.orders startDownstream"),
    _delivery("resume", "Resume a paused or disabled endpoint", *_ENDPOINT, example="raw.orders startDownstream"),
)


_DECLARATIONS = (
    _repeated("--objects", "DIR", "Folder or file with declarations", type=Path),
    Arg(("--project",), default="rfr", help="Project that owns the objects (default: %(default)s)"),
    Arg(("--declared-version",), help="Version of the declarations (default: this package's version)"),
    *_STORE,
)
_ARG_NAMES = Arg(("names",), nargs="+", metavar="NAME", help="Names of objects")
_POLICIES = (
    _repeated("--break-views", "NAME", "A user's view that may break"),
    Arg(("--drift",), choices=("fail", "adopt", "repair"), help="What to do about changes by hand (default: fail)"),
    _repeated("--accept-data-loss", "NAME", "An object or a column that may be lost"),
    _repeated("--adopt", "NAME", "An existing table or view to manage"),
    _repeated(
        "--sink",
        "NAME=CHOICE",
        "What a sink does when its table is emptied: hold, resume_from_new or resend",
        "its on_replace",
    ),
    Arg(("--keep-days",), type=int, help="Days for which retired tables are kept (default: 7)"),
)
_SPARK = (
    _repeated("--spark-conf", "NAME=VALUE", "A Spark setting"),
    _repeated("--jars", "JAR", "Iceberg's runtime, where Maven Central can't be reached", "from Maven Central"),
)
_DEPLOY = "--objects objects --project acme"

_objects = partial(_command, group="objects", last=(*_DECLARATIONS, ARG_OUTPUT))
_OBJECTS = (
    _objects(
        "plan",
        "Print what a deploy would do",
        *_POLICIES,
        _switch("--check", "List each `was` and `removed` that is no longer needed, for CI"),
        _file("--save", "Write the plan to this file, for apply --plan (default: it is not kept)"),
        detail="Exit codes: 0 nothing to do; 2 something to do; 1 the plan is stopped, with --check something may be"
        " deleted, or an error.",
        example=_DEPLOY,
    ),
    _objects(
        "apply",
        "Deploy the declared objects",
        _file("--plan", "A saved plan; refused if anything has changed since (default: a new plan)"),
        *(*_POLICIES, *_SPARK),
        example=_DEPLOY,
    ),
    _objects(
        "refresh",
        "Refresh materialized views",
        Arg(("names",), nargs="*", metavar="NAME", help="Names of materialized views (default: none, see --all)"),
        _switch("--all", "Refresh all that are deployed"),
        _switch("--force", "Refresh also where no input has changed"),
        *_SPARK,
        example="ops.daily_orders",
    ),
    _objects("status", "Show what is recorded, running, unfinished, and to be deleted"),
    _objects(
        "history",
        "Show past deploys, or the steps of one",
        Arg(("deploy_id",), nargs="?", metavar="DEPLOY", help="Show the steps of this one (default: all deploys)"),
        _ARG_LIMIT,
        example="--limit 5",
    ),
    _objects(
        "drift",
        "Show what was changed by hand",
        detail="Exit codes: 0 nothing was; 2 something was; 1 an error.",
        example=_DEPLOY,
    ),
    _objects("adopt", "Begin to manage existing tables, unchanged", _ARG_NAMES, *_SPARK, example="ops.runs"),
    _objects("forget", "Remove objects from the registry; their rows stay", _ARG_NAMES, *_SPARK, example="ops.runs"),
    _objects(
        "force-unlock",
        "Take the lease from a dead deploy",
        Arg(("--token",), type=int, required=True, help="Token of the lease, as status or the error shows it"),
        example="--token 7",
    ),
    _objects(
        "release-sink",
        "Decide how a sink that is on hold continues",
        Arg(("sink_name",), metavar="SINK", help="Name of the sink"),
        Arg(("choice",), choices=("resume_from_new", "resend"), help="Continue with new rows, or send all again"),
        example="ops.export resend",
    ),
    _objects("gc", "Delete retired tables that are no longer needed"),
    _objects("graph", "Print which objects read which, for Graphviz", example="| dot -Tsvg > graph.svg"),
)


_ARG_CONNECTION = Arg(("connection",), metavar="CONNECTION", help="Id of the connection")
_AIRFLOW = (
    Arg(
        ("--airflow-api-conn-id",),
        help="Connection of Airflow's API, where its database can't be reached (default: airflow_api)",
    ),
    _ARG_STORE,
)

_connection = partial(_command, group="connection", last=(*_AIRFLOW, ARG_OUTPUT))
_CONNECTION = (
    _connection(
        "alter",
        "Change a connection, and restart what uses it",
        Arg(("statement",), help="A statement: ALTER, DROP, COMMENT ON or VALIDATE CONNECTION"),
        _file("--parameters", "JSON object with the values of :name, secrets above all; - for stdin (default: none)"),
        _ARG_DRY_RUN,
        _switch("--no-validate", "Do not try the new settings before they are stored"),
        _switch("--no-restart", "Let what uses it keep its copy until its next run"),
        _switch("--new-identity", "The connection leads to another upstream: read everything from its beginning"),
        example='"ALTER CONNECTION shop SET (port = 8443)" --dry-run',
    ),
    _connection("validate", "Try a connection as it is stored", _ARG_CONNECTION, example="shop"),
    _connection(
        "dependents", "Show what uses a connection, and with which copy of it", _ARG_CONNECTION, example="shop"
    ),
    _connection(
        "history",
        "Show who altered or dropped connections, and the outcome",
        Arg(("connection",), nargs="?", metavar="CONNECTION", help="Only of this one (default: all connections)"),
        _ARG_LIMIT,
        example="shop --limit 5",
    ),
)


_ARG_TABLES = Arg(("tables",), nargs="*", metavar="TABLE", help="namespace.table (default: all tables)")

_tables = partial(_command, group="tables", module="refresh", last=_OF_LAKE)
_TABLES = (
    _tables(
        "expire",
        "Expire old snapshots of our tables, and add waiting rows to the history tables",
        _ARG_TABLES,
        _repeated(
            "--release",
            "HOLDER",
            "Release snapshots kept for this webhook or sink, which no longer exists, as the log names it",
        ),
        *(_ARG_DRY_RUN, _ARG_STORE),
        example="raw.orders --dry-run",
    ),
    _tables(
        "drop-ledgers",
        "Drop ledgers of parts that are no longer resumed",
        _ARG_TABLES,
        Arg(
            ("--days",),
            type=float,
            default=7.0,
            help="Days after its last commit for which a ledger is kept (default: %(default)s)",
        ),
        _ARG_DRY_RUN,
        example="--days 30",
    ),
)


_ARG_TABLE = Arg(("table",), metavar="TABLE", help="namespace.table")
_ONE_REFRESH = (
    _ARG_TABLE,
    Arg(
        ("--replace-where",),
        metavar="FILTER",
        help="A part of the table, as the refresh's option names it (default: the whole table)",
    ),
)

_refresh = partial(_command, group="refresh", last=_OF_LAKE)


_A_SOURCE = "The source: a definition, a manifest of Airbyte, or package.module:Name"
_SOURCE_SETTINGS = (
    _file("--config", "Its configuration, YAML or JSON (default: none)"),
    Arg(("--api-conn-id",), help="Connection of type rfr_api with its secrets (default: none)"),
    _file("--components", "Its components.py: Python code, which is run (default: none)"),
)

_state = partial(_command, group="refresh state", module="state", last=_OF_LAKE)
_REFRESH = (
    _refresh(
        "list",
        "Show the newest refresh of each table and part, those in trouble first",
        _ARG_TABLES,
        function="list_refreshes",
    ),
    _refresh("show", "Show everything about a table's newest refresh", *_ONE_REFRESH, example="raw.orders --json"),
    _refresh("history", "Show a table's generations and their outcomes", *_ONE_REFRESH, example="raw.orders"),
    _refresh(
        "watch",
        "Follow a refresh until it is over; exit code 0 if it is published",
        *_ONE_REFRESH,
        example="raw.orders",
    ),
    _refresh(
        "drop",
        "Drop a table's ledger, so that the next run reads all pages again; the table itself stays",
        *_ONE_REFRESH,
        example="raw.orders",
    ),
    _group(
        "state",
        "Show, set and import the state of a table's incremental sync",
        (
            _state(
                "show",
                "Print the state as JSON; exit code 1 if there is none",
                _ARG_TABLE,
                function="show_state",
                example="raw.orders",
            ),
            _state(
                "set",
                "Set the state in an empty snapshot of its own, from where the next sync starts",
                _ARG_TABLE,
                _file("file", "As `state show` prints it (default: standard input)", nargs="?"),
                function="set_state",
                example="raw.orders state.json",
            ),
            _state(
                "import",
                "Set the state that an Airbyte connection or a dlt pipeline has come to",
                _ARG_TABLE,
                _file("state", "State messages of Airbyte, what its UI or API exports, or state.json of dlt"),
                _file("--source", _A_SOURCE, required=True),
                Arg(("--stream",), metavar="NAME", help="The stream in the file (default: the only one)"),
                Arg(("--as",), dest="name", metavar="NAME", help="The stream in the source (default: the same name)"),
                *_SOURCE_SETTINGS,
                function="import_state",
                example="raw.orders airbyte.json --source shop.yaml --stream orders",
            ),
        ),
    ),
)


_ARG_SOURCE = _file("file", _A_SOURCE)
_SOURCE = (
    _command(
        "check",
        "Read the first page of each stream, and show its columns and how it would be loaded; exit code 1 if one fails",
        _ARG_SOURCE,
        Arg(("stream",), nargs="?", metavar="STREAM", help="Only this stream (default: all streams)"),
        *_SOURCE_SETTINGS,
        _switch("--offline", "Send no request; a manifest without a configuration gets one that is made up"),
        ARG_OUTPUT,
        group="source",
        module="source_check",
        example="shop.yaml --api-conn-id shop_api",
    ),
    _command(
        "read",
        "Print a stream's records as JSON Lines, without Spark and without a table",
        _ARG_SOURCE,
        Arg(("stream",), metavar="STREAM", help="Name of the stream"),
        Arg(("--limit",), type=int, metavar="N", help="Stop after so many records (default: read all)"),
        _file(
            "--state-file",
            "Read on from the state in this file, if it is there, and write the new one to it; a page that was not"
            " read whole is read again (default: read from the start, print the state to standard error)",
        ),
        *_SOURCE_SETTINGS,
        group="source",
        example="shop.yaml orders --limit 5",
    ),
    _command(
        "connection",
        "Print the fields of the connection that a manifest needs, by its spec",
        _file("file", "A manifest of Airbyte, YAML or JSON"),
        ARG_OUTPUT,
        group="source",
        example="manifest.yaml",
    ),
    _command("schema", "Print the JSON schema of definitions, for editors", ARG_OUTPUT, group="source"),
)


_DOCTOR = _command(
    "doctor",
    "Check what refreshes and webhooks need: Java, Spark, versions, connections, catalog, control store, keys, hosts",
    Arg(
        ("--triggers",),
        # An empty text, as an unset shell variable gives it, names no file.
        type=lambda text: text and Path(text),
        metavar="FILE",
        help="Triggers file whose keys and hosts are checked (default: RFR_TRIGGERS_FILE)",
    ),
    Arg(
        ("--dag",),
        metavar="DAG_ID",
        help="Check the connections that this DAG's tasks name, in place of the usual ones and of all others, and read"
        " the first page of each stream (default: no DAG)",
    ),
    Arg(("--spark-conn-id",), default="spark_default", help="Connection of type spark (default: %(default)s)"),
    group="doctor",
    last=(*_STORE, ARG_OUTPUT),
    example="--triggers triggers.yaml",
)


_BUNDLE = _command(
    "bundle",
    "Write a task's refresh as files that EMR, Dataproc, Databricks, Glue and the like can run, without secrets",
    _file("out", "Folder to write run.json, refresh.py and airflow_provider_rfr.zip into", metavar="OUT"),
    Arg(("--dag",), metavar="DAG_ID", required=True, help="The DAG whose task is taken"),
    Arg(("--task",), metavar="TASK_ID", help="The task (default: the only refresh of the DAG)"),
    Arg(
        ("--secret-files",),
        metavar="FOLDER",
        help="Let the driver read secrets from files in this folder, relative to its working folder, in place of"
        " environment variables (default: environment variables)",
    ),
    group="bundle",
    last=(ARG_OUTPUT,),
    example="build/shop --dag shop --task refresh",
)


_LOAD = _command(
    "load",
    "Run the refresh or the sync that a file describes on the Spark of this machine",
    _file("file", "YAML or JSON with the operator's arguments: source, streams, target, lake_conn_id and others"),
    detail="Exit codes: 0 all is published; 1 a stream failed, and the next run continues; 2 the file, a connection or"
    " the machine is wrong; 3 a newer attempt took over.",
    group="load",
    example="shop_load.yaml",
)

_INIT = _command(
    "init",
    "Write a source, a DAG, webhooks and connections to begin with; no file is overwritten",
    _file("folder", "Folder to write into (default: Airflow's DAG folder)", metavar="FOLDER", nargs="?"),
    _file("--from-manifest", "A manifest of Airbyte to load from (default: the package's sample API)"),
    Arg(("--dag",), metavar="DAG_ID", help="Copy this ready DAG alone (default: none)"),
    ARG_OUTPUT,
    group="init",
    example="dags/shop",
)

_VERSION = _command(
    "version", "Print the versions of this package, Airflow, Spark and Iceberg", ARG_OUTPUT, group="version"
)


def get_rfr_commands() -> list[GroupCommand]:
    """Return the commands that Airflow adds to its own."""
    groups = (
        ("refresh", "Show, follow and drop refreshes", _REFRESH),
        ("triggers", "Check, send and replay commit webhooks", _TRIGGERS),
        ("objects", "Deploy the platform's own tables, views and sinks", _OBJECTS),
        ("tables", "Expire snapshots of tables, and drop ledgers", _TABLES),
        ("source", "Check and read sources, without a refresh", _SOURCE),
        ("connection", "Change connections, and show what uses them", _CONNECTION),
    )
    subgroups = [_group(*group) for group in groups]
    help = "Load tables from APIs, send commit webhooks, migrate objects, change connections"
    return [_group("rfr", help, (_INIT, _DOCTOR, _LOAD, _BUNDLE, _VERSION, *subgroups))]

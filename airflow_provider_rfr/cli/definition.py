"""The commands of ``airflow rfr`` for Airflow's parser; their modules are imported when one is called."""

from __future__ import annotations

from argparse import SUPPRESS, Action, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.cli.cli_config import ARG_OUTPUT, ActionCommand, Arg, GroupCommand, lazy_load_command


class _AsJson(Action):
    """A switch that stands for ``--output json``."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, "output", nargs=0, default=SUPPRESS, help=help)

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.output = "json"


_ARG_JSON = Arg(("--json",), action=_AsJson, help="The same as --output json")
_ARG_PATH = Arg(("path",), type=Path, metavar="PATH", help="A triggers block, YAML or JSON")
_ARG_TEMPLATE = Arg(("--template",), type=Path, required=True, metavar="FILE", help="The Handlebars template")
_ARG_VARIABLES = Arg(("--variables",), type=Path, required=True, metavar="FILE", help="Its variables, a JSON object")
_ARG_JSON_MODE = Arg(
    ("--json-body",), action="store_true", dest="json_mode", help="Escape values for JSON, as bodies of webhooks do"
)
_ARG_RECIPIENT = Arg(
    ("--recipient",), action="append", required=True, metavar="AGE", help="An age public key; may be given repeatedly"
)
_ARG_RESEAL = Arg(
    ("--reseal",), action="store_true", help="Seal a sealed file again, for these recipients; needs a key that opens it"
)
_ARG_LAKE = Arg(
    ("--lake-conn-id",),
    default="rfr_lake_default",
    help="Connection of the catalog, of type rfr_lake (default: %(default)s)",
)
_ARG_STORE = Arg(
    ("--control-store-conn-id",),
    help="Connection of the control store (default: rfr_control_store, else the option [rfr] control_store)",
)
_ARG_TARGET = Arg(
    ("--target",), action="append", metavar="TABLE", help="namespace.table; may be repeated (default: all tables)"
)
_ARG_TRIGGER = Arg(
    ("--trigger",), metavar="NAME", help="Only this endpoint: its name, or BLOCK/NAME (default: all endpoints)"
)
_ARG_STATE = Arg(
    ("--state",),
    choices=("pending", "delivered", "dead", "cancelled", "merged"),
    help="Only deliveries in this state (default: any)",
)
_ARG_LIMIT = Arg(("--limit",), type=int, default=100, help="How many to show, the newest first (default: %(default)s)")
_ARG_DELIVERY = Arg(("delivery_id",), nargs="*", metavar="ID", help="Ids of deliveries")
_ARG_REASON = Arg(("--reason",), default="", help="Reason to keep in the history (default: none)")
_ARG_ONE_TARGET = Arg(("target",), metavar="TABLE", help="namespace.table")
_ARG_ONE_TRIGGER = Arg(("trigger",), metavar="NAME", help="Name of the endpoint, or BLOCK/NAME")
_ARG_START_FROM = Arg(
    ("--start-from",),
    choices=("latest", "earliest"),
    default="latest",
    help="First commit that is delivered to an endpoint that is new to a table (default: %(default)s)",
)

_STORE = (_ARG_LAKE, _ARG_STORE)
_SELECTED = (_ARG_TARGET, _ARG_TRIGGER, _ARG_STATE)


def _command(
    name: str,
    help: str,
    *args: Arg,
    example: str = "",
    function: str | None = None,
    group: str = "triggers",
    module: str | None = None,
) -> ActionCommand:
    """Return a command of a group; it calls the function of its name, or ``function``, in the group's module.

    :param example: arguments after the command's name, for its help
    :param module: of the function, where it is not named as the group
    """
    path = f"airflow_provider_rfr.cli.{module or group}.{function or name.replace('-', '_')}"
    words = ("airflow rfr", name if name == group else f"{group} {name}", example)
    return ActionCommand(
        name=name,
        help=help,
        func=lazy_load_command(path),
        args=(*args, _ARG_JSON) if ARG_OUTPUT in args else args,
        epilog=f"Example: {' '.join(filter(None, words))}",
    )


_SELECTION = (_ARG_DELIVERY, *_SELECTED, ARG_OUTPUT, *_STORE)
_ENDPOINT = (_ARG_ONE_TARGET, _ARG_ONE_TRIGGER, ARG_OUTPUT, *_STORE)
_TRIGGERS = (
    _command(
        "render",
        "Render a template with variables",
        *(_ARG_TEMPLATE, _ARG_VARIABLES, _ARG_JSON_MODE, ARG_OUTPUT),
        example="--template body.hbs --variables variables.json",
    ),
    _command("validate", "Check a triggers block as a deploy does", _ARG_PATH, ARG_OUTPUT, example="triggers.yaml"),
    _command("schema", "Print the JSON schema of a triggers block", ARG_OUTPUT),
    _command(
        "seal",
        "Print the file with its secrets sealed (SOPS, age)",
        *(_ARG_PATH, _ARG_RECIPIENT, _ARG_RESEAL, ARG_OUTPUT),
        example="--recipient age1kx0e5... triggers.yaml",
    ),
    _command(
        "deliver",
        "Send the deliveries that are due, once",
        *(_ARG_PATH, _ARG_TARGET, _ARG_START_FROM, ARG_OUTPUT, *_STORE),
        example="triggers.yaml --target raw.orders",
    ),
    _command(
        "test-fire",
        "Send an invented event to one endpoint",
        *(_ARG_PATH, _ARG_ONE_TRIGGER, ARG_OUTPUT, *_STORE),
        example="triggers.yaml startDownstream",
    ),
    _command(
        "list",
        "Show deliveries",
        *(*_SELECTED, _ARG_LIMIT, ARG_OUTPUT, *_STORE),
        function="list_deliveries",
        example="--state dead",
    ),
    _command("replay", "Send deliveries again, under the same ids", *_SELECTION, example="--trigger startDownstream"),
    _command("cancel", "Cancel pending deliveries", *_SELECTION, _ARG_REASON, example="3f0c... --reason obsolete"),
    _command("pause", "Hold back an endpoint's deliveries", *_ENDPOINT, example="raw.orders startDownstream"),
    _command("resume", "Resume a paused or disabled endpoint", *_ENDPOINT, example="raw.orders startDownstream"),
)


_ARG_OBJECTS = Arg(
    ("--objects",),
    action="append",
    type=Path,
    metavar="DIR",
    help="Folder or file with declarations; may be repeated (default: none)",
)
_ARG_PROJECT = Arg(("--project",), default="rfr", help="Project that owns the objects (default: %(default)s)")
_ARG_VERSION = Arg(("--declared-version",), help="Version of the declarations (default: this package's version)")
_ARG_CHECK = Arg(
    ("--check",), action="store_true", help="List each `was` and `removed` that is no longer needed, for CI"
)
_ARG_SAVE = Arg(
    ("--save",),
    type=Path,
    metavar="FILE",
    help="Write the plan to this file, for apply --plan (default: it is not kept)",
)
_ARG_PLAN = Arg(
    ("--plan",),
    type=Path,
    metavar="FILE",
    help="A saved plan; refused if anything has changed since (default: a new plan)",
)
_ARG_DEPLOY = Arg(("deploy_id",), nargs="?", metavar="DEPLOY", help="Show the steps of this one")
_ARG_NAMES = Arg(("names",), nargs="+", metavar="NAME", help="Names of objects")
_ARG_VIEWS = Arg(("names",), nargs="*", metavar="NAME", help="Names of materialized views")
_ARG_ALL = Arg(("--all",), action="store_true", help="Refresh all that are deployed")
_ARG_FORCE = Arg(("--force",), action="store_true", help="Refresh also where no input has changed")
_ARG_TOKEN = Arg(("--token",), type=int, required=True, help="Token of the lease, as status or the error shows it")
_ARG_SINK = Arg(("sink_name",), metavar="SINK", help="Name of the sink")
_ARG_CHOICE = Arg(("choice",), choices=("resume_from_new", "resend"), help="Continue with new rows, or send all again")
_POLICIES = (
    Arg(("--break-views",), action="append", metavar="NAME", help="A user's view that may break (default: none)"),
    Arg(("--drift",), choices=("fail", "adopt", "repair"), help="What to do about changes by hand (default: fail)"),
    Arg(
        ("--accept-data-loss",),
        action="append",
        metavar="NAME",
        help="An object or a column that may be lost (default: none)",
    ),
    Arg(("--adopt",), action="append", metavar="NAME", help="An existing table or view to manage (default: none)"),
    Arg(
        ("--sink",),
        action="append",
        metavar="NAME=CHOICE",
        help="What a sink does when its table is emptied: hold, resume_from_new or resend (default: its on_replace)",
    ),
    Arg(("--keep-days",), type=int, help="Days for which retired tables are kept (default: 7)"),
)
_SPARK = (
    Arg(
        ("--spark-conf",),
        action="append",
        metavar="NAME=VALUE",
        help="A Spark setting; may be repeated (default: none)",
    ),
    Arg(
        ("--jars",),
        action="append",
        metavar="JAR",
        help="Iceberg's runtime, where Maven Central can't be reached (default: from there)",
    ),
)
_PLACE = (_ARG_OBJECTS, _ARG_PROJECT, _ARG_VERSION, _ARG_LAKE, _ARG_STORE)


def _builtins(name: str, help: str, *args: Arg, example: str = "") -> ActionCommand:
    return _command(name, help, *_PLACE, *args, group="builtins", example=example)


_DEPLOY = "--objects objects --project acme"
_BUILTINS = (
    _builtins("plan", "Print what a deploy would do", *_POLICIES, _ARG_CHECK, _ARG_SAVE, ARG_OUTPUT, example=_DEPLOY),
    _builtins("apply", "Deploy the declared objects", _ARG_PLAN, *_POLICIES, *_SPARK, ARG_OUTPUT, example=_DEPLOY),
    _builtins(
        "refresh",
        "Refresh materialized views",
        *(_ARG_VIEWS, _ARG_ALL, _ARG_FORCE, *_SPARK, ARG_OUTPUT),
        example="ops.daily_orders",
    ),
    _builtins("status", "Show what is recorded, running, unfinished, and to be deleted", ARG_OUTPUT),
    _builtins(
        "history", "Show past deploys, or the steps of one", _ARG_DEPLOY, _ARG_LIMIT, ARG_OUTPUT, example="--limit 5"
    ),
    _builtins("drift", "Show what was changed by hand", ARG_OUTPUT, example=_DEPLOY),
    _builtins(
        "adopt", "Begin to manage existing tables, unchanged", _ARG_NAMES, *_SPARK, ARG_OUTPUT, example="ops.runs"
    ),
    _builtins(
        "forget",
        "Remove objects from the registry; their rows stay",
        *(_ARG_NAMES, *_SPARK, ARG_OUTPUT),
        example="ops.runs",
    ),
    _builtins("force-unlock", "Take the lease from a dead deploy", _ARG_TOKEN, ARG_OUTPUT, example="--token 7"),
    _builtins(
        "release-sink",
        "Decide how a sink that is on hold continues",
        *(_ARG_SINK, _ARG_CHOICE, ARG_OUTPUT),
        example="ops.export resend",
    ),
    _builtins("gc", "Delete retired tables that are no longer needed", ARG_OUTPUT),
    _builtins("graph", "Print which objects read which, for Graphviz", ARG_OUTPUT, example="| dot -Tsvg > graph.svg"),
)


_ARG_STATEMENT = Arg(("statement",), help="ALTER, DROP, COMMENT ON or VALIDATE CONNECTION ...")
_ARG_PARAMETERS = Arg(
    ("--parameters",),
    type=Path,
    metavar="FILE",
    help="JSON object with the values of :name, secrets above all; - for stdin (default: none)",
)
_ARG_CONNECTION = Arg(("connection",), metavar="CONNECTION", help="Id of the connection")
_ARG_ANY_CONNECTION = Arg(("connection",), nargs="?", metavar="CONNECTION", help="Only of this one")
_SWITCHES = (
    Arg(("--dry-run",), action="store_true", help="Only print what would be done"),
    Arg(("--no-validate",), action="store_true", help="Do not try the new settings before they are stored"),
    Arg(("--no-restart",), action="store_true", help="Let what uses it keep its copy until its next run"),
    Arg(("--new-identity",), action="store_true", help="Another upstream is meant: read everything from its beginning"),
)
_AIRFLOW = (
    Arg(
        ("--airflow-api-conn-id",),
        help="Connection of Airflow's API, where its database can't be reached (default: airflow_api)",
    ),
    _ARG_STORE,
)


def _connection(name: str, help: str, *args: Arg, example: str) -> ActionCommand:
    return _command(name, help, *args, *_AIRFLOW, ARG_OUTPUT, group="connection", example=example)


_CONNECTION = (
    _connection(
        "alter",
        "Change a connection, and restart what uses it",
        *(_ARG_STATEMENT, _ARG_PARAMETERS, *_SWITCHES),
        example='"ALTER CONNECTION shop SET (port = 8443)" --dry-run',
    ),
    _connection("validate", "Try a connection as it is stored", _ARG_CONNECTION, example="shop"),
    _connection(
        "dependents", "Show what uses a connection, and with which copy of it", _ARG_CONNECTION, example="shop"
    ),
    _connection(
        "history",
        "Show who altered or dropped connections, and the outcome",
        *(_ARG_ANY_CONNECTION, _ARG_LIMIT),
        example="shop --limit 5",
    ),
)


_ARG_TABLES = Arg(("tables",), nargs="*", metavar="TABLE", help="namespace.table; all if left out")
_ARG_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Only print what would be done")
_ARG_RELEASE = Arg(
    ("--release",),
    action="append",
    metavar="HOLDER",
    help="Release snapshots kept for this webhook or sink, which no longer exists; as the log names it (default: none)",
)
_ARG_DAYS = Arg(
    ("--days",),
    type=float,
    default=7.0,
    help="Days after its last commit for which a ledger is kept (default: %(default)s)",
)


def _tables(name: str, help: str, *args: Arg, example: str) -> ActionCommand:
    return _command(
        name, help, _ARG_TABLES, *args, _ARG_LAKE, ARG_OUTPUT, group="tables", module="refresh", example=example
    )


_TABLES = (
    _tables(
        "expire",
        "Expire old snapshots of our tables, and add waiting rows to the history tables",
        *(_ARG_RELEASE, _ARG_DRY_RUN),
        example="raw.orders --dry-run",
    ),
    _tables("ledgers", "Show the ledgers of parts (replace_where)", example="raw.orders"),
    _tables(
        "drop-ledgers",
        "Drop ledgers of parts that are no longer resumed",
        *(_ARG_DAYS, _ARG_DRY_RUN),
        example="--days 30",
    ),
)


_ARG_WHERE = Arg(
    ("--replace-where",),
    metavar="FILTER",
    help="A part of the table, as the refresh's option names it (default: the whole table)",
)
_ONE_REFRESH = (Arg(("table",), metavar="TABLE", help="namespace.table"), _ARG_WHERE)


def _refresh(name: str, help: str, *args: Arg, function: str | None = None, example: str = "") -> ActionCommand:
    return _command(name, help, *args, _ARG_LAKE, ARG_OUTPUT, group="refresh", function=function, example=example)


_REFRESH = (
    _refresh(
        "list", "Show the newest refresh of each table, those in trouble first", _ARG_TABLES, function="list_refreshes"
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
)


_ARG_MANIFEST = Arg(("file",), type=Path, metavar="FILE", help="A manifest of Airbyte, YAML or JSON")
_ARG_CONFIG = Arg(
    ("--config",), type=Path, metavar="FILE", help="Its configuration, YAML or JSON (default: one that is made up)"
)
_ARG_COMPONENTS = Arg(
    ("--components",), type=Path, metavar="FILE", help="Its components.py: Python code, which is run (default: none)"
)
_MANIFEST = (
    _command(
        "check",
        "Show how each stream would be read, without a request",
        *(_ARG_MANIFEST, _ARG_CONFIG, _ARG_COMPONENTS, ARG_OUTPUT),
        group="manifest",
        module="source",
        example="manifest.yaml",
    ),
    _command(
        "connection",
        "Print the fields of the connection to make, from the spec",
        *(_ARG_MANIFEST, ARG_OUTPUT),
        group="manifest",
        module="source",
        example="manifest.yaml",
    ),
)


_SOURCE = (
    _command(
        "read",
        "Print a stream's records as JSON Lines; no Spark, no table",
        Arg(("file",), type=Path, metavar="FILE", help="A definition of a source, or a manifest of Airbyte"),
        Arg(("stream",), metavar="STREAM", help="Name of the stream"),
        Arg(("--limit",), type=int, metavar="N", help="Stop after so many records (default: read all)"),
        Arg(
            ("--state",),
            type=Path,
            metavar="FILE",
            help="Read on from the state in this file, if it is there, and write the new one to it; a page that was not"
            " read whole is read again (default: read from the start, print the state to standard error)",
        ),
        Arg(("--config",), type=Path, metavar="FILE", help="Its configuration, YAML or JSON (default: none)"),
        Arg(("--api-conn-id",), metavar="ID", help="Connection of type rfr_api with its secrets (default: none)"),
        _ARG_COMPONENTS,
        group="source",
        example="shop.yaml orders --limit 5",
    ),
)


_DOCTOR = _command(
    "doctor",
    "Check what refreshes and webhooks need: Java, Spark, versions, connections, catalog, control store, keys, hosts",
    Arg(
        ("--triggers",),
        # Nothing is named by an empty text, as a variable that is not set gives it.
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
    *_STORE,
    ARG_OUTPUT,
    group="doctor",
    example="--triggers triggers.yaml",
)


def get_rfr_commands() -> list[GroupCommand]:
    """Return the commands that Airflow adds to its own."""
    return [
        GroupCommand(
            name="rfr",
            help="Resumable full refresh, commit webhooks, migrations, connections",
            subcommands=(
                _DOCTOR,
                GroupCommand(name="refresh", help="Refreshes: progress, errors, ledgers", subcommands=_REFRESH),
                GroupCommand(name="triggers", help="Commit webhooks", subcommands=_TRIGGERS),
                GroupCommand(name="builtins", help="The platform's own tables, views and sinks", subcommands=_BUILTINS),
                GroupCommand(name="tables", help="Storage of tables: snapshots and ledgers", subcommands=_TABLES),
                GroupCommand(name="source", help="Sources, read without a refresh", subcommands=_SOURCE),
                GroupCommand(name="manifest", help="Manifests of Airbyte as sources", subcommands=_MANIFEST),
                GroupCommand(name="connection", help="Connections, and what uses them", subcommands=_CONNECTION),
            ),
        )
    ]

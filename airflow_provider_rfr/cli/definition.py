"""The commands of ``airflow rfr``; what they do is imported when one is called."""

from __future__ import annotations

from pathlib import Path

from airflow.cli.cli_config import ARG_OUTPUT, ActionCommand, Arg, GroupCommand, lazy_load_command

_MODULE = "airflow_provider_rfr.cli.triggers_command"

ARG_PATH = Arg(("path",), type=Path, metavar="PATH", help="A triggers block, YAML or JSON")
ARG_TEMPLATE = Arg(("--template",), type=Path, required=True, metavar="FILE", help="The Handlebars template")
ARG_VARIABLES = Arg(("--variables",), type=Path, required=True, metavar="FILE", help="Its variables, a JSON object")
ARG_JSON_MODE = Arg(
    ("--json",), action="store_true", dest="json_mode", help="Escape values for JSON, as bodies of webhooks do"
)
ARG_RECIPIENT = Arg(
    ("--recipient",), action="append", required=True, metavar="AGE", help="An age public key; may be given repeatedly"
)
ARG_RESEAL = Arg(
    ("--reseal",), action="store_true", help="Seal a sealed file anew, for these recipients; takes a key that opens it"
)
ARG_IMPORT = Arg(
    ("--import",), action="store_true", dest="import_foreign", help="Take over a file that another program sealed"
)
ARG_LAKE = Arg(("--lake-conn-id",), default="rfr_lake_default", help="Connection of type rfr_lake")
ARG_STORE = Arg(("--control-store-conn-id",), default=None, help="Connection of the control store, if not the default")
ARG_TARGET = Arg(("--target",), action="append", metavar="TABLE", help="namespace.table; all tables if left out")
ARG_TRIGGER = Arg(("--trigger",), metavar="NAME", help="Only this endpoint")
ARG_STATE = Arg(
    ("--state",), choices=("pending", "delivered", "dead", "cancelled", "merged"), help="Only deliveries in this state"
)
ARG_LIMIT = Arg(("--limit",), type=int, default=100, help="How many, the newest first")
ARG_DELIVERY = Arg(("delivery_id",), nargs="*", metavar="ID", help="Ids of deliveries")
ARG_REASON = Arg(("--reason",), default="", help="Kept in the history")
ARG_ONE_TARGET = Arg(("target",), metavar="TABLE", help="namespace.table")
ARG_ONE_TRIGGER = Arg(("trigger",), metavar="NAME", help="Name of the endpoint")
ARG_START_FROM = Arg(
    ("--start-from",),
    choices=("latest", "earliest"),
    default="latest",
    help="Where an endpoint that is new to a table begins",
)

_STORE = (ARG_LAKE, ARG_STORE)


def _command(name: str, help: str, *args: Arg, does: str | None = None) -> ActionCommand:
    """A command; what it does is the function of that name, or ``does``."""
    function = does or name.replace("-", "_")
    return ActionCommand(name=name, help=help, func=lazy_load_command(f"{_MODULE}.{function}"), args=args)


TRIGGERS = (
    _command("render", "Print what a template gives", ARG_TEMPLATE, ARG_VARIABLES, ARG_JSON_MODE),
    _command("validate", "Check a triggers block as a deploy does", ARG_PATH),
    _command("schema", "Print the JSON schema of a triggers block"),
    _command(
        "seal", "Print the file with its secrets sealed (SOPS, age)", ARG_PATH, ARG_RECIPIENT, ARG_RESEAL, ARG_IMPORT
    ),
    _command("deliver", "Deliver what is due, once", ARG_PATH, ARG_TARGET, ARG_START_FROM, *_STORE),
    _command("test-fire", "Send one invented event to an endpoint", ARG_PATH, ARG_ONE_TRIGGER, *_STORE),
    _command(
        "list",
        "Show deliveries",
        ARG_TARGET,
        ARG_TRIGGER,
        ARG_STATE,
        ARG_LIMIT,
        ARG_OUTPUT,
        *_STORE,
        does="list_deliveries",
    ),
    _command("replay", "Send again, under the same id", ARG_DELIVERY, ARG_TARGET, ARG_TRIGGER, ARG_STATE, *_STORE),
    _command("cancel", "Give pending deliveries up", ARG_DELIVERY, ARG_TARGET, ARG_TRIGGER, ARG_REASON, *_STORE),
    _command("pause", "Hold an endpoint's deliveries back", ARG_ONE_TARGET, ARG_ONE_TRIGGER, ARG_REASON, *_STORE),
    _command("resume", "Let a paused or disabled endpoint go on", ARG_ONE_TARGET, ARG_ONE_TRIGGER, *_STORE),
)


def get_rfr_commands() -> list[GroupCommand]:
    """What Airflow adds to its own commands."""
    return [
        GroupCommand(
            name="rfr",
            help="Resumable full refresh, commit webhooks, migrations, connections",
            subcommands=(GroupCommand(name="triggers", help="Commit webhooks", subcommands=TRIGGERS),),
        )
    ]

"""Write the pages of ``docs/reference/`` from models, commands and declarations.

Descriptions are from docstrings: of a class its first paragraph, of a field its ``:ivar``, of an argument its
``:param``.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand
from pydantic import BaseModel

from airflow_provider_rfr.cli import get_rfr_commands
from airflow_provider_rfr.get_provider_info import get_provider_info
from airflow_provider_rfr.hooks.api import ApiHook, HttpHook
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.lake import properties
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.operators import IncrementalSyncOperator, ResumableFullRefreshOperator
from airflow_provider_rfr.operators._outcome import EVENT_FIGURES, RESULT_FIGURES
from airflow_provider_rfr.refresh.config import RefreshConfig, RefreshOptions
from airflow_provider_rfr.streams.rest import (
    _auth,
    _errors,
    _incremental,
    _paginators,
    _paging,
    _partitions,
    _records,
    _request,
    _responses,
    definition,
)
from airflow_provider_rfr.webhooks import payloads
from scripts.field_types import TypeWords, default_of, sentence, written
from scripts.model_schema import field_notes
from scripts.trigger_reference import trigger_fields

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
_PARAMETER: Final = re.compile(r"^:param (\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)
_ROLE: Final = re.compile(r":\w+:`~?\.?([\w.]+)`")
_MANY: Final = 4
"""Commands with an argument that is described once for all of them."""
_NOTICE: Final = "<!-- Written by python -m scripts.reference, from {}. -->"
_DEFAULT: Final = re.compile(r" \(default: ([^()]*(?:\([^()]*\))?[^()]*)\)$")


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    writers: dict[str, Callable[[], Iterable[str]]] = {
        "options.md": _options,
        "source_yaml.md": _source_yaml,
        "cli.md": _cli,
        "connection_types.md": _connection_types,
        "events.md": _events,
        "table_properties.md": _table_properties,
        "triggers.md": trigger_fields,
    }
    return {name: "\n".join(writer()).rstrip() + "\n" for name, writer in writers.items()}


def _head(title: str, text: str, source: str) -> Iterator[str]:
    yield from (f"# {title}", "", text, "", _NOTICE.format(source), "")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(heads)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _summary(kind: Any) -> str:
    """Return the first paragraph of a docstring as sentences."""
    text = (inspect.getdoc(kind) or "").split("\n\n")[0].split("\n:")[0]
    text = " ".join(_ROLE.sub(r"`\1`", text).split()).replace("``", "`")
    return text if text.endswith(".") else f"{text}."


# --- Models


def _model_rows(kind: type[BaseModel], words: TypeWords, prefix: str = "", skipped: str = "") -> Iterator[list[str]]:
    # Resolves the types of fields that name models declared further down.
    kind.model_rebuild()
    notes = field_notes(kind)
    for name, field in kind.model_fields.items():
        key = field.alias or name
        if key != skipped:
            cells = (words.of_field(field), default_of(field), sentence(notes.get(key) or notes[name]))
            yield [f"`{prefix}{key}`", *cells]


_SECTIONS: Final[Mapping[str, Mapping[type[BaseModel], str]]] = {
    "Document": {
        definition.SourceDefinition: "source",
        definition.Defaults: "defaults",
        definition.StreamDefinition: "stream",
    },
    "Requests": {
        _request.StreamRequest: "request",
        _request.RequestDefaults: "request of the defaults",
        _request.RequestPlace: "place in a request",
        _request.Timeouts: "timeouts",
    },
    "Records and transformations": {
        _records.Records: "records",
        _records._AddFields: "add",
        _records._RemoveFields: "remove",
        _records._RenameFields: "rename",
    },
    "Paging": {
        _paging.SinglePagePaginator: "none (paging)",
        _paginators.PageNumberPaginator: "page_number",
        _paginators.OffsetPaginator: "offset",
        _paginators.CursorPaginator: "cursor",
        _paginators.NextUrlPaginator: "next_url",
        _paginators.LinkHeaderPaginator: "link_header",
        _paginators.KeysetPaginator: "keyset",
        _paging.PartitionTotal: "total",
        _paging.NextPageFlag: "flag",
        _paginators.CursorField: "place of a cursor",
        _responses.ResponseField: "place in an answer",
    },
    "Partitions": {
        _partitions.ListRouter: "list",
        _partitions.SubstreamRouter: "substream",
        _partitions.DateWindowRouter: "date_window",
        _partitions.WindowPlaces: "places of a window",
        _partitions.ProductRouter: "product",
    },
    "Incremental syncs": {_incremental.Incremental: "incremental"},
    "Authenticators": {
        _auth.NoAuthenticator: "none (authenticator)",
        _auth.ApiKeyAuthenticator: "api_key",
        _auth.BearerAuthenticator: "bearer",
        _auth.BasicAuthenticator: "basic",
        _auth.OAuth2Authenticator: "oauth2",
        _auth.SessionTokenAuthenticator: "session_token",
        _auth.LoginRequest: "login",
    },
    "Errors": {
        _errors.ErrorHandler: "error_handler",
        _errors.ErrorRule: "rule",
        _errors.ConstantBackoff: "constant",
        _errors.ExponentialBackoff: "exponential",
        _errors.RetryAfterBackoff: "retry_after",
        _errors.ResetTimeBackoff: "reset_time",
    },
}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading.replace(" ", "-")).lower()


def _source_yaml() -> Iterator[str]:
    text = (
        "The fields of a source in YAML. [Describe a source](../sources.md) shows them at work. The column *Type* says"
        " where a field may be a template or an expression, and which names that may use."
    )
    yield from _head("Source YAML", text, "the models in airflow_provider_rfr/streams/rest/")
    names = {kind: name for kinds in _SECTIONS.values() for kind, name in kinds.items()}
    words = TypeWords({kind: f"[{name.partition(' (')[0]}](#{_anchor(name)})" for kind, name in names.items()})
    for section, kinds in _SECTIONS.items():
        yield from (f"## {section}", "")
        for kind, name in kinds.items():
            tag = get_args(kind.model_fields["type"].annotation) if "type" in kind.model_fields else ()
            tagged = len(tag) == 1
            yield from (f"### {name}", "", _summary(kind) + (f" `type: {tag[0]}`" if tagged else ""), "")
            rows = list(_model_rows(kind, words, skipped="type" if tagged else ""))
            if rows:
                yield from _table(("Field", "Type", "Default", "Description"), rows)


def _options() -> Iterator[str]:
    text = (
        "The options of a refresh and of a sync, the arguments of their operators, and the document that the driver"
        " reads. [Load by a DAG](../operator.md) explains how they work together. Values are as in"
        " YAML; in a DAG, `true` is `True` and `null` is `None`."
    )
    yield from _head("Options", text, "airflow_provider_rfr/refresh/config.py and the operators")
    heads = ("Option", "Type", "Default", "Description")
    words = TypeWords({})
    yield from ("## Options of a load", "", "They are keys of the argument `options`.", "")
    yield from _table(heads, map(_with_null, _model_rows(RefreshOptions, words)))
    yield from ("## Arguments of the operators", "")
    yield from ("An argument that says *templated* may hold Airflow's templates.", "")
    for operator in (ResumableFullRefreshOperator, IncrementalSyncOperator):
        yield from (f"### {operator.__name__}", "", _summary(operator), "")
        yield from _table(("Argument", *heads[1:]), map(_with_null, _argument_rows(operator, words)))
    yield from ("## Fields of the document", "")
    text = (
        "A driver without Airflow reads this document, see"
        " [the document](../load_at_a_shell.md#without-airflow). The operator writes it for its driver."
    )
    yield from (text, "")
    yield from _table(("Field", *heads[1:]), map(_with_null, _nested_rows(RefreshConfig, words)))


def _with_null(row: list[str]) -> list[str]:
    """Return the cells of an option; its default is null where it has no other one."""
    name, kind, default, note = row
    return [name, kind, default or "`null`", re.sub(r"\bNone\b", "`null`", note)]


def _nested_rows(kind: type[BaseModel], words: TypeWords, prefix: str = "") -> Iterator[list[str]]:
    """Yield a row for each field; fields of nested models have names with dots."""
    notes = field_notes(kind)
    for name, field in kind.model_fields.items():
        models = [item for item in (field.annotation, *get_args(field.annotation)) if isinstance(item, type)]
        nested = next((item for item in models if issubclass(item, BaseModel)), None)
        key = f"{prefix}{field.alias or name}"
        if nested is RefreshOptions or name == "moved":
            kind_words = "list" if name == "moved" else "[options](#options-of-a-load)"
            yield [f"`{key}`", kind_words, default_of(field), sentence(notes[name])]
        elif nested is not None:
            yield from _nested_rows(nested, words, f"{key}.")
        else:
            yield [f"`{key}`", words.of_field(field), default_of(field), sentence(notes[name])]


_VARYING: Final = {"checkpoint_store": "by Airflow's version", "deferrable": "Airflow's setting"}


def _argument_rows(operator: type, words: TypeWords) -> Iterator[list[str]]:
    notes = dict(_PARAMETER.findall(inspect.getdoc(operator) or ""))
    begin = vars(operator)["__init__"]
    kinds = get_type_hints(begin)
    for name, parameter in inspect.signature(begin).parameters.items():
        if name in notes:
            default = "required" if parameter.default is parameter.empty else f"`{written(parameter.default)}`"
            note = _ROLE.sub(r"`\1`", re.sub(r"; default [^\s(]+", "", " ".join(notes[name].split())))
            yield [f"`{name}`", words.of(kinds[name]), _VARYING.get(name, default), sentence(note)]


# --- Commands


def _cli() -> Iterator[str]:
    text = (
        "The commands of `airflow rfr`. On Airflow 3.1, write `python -m airflow_provider_rfr` in its place."
        " `airflow rfr COMMAND --help` prints the same at a terminal."
    )
    yield from _head("Commands", text, "airflow_provider_rfr/cli/__init__.py")
    [group] = get_rfr_commands()
    counts = Counter(_key(argument) for command in _commands(group) for argument in command.args)
    common = {key for key, count in counts.items() if key and count >= _MANY and key[0].startswith("-")}
    shared = {_key(argument): argument for command in _commands(group) for argument in command.args}
    yield from ("## Common arguments", "", "Of several commands, which name them.", "")
    heads = ("Argument", "Default", "Description")
    yield from _table(heads, (_flag_row(argument) for key, argument in shared.items() if key in common))
    yield from _group("", group, common)


def _commands(group: GroupCommand) -> Iterator[ActionCommand]:
    for command in group.subcommands:
        yield from ([command] if isinstance(command, ActionCommand) else _commands(command))


def _key(argument: Arg) -> tuple[str, ...]:
    """Return the key by which arguments of one name differ; empty for ``--json``, a short form of ``--output json``."""
    return () if "--json" in argument.flags else (*argument.flags, argument.kwargs["help"])


def _group(path: str, group: GroupCommand, common: Collection[tuple[str, ...]]) -> Iterator[str]:
    path = f"{path} {group.name}" if path else f"airflow {group.name}"
    yield from (f"## {path}", "", f"{group.help}.", "")
    for command in group.subcommands:
        if isinstance(command, ActionCommand):
            yield from _command(path, command, common)
    for command in group.subcommands:
        if isinstance(command, GroupCommand):
            yield from _group(path, command, common)


def _command(path: str, command: ActionCommand, common: Collection[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"### {path} {command.name}", "", _as_code(command.description or ""), "")
    yield from (f"Example: `{(command.epilog or '').removeprefix('Example: ')}`", "")
    own = [argument for argument in command.args if _key(argument) and _key(argument) not in common]
    if own:
        yield from _table(("Argument", "Default", "Description"), map(_flag_row, own))
    if shared := [argument.flags[-1] for argument in command.args if _key(argument) in common]:
        yield from (f"Common arguments: {', '.join(f'`{flag}`' for flag in shared)}", "")


def _flag_row(argument: Arg) -> list[str]:
    options = {name: value for name, value in argument.kwargs.items() if value is not None}
    if "--output" in argument.flags:
        # Its help is Airflow's, and differs by version.
        return ["`-o`, `--output`", "`table`", "`table`, `plain`, `yaml` or `json`; `--json` is short for the last"]
    default = options.get("default")
    text = str(options["help"]).replace("%(default)s", f"`{default}`")
    written_default = match[1] if (match := _DEFAULT.search(text)) else ""
    is_positional = not argument.flags[0].startswith("-")
    if not written_default and (options.get("required") or (is_positional and options.get("nargs", "+") == "+")):
        written_default = "required"
    metavar = options.get("metavar")
    names = [metavar or argument.flags[0].upper()] if is_positional else [*argument.flags]
    value = f" {metavar}" if metavar and not is_positional else ""
    choices = f": {', '.join(f'`{choice}`' for choice in options['choices'])}" if "choices" in options else ""
    flags = ", ".join(f"`{name}{value}`" for name in names)
    return [flags, written_default, _as_code(_DEFAULT.sub("", text)) + choices]


def _as_code(text: str) -> str:
    """Return a help text in which flags are marked as code."""
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)", r"`\1`", text)


# --- Connections


_HOOKS: Final[Mapping[str, type[ApiHook | HttpHook | LakeHook]]] = {
    "rfr_api": ApiHook,
    "rfr_http": HttpHook,
    "rfr_lake": LakeHook,
}


def _connection_types() -> Iterator[str]:
    text = (
        "The types of connections that this package adds to Airflow, and its settings in Airflow's configuration."
        " [Connections](../make_connections.md) says how to make them."
    )
    yield from _head("Connection types", text, "airflow_provider_rfr/get_provider_info.py and the hooks")
    info = get_provider_info()
    for kind in info["connection-types"]:
        yield from _connection_type(kind)
    text = f"Types `postgres` and `sqlite`, of Airflow. Default id: `{ControlStoreHook.default_conn_name}`."
    yield from ("## Control store", "", text, "", _paragraph(ControlStoreHook, 1), "")
    yield from ("## Settings", "", "Options of the section `[rfr]` in Airflow's configuration.", "")
    rows = [
        [f"`{name}`", f"`{option['default']}`" if option["default"] else "", sentence(option["description"])]
        for name, option in info["config"]["rfr"]["options"].items()
    ]
    yield from _table(("Option", "Default", "Description"), rows)


def _paragraph(kind: type, number: int) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[number].split()).replace("``", "`")


def _connection_type(kind: Mapping[str, Any]) -> Iterator[str]:
    name, hook = kind["connection-type"], _HOOKS[kind["connection-type"]]
    yield from (
        f"## {name}",
        "",
        f"In Airflow's form: **{kind['hook-name']}**. Default id: `{hook.default_conn_name}`.",
        "",
    )
    labels = kind["ui-field-behaviour"]["relabeling"]
    rows = [[label, f"`{field}`", ""] for field, label in labels.items()]
    for field, form in kind["conn-fields"].items():
        is_secret = form["schema"].get("format") == "password"
        choices = form["schema"].get("enum")
        more = f": {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
        note = sentence(form["description"]) + more + ("; secret" if is_secret else "")
        rows.append([form["label"], f"extra `{field}`", note])
    yield from _table(("Field", "In the connection", "Description"), rows)
    head, *uses = _simple_table(hook)
    yield from ("How it is used:", "")
    yield from _table(("Field", sentence(head[1])), uses)


def _simple_table(kind: type) -> list[list[str]]:
    """Return the cells of the simple table in a docstring."""
    lines = (inspect.getdoc(kind) or "").split("\n")
    rule = next(line for line in lines if re.fullmatch(r"=+ +=+", line))
    begin = rule.index(" =") + 1
    rows = lines[lines.index(rule) + 1 :]
    cells = [(line[:begin].strip(), line[begin:].strip()) for line in rows if line and not line.startswith(("=", ":"))]
    return [[cell.replace("``", "`") for cell in row] for row in cells]


# --- Events


def _events() -> Iterator[str]:
    text = (
        "What a publish tells others: the variables of commit webhooks, the `extra` of asset events, and the return"
        " value of a task."
    )
    source = "airflow_provider_rfr/lake/commit_event.py, webhooks/payloads.py and operators/_outcome.py"
    yield from _head("Events", text, source)
    yield from ("## Webhook events", "")
    text = (
        "The variables of [templates](../webhooks_templates.md). Times are RFC 3339 in UTC with `Z`. A missing value is"
        " an empty text, and any other name is an error."
    )
    yield from (text, "")
    yield from _table(("Variable", "Type", "Meaning"), _variable_rows())
    yield from ("Names of Estuary Flow stand for these variables:", "")
    aliases = ([f"`{alias}`", f"`{name}`"] for alias, name in payloads._FLOW_ALIASES.items())
    yield from _table(("Name", "Variable"), aliases)
    yield from _asset_events()


_TYPES: Final = {"str": "text", "int": "number", "int | None": "number", "tuple[str, ...]": "list"}


def _variable_rows() -> Iterator[list[str]]:
    notes, hidden = field_notes(CommitEvent), {"datetime", "datetime | None"}
    for field in fields(CommitEvent):
        kind, note = str(field.type), notes[field.name].replace("None for no documents", "empty for no documents")
        words = "time" if kind in hidden or field.name == "logical_date" else _TYPES.get(kind, "map")
        if field.name == "bindings":
            words, note = "list of maps", f"{note}: {', '.join(f'`{name}`' for name in field_notes(Binding))}"
        yield [
            f"`{field.name}`",
            words,
            sentence(note.replace("None outside", "empty outside").replace("None", "`null`")),
        ]
    yield ["`totals`", "map", "Sums over `bindings`: `documents`, `bytes`, and the number of `tables`"]
    parameters = dict(_PARAMETER.findall(inspect.getdoc(payloads.template_variables) or ""))
    for name, note in parameters.items():
        words = {"attempt": "number", "headers": "map"}.get(name, "text")
        yield [f"`{name}`", words, sentence(note)]


_COMMIT_PAYLOAD: Final = {
    "table": "name of the table",
    "snapshot_id": "snapshot of the commit, as text",
    "sequence": "its sequence number",
    "committed_at": "its time",
    "generation": "of a commit of this package: number of the refresh",
    "rows": "likewise: rows that were published",
    "stream": "likewise: name of the stream",
    "run_key": "likewise: run that published",
}
_DEPLOY_PAYLOAD: Final = {
    "version": "version of the declarations",
    "digest": "digest of the declarations and the package's version",
    "plan_hash": "digest of the plan",
    "steps": "number of its steps",
    "problem": "in place of the plan: why there is none",
}
_SOURCE_EXTRA: Final = {
    "deploy_id": "deploy that changed the source",
    "why": "`created`, `emptied` or `redefined`",
}


def _asset_events() -> Iterator[str]:
    yield from ("## Asset events", "")
    text = (
        "The outlet of a load is an asset for each table, with the address `rfr://<lake_conn_id>/<namespace>/<table>`."
        " A run sends events of the tables that it published. They have these figures in `extra`:"
    )
    yield from (text, "")
    yield from _note_table("Key", EVENT_FIGURES)
    yield from ("A deploy adds an event for each source that has to be loaded again, to the alias `rfr_sources`:", "")
    yield from _note_table("Key", _SOURCE_EXTRA)
    yield from ("An asset watched by `CommitTrigger` has in the event's `payload`:", "")
    yield from _note_table("Key", _COMMIT_PAYLOAD)
    yield from ("An asset watched by `DeployTrigger` has in the event's `payload`:", "")
    yield from _note_table("Key", _DEPLOY_PAYLOAD)
    yield from ("## Return value of a load", "")
    text = "For several streams it has totals, and the figures of each stream below `streams`."
    yield from (text, "")
    yield from _note_table("Key", RESULT_FIGURES)


def _note_table(head: str, notes: Mapping[str, str]) -> Iterator[str]:
    yield from _table(
        (head, "Meaning"), ([f"`{name}`", sentence(note).replace("None", "`null`")] for name, note in notes.items())
    )


# --- Properties


def _table_properties() -> Iterator[str]:
    text = (
        "What this package writes into tables, snapshots and files, or reads there. Iceberg's own properties for expiry"
        " are in [Storage](../storage.md)."
    )
    yield from _head("Table properties", text, "airflow_provider_rfr/lake/properties.py")
    sections = {
        "Tables": ("Properties of tables.", properties.TABLE),
        "Built-in objects": ("Properties of [built-in](../builtins.md) tables and views.", properties.OBJECT),
        "Snapshots of a table": ("Properties in the summaries of its snapshots.", properties.SNAPSHOT),
        "Snapshots of a ledger": ("The newest summary is the state of the refresh.", properties.LEDGER),
        "Catalog": ("Properties in an `rfr_lake` connection, under *More properties*.", properties.CATALOG),
        "Files": ("Metadata of Parquet files.", properties.FILE),
    }
    for title, (text, notes) in sections.items():
        yield from (f"## {title}", "", text, "")
        yield from _note_table("Property", notes)


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")

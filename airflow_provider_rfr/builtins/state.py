"""Registry and catalog as values that a plan compares with the declarations, and values as JSON."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import orjson

from airflow_provider_rfr.builtins.model import Column, Dependency, Kind, Named
from airflow_provider_rfr.sinks.spec import SinkState

Value = TypeVar("Value")


def dumps(value: Any) -> bytes:
    """Return the canonical JSON of a value type: the same bytes for equal values."""
    return orjson.dumps(value, default=_container_as_json, option=orjson.OPT_SORT_KEYS)


def encode(value: Any) -> Any:
    """Return the value as JSON's own types: fields by name, enums by value, ids as texts."""
    return orjson.loads(dumps(value))


def decode(kind: type[Value], document: Mapping[str, Any]) -> Value:
    """Return the value of a document that :func:`encode` made.

    Fields with defaults may be missing, and unknown fields are ignored.

    :raises ValueError: it is none; no value is shown
    """
    from pydantic import ValidationError

    from airflow_provider_rfr.documents import problems_of

    try:
        return cast(Value, _adapter(cast(Any, kind)).validate_python(document))
    except ValidationError as error:
        raise ValueError(str(next(iter(problems_of(error, kind).values())))) from None


@cache
def _adapter(kind: Any) -> Any:
    # Imported here: reading DAGs needs these values, but decodes none.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _container_as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


MARKER: Final = "rfr.object-id"
"""Property of whatever we made: the object's id. Nothing without it is ever dropped or replaced."""
PROJECT: Final = "rfr.project"
DEPLOY: Final = "rfr.deploy-id"
"""Property: the deploy that changed it last."""
STEP: Final = "rfr.step"
"""Property: ``<deploy>/<seq>`` of the step that changed it last, written in the same commit as the change."""
TOKEN: Final = "rfr.token"
"""Property: token of the lease under which it was changed last."""
DONE: Final = "rfr.done"
"""Property: what the object was brought to, see :func:`done_mark`: after a deploy that died, nothing is done twice."""
BRIDGED: Final = "rfr.bridged"
"""Property of a user's view with its own text, which it gets back. It counts as long as the view has that text within
casts: a view that is replaced keeps its properties."""
BROKEN: Final = "rfr.broken"
"""Property of a user's view: its text's digest, and why it broke. It counts as long as the view has that text."""
WAS: Final = "rfr.was"
"""Property ``<revision>/<JSON>``: the names that the table's columns, and fields inside them, had, as declared to the
deploy which changed it last, and the registry's revision that it was planned from. As long as the registry is at that
one, that deploy did not finish, and the record does not know what it did."""
EMPTIED: Final = "rfr.emptied"
"""Property ``<revision>/<deploy>``: the deploy that emptied or made the table, and as in :data:`WAS`."""


def token_of(properties: Mapping[str, str]) -> int:
    """Return the token of the lease under which something was changed last; 0 if it is unknown."""
    text = properties.get(TOKEN, "")
    return int(text) if text.isdigit() else 0


def broken_mark(query: str, why: str) -> str:
    """Return the value of :data:`BROKEN` for a view with this text."""
    return f"{hashlib.sha256(' '.join(query.split()).encode()).hexdigest()[:16]} {why}"


def was_mark(base: int, columns: Iterable[Column]) -> str:
    """Return the value of :data:`WAS` for a table with these columns."""
    names = defaultdict[str, list[str]](list)
    for column in columns:
        for was in column.was:
            # No column's name has a dot.
            inside = {f"{column.name}.{path}": name for path, name in was.fields.items()}
            for path, name in {column.name: was.name, **inside}.items():
                if name is not None:
                    names[path.casefold()].append(name.casefold())
    return f"{base}/{dumps(names).decode()}"


def names_since(base: int, properties: Mapping[str, str]) -> Mapping[str, Sequence[str]] | None:
    """Return the former names of each column, and of each field by its path, that an unfinished deploy declared.

    :returns: None if there was no unfinished deploy of this revision
    """
    at, _, names = properties.get(WAS, "").partition("/")
    return orjson.loads(names) if at == str(base) else None


@dataclass(frozen=True, slots=True)
class RecordedObject(Named):
    """An object as the last deploy that changed it left it: its declaration, and the result of the deploy.

    :ivar contract: digest of the columns' contract
    :ivar definition: what a source reads or a sink sends, without secrets
    :ivar canonicalizer: what read the query; another one may find other ``deps`` in the same text
    :ivar raw_sql: the query as its author wrote it; ``sql``: as it was executed, its stars written out
    :ivar instance: id of the instance that it was generated for; its name was then generated once and is kept
    """

    uuid: UUID
    name: str
    kind: Kind
    contract: str = ""
    definition: str | None = None
    canonicalizer: str = ""
    raw_sql: str | None = None
    columns: tuple[Column, ...] = ()
    deps: tuple[Dependency, ...] = ()
    keep: bool | str = True
    exportable: bool = False
    revision: int = 0
    deploy_id: str = ""
    sql: str | None = None
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    owner: str | None = None
    instance: str | None = None


def done_mark(base: int, record: RecordedObject, inputs: Iterable[tuple[UUID, str]] = ()) -> str:
    """Return the mark of an object that has reached the state of the record, from inputs (by id) after these steps.

    The base is the revision from which the deploy was planned: with it, the mark is different after each finished
    deploy.
    """
    wanted = replace(record, revision=base, deploy_id="")
    content = dumps((wanted, sorted((str(identity), step) for identity, step in inputs)))
    return f"{base}/{hashlib.sha256(content).hexdigest()}"


def files_family(identity: UUID, since: str) -> str:
    """Return the prefix of the names of files with an object's rows.

    It is the same for each process that tries, until one commits and ``since`` changes. So files of a dead process are
    collected, and files of a commit never are.
    """
    return f"rfr-{hashlib.sha256(f'{identity}/{since}'.encode()).hexdigest()[:32]}-"


def rewrite_family(identity: UUID, properties: Mapping[str, str], token: int) -> str:
    """Return the prefix of the files that a deploy with this token writes for a table with these properties.

    The mark of the last step changes with the commit, and no other deploy has the token. So once the deploy can't
    commit any more, the files may be deleted.
    """
    return files_family(identity, f"{properties.get(STEP, '')}/{token}")


@dataclass(frozen=True)
class RegistryState:
    """The registry. Each write raises its revision; its version is that of the code which wrote last."""

    revision: int = 0
    version: str | None = None
    objects: tuple[RecordedObject, ...] = ()
    sinks: tuple[SinkState, ...] = ()

    @cached_property
    def by_uuid(self) -> dict[UUID, RecordedObject]:
        return {obj.uuid: obj for obj in self.objects}


@dataclass(frozen=True, slots=True)
class LiveObject(Named):
    """A table or a view as the catalog shows it.

    :ivar marker: id that its properties name as its object; None: it is not ours
    :ivar columns: with canonical types; empty if the catalog does not say
    :ivar rows: for display alone, as is ``bytes``; plans do not depend on it
    :ivar names: what :func:`names_since` finds
    :ivar nulls: of the columns that are to be required, those that may hold a NULL, as they are compared
    """

    name: str
    kind: Kind
    marker: UUID | None = None
    columns: tuple[Column, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    rows: int | None = None
    bytes: int | None = None
    query: str | None = None
    names: Mapping[str, Sequence[str]] | None = None
    nulls: frozenset[str] = frozenset()

    def emptied_by(self, revision: int) -> str | None:
        """Return the deploy that removed all rows since the registry was written at this revision; None if none did."""
        at, _, deploy = self.properties.get(EMPTIED, "").partition("/")
        return deploy if deploy and at == str(revision) else None


@dataclass(frozen=True, slots=True)
class UserView(Named):
    """A view of a user.

    :ivar reads: None when its text can't be read: it may read anything
    :ivar broken: why it broke, if somebody let it break
    :ivar bridged: a deploy that did not finish gave it another text; ``query`` is its own
    :ivar pinned: its text with the columns written out that its stars show now, if it has any and that can be done
    :ivar star_last: a column that comes last in what its star stands for changes nothing of what it shows
    """

    name: str
    query: str
    reads: tuple[Dependency, ...] | None = ()
    broken: str | None = None
    bridged: bool = False
    pinned: str | None = None
    star_last: bool = False


@dataclass(frozen=True)
class ActualState:
    """The state of the catalog, also of users' objects, by names as they are compared.

    ``objects`` also has the tables that unfinished deploys retired; ``unfinished`` has the ids of the objects that
    these deploys began to change.
    """

    objects: Mapping[str, LiveObject] = field(default_factory=dict)
    user_views: tuple[UserView, ...] = ()
    unfinished: frozenset[UUID] = frozenset()

    @cached_property
    def by_marker(self) -> Mapping[UUID | None, Sequence[LiveObject]]:
        """Return the objects that carry our markers, by marker, sorted by name; several if one of them is retired."""
        objects = defaultdict[UUID | None, list[LiveObject]](list)
        for obj in sorted(self.objects.values(), key=lambda one: one.key):
            objects[obj.marker].append(obj)
        return objects

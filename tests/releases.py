"""Random releases of a small platform: what each declares, and which rows have to be there after it.

All values are whole numbers, whatever a column's type is, so that each type can be made of each other one by the same
expression in every engine, and this module need not know SQL to say what comes out of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import wraps
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins import stable_id

TYPES = ("int", "bigint", "string", "double", "decimal(10,2)", "decimal(12,2)")
WIDER = {"int": "bigint", "decimal(10,2)": "decimal(12,2)"}
NAMES = [f"ops.t{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
COLUMNS = [f"c{letter}" for letter in "abcdefgh"]
ID = "id"
"""Of a table's first column, which always stays, and of outputs that come from one."""
Row = dict[str, int | None]
"""Values by column, whatever it is called."""


@dataclass(frozen=True)
class Col:
    """A column of a table.

    :ivar uid: stays when it is renamed
    :ivar plus: what is added to its values when it is made from another type, or to the id when it is new;
        None: nothing makes values
    :ivar kept: what it said that it was in releases before
    """

    uid: str
    name: str
    type: str
    plus: int | None = None
    comment: str | None = None
    kept: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Query:
    """``star``, ``plain``, ``join`` or ``most``, over objects by number; each pick is an input, what is read of it, and
    the name that it gets. ``style`` is how its text is written, which changes nothing."""

    form: str
    inputs: tuple[int, ...]
    picks: tuple[tuple[int, str, str], ...] = ()
    even: bool = False
    style: int = 0


@dataclass(frozen=True)
class Obj:
    """A declared object.

    :ivar seen: what a star stood for when it was registered
    :ivar text: the query that was registered, in the first style
    """

    number: int
    kind: str
    name: str
    id: UUID
    cols: tuple[Col, ...] = ()
    query: Query | None = None
    comment: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    keep: bool = True
    source: int | None = None
    sends: tuple[str, ...] | None = None
    seen: frozenset[str] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Release:
    """A declaration.

    :ivar losses: names that have to be accepted
    :ivar safe: readers of views must not feel it
    """

    objects: dict[int, Obj]
    losses: frozenset[str] = frozenset()
    safe: bool = False
    did: tuple[str, ...] = ()

    def of(self, *kinds: str) -> list[Obj]:
        return [item for _, item in sorted(self.objects.items()) if item.kind in kinds]

    def outputs(self, number: int) -> list[tuple[str, str, str]]:
        """What its readers can read: key, name and type."""
        obj = self.objects[number]
        if obj.kind == "table":
            return [(col.uid, col.name, col.type) for col in obj.cols]
        if obj.query.form == "star":
            outputs = self.outputs(obj.query.inputs[0])
            return [output for output in outputs if obj.seen is None or output[0] in obj.seen]
        outputs = [(alias, alias, self.output(source, key)[1]) for source, key, alias in obj.query.picks]
        return [*outputs, ("many", "many", "bigint")] if obj.query.form == "most" else outputs

    def output(self, number: int, key: str) -> tuple[str, str]:
        """Name and type of one of them."""
        return next((name, kind) for one, name, kind in self.outputs(number) if one == key)

    def put(self, obj: Obj, **changes: Any) -> bool:
        """Change an object. That is always possible."""
        self.objects[obj.number] = replace(obj, **changes)
        return True

    def sql(self, query: Query) -> str:
        """The query's text, with the names of now."""
        names = [self.objects[number].name for number in query.inputs]
        if query.style == 1:
            return f"{self.sql(replace(query, style=0)).lower()} -- why"
        if query.style == 2:
            names = [name.upper() for name in names]
        if query.form == "star":
            return f"SELECT * FROM {names[0]}"
        alias = dict(zip(query.inputs, "lr", strict=False))
        picks = [(f"{alias[source]}.{self.output(source, key)[0]}", name) for source, key, name in query.picks]
        if query.form == "most":
            picks = [*((f"max({column})", name) for column, name in picks), ("count(*)", "many")]
        text = f"SELECT {', '.join(f'{value} AS {name}' for value, name in picks)} FROM {names[0]} l"
        if query.form == "join":
            text += f" JOIN {names[1]} r ON l.id = r.id"
        return f"{text} WHERE l.id % 2 = 0" if query.even else text

    def documents(self, bases: Sequence[Release], folder: str, *, removed: Iterable[str] = ()) -> list[dict[str, Any]]:
        """YAML documents.

        :param bases: declarations that may be deployed, the newest first
        """
        documents = [self._document(item, bases, folder) for item in self.objects.values()]
        return [*documents, *({"kind": "removed", "name": name} for name in sorted(removed))]

    def _document(self, obj: Obj, bases: Sequence[Release], folder: str) -> dict[str, Any]:
        kind = {"mview": "materialized_view"}.get(obj.kind, obj.kind)
        document: dict[str, Any] = {"kind": kind, "name": obj.name, "comment": obj.comment}
        if obj.id != stable_id("ops", obj.name):
            document["id"] = str(obj.id)
        if obj.properties:
            document["properties"] = dict(obj.properties)
        if obj.kind == "table":
            document |= {"keep": obj.keep, "columns": [self._column(obj, col, bases) for col in obj.cols]}
        elif obj.kind == "sink":
            source = self.objects[obj.source]
            sink: dict[str, Any] = {"source": source.name, "to": "files"}
            sink["settings"] = {"path": f"{folder}/{obj.number}"}
            if obj.sends is None:
                sink["follow_schema"] = True
            elif obj.sends:
                sink["columns"] = [col.name for col in source.cols if col.uid in obj.sends]
            document["sink"] = sink
        else:
            document["query"] = self.sql(obj.query)
            if obj.kind == "mview":
                document["columns"] = [{"name": name, "type": kind} for _, name, kind in self.outputs(obj.number)]
        return document

    def _column(self, obj: Obj, column: Col, bases: Sequence[Release]) -> dict[str, Any]:
        was = list[Mapping[str, str]]()
        for base in bases:
            earlier = _was(column, base.objects.get(obj.number))
            was += [earlier] if earlier and earlier not in was else []
        document: dict[str, Any] = {"name": column.name, "type": column.type, "comment": column.comment}
        taken = {col.name for release in (self, *bases) for col in _cols(release.objects.get(obj.number))}
        taken |= {earlier.get("name", "") for other in obj.cols if other is not column for earlier in other.kept}
        was += [earlier for earlier in column.kept if earlier not in was and earlier.get("name") not in taken]
        return {**document, "was": was} if was else document


def _cols(obj: Obj | None) -> tuple[Col, ...]:
    return obj.cols if obj is not None else ()


def _was(column: Col, base: Obj | None) -> dict[str, str]:
    """What the column was in another declaration."""
    before = next((col for col in _cols(base) if col.uid == column.uid), None)
    if before is None:
        computed = column.plus is not None and base is not None and base.kind == "table"
        return {"using": f"CAST(id + {column.plus} AS {column.type})"} if computed else {}
    document = {"name": before.name} if before.name != column.name else {}
    if before.type != column.type and WIDER.get(before.type) != column.type and column.plus is not None:
        using = f"CAST(CAST({before.name} AS bigint) + {column.plus} AS {column.type})"
        document |= {"type": before.type, "using": using}
    return document


@dataclass(frozen=True)
class Table:
    """A table as it is, with its rows."""

    cols: tuple[Col, ...]
    rows: tuple[Row, ...] = ()

    def typed(self, rows: Sequence[Row] | None = None) -> list[dict[str, Any]]:
        """These rows, or all, as a table holds them."""
        rows = self.rows if rows is None else rows
        return [{col.name: typed(row[col.uid], col.type) for col in self.cols} for row in rows]

    def becomes(self, obj: Obj) -> Table:
        """With the columns that are declared now."""
        before = {col.uid: col.type for col in self.cols}
        retyped = {col.uid for col in obj.cols if col.uid in before and _is_other(before[col.uid], col.type)}
        if not obj.keep and any(col.uid in retyped and col.plus is None for col in obj.cols):
            return Table(obj.cols)
        rows = tuple({col.uid: _value(col, row, col.uid in retyped) for col in obj.cols} for row in self.rows)
        return Table(obj.cols, rows)


def _is_other(before: str, now: str) -> bool:
    return before != now and WIDER.get(before) != now


def _value(column: Col, row: Row, retyped: bool) -> int | None:
    if column.uid not in row:
        return None if column.plus is None else row[ID] + column.plus
    value = row[column.uid]
    return value + column.plus if retyped and value is not None else value


def typed(value: int | None, kind: str) -> Any:
    """The number as a value of the type."""
    if value is None:
        return None
    if kind == "string":
        return str(value)
    return float(value) if kind == "double" else Decimal(f"{value}.00") if kind.startswith("decimal") else value


@dataclass
class Author:
    """Writes one release after another.

    :ivar used: names that some object had; another one under such a name needs an id of its own
    """

    random: random.Random
    numbers: int = 0
    columns: int = 0
    ids: int = 0
    used: set[str] = field(default_factory=set)

    def first(self) -> Release:
        """Two tables, a view of each kind, a materialized view and a sink."""
        new = Release({})
        for _ in range(2):
            self.add_table(new)
        for kind, form in (("view", "star"), ("view", "plain"), ("mview", None), ("view", None)):
            self.add_query(new, kind, form)
        self.add_sink(new)
        return new

    def next(self, before: Release) -> Release:
        """One to four changes, and what they ask of those that read what is changed."""
        safe = self.random.random() < 0.3
        objects = {number: self._aged(item) for number, item in before.objects.items()}
        new = replace(before, objects=objects, losses=frozenset(), safe=safe, did=())
        done = []
        for _ in range(self.random.randint(1, 4)):
            what = self.random.choice(SAFE if safe else SAFE + UNSAFE)
            if what(self, new, before):
                done.append(what.__name__.strip("_"))
            self.mend(new)
        return replace(new, losses=frozenset(_losses(before, new)), did=tuple(done))

    def correct(self, crashed: Release, before: Release) -> Release:
        """The release as it is written after its deploy died: others of its own columns, and texts."""
        new = replace(crashed, objects=dict(crashed.objects), safe=False, did=(*crashed.did, "correct"))
        for obj in new.of("table"):
            known = {former.uid: former for former in _cols(before.objects.get(obj.number))}
            cols = []
            for col in obj.cols:
                old = known.get(col.uid)
                if old is None and col.uid != ID and obj.number in before.objects and self.random.random() < 0.3:
                    continue
                if col.plus is not None and (old is None or old.type != col.type):
                    col = replace(col, plus=self.any_plus())
                    if old is not None and self.random.random() < 0.3:
                        col = replace(col, type=self.random.choice([x for x in TYPES if x != old.type]))
                names = [one.name for one in (*known.values(), *obj.cols)]
                only = old is not None and old.name != col.name and names.count(col.name) == names.count(old.name) == 1
                if only and self.random.random() < 0.3:
                    free = self.free_column(new, obj, crashed, before)
                    col = replace(col, name=free) if free else col
                cols.append(col)
            new.put(obj, cols=tuple(cols))
        self.mend(new)
        for _ in range(self.random.randint(0, 1)):
            self.random.choice((_add_comment, _change_query))(self, new, crashed)
        self.mend(new)
        losses = crashed.losses | _losses(before, new) | _losses(crashed, new)
        return replace(new, losses=frozenset(losses))

    def rows(self, table: Table, ids: Iterator[int]) -> list[Row]:
        """Rows that an application writes."""
        count = self.random.randint(0, 3)
        return [
            {c.uid: next(ids) if c.uid == ID else self.random.choice((None, *range(1, 50))) for c in table.cols}
            for _ in range(count)
        ]

    # What a release is made of

    def _aged(self, obj: Obj) -> Obj:
        """With what its columns were in the declaration, or without."""
        keeps = self.random.random() < 0.5
        return replace(obj, cols=tuple(replace(col, plus=None, kept=col.kept if keeps else ()) for col in obj.cols))

    def any_plus(self) -> int:
        return self.random.randint(1, 9)

    def free_name(self, new: Release) -> str:
        return self.random.choice([name for name in NAMES if name not in {one.name for one in new.objects.values()}])

    def free_column(self, new: Release, obj: Obj, *others: Release) -> str | None:
        """A name that no column has or had in the releases."""
        taken = {col.name for release in (new, *others) for col in _cols(release.objects.get(obj.number))}
        taken |= {col.name for col in obj.cols}
        free = [name for name in COLUMNS if name not in taken]
        return self.random.choice(free) if free else None

    def new(self, new: Release, kind: str, **more: Any) -> Obj:
        name = self.free_name(new)
        self.numbers += 1
        identity = stable_id("ops", name)
        if name in self.used:
            identity = UUID(int=self.random.getrandbits(128), version=4)
        self.used.add(name)
        obj = Obj(self.numbers, kind, name, identity, **more)
        new.objects[obj.number] = obj
        return obj

    def column(self, name: str, **more: Any) -> Col:
        self.columns += 1
        return Col(f"#{self.columns}", name, self.random.choice(TYPES), **more)

    def _some_columns(self) -> tuple[Col, ...]:
        names = self.random.sample(COLUMNS, self.random.randint(1, 3))
        return (Col(ID, "id", "bigint"), *map(self.column, names))

    def add_table(self, new: Release) -> None:
        self.new(new, "table", cols=self._some_columns(), keep=self.random.random() < 0.8)

    def add_query(self, new: Release, kind: str, form: str | None = None) -> bool:
        query = self.query(new, self.numbers + 1, kind, form)
        if query is not None:
            self.new(new, kind, query=query, keep=kind == "view")
        return query is not None

    def add_sink(self, new: Release) -> bool:
        sources = [table for table in new.of("table") if table.keep]
        if sources:
            source = self.random.choice(sources)
            sends = self.random.choice((None, (), tuple(col.uid for col in source.cols)))
            self.new(new, "sink", source=source.number, sends=sends)
        return bool(sources)

    def query(self, new: Release, reader: int, kind: str = "view", form: str | None = None) -> Query | None:
        """A query over tables, and over what is older than its reader."""
        inputs = [item.number for item in new.of("table", "view", "mview") if item.number != reader]
        inputs = [number for number in inputs if new.objects[number].kind == "table" or number < reader]
        joinable = [number for number in inputs if any(key == ID for key, _, _ in new.outputs(number))]
        if not joinable:
            return None
        form = form or self.random.choice(("star", "plain", "plain", "join", "most"))
        one = self.random.choice(joinable)
        if form == "star":
            return Query(form, (one,))
        others = [number for number in joinable if number != one]
        if form == "join" and not others:
            form = "plain"
        numbers = (one, self.random.choice(others)) if form == "join" else (one,)
        picks = [] if form == "most" else [(one, ID, "id")]
        for place in range(self.random.randint(1, 2)):
            number = self.random.choice(numbers)
            picks.append((number, self.random.choice(new.outputs(number))[0], f"v{self.any_plus()}{place}"))
        return Query(form, numbers, tuple(picks), form == "plain" and self.random.random() < 0.3)

    def mend(self, new: Release) -> None:
        """Queries that can't be run any more are written again, or go; so do sinks without a source."""
        for obj in new.of("view", "mview"):
            if not _runs(new, obj):
                query = self.query(new, obj.number, obj.kind)
                if query is None:
                    del new.objects[obj.number]
                else:
                    new.put(obj, query=query, seen=None)
        for obj in new.of("sink"):
            source = new.objects.get(obj.source)
            if source is None or source.kind != "table":
                del new.objects[obj.number]
            elif obj.sends:
                there = {col.uid for col in source.cols}
                new.put(obj, sends=tuple(uid for uid in obj.sends if uid in there))


def _runs(new: Release, obj: Obj) -> bool:
    query = obj.query
    for number in query.inputs:
        if number not in new.objects or not (new.objects[number].kind == "table" or number < obj.number):
            return False
        there = {key for key, _, _ in new.outputs(number)}
        needed = {key for one, key, _ in query.picks if one == number}
        if not needed | ({ID} if query.form != "most" else set()) <= there:
            return False
    return True


def _losses(before: Release, new: Release) -> set[str]:
    """What has to be accepted."""
    losses = set()
    for number, old in before.objects.items():
        now = new.objects.get(number)
        if now is None:
            losses |= {old.name} if old.keep else set()
        elif old.kind == "table" and now.kind != "table":
            losses |= {now.name} if old.keep else set()
        elif old.kind == now.kind == "table" and old.keep:
            columns = {col.uid: col for col in now.cols}
            losses |= {f"{now.name}.{col.name}" for col in old.cols if col.uid not in columns}
            same = [(col, columns[col.uid]) for col in old.cols if col.uid in columns]
            losses |= {f"{now.name}.{col.name}" for was, col in same if WIDER.get(col.type) == was.type}
    return losses


# Changes: each says whether there was something to change.
Change = Callable[[Author, Release, Release], bool]
ColumnChange = Callable[[Author, Release, Release, Obj, Col], bool]


def _pick(author: Author, choices: Sequence[Any]) -> Any:
    return author.random.choice(choices) if choices else None


def _some_table(author: Author, new: Release) -> Obj:
    table: Obj = author.random.choice(new.of("table"))
    return table


def _some_column(author: Author, obj: Obj, before: Release) -> Any:
    """One that was there before and is not changed yet."""
    old = {(col.uid, col.name, col.type) for col in _cols(before.objects.get(obj.number))}
    return _pick(author, [col for col in obj.cols if col.uid != ID and (col.uid, col.name, col.type) in old])


def _of_a_column(change: ColumnChange) -> Change:
    """Change some column of some table."""

    @wraps(change)
    def changed(author: Author, new: Release, before: Release) -> bool:
        obj = _some_table(author, new)
        column = _some_column(author, obj, before)
        return column is not None and change(author, new, before, obj, column)

    return changed


def _is_starred(new: Release, column: Col) -> bool:
    """Whether a star stands for it, by its name: another column under that name would take its place."""
    return any(column.uid in (view.seen or ()) for view in new.of("view", "mview"))


def _put(new: Release, obj: Obj, column: Col, **changes: Any) -> bool:
    return new.put(obj, cols=tuple(replace(col, **changes) if col.uid == column.uid else col for col in obj.cols))


def _add_column(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    name = author.free_column(new, obj, before)
    if name is None:
        return False
    plus = author.any_plus() if not new.safe and author.random.random() < 0.5 else None
    place = author.random.randint(1, len(obj.cols))
    return new.put(obj, cols=(*obj.cols[:place], author.column(name, plus=plus), *obj.cols[place:]))


@_of_a_column
def _widen(author: Author, new: Release, before: Release, obj: Obj, column: Col) -> bool:
    return column.type in WIDER and _put(new, obj, column, type=WIDER[column.type])


def _add_comment(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("table", "view", "mview"))
    comment = f"said {author.any_plus()}"
    if obj.kind == "table" and author.random.random() < 0.5:
        return _put(new, obj, author.random.choice(obj.cols), comment=comment)
    return new.put(obj, comment=author.random.choice((None, comment)))


def _set_properties(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("table", "view", "mview"))
    names = author.random.sample("abc", author.random.randint(0, 2))
    return new.put(obj, properties=tuple((name, str(author.any_plus())) for name in sorted(names)))


def _reformat(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("view", "mview"))
    if obj is None:
        return False
    style = author.random.choice([style for style in range(3) if style != obj.query.style])
    return new.put(obj, query=replace(obj.query, style=style))


@_of_a_column
def _drop_column(author: Author, new: Release, before: Release, obj: Obj, column: Col) -> bool:
    if len(obj.cols) < 3:
        return False
    for sink in new.of("sink"):
        if sink.source == obj.number and sink.sends == ():
            # What it sends has to be said before one of these goes.
            new.put(sink, sends=tuple(col.uid for col in obj.cols if col.uid in (sink.seen or {col.uid})))
    return new.put(obj, cols=tuple(col for col in obj.cols if col.uid != column.uid))


@_of_a_column
def _rename_column(author: Author, new: Release, before: Release, obj: Obj, column: Col) -> bool:
    name = author.free_column(new, obj, before)
    if name is None:
        return False
    _put(new, obj, column, name=name)
    if author.random.random() < 0.3 and not _is_starred(new, column):
        # Another column takes the name that is given up.
        obj = new.objects[obj.number]
        new.put(obj, cols=(*obj.cols, author.column(column.name)))
    return True


@_of_a_column
def _swap_columns(author: Author, new: Release, before: Release, obj: Obj, column: Col) -> bool:
    other = _some_column(author, obj, before)
    if column == other or _is_starred(new, column) != _is_starred(new, other):
        return False
    _put(new, obj, column, name=other.name)
    return _put(new, new.objects[obj.number], other, name=column.name)


@_of_a_column
def _retype(author: Author, new: Release, before: Release, obj: Obj, column: Col) -> bool:
    kind = author.random.choice([name for name in TYPES if name not in (column.type, WIDER.get(column.type))])
    plus = None if not obj.keep and author.random.random() < 0.5 else author.any_plus()
    return _put(new, obj, column, type=kind, plus=plus)


def _reorder(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    return new.put(obj, cols=tuple(author.random.sample(obj.cols, len(obj.cols))))


def _rename_object(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("table", "view", "mview", "sink"))
    name = author.free_name(new)
    author.used.add(name)
    return new.put(obj, name=name)


def _swap_objects(author: Author, new: Release, before: Release) -> bool:
    one, other = (_pick(author, new.of("table", "view", "mview")) for _ in range(2))
    return one.number != other.number and new.put(one, name=other.name) and new.put(other, name=one.name)


def _another_table(author: Author, new: Release, before: Release) -> bool:
    if len(new.of("table")) < 4:
        author.add_table(new)
    return True


def _another_query(author: Author, new: Release, before: Release) -> bool:
    return len(new.of("view", "mview")) < 7 and author.add_query(new, _pick(author, ("view", "view", "mview")))


def _another_sink(author: Author, new: Release, before: Release) -> bool:
    return len(new.of("sink")) < 2 and author.add_sink(new)


def _remove_object(author: Author, new: Release, before: Release) -> bool:
    tables = len(new.of("table"))
    obj = _pick(author, [item for item in new.objects.values() if item.kind != "table" or tables > 2])
    if obj is None or obj.number not in before.objects:
        return False
    del new.objects[obj.number]
    return True


def _change_query(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("view", "mview"))
    query = author.query(new, obj.number, obj.kind) if obj else None
    return query is not None and new.put(obj, query=query, seen=None)


def _table_to_view(author: Author, new: Release, before: Release) -> bool:
    sources = {sink.source for sink in new.of("sink")}
    tables = [table for table in new.of("table") if table.number in before.objects and table.number not in sources]
    obj = _pick(author, tables if len(new.of("table")) > 2 else [])
    query = author.query(new, obj.number) if obj else None
    return query is not None and new.put(obj, kind="view", cols=(), query=query, keep=True, seen=None)


def _view_to_table(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, [view for view in new.of("view") if view.number in {one.number for one in before.of("view")}])
    return obj is not None and new.put(obj, kind="table", cols=author._some_columns(), query=None, seen=None)


SAFE = (_add_column, _add_column, _widen, _widen, _add_comment, _set_properties, _reformat)
UNSAFE = (
    *(_drop_column, _rename_column, _rename_column, _swap_columns, _retype, _retype, _reorder, _rename_object),
    *(_swap_objects, _another_table, _another_query, _another_sink, _remove_object, _change_query),
    *(_table_to_view, _view_to_table),
)


def registered(release: Release, before: Release, documents: Sequence[Mapping[str, Any]]) -> Release:
    """The release after its deploy: with what stars and sinks stand for, and what its columns say that they were."""
    entries = {entry["name"]: entry for entry in documents if entry["kind"] != "removed"}
    objects = {}
    for number, obj in sorted(release.objects.items()):
        old = before.objects.get(number)
        document = entries[obj.name]
        if obj.kind == "table":
            was = {column["name"]: tuple(column.get("was", ())) for column in document["columns"]}
            obj = replace(obj, cols=tuple(replace(col, kept=was[col.name]) for col in obj.cols))
        elif obj.kind == "sink":
            columns = frozenset(col.uid for col in release.objects[obj.source].cols)
            obj = replace(obj, seen=columns if old is None else obj.seen)
        elif obj.kind == "mview" and obj.query.form == "star":
            obj = replace(obj, seen=frozenset(key for key, _, _ in release.outputs(number)))
        elif obj.query.form == "star":
            same_text = old is not None and old.kind == "view" and old.text == release.sql(replace(obj.query, style=0))
            whole = replace(release, objects={**release.objects, **objects, number: replace(obj, seen=None)})
            now = frozenset(key for key, _, _ in whole.outputs(number))
            obj = replace(obj, seen=(old.seen & now) if same_text and old.seen is not None else now)
        text = None if obj.query is None else release.sql(replace(obj.query, style=0))
        objects[number] = replace(obj, text=text)
    return replace(release, objects=objects)


def write(documents: Sequence[Mapping[str, Any]], path: Any) -> None:
    """As YAML, of which JSON is a part."""
    shown = [{key: value for key, value in one.items() if value is not None} for one in documents]
    path.write_text("\n---\n".join(json.dumps(document) for document in shown) + "\n")

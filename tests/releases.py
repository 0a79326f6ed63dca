"""Random releases of a small platform: what each declares, and which rows have to be there after it.

All values are whole numbers, whatever a column's type is, so that each type can be made of each other one by the same
expression in every engine, and this module need not know SQL to say what comes out of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
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
        return [each for _, each in sorted(self.objects.items()) if each.kind in kinds]

    def outputs(self, number: int) -> list[tuple[str, str, str]]:
        """What its readers can read: key, name and type."""
        obj = self.objects[number]
        if obj.kind == "table":
            return [(each.uid, each.name, each.type) for each in obj.cols]
        assert obj.query is not None
        if obj.query.form == "star":
            found = self.outputs(obj.query.inputs[0])
            return [each for each in found if obj.seen is None or each[0] in obj.seen]
        found = [(alias, alias, self._kind(each, key)) for each, key, alias in obj.query.picks]
        return [*found, ("many", "many", "bigint")] if obj.query.form == "most" else found

    def _kind(self, number: int, key: str) -> str:
        return next(kind for one, _, kind in self.outputs(number) if one == key)

    def name_of(self, number: int, key: str) -> str:
        return next(name for one, name, _ in self.outputs(number) if one == key)

    def sql(self, query: Query) -> str:
        """The query's text, with the names of now."""
        names = [self.objects[each].name for each in query.inputs]
        if query.style == 1:
            plain = self.sql(replace(query, style=0))
            return f"{plain.lower()} -- why"
        if query.style == 2:
            names = [name.upper() for name in names]
        if query.form == "star":
            return f"SELECT * FROM {names[0]}"
        alias = dict(zip(query.inputs, "lr", strict=False))
        picks = [f"{alias[each]}.{self.name_of(each, key)} AS {name}" for each, key, name in query.picks]
        if query.form == "most":
            picks = [f"max({alias[each]}.{self.name_of(each, key)}) AS {name}" for each, key, name in query.picks]
            picks.append("count(*) AS many")
        text = f"SELECT {', '.join(picks)} FROM {names[0]} l"
        if query.form == "join":
            text += f" JOIN {names[1]} r ON l.id = r.id"
        return f"{text} WHERE l.id % 2 = 0" if query.even else text

    def documents(self, bases: Sequence[Release], folder: str, *, removed: Iterable[str] = ()) -> list[dict[str, Any]]:
        """YAML documents.

        :param bases: declarations that may be deployed, the newest first
        """
        found = [self._document(each, bases, folder) for each in self.objects.values()]
        return [*found, *({"kind": "removed", "name": name} for name in sorted(removed))]

    def _document(self, obj: Obj, bases: Sequence[Release], folder: str) -> dict[str, Any]:
        kind = {"mview": "materialized_view"}.get(obj.kind, obj.kind)
        said: dict[str, Any] = {"kind": kind, "name": obj.name, "comment": obj.comment}
        if obj.id != stable_id("ops", obj.name):
            said["id"] = str(obj.id)
        if obj.properties:
            said["properties"] = dict(obj.properties)
        if obj.kind == "table":
            said |= {"keep": obj.keep, "columns": [self._column(obj, each, bases) for each in obj.cols]}
        elif obj.kind == "sink":
            source = self.objects[obj.source]
            sink: dict[str, Any] = {
                "source": source.name,
                "to": "files",
                "settings": {"path": f"{folder}/{obj.number}"},
            }
            if obj.sends is None:
                sink["follow_schema"] = True
            elif obj.sends:
                sink["columns"] = [each.name for each in source.cols if each.uid in obj.sends]
            said["sink"] = sink
        else:
            said["query"] = self.sql(obj.query)
            if obj.kind == "mview":
                said["columns"] = [{"name": name, "type": kind} for _, name, kind in self.outputs(obj.number)]
        return said

    def _column(self, obj: Obj, column: Col, bases: Sequence[Release]) -> dict[str, Any]:
        was = list[Mapping[str, str]]()
        for base in bases:
            each = _was(column, base.objects.get(obj.number))
            was += [each] if each and each not in was else []
        said: dict[str, Any] = {"name": column.name, "type": column.type, "comment": column.comment}
        taken = {each.name for release in (self, *bases) for each in _cols(release.objects.get(obj.number))}
        taken |= {each.get("name", "") for other in obj.cols if other is not column for each in other.kept}
        was += [each for each in column.kept if each not in was and each.get("name") not in taken]
        return {**said, "was": was} if was else said


def _cols(obj: Obj | None) -> tuple[Col, ...]:
    return obj.cols if obj is not None else ()


def _was(column: Col, base: Obj | None) -> dict[str, str]:
    """What the column was in another declaration."""
    before = next((each for each in _cols(base) if each.uid == column.uid), None)
    if before is None:
        made = column.plus is not None and base is not None and base.kind == "table"
        return {"using": f"CAST(id + {column.plus} AS {column.type})"} if made else {}
    said = {"name": before.name} if before.name != column.name else {}
    if before.type != column.type and WIDER.get(before.type) != column.type and column.plus is not None:
        using = f"CAST(CAST({before.name} AS bigint) + {column.plus} AS {column.type})"
        said |= {"type": before.type, "using": using}
    return said


@dataclass(frozen=True)
class Table:
    """A table as it is, with its rows."""

    cols: tuple[Col, ...]
    rows: tuple[Row, ...] = ()

    def typed(self, rows: Sequence[Row] | None = None) -> list[dict[str, Any]]:
        """These rows, or all, as a table holds them."""
        shown = self.rows if rows is None else rows
        return [{each.name: typed(row[each.uid], each.type) for each in self.cols} for row in shown]

    def becomes(self, obj: Obj) -> Table:
        """With the columns that are declared now."""
        before = {each.uid: each.type for each in self.cols}
        retyped = {each.uid for each in obj.cols if each.uid in before and _is_other(before[each.uid], each.type)}
        if not obj.keep and any(each.uid in retyped and each.plus is None for each in obj.cols):
            return Table(obj.cols)
        rows = tuple({each.uid: _value(each, row, each.uid in retyped) for each in obj.cols} for row in self.rows)
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
        objects = {number: self._aged(each, before) for number, each in before.objects.items()}
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
            known = {each.uid: each for each in _cols(before.objects.get(obj.number))}
            cols = []
            for each in obj.cols:
                old = known.get(each.uid)
                if old is None and each.uid != ID and obj.number in before.objects and self.random.random() < 0.3:
                    continue
                if each.plus is not None and (old is None or old.type != each.type):
                    each = replace(each, plus=self.any_plus())
                    if old is not None and self.random.random() < 0.3:
                        each = replace(each, type=self.random.choice([x for x in TYPES if x != old.type]))
                names = [one.name for one in (*known.values(), *obj.cols)]
                only = (
                    old is not None and old.name != each.name and names.count(each.name) == names.count(old.name) == 1
                )
                if only and self.random.random() < 0.3:
                    free = self.free_column(new, obj, crashed, before)
                    each = replace(each, name=free) if free else each
                cols.append(each)
            new.objects[obj.number] = replace(obj, cols=tuple(cols))
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

    def _aged(self, obj: Obj, before: Release) -> Obj:
        """With what its columns were in the declaration, or without."""
        keeps = self.random.random() < 0.5
        return replace(obj, cols=tuple(replace(each, plus=None, kept=each.kept if keeps else ()) for each in obj.cols))

    def any_plus(self) -> int:
        return self.random.randint(1, 9)

    def free_name(self, new: Release) -> str:
        return self.random.choice([each for each in NAMES if each not in {one.name for one in new.objects.values()}])

    def free_column(self, new: Release, obj: Obj, *others: Release) -> str | None:
        """A name that no column has or had in the releases."""
        taken = {each.name for release in (new, *others) for each in _cols(release.objects.get(obj.number))}
        taken |= {each.name for each in obj.cols}
        free = [each for each in COLUMNS if each not in taken]
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
        sources = [each for each in new.of("table") if each.keep]
        if sources:
            source = self.random.choice(sources)
            sends = self.random.choice((None, (), tuple(each.uid for each in source.cols)))
            self.new(new, "sink", source=source.number, sends=sends)
        return bool(sources)

    def query(self, new: Release, reader: int, kind: str = "view", form: str | None = None) -> Query | None:
        """A query over tables, and over what is older than its reader."""
        inputs = [each.number for each in new.of("table", "view", "mview") if each.number != reader]
        inputs = [each for each in inputs if new.objects[each].kind == "table" or each < reader]
        joinable = [each for each in inputs if any(key == ID for key, _, _ in new.outputs(each))]
        if not joinable:
            return None
        form = form or self.random.choice(("star", "plain", "plain", "join", "most"))
        one = self.random.choice(joinable)
        if form == "star":
            return Query(form, (one,))
        others = [each for each in joinable if each != one]
        if form == "join" and not others:
            form = "plain"
        numbers = (one, self.random.choice(others)) if form == "join" else (one,)
        picks = [] if form == "most" else [(one, ID, "id")]
        for place in range(self.random.randint(1, 2)):
            each = self.random.choice(numbers)
            picks.append((each, self.random.choice(new.outputs(each))[0], f"v{self.any_plus()}{place}"))
        return Query(form, numbers, tuple(picks), form == "plain" and self.random.random() < 0.3)

    def mend(self, new: Release) -> None:
        """Queries that can't be run any more are written again, or go; so do sinks without a source."""
        for obj in new.of("view", "mview"):
            if not _runs(new, obj):
                query = self.query(new, obj.number, obj.kind)
                if query is None:
                    del new.objects[obj.number]
                else:
                    new.objects[obj.number] = replace(obj, query=query, seen=None)
        for obj in new.of("sink"):
            source = new.objects.get(obj.source)
            if source is None or source.kind != "table":
                del new.objects[obj.number]
            elif obj.sends:
                there = {each.uid for each in source.cols}
                new.objects[obj.number] = replace(obj, sends=tuple(each for each in obj.sends if each in there))


def _runs(new: Release, obj: Obj) -> bool:
    query = obj.query
    for each in query.inputs:
        if each not in new.objects or not (new.objects[each].kind == "table" or each < obj.number):
            return False
        there = {key for key, _, _ in new.outputs(each)}
        needed = {key for one, key, _ in query.picks if one == each}
        if not needed | ({ID} if query.form != "most" else set()) <= there:
            return False
    return True


def _losses(before: Release, new: Release) -> set[str]:
    """What has to be accepted."""
    found = set()
    for number, old in before.objects.items():
        now = new.objects.get(number)
        if now is None:
            found |= {old.name} if old.keep else set()
        elif old.kind == "table" and now.kind != "table":
            found |= {now.name} if old.keep else set()
        elif old.kind == now.kind == "table" and old.keep:
            kept = {each.uid: each for each in now.cols}
            found |= {f"{now.name}.{each.name}" for each in old.cols if each.uid not in kept}
            same = [(each, kept[each.uid]) for each in old.cols if each.uid in kept]
            found |= {f"{now.name}.{each.name}" for was, each in same if WIDER.get(each.type) == was.type}
    return found


# Changes: each says whether there was something to change.


def _pick(author: Author, found: Sequence[Any]) -> Any:
    return author.random.choice(found) if found else None


def _some_table(author: Author, new: Release) -> Obj:
    found: Obj = author.random.choice(new.of("table"))
    return found


def _some_column(author: Author, obj: Obj, before: Release) -> Any:
    """One that was there before and is not changed yet."""
    old = {(each.uid, each.name, each.type) for each in _cols(before.objects.get(obj.number))}
    return _pick(author, [each for each in obj.cols if each.uid != ID and (each.uid, each.name, each.type) in old])


def _is_starred(new: Release, column: Col) -> bool:
    """Whether a star stands for it, by its name: another column under that name would take its place."""
    return any(column.uid in (each.seen or ()) for each in new.of("view", "mview"))


def _put(new: Release, obj: Obj, column: Col, other: Col | None) -> bool:
    cols = [other if each.uid == column.uid else each for each in obj.cols]
    new.objects[obj.number] = replace(obj, cols=tuple(each for each in cols if each is not None))
    return True


def _add_column(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    name = author.free_column(new, obj, before)
    if name is None:
        return False
    plus = author.any_plus() if not new.safe and author.random.random() < 0.5 else None
    place = author.random.randint(1, len(obj.cols))
    cols = [*obj.cols[:place], author.column(name, plus=plus), *obj.cols[place:]]
    new.objects[obj.number] = replace(obj, cols=tuple(cols))
    return True


def _widen(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    column = _some_column(author, obj, before)
    if column is None or column.type not in WIDER:
        return False
    return _put(new, obj, column, replace(column, type=WIDER[column.type]))


def _add_comment(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("table", "view", "mview"))
    comment = f"said {author.any_plus()}"
    if obj.kind == "table" and author.random.random() < 0.5:
        column = author.random.choice(obj.cols)
        return _put(new, obj, column, replace(column, comment=comment))
    new.objects[obj.number] = replace(obj, comment=author.random.choice((None, comment)))
    return True


def _set_properties(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("table", "view", "mview"))
    names = author.random.sample("abc", author.random.randint(0, 2))
    properties = tuple((name, str(author.any_plus())) for name in sorted(names))
    new.objects[obj.number] = replace(obj, properties=properties)
    return True


def _reformat(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("view", "mview"))
    if obj is None:
        return False
    style = author.random.choice([style for style in range(3) if style != obj.query.style])
    new.objects[obj.number] = replace(obj, query=replace(obj.query, style=style))
    return True


def _drop_column(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    column = _some_column(author, obj, before)
    if column is None or len(obj.cols) < 3:
        return False
    for sink in new.of("sink"):
        if sink.source == obj.number and sink.sends == ():
            # What it sends has to be said before one of these goes.
            sends = tuple(each.uid for each in obj.cols if each.uid in (sink.seen or {each.uid}))
            new.objects[sink.number] = replace(sink, sends=sends)
    return _put(new, obj, column, None)


def _rename_column(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    column = _some_column(author, obj, before)
    name = author.free_column(new, obj, before) if column else None
    if name is None:
        return False
    _put(new, obj, column, replace(column, name=name))
    if author.random.random() < 0.3 and not _is_starred(new, column):
        # Another column takes the name that is given up.
        obj = new.objects[obj.number]
        new.objects[obj.number] = replace(obj, cols=(*obj.cols, author.column(column.name)))
    return True


def _swap_columns(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    one = _some_column(author, obj, before)
    other = _some_column(author, obj, before)
    if one is None or one == other or _is_starred(new, one) != _is_starred(new, other):
        return False
    _put(new, obj, one, replace(one, name=other.name))
    return _put(new, new.objects[obj.number], other, replace(other, name=one.name))


def _retype(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    column = _some_column(author, obj, before)
    if column is None:
        return False
    kind = author.random.choice([each for each in TYPES if each not in (column.type, WIDER.get(column.type))])
    plus = None if not obj.keep and author.random.random() < 0.5 else author.any_plus()
    return _put(new, obj, column, replace(column, type=kind, plus=plus))


def _reorder(author: Author, new: Release, before: Release) -> bool:
    obj = _some_table(author, new)
    new.objects[obj.number] = replace(obj, cols=tuple(author.random.sample(obj.cols, len(obj.cols))))
    return True


def _rename_object(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("table", "view", "mview", "sink"))
    name = author.free_name(new)
    author.used.add(name)
    new.objects[obj.number] = replace(obj, name=name)
    return True


def _swap_objects(author: Author, new: Release, before: Release) -> bool:
    one, other = (_pick(author, new.of("table", "view", "mview")) for _ in range(2))
    if one.number == other.number:
        return False
    new.objects[one.number], new.objects[other.number] = replace(one, name=other.name), replace(other, name=one.name)
    return True


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
    obj = _pick(author, [each for each in new.objects.values() if each.kind != "table" or tables > 2])
    if obj is None or obj.number not in before.objects:
        return False
    del new.objects[obj.number]
    author.mend(new)
    return True


def _change_query(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, new.of("view", "mview"))
    query = author.query(new, obj.number, obj.kind) if obj else None
    if query is not None:
        new.objects[obj.number] = replace(obj, query=query, seen=None)
    author.mend(new)
    return query is not None


def _table_to_view(author: Author, new: Release, before: Release) -> bool:
    sources = {each.source for each in new.of("sink")}
    tables = [each for each in new.of("table") if each.number in before.objects and each.number not in sources]
    obj = _pick(author, tables if len(new.of("table")) > 2 else [])
    query = author.query(new, obj.number) if obj else None
    if query is not None:
        new.objects[obj.number] = replace(obj, kind="view", cols=(), query=query, keep=True, seen=None)
        author.mend(new)
    return query is not None


def _view_to_table(author: Author, new: Release, before: Release) -> bool:
    obj = _pick(author, [each for each in new.of("view") if each.number in {one.number for one in before.of("view")}])
    if obj is None:
        return False
    new.objects[obj.number] = replace(obj, kind="table", cols=author._some_columns(), query=None, seen=None)
    author.mend(new)
    return True


SAFE = (_add_column, _add_column, _widen, _widen, _add_comment, _set_properties, _reformat)
UNSAFE = (
    *(_drop_column, _rename_column, _rename_column, _swap_columns, _retype, _retype, _reorder, _rename_object),
    *(_swap_objects, _another_table, _another_query, _another_sink, _remove_object, _change_query),
    *(_table_to_view, _view_to_table),
)


def registered(release: Release, before: Release, documents: Sequence[Mapping[str, Any]]) -> Release:
    """The release after its deploy: with what stars and sinks stand for, and what its columns say that they were."""
    said = {each["name"]: each for each in documents if each["kind"] != "removed"}
    objects = {}
    for number, obj in sorted(release.objects.items()):
        old = before.objects.get(number)
        document = said[obj.name]
        if obj.kind == "table":
            was = {each["name"]: tuple(each.get("was", ())) for each in document["columns"]}
            obj = replace(obj, cols=tuple(replace(each, kept=was[each.name]) for each in obj.cols))
        elif obj.kind == "sink":
            columns = frozenset(each.uid for each in release.objects[obj.source].cols)
            obj = replace(obj, seen=columns if old is None else obj.seen)
        elif obj.kind == "mview" and obj.query.form == "star":
            obj = replace(obj, seen=frozenset(key for key, _, _ in release.outputs(number)))
        elif obj.query.form == "star":
            held = old is not None and old.kind == "view" and old.text == release.sql(replace(obj.query, style=0))
            whole = replace(release, objects={**release.objects, **objects, number: replace(obj, seen=None)})
            now = frozenset(key for key, _, _ in whole.outputs(number))
            obj = replace(obj, seen=(old.seen & now) if held and old.seen is not None else now)
        text = None if obj.query is None else release.sql(replace(obj.query, style=0))
        objects[number] = replace(obj, text=text)
    return replace(release, objects=objects)


def write(documents: Sequence[Mapping[str, Any]], path: Any) -> None:
    """As YAML, of which JSON is a part."""
    shown = [{key: each for key, each in one.items() if each is not None} for one in documents]
    path.write_text("\n---\n".join(json.dumps(each) for each in shown) + "\n")

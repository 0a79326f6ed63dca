"""Steps on views: define, describe, bridge, rename, drop, each with its marks in the same statement.

Users' views get no mark: their steps are done again each time, and never make them ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_rfr.builtins.execution.work import Mechanism
from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.builtins.state import BRIDGED, BROKEN, MARKER, broken_mark
from airflow_provider_rfr.lake.inventory import COMMENT
from airflow_provider_rfr.lake.types import quoted


class ViewStep(Mechanism):
    """A change of the step's view."""

    def probe(self) -> bool | None:
        if self.step.user:
            return None
        view = self.work.view(self.name)
        return view is not None and self.is_done(view.properties)

    def define(
        self, sql: str, properties: Mapping[str, str], columns: Sequence[Column] = (), *, replace: bool = True
    ) -> None:
        """Give the view this text, these properties, and the comment among them."""
        said = {name: value for name, value in properties.items() if name != COMMENT}
        comment = properties.get(COMMENT)
        self.engine.create_view(self.name, sql, properties=said, comment=comment, columns=columns, replace=replace)


class DefineView(ViewStep):
    """Create or replace the view with its text, properties and comments."""

    def do(self) -> None:
        replace = self.step.how is not Action.CREATE or self.work.view(self.name) is not None
        self.define(str(self.step.details["sql"]), self.properties(), self.record.columns, replace=replace)


class DescribeView(DefineView):
    """Write properties and comment; a view with declared columns is defined again, for their comments."""

    def do(self) -> None:
        if self.record.columns and self.step.how is not Action.ADOPT:
            super().do()
            return
        said = {**self.properties(), **dict.fromkeys(self.unset())}
        said.pop(COMMENT, None)
        self.engine.set_view_properties(self.name, said, self.record.comment)


class BridgeView(ViewStep):
    """Give the view the types that its columns are going to have: its text is the same but for casts of its outputs,
    and can be read before and after the change. A user's own text is kept in a property."""

    def do(self) -> None:
        view, outputs = self.work.view(self.name), self.work.bridged.get(self.name.casefold())
        if view is None:
            return
        if outputs is None:
            # Its present text can't be run over what it is going to read, so nothing would hold before and after.
            if not self.step.user:
                self.engine.set_view_properties(self.name, self.marks(), view.comment)
            return
        text = str(self.step.details["sql"])
        casts = ", ".join(f"CAST({quoted(name)} AS {type}) AS {quoted(name)}" for name, type in outputs)
        marks = {BRIDGED: text} if self.step.user else self.marks()
        self.define(f"SELECT {casts} FROM (\n{text}\n)", {**view.properties, **marks})


class RebindUsersView(ViewStep):
    """Define a user's view again with its own text, properties and comment; it does not become ours."""

    def do(self) -> None:
        view = self.work.view(self.name)
        said = {} if view is None else dict(view.properties)
        if MARKER in said:
            raise self.refused("it is not a user's view any more")
        self.define(str(self.step.details["sql"]), {key: said[key] for key in said if key not in (BRIDGED, BROKEN)})


class MarkBrokenView(ViewStep):
    """Write into a user's view why it is broken; nothing else of it is touched."""

    def do(self) -> None:
        view = self.work.view(self.name)
        if view is not None:
            mark = broken_mark(view.query, str(self.step.details["broken"]))
            self.engine.set_view_properties(self.name, {BROKEN: mark}, view.comment)


class RenameView(ViewStep):
    """Rename it, then mark it."""

    def probe(self) -> bool:
        view = self.work.view(str(self.step.details["to"]))
        return view is not None and self.is_marked(view.properties)

    def do(self) -> None:
        to = str(self.step.details["to"])
        view = self.work.view(to)
        if view is None or view.properties.get(MARKER) != str(self.step.uuid):
            self.engine.rename_view(self.name, to)
            view = self.work.view(to)
        self.engine.set_view_properties(to, self.marks(), view.comment if view is not None else None)


class DropView(ViewStep):
    def probe(self) -> bool:
        view = self.work.view(self.name)
        return view is None or self.is_done(view.properties)

    def do(self) -> None:
        self.engine.drop_view(self.name)

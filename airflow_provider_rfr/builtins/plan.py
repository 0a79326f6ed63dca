"""The plan of a deploy and its policies: immutable value types, the plan's JSON file, and its text for people."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import orjson

from airflow_provider_rfr.builtins.model import STORED, Kind, RecordedObject, decode, dumps, encode
from airflow_provider_rfr.exceptions import ConfigurationError, PlanError, RfrError, StalePlanError
from airflow_provider_rfr.sinks import CHOICES


class Why(str, Enum):
    """A kind of reason: its code in a plan's JSON, and its sentence with a placeholder for each fact."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Why:
        member = str.__new__(cls, code)
        member._value_, member.sentence = code, sentence
        return member

    # What changed.
    NEW = "new", "new"
    KIND_CHANGED = "kind_changed", "kind: {} -> {}"
    RENAMED = "renamed", "renamed from {}"
    COLUMNS_CHANGED = "columns_changed", "columns changed"
    CONSTRAINTS_CHANGED = "constraints_changed", "constraints changed"
    QUERY_CHANGED = "query_changed", "query changed"
    DEFINITION_CHANGED = "definition_changed", "definition changed"
    STAR_CHANGED = "star_changed", "star expanded again"
    METADATA_CHANGED = "metadata_changed", "metadata changed"
    READS = "reads", "reads {}"
    READS_ANOTHER = "reads_another", "reads {}, which is another object now"
    LISTS_OBJECTS = "lists_objects", "lists the objects, and there are others: {}"
    NOT_RECORDED = "not_recorded", "it is there with our marker, though not recorded"
    UNFINISHED = "unfinished", "a deploy that did not finish left it so"
    CHANGED_BY_HAND = "changed_by_hand", "changed by hand"
    ADOPTED = "adopted", "as declared; takes our marker"
    DECLARED_NAME = "declared_name", "declared name"
    REMOVED = "removed", "no longer declared"
    # What readers and sinks notice.
    CURSOR_KEPT = "cursor_kept", "{} kept, nothing is sent again"
    SINK_UNDECIDED = "sink_undecided", "{}: say what it is to do, by sinks: {{{}: hold | resume_from_new | resend}}"
    EMPTIED_UNFINISHED = "emptied_unfinished", "{} was emptied by deploy {}, which did not finish"
    EMPTIED = "emptied", "{} is emptied"
    EXPORTS_ANOTHER = "exports_another", "it exports {} now"
    COLUMN_RENAMED = "column_renamed", "{} is called {} now"
    SAY_COLUMNS = "say_columns", "say under sink which columns it is to send"
    READS_RENAMED = "reads_renamed", "reads {}, which is called {} now"
    READS_REMOVED = "reads_removed", "reads {}, which is removed"
    READS_UNKNOWN = "reads_unknown", "can't be read; maybe it {}"
    STAYS_READABLE = "stays_readable", "stays readable while what it reads gets wider"
    STAR_MOVES = "star_moves", "its star is written out, for the columns of {} change their places"
    BRIDGED = "bridged", "bridged by a deploy that did not finish"
    # What stops a deploy.
    NEEDS_USING = "needs_using", "{}: {} -> {} needs values: write in its `was` how they are made"
    USING_UNREADABLE = "using_unreadable", "the `using` of {}: {}"
    MAYBE_RENAMED = "maybe_renamed", "if {} is {} under a new name, write was: {}"
    FIELD_TAKEN = (
        "field_taken",
        "a field of {} is to take the name of one that is still there: rename that one too, "
        "or drop it in a release before",
    )
    MAYBE_RENAMED_OBJECT = "maybe_renamed_object", "{} comes and is like it. If it is the same, write id: {} there"
    WOULD_LOSE = (
        "would_lose",
        "{} would be lost: accept that by a document {{kind: removed, name: {}}}, "
        "or for one deploy by accept_data_loss: {}",
    )
    KEPT = "kept", "{} would be lost, and it is kept: {}. To lose it, deploy it without that reason first"
    NOT_UNDONE = "not_undone", "{} was changed by hand in a way that can't be undone without inventing values"
    DOWNGRADE = "downgrade", "downgrade not supported: recorded by {}, this is {}"
    NAME_TAKEN = "name_taken", "the name of the {} {} is taken: {}; rename one of the two, or adopt what has no marker"
    NOT_ADOPTABLE = "not_adoptable", "{} can't be adopted: {}"
    NOT_OURS = "not_ours", "the {} {} is there and lacks our marker: no deploy made it"
    MARKED_OTHER = "marked_other", "the {} {} is there and carries the marker of {}, not of {}"
    NOT_REMOVED = "not_removed", "it is not dropped: {}. Forget {} instead"
    EXPORTED = "exported", "the sink {} exports it"
    GONE_ADOPT = "gone_adopt", "it is gone from the catalog: remove or forget it, or let it be repaired"
    DECLARE_NAME = "declare_name", "it is called {} now: declare that name, or repair it"
    DECLARE_IT = "declare_it", "{}, and adopting that means to declare it so"
    NO_SUCH_SOURCE = "no_such_source", "its source {} is not declared"
    USER_VIEW_BREAKS = "user_view_breaks", "change the view, or let it break with break_views: {}"
    TEXT = "text", "{}"
    # What was changed by hand.
    GONE = "gone", "it is gone from the catalog"
    IS_OTHER_KIND = "is_other_kind", "it is a {}, not a {}"
    CALLED = "called", "it is called {} now"
    DIFFERS = "differs", "{}: {} -> {}"
    VIEW_TEXT = "view_text", "its text was changed by hand"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason as data; its sentence is ``str(reason)``.

    :ivar facts: names, types and values, in the order of the sentence
    """

    why: Why
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.why.sentence.format(*self.facts)


def because(why: Why, *facts: object) -> Reason:
    """Return a reason with its facts as texts."""
    return Reason(why, tuple(map(str, facts)))


_ALL: Final = frozenset({"*", "all", "any", "true", "yes", "everything"})


_LONGEST_KEPT: Final = 36_500
"""Most days for which a retired table is kept."""


@dataclass(frozen=True)
class Policies:
    """Decisions for one deploy.

    :ivar break_views: names of users' views that may break
    :ivar drift: for manual changes: ``fail``, ``adopt`` (the catalog is right), ``repair`` (the declaration is right)
    :ivar accept_data_loss: accepted losses: names of objects, or of columns such as ``ops.runs.note``
    :ivar adopt: names of tables and views without a marker that deploys may manage if they match the declaration
    :ivar sinks: choice by name of a sink whose source is emptied: ``hold``, ``resume_from_new``, ``resend``
    :ivar keep_days: days before a retired table may be deleted
    """

    break_views: frozenset[str] = frozenset()
    drift: str = "fail"
    accept_data_loss: frozenset[str] = frozenset()
    adopt: frozenset[str] = frozenset()
    sinks: Mapping[str, str] = field(default_factory=dict)
    keep_days: int = 7

    def __post_init__(self) -> None:
        sinks = [(f"sinks.{name}", choice, CHOICES) for name, choice in self.sinks.items()]
        for name, choice, allowed in (("drift", self.drift, ("fail", "adopt", "repair")), *sinks):
            if choice not in allowed:
                raise ConfigurationError(name, f"{choice!r} is unknown", f"one of {', '.join(allowed)}")
        if not 0 <= self.keep_days <= _LONGEST_KEPT:
            raise ConfigurationError("keep_days", f"is {self.keep_days}", f"write 0 to {_LONGEST_KEPT:,} days")
        for name in ("accept_data_loss", "adopt", "break_views"):
            if isinstance(names := getattr(self, name), str):
                raise ConfigurationError(name, "is one text", "give a list of names")
            folded = frozenset(str(name).casefold() for name in names)
            if folded & _ALL:
                raise ConfigurationError(name, "must name each object", "there is no word for all of them")
            object.__setattr__(self, name, folded)
        object.__setattr__(self, "sinks", {key.casefold(): value for key, value in self.sinks.items()})


class StepAction(str, Enum):
    """The action of a step."""

    CREATE = "create"
    ADOPT = "adopt"
    METADATA = "metadata"
    EVOLVE = "evolve"
    REWRITE = "rewrite"
    RECOMPUTE = "recompute"
    REPLACE_EMPTY = "replace_empty"
    REPLACE = "replace"
    """A view gets its new text."""
    REBIND = "rebind"
    """A view is defined again with its own text, so that it gets the present types of its inputs."""
    RENAME = "rename"
    BRIDGE = "bridge"
    """A view gets a temporary text that returns the same before and after a column that it reads is widened."""
    MARK_BROKEN = "mark_broken"
    """A user's view that is allowed to break is marked, and shown as broken until somebody mends it."""
    DROP = "drop"
    """The object's table or view is dropped, and a later step of the same deploy creates it as another kind."""
    REMOVE = "remove"
    """The object is removed for good; its table is retired, and deleted later."""
    HOLD = "hold"
    RESUME_FROM_NEW = "resume_from_new"
    RESEND = "resend"
    """HOLD, RESUME_FROM_NEW and RESEND are the choices for a sink whose source was emptied or replaced."""


_ADDS: Final = frozenset({StepAction.CREATE, StepAction.ADOPT})
_LEAVES: Final = frozenset({StepAction.REMOVE, StepAction.DROP})
_NO_CHANGES: Final = _ADDS | _LEAVES | {StepAction.REBIND, StepAction.MARK_BROKEN, StepAction.BRIDGE}
_FORMAT: Final = 1
"""Version of the plan's JSON, to be increased when a reader of the previous version would be misled."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One change of one object.

    :ivar uuid: None for a user's view
    :ivar name: name of the object when the step begins; the details of a rename have the new one
    :ivar changes: changes field by field, for people
    :ivar details: parameters of the step, as JSON
    :ivar losses: what is lost, by the name to accept: the object's, or a column's such as ``ops.runs.note``
    :ivar seq: position in the plan, from 1
    :ivar rows: number of rows when the plan was made; for display only, like ``bytes``
    """

    uuid: UUID | None
    name: str
    kind: Kind
    how: StepAction
    reasons: tuple[Reason, ...] = ()
    changes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = field(default=None, compare=False)
    bytes: int | None = field(default=None, compare=False)
    seq: int = 0

    @property
    def user(self) -> bool:
        """Tell whether the object is a user's view."""
        return self.uuid is None

    @property
    def reason(self) -> str:
        """Return the reasons as one text."""
        return "; ".join(dict.fromkeys(map(str, self.reasons)))


@dataclass(frozen=True, slots=True)
class PlanDependent:
    """A reader of a changed object, and the effect of the change on it.

    :ivar on: id of the changed object
    :ivar how: a view's ``rebind``, ``replace``, ``recompute``, ``break``, ``blocked``; a sink's ``continue``,
        ``undecided`` or choice
    """

    on: UUID
    name: str
    kind: Kind
    how: str
    reason: Reason
    uuid: UUID | None = None
    user: bool = False


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """An object that stops the deploy, or that was changed by hand.

    :ivar paste: lines of YAML for the declaration, if they help
    :ivar place: where the object is declared
    """

    name: str
    kind: Kind
    problems: tuple[Reason, ...]
    uuid: UUID | None = None
    changes: tuple[str, ...] = ()
    paste: tuple[str, ...] = ()
    place: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(map(str, self.problems))}"


@dataclass(frozen=True)
class Plan:
    """The plan of a deploy: its steps, and the findings that stop it or are worth a note.

    :ivar version: version of the declarations; ``recorded_version``: that of the registry, None before the first deploy
    :ivar base_revision: the registry's revision for which alone the plan is valid
    :ivar dependents: views and sinks that the steps affect
    :ivar drift: objects that were changed by hand
    :ivar records: new entries of the registry, for objects whose entry changes. An object with a step gets the id of
        this deploy, which the step writes into the object's properties, too; the others keep the id of theirs
    :ivar forgotten: ids of objects that leave the registry
    :ivar warnings: notes that stop nothing
    :ivar stale: columns whose ``was``, and names whose removal, match nothing in this lake any more
    :ivar unchanged: number of objects that need no step
    :ivar done: number of those that an unfinished deploy has changed already
    :ivar plan_hash: digest of all fields that are not only for display, see :meth:`digest`
    """

    project: str
    version: str
    recorded_version: str | None
    base_revision: int
    policies: Policies
    steps: tuple[PlanStep, ...] = ()
    dependents: tuple[PlanDependent, ...] = ()
    drift: tuple[PlanFinding, ...] = ()
    blocked: tuple[PlanFinding, ...] = ()
    warnings: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    records: tuple[RecordedObject, ...] = ()
    forgotten: tuple[UUID, ...] = ()
    unchanged: int = 0
    done: int = 0
    plan_hash: str = ""

    @property
    def applicable(self) -> bool:
        return not self.stopped_by()

    def stopped_by(self) -> list[str]:
        """Return the findings that stop the plan."""
        drift = self.drift if self.policies.drift == "fail" else ()
        return [*map(str, self.blocked), *(f"changed by hand (drift): {finding}" for finding in drift)]

    def sources_to_load(self) -> dict[str, str]:
        """Return the sources to refresh after the deploy, by name, and why: ``created``, ``emptied``, ``redefined``."""
        return {step.name: step.details["load_anew"] for step in self.steps if "load_anew" in step.details}

    def digest(self) -> str:
        """Return the digest of the base and of all effects of the plan, without fields that are only for display."""
        steps = [replace(step, rows=None, bytes=None) for step in self.steps]
        blocked = [(finding.name, finding.problems) for finding in self.blocked]
        # Without reasons: that of a sink has its cursor, which may move between plan and apply without any effect.
        dependents = [
            (dependent.on, dependent.name, dependent.kind, dependent.how, dependent.uuid, dependent.user)
            for dependent in self.dependents
        ]
        base = (_FORMAT, self.project, self.version, self.recorded_version, self.base_revision, self.policies)
        content = dumps((base, steps, dependents, self.drift, blocked, self.records, self.forgotten))
        return hashlib.sha256(content).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON that ``plan_schema.json`` describes."""
        return {**encode(self), "format": _FORMAT, "exit_code": exit_code(self), "summary": summary(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Return the plan of a JSON document that :meth:`to_json` made.

        :raises PlanError: it is invalid, is of another format, or was changed after it was made
        """
        if document.get("format") != _FORMAT:
            raise PlanError(f"this is not a plan of format {_FORMAT}: format is {document.get('format')!r}")
        try:
            plan = decode(cls, document)
        except (TypeError, ValueError, KeyError, AttributeError, RfrError) as error:
            raise PlanError(f"the plan can't be read: {error}") from error
        if plan.digest() != plan.plan_hash:
            raise PlanError(f"the plan {plan.plan_hash[:12]} was changed after it was made")
        return plan


def exit_code(plan: Plan) -> int:
    """Return 0 if there is nothing to do, 2 if there is, 1 if something stops the plan."""
    return 1 if not plan.applicable else 2 if plan.steps or plan.done or plan.forgotten else 0


def summary(plan: Plan) -> dict[str, int]:
    """Count the steps and findings, for the last line and for scripts."""
    verbs = [step.how for step in plan.steps]
    why = [problem.why for finding in plan.blocked for problem in finding.problems]
    return {
        "add": sum(how in _ADDS for how in verbs),
        "change": sum(how not in _NO_CHANGES for how in verbs),
        "remove": verbs.count(StepAction.REMOVE),
        "rebind": verbs.count(StepAction.REBIND),
        "blocked": len(plan.blocked),
        "drift": len(plan.drift),
        "unchanged": plan.unchanged,
        "data_loss": sum(len(step.losses) for step in plan.steps) + sum(map(why.count, (Why.WOULD_LOSE, Why.KEPT))),
    }


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Write the plan to a file, atomically, and return its path."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.write_bytes(orjson.dumps(plan.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    part.replace(target)
    return target


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Load a saved plan.

    :raises PlanError: it can't be read, is of another format, or was changed after it was saved
    """
    try:
        document = dict(orjson.loads(Path(path).read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise PlanError(f"{path}: no plan can be read from it: {error}") from error
    return Plan.from_json(document)


def ensure_current(saved: Plan, fresh: Plan) -> Plan:
    """Return the saved plan, if the present state would give the same one.

    :param fresh: the plan of the present state, made with the saved one's policies
    :raises StalePlanError: the plans differ; the message says how
    """
    if saved.plan_hash == fresh.plan_hash:
        return saved
    fields = {name: (getattr(saved, name), getattr(fresh, name)) for name in ("project", "base_revision", "version")}
    differences = [f"its {name} is {then}, and now {now}" for name, (then, now) in fields.items() if then != now]
    before, after = ([f"{step.how.value} {step.name}" for step in plan.steps] for plan in (saved, fresh))
    differences += [f"{step} is no longer to be done" for step in before if step not in after][:5]
    differences += [f"{step} has to be done as well" for step in after if step not in before][:5]
    known = {*map(str, saved.drift), *map(str, saved.blocked)}
    differences += [text for text in map(str, (*fresh.drift, *fresh.blocked)) if text not in known][:5]
    differences = differences or ["policies or details are others"]
    raise StalePlanError(f"plan {saved.plan_hash[:12]} is stale: {'; '.join(differences)}; plan again")


_SIGNS: Final = {
    **dict.fromkeys(_ADDS, "+"),
    **dict.fromkeys((StepAction.REWRITE, StepAction.RECOMPUTE), "±"),
    StepAction.REPLACE_EMPTY: "∅",
    **dict.fromkeys(_LEAVES, "-"),
}
_HINTS: Final = {
    StepAction.REWRITE: "in place, history kept",
    StepAction.RECOMPUTE: "from its query, in place",
    StepAction.REPLACE_EMPTY: "emptied: its rows may be made again",
}
_REASON_FIRST: Final = _ADDS | _LEAVES | {StepAction.RENAME, StepAction.REPLACE, StepAction.REBIND}
"""Actions whose reasons say more than their changes."""
_OF_DEPENDENTS: Final = frozenset({StepAction.BRIDGE, StepAction.HOLD, StepAction.RESUME_FROM_NEW, StepAction.RESEND})
"""Actions without lines of their own: a dependent's line shows them, or their effect ends with the deploy."""


def render(plan: Plan) -> str:
    """Return the plan as text for people."""
    recorded = f"recorded at rev {plan.base_revision} ({plan.recorded_version})" if plan.recorded_version else "new"
    base = f"plan {plan.plan_hash[:12]}  base rev {plan.base_revision}"
    lines = [f'Catalog "{plan.project}" {recorded}, wanted {plan.version}    {base}', *_entries(plan)]
    lines += (f"  # drift  {finding}  (policy: {plan.policies.drift})" for finding in plan.drift)
    lines += (f"  # note   {warning}" for warning in plan.warnings)
    if plan.stale:
        names = ", ".join(plan.stale)
        note = "`was` and `removed` no longer needed here"
        lines.append(f"  # note   {note}: {names}; delete them once no lake needs them")
    return "\n".join([*lines, _last_line(plan)])


def _entries(plan: Plan) -> Iterator[str]:
    """Yield the lines of each object once, with its dependents, and with theirs if these have no lines of their own."""
    nested: dict[UUID | None, list[PlanDependent]] = defaultdict(list)
    for dependent in plan.dependents:
        nested[dependent.on].append(dependent)
    steps = _steps_of_their_own(plan)
    own = {step.uuid for step in steps}
    # The width of the first part: indent, sign and kind, and the name behind them.
    names = [*map(_name, steps), *(finding.name for finding in plan.blocked)]
    deeper = max((len(_name(dependent)) for dependent in plan.dependents), default=0)
    width = max(35, 11 + max(map(len, names), default=0), 15 + deeper)

    def entry(start: str, name: str, how: str, lines: Sequence[str]) -> Iterator[str]:
        start = f"{start + name:<{width}} {how:<15} "
        yield f"{start}{lines[0] if lines else ''}".rstrip()
        yield from (f"{'':<{len(start)}}{line}" for line in lines[1:])

    def below(on: UUID | None) -> Iterator[str]:
        for affected in nested.pop(on, ()):
            yield from entry(f"      -> {_kind(affected):<5} ", _name(affected), affected.how, [str(affected.reason)])
            if affected.uuid not in own:
                yield from below(affected.uuid)

    for step in steps:
        sign = _SIGNS.get(step.how, "~")
        yield from entry(f"  {sign} {_kind(step):<6} ", _name(step), step.how.value, [*_change_lines(step)])
        yield from below(step.uuid)
    for finding in plan.blocked:
        lines = [*map(str, finding.problems), *finding.changes]
        yield from entry(f"  ! {_kind(finding):<6} ", finding.name, "BLOCKED", lines)
        yield from (
            f"        write:  {line}{f'    # {finding.place}' if finding.place else ''}" for line in finding.paste
        )
        yield from below(finding.uuid)
    for on in list(nested):
        yield from below(on)


def _steps_of_their_own(plan: Plan) -> list[PlanStep]:
    """Return the steps with lines of their own. Views that are rebound or broken are shown below the cause instead."""
    shown = {(dependent.uuid, dependent.name) for dependent in plan.dependents if dependent.how in ("rebind", "break")}
    of_views = (step for step in plan.steps if step.how in (StepAction.REBIND, StepAction.MARK_BROKEN))
    placed = {step.seq for step in of_views if (step.uuid, step.name) in shown}
    return [step for step in plan.steps if step.seq not in placed and step.how not in _OF_DEPENDENTS]


def _kind(entry: PlanStep | PlanDependent | PlanFinding) -> str:
    return "mview" if entry.kind is Kind.MATERIALIZED_VIEW else entry.kind.value


def _name(entry: PlanStep | PlanDependent) -> str:
    return f"{entry.name}  (user)" if entry.user else entry.name


def _change_lines(step: PlanStep) -> Iterator[str]:
    reason = step.reason
    if step.how is StepAction.RENAME:
        reason = f"-> {step.details['to']}"
    elif step.how in _LEAVES and step.kind in STORED:
        reason += f"; physical kept {step.details['keep_days']} days{_size(step)}"
    if reason and (step.how in _REASON_FIRST or not step.changes):
        yield reason
    yield from step.changes
    for column, expression in dict(step.details.get("expressions", {})).items():
        yield f"= {column}: {expression}"
    if step.how in _HINTS:
        yield f"{_HINTS[step.how]}{_size(step)}"
    for lost in step.losses.values():
        yield f"LOST: {lost}"


def _size(step: PlanStep) -> str:
    rows = [f"~{step.rows:,} rows"] if step.rows is not None else []
    size = [f"{step.bytes / 1000:,.0f} kB"] if step.bytes is not None else []
    return f"   {' / '.join([*rows, *size])}" if rows or size else ""


def _last_line(plan: Plan) -> str:
    counts = summary(plan)
    if not plan.steps and plan.applicable:
        if plan.done:
            return f"Nothing left but to record {_count(plan.done, 'object')} that an unfinished deploy changed."
        if plan.forgotten:
            return f"Nothing left but to forget {_count(len(plan.forgotten), 'object')} that the catalog does not have."
        return f"No changes: {_count(counts['unchanged'], 'object')} as declared."
    parts = [
        *(f"{counts[name]} to {name}" for name in ("add", "change", "remove")),
        _count(counts["rebind"], "rebind"),
        *(f"{counts[name]} {word}" for name, word in (("blocked", "blocked"), ("drift", "drifted")) if counts[name]),
        f"{counts['data_loss']} data loss",
    ]
    stopped = "" if plan.applicable else " Nothing is done until what is blocked is decided."
    return f"Plan: {', '.join(parts)}.{stopped}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

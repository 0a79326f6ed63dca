"""Execution of statements about connections; ALTER CONNECTION has five stages: read, draft, validate, store, restart.

No task is stopped before the new settings are stored by compare-and-set. The control store then records the tasks that
have to restart, so they restart even if this process dies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import Connection

from airflow_provider_rfr.connections._draft import (
    PUBLIC_KEYS,
    ConnectionDraft,
    OptionChange,
    changes_between,
    make_draft,
    rotated,
)
from airflow_provider_rfr.connections._journal import (
    NAME,
    Journal,
    check_unused,
    drop_or_rename,
    referring_to,
    settle_missing,
)
from airflow_provider_rfr.connections.dependents import (
    DependentTask,
    RestartVerdict,
    Services,
    cycle,
    find_readable,
    judge,
    paths_to,
    references_of,
    restart,
    with_outcomes,
)
from airflow_provider_rfr.connections.statement import SecretReference, Statement, Value, Verb
from airflow_provider_rfr.connections.types import REFERENCE_SUFFIX, Definition, type_named
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    AlterConnectionError,
    ConfigurationError,
    ConnectionConflictError,
    ConnectionNotFoundError,
    ConnectionRightsError,
    ConnectionValidationError,
    Problem,
)
from airflow_provider_rfr.http.redaction import without_credentials
from airflow_provider_rfr.store.connections import (
    AlterationRecord,
    AlterationState,
    ConnectionNotes,
    Use,
    concurrent_alterations,
    last_change,
    list_uses,
    set_wanted_hash,
)

_MOST_PLACES: Final = 50
_UNTRIED: Final = "connections of this type can't be tried here"
_INSTALL: Final = "install this public key in addition to the present one before the next rotation: "
_ROTATION_MILLISECONDS: Final = 60_000
"""The least time between two rotations. Sooner ones were begun at once: nobody can have installed the new key yet."""
_PENDING: Final = "keeps its old settings until its next run"
_OVERTAKEN: Final = "is left to another alteration, which came in between"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a statement.

    :ivar result: applied, unchanged, planned (a dry run), missing, renamed, dropped, valid or not tried
    :ivar alteration: number of its audit row
    """

    connection: str
    result: str
    changes: tuple[OptionChange, ...] = ()
    dependents: tuple[DependentTask, ...] = ()
    validated: bool | None = None
    notice: str = ""
    alteration: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "connection": self.connection,
            "result": self.result,
            "options": {change.option: {"before": change.before, "after": change.after} for change in self.changes},
            "validated": self.validated,
            "dependents": [dependent.to_json() for dependent in self.dependents],
            "restarted": sum(dependent.outcome in ("restarted", "started") for dependent in self.dependents),
            "notice": self.notice,
            "alteration": self.alteration,
        }

    def lines(self) -> list[str]:
        lines = [f"connection {self.connection}: {self.result}", *(f"  ~ {change}" for change in self.changes)]
        for dependent in self.dependents:
            lines.append(dependent.line(f"  {dependent.verdict.value} ", dependent.outcome or dependent.reason))
        return lines + ([f"  {self.notice}"] if self.notice else [])


@dataclass(frozen=True, slots=True)
class _Alteration:
    """The state of a statement between stages; each stage returns a copy with its results.

    :ivar kept: references of the stored secrets, by option; ``secrets``: those of the candidate's secrets
    :ivar uses: every task that uses any connection
    :ivar candidate: the new definition; with its secrets from the draft stage on
    :ivar identity: hash of the candidate's upstream; None where it is unknown
    :ivar tried: whether the candidate was tried; None where nothing changes
    :ivar is_overtaken: another alteration changed the connection right after the candidate was stored
    """

    statement: Statement
    stored: Definition
    kept: Mapping[str, SecretReference]
    uses: Sequence[Use]
    old_hash: str = field(repr=False)
    candidate: Definition
    secrets: Mapping[str, SecretReference]
    new_hash: str = field(repr=False)
    changes: tuple[OptionChange, ...] = ()
    dependents: tuple[DependentTask, ...] = ()
    identity: str | None = field(default=None, repr=False)
    tried: bool | None = None
    notice: str = ""
    is_overtaken: bool = False

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def changed_options(self) -> list[str]:
        return [change.option for change in self.changes]

    def outcome(self, result: str, alteration: int | None = None) -> Outcome:
        return Outcome(self.name, result, self.changes, self.dependents, self.tried, self.notice, alteration)

    @property
    def has_to_be_tried(self) -> bool:
        """Tell whether the candidate has to be tried before it is stored; a new description alone need not be."""
        return self.statement.settings.validate and self.new_hash != self.old_hash

    def refused(self, problem: str, remedy: str) -> AlterationRefusedError:
        """Return an error about the connection as a whole, not about one option."""
        return AlterationRefusedError(self.name, [Problem("", problem, remedy)])


def execute(
    services: Services, statement: Statement, *, actor: str, parameters: Mapping[str, Value] | None = None
) -> Outcome:
    """Carry out a statement.

    :param actor: the user, for the audit
    :param parameters: values of the statement's ``:name``, which may be secret
    :raises AlterConnectionError: nothing was changed; a conflict may be tried again
    """
    name = statement.connection
    if statement.verb is Verb.VALIDATE:
        return _try_stored(services, name)
    try:
        if statement.settings.dry_run:
            return _planned(services, statement, parameters or {})
        return _carry_out(services, statement, actor, parameters or {})
    except ConnectionNotFoundError:
        # A process that died right after it dropped the connection has left an open row. An alteration of a missing
        # connection fails before it opens its journal, which would settle that row.
        settle_missing(services.store, name)
        if not statement.if_exists:
            raise
        return Outcome(name, "missing", notice=f"there is no connection {name!r}; nothing was done")
    except ConnectionValidationError as error:
        raise ConnectionValidationError(name, f"refused, nothing was changed: {error.message}") from None


def _planned(services: Services, statement: Statement, parameters: Mapping[str, Value]) -> Outcome:
    plan = _read(services, statement)
    if statement.verb not in (Verb.RENAME, Verb.DROP):
        return _draft(services, plan, parameters).outcome("planned")
    _check_editable(services, plan.name, [plan.name, *_dropped_first(services, statement)])
    effects = check_unused(services, statement)
    after = "dropped" if statement.new_name is None else repr(statement.new_name)
    return Outcome(plan.name, "planned", notice=f"it would be {after}{_in_words(effects)}")


def _carry_out(services: Services, statement: Statement, actor: str, parameters: Mapping[str, Value]) -> Outcome:
    # Read before there is a journal row: it raises if the connection is missing, or can't be written from here.
    _read(services, statement)
    with Journal(services.store, statement.connection, actor, statement.outline()) as journal:
        # Read again: the connection may have been altered before the lease was taken, and settle() changes the notes.
        recovered = journal.settle(_read(services, statement).old_hash)
        plan = _read(services, statement)
        if statement.verb in (Verb.RENAME, Verb.DROP):
            return _give_up(services, plan, actor, journal)
        plan = _draft(services, plan, parameters, recovered)
        plan = _validate(services, plan)
        plan = _store(services, plan, journal)
    # The lease is given back before this, which may wait for minutes: the tasks to restart are recorded already.
    return _restart(services, plan, journal)


def _give_up(services: Services, plan: _Alteration, actor: str, journal: Journal) -> Outcome:
    """Carry out DROP or RENAME; the effects of CASCADE are reported before anything is done."""
    statement, first = plan.statement, _dropped_first(services, plan.statement)
    _check_editable(services, plan.name, [plan.name, *first])
    effects = check_unused(services, statement)
    if effects:
        services.report(f"connection {plan.name} is about to be dropped{_in_words(effects)}")
    for other in first:
        # Each drop has a lease and an audit row of its own. If this process dies, the same statement drops the rest.
        dropped = replace(statement, connection=other, if_exists=True)
        quiet = replace(services, report=lambda line: None)
        execute(quiet, dropped, actor=f"{actor}, by {statement}")
    drop_or_rename(services, statement, plan.stored, plan.old_hash, journal)
    new = statement.new_name
    if new is not None:
        return Outcome(plan.name, "renamed", notice=f"it is {new!r} now", alteration=journal.id)
    return Outcome(plan.name, "dropped", notice=_in_words(effects).removeprefix("; "), alteration=journal.id)


def _dropped_first(services: Services, statement: Statement) -> list[str]:
    return referring_to(services, statement.connection) if statement.cascade else []


def _in_words(effects: Mapping[str, str]) -> str:
    return "".join(f"; {user}: {effect}" for user, effect in effects.items())


def dependents_of(services: Services, name: str) -> Sequence[DependentTask]:
    """Return the tasks that use the connection, directly or through other connections."""
    with services.store.read() as connection:
        return judge(name, None, (), list_uses(connection), services.gateway.find)


def _read(services: Services, statement: Statement) -> _Alteration:
    """Read the stored connection (stage one)."""
    stored = services.gateway.read(statement.connection)
    if stored is None:
        raise ConnectionNotFoundError(statement.connection, "is not there; make it, or write IF EXISTS")
    with services.store.read() as connection:
        uses = list_uses(connection)
        references = ConnectionNotes(connection, stored.name).secret_references()
    kept = {option: SecretReference(*reference.split(":", 1)) for option, reference in references.items()}
    content = services.hashes.of(stored)
    return _Alteration(statement, stored, kept, uses, content, stored, kept, content)


def _draft(
    services: Services, plan: _Alteration, parameters: Mapping[str, Value], recovered: Sequence[AlterationRecord] = ()
) -> _Alteration:
    """Draft the candidate, with its secrets, and find its dependents (stage two).

    Rights are checked before any secret is read.

    :param recovered: alterations whose process died after it had stored them
    :raises AlterationRefusedError: with every problem
    :raises ConnectionRightsError: the caller lacks a right
    """
    if plan.statement.verb is Verb.ROTATE_KEYS:
        return _rotate(services, plan, recovered)
    paths = paths_to(plan.name, plan.uses, services.gateway.find)
    draft = make_draft(
        plan.stored, plan.statement.actions, plan.kept, parameters, services.gateway.find, in_use=bool(paths)
    )
    _check_rights(services, plan.stored, draft, paths)
    candidate = _with_secrets(services, draft)
    problems = draft.broken_rules(candidate)
    if problems:
        raise AlterationRefusedError(plan.name, problems)
    plan = replace(plan, candidate=candidate, secrets=draft.secrets)
    return _compared(services, plan, hidden={*plan.kept, *draft.secrets})


def _rotate(services: Services, plan: _Alteration, recovered: Sequence[AlterationRecord]) -> _Alteration:
    """Draft ROTATE KEYS; if the process of a stored rotation died, finish that one instead of rotating again.

    :raises AlterationRefusedError: the connection's type has no keys
    :raises ConnectionConflictError: the keys were rotated just now
    """
    if not type_named(plan.stored.conn_type).has_keys:
        raise plan.refused(f"is of type {plan.stored.conn_type!r}, which has no keys", "ROTATE KEYS is for ssh")
    _check_editable(services, plan.name, [plan.name])
    if any(PUBLIC_KEYS in definition.options for definition in recovered):
        # The public key of that rotation may not have been shown, and another one would put its private key into use.
        public = str(plan.stored.get(PUBLIC_KEYS) or "").rpartition("\n")[2]
        notice = f"a rotation whose process died was stored, and this is its end; {_INSTALL}{public}"
        return replace(_compared(services, plan), notice=notice)
    with services.store.read() as connection:
        now = services.store.now(connection)
        last = last_change(connection, plan.name, PUBLIC_KEYS, now - _ROTATION_MILLISECONDS, now)
    if last is not None:
        # A second rotation would put the key into use that the first one generated, before it was installed.
        problem = f"its keys were rotated {(now - last) // 1000} s ago; install the new public key on the other side"
        raise ConnectionConflictError(plan.name, f"{problem}, and try again after {_ROTATION_MILLISECONDS // 1000} s")
    rotation, public = rotated(plan.stored)
    plan = _compared(services, replace(plan, candidate=rotation))
    secrets = {name: secret for name, secret in plan.kept.items() if name not in plan.changed_options}
    # A dry run discards its key, so there is nothing to install.
    return replace(plan, secrets=secrets, notice="" if plan.statement.settings.dry_run else _INSTALL + public)


def _with_secrets(services: Services, draft: ConnectionDraft) -> Definition:
    """Return the candidate with the secrets that the statement names.

    Other secrets stay as they are stored, even if they were edited by hand.

    :raises AlterationRefusedError: with every secret that can't be read, or does not fit its option
    """
    candidate, problems = draft.candidate, []
    for name in sorted(draft.touched.keys() & draft.secrets.keys()):
        reference, option = draft.secrets[name], type_named(candidate.conn_type).option(name)
        try:
            value = services.read_secret(reference)
            if option is not None:
                option.fit(value)
        except ConfigurationError as error:
            problems.append(Problem(name, f"SECRET '{reference}' {error.problem}", error.remedy))
        except ValueError as error:
            problems.append(Problem(name, f"SECRET '{reference}' {error}"))
        else:
            candidate = candidate.having(name, value)
    if problems:
        raise AlterationRefusedError(candidate.name, problems)
    return candidate


def _compared(services: Services, plan: _Alteration, hidden: Collection[str] = ()) -> _Alteration:
    """Compare the candidate with the stored connection, and judge the consequence for each dependent task.

    :raises AlterationRefusedError: a task can't adopt the change
    """
    new_hash = services.hashes.of(plan.candidate)
    plan = replace(plan, changes=changes_between(plan.stored, plan.candidate, hidden), new_hash=new_hash)
    dependents = judge(plan.name, new_hash, plan.changed_options, plan.uses, services.gateway.find)
    refused = [
        Problem("", f"{dependent.use.task} uses it: {dependent.reason}", "end it, or use another connection for it")
        for dependent in dependents
        if dependent.verdict is RestartVerdict.INCOMPATIBLE
    ]
    if refused:
        raise AlterationRefusedError(plan.name, refused)
    return replace(plan, dependents=dependents)


def _check_rights(
    services: Services, stored: Definition, draft: ConnectionDraft, paths: Mapping[str, tuple[str, ...]]
) -> None:
    """Check the rights on the connection, its new references and secrets, and the connections that send through it."""
    name = stored.name
    _check_editable(services, name, [name])
    before = set(references_of(stored).values())
    added = [reference for reference in references_of(draft.candidate).values() if reference not in before]
    _check_editable(services, name, added, "the statement refers to {}, which you may not edit")
    denied = services.may_not_use(draft.secrets.values())
    if denied:
        options = ", ".join(sorted(option for option, secret in draft.secrets.items() if secret in denied))
        raise ConnectionRightsError(name, f"secrets of {options} may not be used: {', '.join(map(str, denied))}")
    if all(change.option == "description" for change in changes_between(stored, draft.candidate)):
        return
    # If the connection is a tunnel, it decides where the connections that use it send their secrets. The paths of tasks
    # show only connections that tasks have used, so references of stored connections are followed as well.
    above = {conn_id for path in paths.values() for conn_id in path[:-1]}
    todo = [name, *above]
    while todo:
        new = [
            conn_id for conn_id in services.gateway.referring(todo.pop()) if conn_id not in above and conn_id != name
        ]
        above |= set(new)
        todo += new
    denied_above = services.gateway.may_not_edit(sorted(above))
    if denied_above:
        users = sorted(consumer for consumer, path in paths.items() if set(path) & set(denied_above))
        used = f", which {', '.join(users)} use" if users else ""
        raise ConnectionRightsError(
            name, f"it carries the secrets of {', '.join(denied_above)}{used}; you may not edit those connections"
        )


def _check_editable(services: Services, name: str, names: Sequence[str], problem: str = "you may not edit {}") -> None:
    denied = services.gateway.may_not_edit(names)
    if denied:
        raise ConnectionRightsError(name, problem.format(", ".join(denied)))


def _validate(services: Services, plan: _Alteration) -> _Alteration:
    """Check that the candidate leads to the same upstream, and that each task could continue with it (stage three).

    The connection test of the candidate belongs to the next stage: the gateway may test and store it in one step.

    :raises ConnectionValidationError: it leads to another upstream without NEW_IDENTITY, or a task could not continue
    """
    if not plan.has_to_be_tried:
        return plan
    identity = _identity(services, plan.candidate)
    with services.store.read() as connection:
        expected = ConnectionNotes(connection, plan.name).identity()
    if expected is None:
        # The stored settings are often altered because they do not work.
        with suppress(AlterConnectionError):
            expected = _identity(services, plan.stored)
    if not plan.statement.settings.new_identity and None not in (identity, expected) and identity != expected:
        raise ConnectionValidationError(
            plan.name,
            "the new settings lead to another upstream, whose data is not what was read so far;"
            " if that is meant, say NEW_IDENTITY = true, and everything is read from its beginning",
        )
    for dependent in plan.dependents:
        if len(dependent.via) > 1:
            # A task registers checks only for the connections that it names itself.
            continue
        try:
            services.check_use(plan.candidate, dependent.use)
        except ConnectionValidationError as error:
            problem = f"{dependent.use.task} could not continue: {error.message}"
            raise ConnectionValidationError(plan.name, problem) from None
    return replace(plan, identity=identity)


def _identity(services: Services, definition: Definition) -> str | None:
    identity = services.identify(definition)
    return None if identity is None else services.hashes.of_text(identity)


def _store(services: Services, plan: _Alteration, journal: Journal) -> _Alteration:
    """Store the candidate, then the consequences in the control store (stage four); the caller holds the lease."""
    options = {change.option: {"before": change.before, "after": change.after} for change in plan.changes}
    journal.intend(options, plan.old_hash, plan.new_hash)
    _check_references_again(services, plan)
    validate = plan.has_to_be_tried
    if plan.changes:
        doing = "trying" if validate else "storing"
        services.report(f"connection {plan.name}: {doing} {', '.join(map(str, plan.changes))}")
        # Recorded before the commit under the hash of the new content, so it counts only once that is stored.
        journal.write(lambda connection, now: _note_former_places(ConnectionNotes(connection, plan.name), plan))
        tried = validate and services.gateway.commit_tested(plan.old_hash, plan.candidate)
        if not tried:
            tried = validate and services.test(plan.candidate)
            # By compare-and-set, because Airflow's own forms and commands do not take the lease.
            services.gateway.commit(plan.old_hash, plan.candidate)
        if plan.new_hash != plan.old_hash:
            plan = replace(plan, tried=tried or plan.identity is not None)
    plan = _conclude(services, plan, journal)
    if plan.statement.verb is Verb.ROTATE_KEYS:
        # Reported now: this process may be killed while it waits for restarts, and the next rotation uses the key.
        services.report(f"connection {plan.name}: {plan.notice}")
    if plan.tried is False and validate:
        plan = replace(plan, notice=". ".join(filter(None, (plan.notice, _UNTRIED))))
    return plan


def _check_references_again(services: Services, plan: _Alteration) -> None:
    """Check references again, because concurrent alterations may conflict.

    Two could each add one half of a cycle, or one could drop a connection that the other refers to. Both record their
    changes before they check, so at least one sees the other's record, or the connection that it stored.
    """
    added = set(references_of(plan.candidate).values()) - set(references_of(plan.stored).values())
    if not added:
        return
    with services.store.read() as connection:
        others = concurrent_alterations(connection, services.store.now(connection), plan.name)
    for other in others:
        if any(option.endswith(REFERENCE_SUFFIX) for option in other.options):
            raise ConnectionConflictError(plan.name, f"{other.conn_id} gets another reference just now; try again")
        if other.conn_id in added and NAME in other.options:
            raise ConnectionConflictError(plan.name, f"{other.conn_id} is renamed or dropped just now; try again")
    for name in sorted(added):
        if find_readable(services.gateway.find, name) is None:
            raise plan.refused(f"there is no connection {name!r} any more", "name another connection")
    path = cycle(plan.candidate, services.gateway.find)
    if path is not None:
        raise plan.refused(f"makes a cycle: {' > '.join(path)}", "name another connection")


def _note_former_places(notes: ConnectionNotes, plan: _Alteration) -> None:
    """Record the former address of an API source, so that a refresh that began there can resume.

    With NEW_IDENTITY, replace the former addresses by a name for the new upstream, so that no earlier refresh resumes.
    """
    if type_named(plan.stored.conn_type).name != "rfr_api":
        # Refreshes use former addresses of API sources alone, and the address of a webhook is secret.
        return
    places = notes.former_places(plan.old_hash)
    present = plan.stored.place()
    if plan.statement.settings.new_identity:
        places = [{"upstream": plan.new_hash[:16]}]
    elif present != plan.candidate.place():
        # A login from a secrets backend is secret, and a place is stored in plain text.
        if "login" in plan.kept:
            present["login"] = None
        if present["host"]:
            present["host"] = without_credentials(present["host"])
        places.append(present)
    # The first two stay: the name of another upstream, and the address that a refresh's fingerprint has for all others.
    notes.set_former_places(plan.new_hash, [*places[:2], *places[2:][-_MOST_PLACES:]])


def _conclude(services: Services, plan: _Alteration, journal: Journal) -> _Alteration:
    """Record the consequences of the commit in one transaction; then tasks restart even if this process dies.

    If another alteration took the lease and changed the connection, nothing is recorded: that one records the
    consequences of what it stored.
    """
    with services.store.read() as connection:
        # Listed again: a task that began during the commit may have read the old settings.
        uses = list_uses(connection)
    plan = replace(plan, dependents=judge(plan.name, plan.new_hash, plan.changed_options, uses, services.gateway.find))
    tasks = [dependent.use.task for dependent in plan.dependents if dependent.verdict is RestartVerdict.RESTART]

    def note(connection: Connection, now: int) -> None:
        notes = ConnectionNotes(connection, plan.name)
        notes.set_secret_references({option: str(secret) for option, secret in plan.secrets.items()})
        notes.keep_former_places(plan.new_hash)
        if plan.identity is not None or (plan.statement.settings.new_identity and plan.changes):
            notes.set_identity(now, plan.identity)
        if plan.statement.settings.restart:
            set_wanted_hash(connection, tasks, plan.name, plan.new_hash)
        dependents = [dependent.to_json() for dependent in plan.dependents]
        validated = None if plan.tried is None else int(plan.tried)
        journal.note_in(connection, AlterationState.STORED, dependents=dependents, validated=validated, detail=None)

    def present() -> str:
        return services.hashes.of(find_readable(services.gateway.find, plan.name))

    return replace(plan, is_overtaken=not journal.conclude(note, present))


def _restart(services: Services, plan: _Alteration, journal: Journal) -> Outcome:
    """Restart the tasks that use the connection (stage five)."""
    settings, dependents = plan.statement.settings, plan.dependents
    state = AlterationState.APPLIED if plan.changes else AlterationState.UNCHANGED
    if plan.is_overtaken:
        return replace(plan, dependents=with_outcomes(dependents, {}, _OVERTAKEN)).outcome(state.value, journal.id)
    if settings.restart:
        dependents = restart(services, plan.name, plan.new_hash, dependents, settings.drain_timeout)
    else:
        dependents = with_outcomes(dependents, {}, _PENDING)
    journal.note(state, dependents=[dependent.to_json() for dependent in dependents])
    return replace(plan, dependents=dependents).outcome(state.value, journal.id)


def _try_stored(services: Services, name: str) -> Outcome:
    """Carry out VALIDATE CONNECTION. The connection may come from any backend, because it is not written."""
    definition = services.gateway.find(name)
    if definition is None:
        raise ConnectionNotFoundError(name, "is not there")
    if services.gateway.may_not_edit([name]):
        raise ConnectionRightsError(name, "you may not edit it, nor have it tried")
    tried, identity, store = services.test(definition), _identity(services, definition), services.store
    if identity is not None:
        store.run(lambda connection: ConnectionNotes(connection, name).set_identity(store.now(connection), identity))
    if tried or identity is not None:
        return Outcome(name, "valid", validated=True)
    return Outcome(name, "not tried", notice=_UNTRIED)

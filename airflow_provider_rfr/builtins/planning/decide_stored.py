"""What is to become of a table: of a declared one, a log, a source's target or a materialized view."""

from __future__ import annotations

from airflow_provider_rfr.builtins.planning import reasons
from airflow_provider_rfr.builtins.planning.decision import Decision, Decisions, Inputs, becomes, inputs_of
from airflow_provider_rfr.builtins.planning.drift import Found, Origin, is_unfinished
from airflow_provider_rfr.builtins.planning.effects import EVERYTHING, NOTHING, Effects, Touched, gone_of, shape_of
from airflow_provider_rfr.builtins.planning.mechanisms import Choice, choose
from airflow_provider_rfr.builtins.planning.plans import VERB_OF, Load, Verb
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.spec import Contents, How, Kind
from airflow_provider_rfr.builtins.state import LiveKind, RecordedObject
from airflow_provider_rfr.builtins.wanted import Tools, Want, relation

_ORDER = tuple(How)
_LOSES_ROWS = "all rows (they were history, and become a query's result)"


def decide_stored(decision: Decision, found: Found, decisions: Decisions, policies: Policies, tools: Tools) -> None:
    """Fill the decision of an object with a table behind it."""
    want, known = decision.want, decision.want.recorded
    inputs = inputs_of(want, decisions)
    decision.problems += inputs.gone
    if known is not None:
        decision.reasons += reasons.own_reasons(want, known, tools)
    if known is not None and relation(known.kind) is not LiveKind.TABLE and not _is_table_already(want):
        _comes_as_table(decision, known)
    elif found.origin is None:
        _comes(decision, found, known)
    else:
        _changes(decision, found, found.origin, inputs, policies)
    if want.kind is Kind.SOURCE:
        _source(decision)


def _source(decision: Decision) -> None:
    """Its rows come from a refresh: the plan says why one has to run."""
    if reasons.DEFINITION in decision.reasons:
        decision.words.append("~ definition: the next refresh starts a new generation")
    why = _why_loaded(decision, decision.want.recorded)
    if why is None or (decision.how is None and decision.problems):
        return
    decision.details["load_anew"] = why.value
    if decision.how is None:
        decision.how = Verb.METADATA


def _why_loaded(decision: Decision, known: RecordedObject | None) -> Load | None:
    if known is None or known.kind is not Kind.SOURCE or decision.how is Verb.CREATE:
        return Load.CREATED
    if reasons.DEFINITION in decision.reasons:
        return Load.REDEFINED
    live = decision.want.live
    # A deploy before this one may have done it, and died before it could say so.
    was_emptied = live is not None and not live.rows and is_unfinished(known, live)
    return Load.EMPTIED if decision.how is Verb.REPLACE_EMPTY or was_emptied else None


def _is_table_already(want: Want) -> bool:
    """A deploy that did not finish has made it one."""
    return want.live is not None and want.live.kind is LiveKind.TABLE and want.live.marker == want.uuid


def _comes_as_table(decision: Decision, known: RecordedObject) -> None:
    _create(decision)
    decision.effects = becomes(decision.want, known)


def _create(decision: Decision) -> None:
    decision.how = Verb.CREATE
    if decision.want.sql is not None:
        decision.details["sql"] = decision.want.sql


def _comes(decision: Decision, found: Found, known: RecordedObject | None) -> None:
    _create(decision)
    if known is None:
        decision.reasons.append("new")
        return
    decision.reasons += [each for each in found.drift if each not in decision.reasons]
    decision.effects = becomes(decision.want, known)


def _changes(decision: Decision, found: Found, origin: Origin, inputs: Inputs, policies: Policies) -> None:
    want = decision.want
    choice = choose(want, origin, policies)
    how = choice.how
    if want.recorded is not None:
        how = _kept(decision, choice, want.recorded, policies)
    if want.kind is Kind.MATERIALIZED_VIEW and how is not How.REPLACE_EMPTY:
        how = _recomputed(decision, how, inputs)
    # What was changed by hand and is adopted stays as it is: to write all that is declared would be to repair it.
    if how is None and (policies.drift == "repair" if found.drift else origin.note is not None):
        how = How.METADATA
    if found.adopted:
        how = How.ADOPT
    _take(decision, choice, how)
    if want.recorded is not None and origin.note is not None and reasons.CONTRACT in decision.reasons:
        # The table may be as wanted already; those who read it saw the recorded one, and the deploy died before them.
        decision.effects |= becomes(want, want.recorded)
    _say(decision, found, origin, how, policies)


def _kept(decision: Decision, choice: Choice, known: RecordedObject, policies: Policies) -> How | None:
    """The same table, and perhaps more to do than its columns ask for."""
    want, how = decision.want, choice.how
    differs = {reasons.METADATA, reasons.CONSTRAINTS, reasons.CONTRACT, reasons.DEFINITION} & {*decision.reasons}
    if how is None and (differs or want.kind is not known.kind):
        how = How.METADATA
    if reasons.METADATA in decision.reasons:
        decision.words += reasons.metadata_words(want, known)
        decision.details |= reasons.metadata_details(want, known)
    if want.kind is Kind.MATERIALIZED_VIEW and known.kind is not Kind.MATERIALIZED_VIEW:
        _becomes_query(decision, known, policies)
        how = How.RECOMPUTE
    return how


def _becomes_query(decision: Decision, known: RecordedObject, policies: Policies) -> None:
    """Rows that nothing can make again would be overwritten by a query's result."""
    want = decision.want
    if known.contents is Contents.DERIVABLE:
        return
    decision.loses = (_LOSES_ROWS,)
    if want.protect is not None:
        decision.problems.append(f"protected: {want.protect}; refused, since {_LOSES_ROWS} would be lost")
    elif not policies.accepts_loss(want.obj.name, want.uuid):
        name = want.obj.name
        decision.problems.append(f"{_LOSES_ROWS} would be lost; say accept_data_loss: {name} if that is meant")


def _recomputed(decision: Decision, how: How | None, inputs: Inputs) -> How | None:
    causes = {**inputs.contents, **inputs.shape}
    decision.input_reasons = causes
    decision.reasons += causes.values()
    if causes or {reasons.LOGIC, reasons.STAR} & {*decision.reasons} or how is How.REWRITE:
        return How.RECOMPUTE
    return how


def _take(decision: Decision, choice: Choice, how: How | None) -> None:
    want = decision.want
    decision.how = None if how is None else VERB_OF[how]
    decision.words = [*choice.words, *decision.words]
    decision.details |= choice.details if how is not None else {}
    if how is How.RECOMPUTE and want.obj.query is not None:
        decision.details["sql"] = want.sql
    decision.loses = (*decision.loses, *choice.loses)
    decision.problems += choice.problems
    decision.paste = choice.paste
    decision.instructed = choice.instructed
    if how is None and not choice.changes:
        return
    contents = NOTHING
    if how in (How.RECOMPUTE, How.REPLACE_EMPTY):
        contents = EVERYTHING
    elif choice.rewritten:
        contents = Touched(choice.rewritten)
    gone = gone_of(choice.before, want.obj.columns, choice.changes) if choice.changes else ()
    decision.effects = Effects(shape_of(choice.changes), contents, gone)


def _say(decision: Decision, found: Found, origin: Origin, how: How | None, policies: Policies) -> None:
    if how is not None and origin.note is not None:
        decision.reasons.append(origin.note)
    if found.adopted:
        decision.reasons.append("as declared; takes our marker")
    if policies.force is not None and decision.want.protect is None:
        decision.reasons.append(f"forced to {policies.force}")

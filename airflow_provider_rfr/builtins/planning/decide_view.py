"""What is to become of a view. It holds nothing, so it needs no instruction; what counts is who reads what of whom."""

from __future__ import annotations

from airflow_provider_rfr.builtins.planning import reasons
from airflow_provider_rfr.builtins.planning.decision import Decision, Decisions, Inputs, becomes, inputs_of
from airflow_provider_rfr.builtins.planning.drift import Found
from airflow_provider_rfr.builtins.planning.effects import EVERYTHING, NO_EFFECTS, NOTHING, Effects
from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.state import LiveKind, RecordedObject
from airflow_provider_rfr.builtins.wanted import Tools, relation

EVERY = Effects(EVERYTHING, EVERYTHING)
_NEW_TEXT = frozenset({reasons.LOGIC, reasons.STAR, reasons.CONTRACT, reasons.CONSTRAINTS, reasons.DEFINITION})


def decide_view(decision: Decision, found: Found, decisions: Decisions, policies: Policies, tools: Tools) -> None:
    """Fill the decision of a view."""
    want, known = decision.want, decision.want.recorded
    inputs = inputs_of(want, decisions)
    decision.problems += inputs.gone
    decision.details = {"sql": want.sql}
    if known is None:
        _comes(decision, found)
        return
    decision.reasons += reasons.own_reasons(want, known, tools)
    if relation(known.kind) is not LiveKind.VIEW:
        decision.how = Verb.CREATE
        decision.effects = becomes(want, known)
    elif found.origin is None:
        decision.how = Verb.CREATE
        decision.reasons += found.drift
        decision.effects = becomes(want, known)
    else:
        decision.how = _how(decision, found, known, inputs, policies)
        decision.effects = EVERY if found.rewrite_text else _effects(decision, known, inputs)


def _comes(decision: Decision, found: Found) -> None:
    if found.adopted:
        decision.how = Verb.ADOPT
        decision.reasons.append("as declared; takes our marker")
    elif found.origin is not None:
        decision.how = Verb.REPLACE
        decision.reasons.append(found.origin.note or "")
    else:
        decision.how = Verb.CREATE
        decision.reasons.append("new")


def _how(decision: Decision, found: Found, known: RecordedObject, inputs: Inputs, policies: Policies) -> Verb | None:
    said = {*decision.reasons}
    if found.adopted:
        decision.reasons.append("takes our marker")
        return Verb.ADOPT
    if reasons.METADATA in said:
        decision.words += reasons.metadata_words(decision.want, known)
        decision.details |= reasons.metadata_details(decision.want, known)
    decision.input_reasons = inputs.shape
    decision.reasons += inputs.shape.values()
    if found.rewrite_text and found.origin is not None:
        decision.reasons.append(found.origin.note or "")
        return Verb.REPLACE
    if said & _NEW_TEXT:
        return Verb.REPLACE
    if policies.force is not None and decision.want.protect is None:
        decision.reasons.append("forced")
        return Verb.REBIND
    if inputs.shape:
        return Verb.REBIND
    return Verb.METADATA if reasons.METADATA in said else None


def _effects(decision: Decision, known: RecordedObject, inputs: Inputs) -> Effects:
    """A view passes on what it notices; where its columns' types are declared, it passes on what they say."""
    changed = bool({reasons.LOGIC, reasons.STAR} & {*decision.reasons})
    contents = EVERYTHING if changed or inputs.contents else NOTHING
    if not changed and reasons.CONTRACT not in decision.reasons and not inputs.shape:
        return Effects(contents=contents) if contents else NO_EFFECTS
    effects = becomes(decision.want, known, contents)
    if inputs.shape and not effects.shape:
        return Effects(EVERYTHING, contents)
    return effects

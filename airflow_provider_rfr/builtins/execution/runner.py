"""One step of a deploy: look, write down that it begins, do it, look again, write down that it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.builtins.execution.mechanisms import Mechanism, mechanism_of
from airflow_provider_rfr.builtins.execution.values import AppliedStep
from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plans import Step
from airflow_provider_rfr.exceptions import DeployError, RfrError, StepError
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError
from airflow_provider_rfr.store import garbage, journal
from airflow_provider_rfr.store.journal import StepState

_TRIES: Final = 20
"""How often a change is begun anew because a writer of the table was faster."""
_DAY: Final = 86_400_000


def run_step(work: Work, step: Step) -> AppliedStep:
    """Do the step.

    :raises StepError: it can't be done
    :raises LeaseLostError: another deploy took over; nothing more is written
    """
    mechanism = mechanism_of(step)
    with _told(work, step):
        found = mechanism.probe(work, step) is Probe.DONE
        work.lease.write(lambda connection, now: _start(connection, now, work, step, mechanism))
        if not found:
            _do(work, step, mechanism)
        done = mechanism.verify(work, step)
        work.lease.write(lambda connection, now: _end(connection, now, work, step, done))
    return AppliedStep(step.seq, step.uuid, step.name, step.how.value, found, dict(done.evidence))


def _do(work: Work, step: Step, mechanism: Mechanism) -> None:
    """Whoever is faster is no reason to give up, and none to write over what they did."""
    for left in range(_TRIES, 0, -1):
        try:
            mechanism.do(work, step)
            return
        except (CommitConflictError, TargetChangedError) as error:
            work.lease.ensure()
            if mechanism.probe(work, step) is Probe.DONE:
                return
            if left == 1:
                problem = f"others committed {_TRIES} times while it was done ({error})"
                raise StepError(step.name, step.how.value, problem, "run it when fewer write") from error


def _start(connection: Connection, now: int, work: Work, step: Step, mechanism: Mechanism) -> None:
    """What is going to be left is queued before it is there: nothing is forgotten by whoever dies in between."""
    journal.start_step(connection, work.deploy_id, step.seq, token=work.lease.token, now=now)
    days = int(step.details.get("keep_days", work.plan.policies.keep_days))
    for name in mechanism.leaves(work, step):
        left = garbage.Garbage(name, str(step.uuid), work.deploy_id, step.reason, now + days * _DAY)
        garbage.queue(connection, work.plan.project, left, now=now)


def _end(connection: Connection, now: int, work: Work, step: Step, done: Done) -> None:
    if done.settle is not None:
        done.settle(connection, now)
    evidence = orjson.dumps(dict(done.evidence)).decode()
    journal.end_step(connection, work.deploy_id, step.seq, StepState.DONE, now=now, evidence=evidence)


@contextmanager
def _told(work: Work, step: Step) -> Iterator[None]:
    """Write down why it failed; whatever it was is raised as a StepError that names the step."""
    try:
        yield
    except Exception as error:
        told = str(error) if isinstance(error, RfrError) else type(error).__name__
        _fail(work, step, told)
        if isinstance(error, DeployError):
            raise
        problem = told if isinstance(error, RfrError) else f"{told}: {str(error).partition(chr(10))[0][:300]}"
        raise StepError(step.name, step.how.value, problem) from error


def _fail(work: Work, step: Step, problem: str) -> None:
    def end(connection: Connection, now: int) -> None:
        journal.end_step(connection, work.deploy_id, step.seq, StepState.FAILED, now=now, error=problem)

    # What is to be told is the first thing that went wrong.
    with suppress(DeployError, DBAPIError):
        work.lease.write(end)

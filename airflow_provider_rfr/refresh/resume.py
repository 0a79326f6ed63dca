"""The policy by which an attempt waits for other runs, and then opens a generation, resumes one, or has nothing to do.

A run takes over its own refresh at once: a retry or a clear must not wait for the attempt that it replaces. Another run
counts as alive while its ledger gets commits and records no end. The age of the last commit is measured from when this
process first saw it, because clocks of machines differ. A wrong guess costs time but no rows: the epoch protects the
table.

An API may get another address during a load. ALTER CONNECTION guarantees that it is the same API, so the fingerprint is
computed with the first address, and page tokens that are addresses are requested at the present one.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple

import orjson

from airflow_provider_rfr.exceptions import ConfigurationError, FencedError, RefreshBusyError
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from airflow_provider_rfr.streams.incremental import CursorWindow
from airflow_provider_rfr.streams.paged import PagedStream

_log = logging.getLogger(__name__)

_ROUNDS_OF_SILENCE = 3
_LEAST_SILENCE_SECONDS = 30.0
_CLOCKS_APART_SECONDS = 300.0
_KEY_OF_TASK = re.compile(r"(?P<task>.+/-?\d+)/[^/]*-(?P<clear>\d+)")
"""A run's key from Airflow. It ends with the run's start and the number of the task's tries before its last clear."""


def silence_seconds(options: RefreshOptions) -> float:
    """Return the seconds for which a live attempt may commit nothing to its ledger."""
    return max(_LEAST_SILENCE_SECONDS, _ROUNDS_OF_SILENCE * options.round_seconds)


class OtherRun:
    """An observer of another run that may hold the same refresh.

    :param clock: monotonic seconds
    """

    def __init__(
        self, target: str, run_key: str | None, options: RefreshOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._run_key = run_key
        self._options = options
        self._clock = clock
        self._seen: datetime | None = None
        self._since = 0.0

    def must_wait(
        self, header: LedgerHeader | None, has_ended: Callable[[], bool], now: datetime | None = None
    ) -> str | None:
        """Return a sentence about the run to wait for; None if there is nothing to wait for.

        :param has_ended: whether the other run recorded its end; called last, since it may ask the object store
        :raises RefreshBusyError: another run is active, and ``on_busy`` is ``fail``
        """
        if header is None or self._options.on_busy == "take_over":
            return None
        if header.state is not RefreshState.OPEN or header.is_held_by(self._run_key):
            return None
        # Silence is measured by this process's clock, since it first saw the commit. The other run's clock decides only
        # about a commit that is older by far more than clocks differ: its attempt ended long ago.
        if header.committed_at != self._seen:
            self._seen, self._since = header.committed_at, self._clock()
        longest = silence_seconds(self._options)
        age = ((now or datetime.now(timezone.utc)) - header.committed_at).total_seconds()
        is_silent = self._clock() - self._since > longest or age > longest + _CLOCKS_APART_SECONDS
        if is_silent or has_ended():
            return None
        busy = (
            f"{self._target} is being refreshed by {header.run_key or 'a run outside of Airflow'}"
            f" (generation {header.generation}, {header.partitions_done} of {header.partitions} partitions done)"
        )
        if self._options.on_busy == "fail":
            raise RefreshBusyError(f"{busy}; let it end, or set on_busy to wait or take_over")
        return f"{busy}, unless it commits nothing for {longest:.0f} s"


@contextmanager
def ledger_heartbeat(ledger: Ledger, options: RefreshOptions) -> Iterator[None]:
    """Commit heartbeats to the ledger until the context ends, whenever the work itself has been silent for long."""
    # Half of the time after which other runs take an attempt for dead, so that a slow commit still comes in time.
    seconds, over = silence_seconds(options) / 2, threading.Event()

    def commit_when_silent() -> None:
        while not over.wait(min(1.0, seconds / 10)):
            if ledger.silent_seconds < seconds:
                continue
            try:
                ledger.commit([])
            except FencedError:
                # The work itself meets the same error before its next commit, and raises it.
                return
            except Exception:  # noqa: BLE001 - each catalog fails in its own way
                _log.debug("the heartbeat can't be committed now", exc_info=True)

    thread = threading.Thread(target=commit_when_silent, name="rfr-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Relocations:
    """The former addresses of an API, and the present one.

    :ivar addresses: base URLs, the oldest first, the present one last
    :ivar logins: user names for the API, in the same order
    :ivar upstream: name of the API, if the connection led to another one before; else None
    """

    addresses: Sequence[str] = ()
    logins: Sequence[str] = ()
    upstream: str | None = None

    @classmethod
    def of(cls, moved: Sequence[Any]) -> Relocations:
        """Read the relocations from the document's ``run.moved``."""
        return cls(
            [address.base_url.rstrip("/") for address in moved if address.base_url],
            [address.login for address in moved if address.login],
            next((address.upstream for address in reversed(moved) if address.upstream), None),
        )

    def with_first_address(self, fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fingerprint with the first address and login in place of the present ones."""
        original = {key: self._moved_back(value) for key, value in fingerprint.items()}
        return original if self.upstream is None else {**original, "upstream": self.upstream}

    def token(self, text: str | None) -> str | None:
        """Return a page token's JSON; move an address below a former base URL to the present one."""
        if text is None or len(self.addresses) < 2:
            return text
        # The longest first: one address may be the beginning of another.
        for address in sorted(self.addresses, key=len, reverse=True):
            if text.startswith((f'"{address}/', f'"{address}?', f'"{address}"')):
                return f'"{self.addresses[-1]}{text[len(address) + 1 :]}'
        return text

    def follow(self, book: PartitionBook) -> None:
        """Move the page tokens of a resumed refresh to the present address."""
        if len(self.addresses) < 2:
            return
        for ordinal, cursor in book.cursors.items():
            book.cursors[ordinal] = replace(cursor, token=self.token(cursor.token))
        for ordinal, state in book.states.items():
            if (overlap := state.overlap) is not None:
                overlap = replace(overlap, token_in=self.token(overlap.token_in))
                book.states[ordinal] = replace(state, overlap=overlap)

    def _moved_back(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._moved_back(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._moved_back(item) for item in value]
        if not isinstance(value, str):
            return value
        if len(self.logins) > 1 and value == self.logins[-1]:
            return self.logins[0]
        present = self.addresses[-1] if len(self.addresses) > 1 else None
        if present is not None and (value == present or value.startswith((f"{present}/", f"{present}?"))):
            return self.addresses[0] + value[len(present) :]
        return value


class Opening(str, Enum):
    """The first action of an attempt."""

    NEW = "new"
    RESUME = "resume"
    PUBLISHED = "published"


class _Decision(NamedTuple):
    """The choice, and the reason that the log gives for it."""

    opening: Opening
    reason: str


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The fingerprints of the definition by which a generation is read and typed.

    :ivar read: of the stream's requests; pages read under different ones are never mixed
    :ivar publish: of schema and key; if it changes, a complete generation is kept and typed by the new ones
    :ivar rules: of all that decides whether rows can be published: schema, key, options, and the table's columns
    """

    read: str
    publish: str
    rules: str


def fingerprints_of(
    stream: PagedStream,
    relocations: Relocations | None = None,
    options: RefreshOptions | None = None,
    table: str | None = None,
    *,
    incremental: bool = False,
    window: CursorWindow | None = None,
) -> Fingerprints:
    """Return the stream's fingerprints; secrets are not part of them.

    :param relocations: of the API; None if it was never moved
    :param table: text of the target's columns and partitioning
    :param incremental: whether only changes are read
    :param window: the range of cursor values that is read; None without a window
    """
    published = {"json_schema": stream.json_schema, "primary_key": stream.primary_key}
    if stream.columns:
        published["columns"] = stream.columns
    if stream.additional_fields != "drop":
        published["additional_fields"] = stream.additional_fields
    if options is not None and options.constants:
        published["constants"] = options.constants
    read = {**stream.fingerprint(), **({"sync": "incremental"} if incremental else {})}
    if window is not None:
        read["window"] = str(window)
    rules: dict[str, Any] = {
        "published": published,
        "options": (options or RefreshOptions()).publish_rules(),
        "table": table,
    }
    if stream.absent_field_ends:
        rules["absent_field_ends"] = True
    return Fingerprints(
        _digest(read if relocations is None else relocations.with_first_address(read)),
        _digest(published),
        _digest(rules),
    )


def decide(
    header: LedgerHeader | None,
    prints: Fingerprints,
    options: RefreshOptions,
    run_key: str | None,
    *,
    on_target: bool,
    base_state: str | None = None,
    window: CursorWindow | None = None,
    now: datetime | None = None,
) -> _Decision:
    """Choose the attempt's action for the newest generation.

    :param on_target: whether that generation is published on the target, whatever its header says
    :param base_state: digest of the table's state that an incremental sync continues, or that a refresh of a part keeps
    :param window: the range of cursor values to read; None without a window
    :raises ConfigurationError: the attempt is for one generation only, and can't continue it
    """
    decision = _decide(header, prints, options, run_key, on_target, base_state, window, now)
    only, newest = options.only_generation, None if header is None else header.generation
    if only is not None and (newest != only or decision.opening is Opening.NEW):
        problem = f"generation {only} can't be continued: {decision.reason}"
        raise ConfigurationError("options.only_generation", problem, "look at the newest one, and decide again")
    return decision


def _decide(
    header: LedgerHeader | None,
    prints: Fingerprints,
    options: RefreshOptions,
    run_key: str | None,
    on_target: bool,
    base_state: str | None,
    window: CursorWindow | None,
    now: datetime | None,
) -> _Decision:
    """Choose the attempt's action as if it could work on any generation."""
    if header is None:
        return _Decision(Opening.NEW, "no refresh of this table was begun before")
    own, number = run_key is not None and header.run_key == run_key, header.generation
    if header.state is RefreshState.PUBLISHED or on_target:
        # A run outside of Airflow has no key. If its generation is published but still open in the ledger, the run was
        # killed between the two commits, and this one continues it.
        killed = run_key is None and header.state is RefreshState.OPEN and not options.force_restart
        if not own and not killed:
            return _Decision(Opening.NEW, f"generation {number} is published")
        if (prints.read, prints.publish) != (header.read_fingerprint, header.publish_fingerprint):
            return _Decision(
                Opening.NEW, f"generation {number} is published, and the source or its schema changed since it was read"
            )
        return _Decision(Opening.PUBLISHED, f"generation {number} was published already by this run; nothing was read")
    if options.force_restart and not _is_same_run(header.restarted_by, run_key):
        return _Decision(Opening.NEW, f"force_restart: generation {number} is abandoned")
    if (base_state, window and str(window)) != (header.base_state, header.fixed_window):
        changed = f"generation {number} was opened for another kind of sync"
        if window and header.fixed_window:
            changed = f"generation {number} was opened for another window, {header.fixed_window}"
        if options.replace_where or (base_state and header.base_state):
            changed = f"the table was rolled back, or synced by others, since generation {number} was opened"
        return _Decision(Opening.NEW, f"{changed}, so it is abandoned")
    if (why := _why_not_resumed(header, prints, options, now or datetime.now(timezone.utc), own)) is not None:
        return _Decision(Opening.NEW, why)
    done = f"{header.pages} pages are committed, {header.partitions_done} of {header.partitions} partitions are done"
    uncommitted = "pages that were written after the last commit are looked for"
    return _Decision(Opening.RESUME, f"generation {number} continues: {done}; {uncommitted}")


def _is_same_run(earlier: str | None, run_key: str | None) -> bool:
    """Tell whether an earlier key is of the same task in the same run, perhaps before a clear of the task.

    The start is not compared, because a clear of a finished run changes it. But without a later clear, another start is
    that of a run that was deleted and created again under the same id.
    """
    if earlier is None or run_key is None:
        return False
    before, now = _KEY_OF_TASK.fullmatch(earlier), _KEY_OF_TASK.fullmatch(run_key)
    if earlier == run_key or before is None or now is None:
        return earlier == run_key
    return before["task"] == now["task"] and int(before["clear"]) < int(now["clear"])


def idle_seconds(header: LedgerHeader, now: datetime | None = None) -> float:
    """Return the seconds since the generation made progress."""
    return ((now or datetime.now(timezone.utc)) - (header.progressed_at or header.opened_at)).total_seconds()


def _why_not_resumed(
    header: LedgerHeader, prints: Fingerprints, options: RefreshOptions, now: datetime, own: bool
) -> str | None:
    """Return the reason why an open generation is not continued; None if it is continued."""
    number = header.generation
    if prints.read != header.read_fingerprint:
        return (
            f"the source's definition, configuration or page size changed since generation {number} was begun,"
            " so it is abandoned"
        )
    if prints.publish != header.publish_fingerprint and not (header.is_read and header.partitions):
        return f"the schema changed since generation {number} was begun, so it is abandoned"
    if header.refused_under == prints.rules and not own:
        return (
            f"generation {number} was read whole and refused at its publish, and neither schema, options nor table"
            " changed since, so this run reads again"
        )
    age = idle_seconds(header, now)
    if age > options.resume_within:
        return (
            f"generation {number} made no progress for {age:.0f} s, longer than resume_within"
            f" ({options.resume_within:.0f} s), so it is abandoned"
        )
    return None


def _digest(value: Mapping[str, Any]) -> str:
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return hashlib.blake2b(text, digest_size=16).hexdigest()

"""Whether an attempt starts a generation, resumes one, or has nothing to do; and what it does about other runs.

A run takes over its own refresh at once: a retry or a clear must not wait for the attempt that it replaces. Another run
is alive while its ledger gets commits, or until it says that it ended. The age of the last commit is measured from when
this process first saw it, because clocks of machines differ. A wrong guess costs time and no rows: the epoch
protects the table.

An API that moved while it was read: ALTER CONNECTION vouches that it is the same upstream, so the fingerprint is
computed as if nothing had moved, and page tokens that are addresses are requested at the new place.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from types import TracebackType
from typing import Any

import orjson

from airflow_provider_rfr.exceptions import FencedError, RefreshBusyError
from airflow_provider_rfr.refresh.config import OnBusy, RefreshOptions
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.streams.core import Stream

log = logging.getLogger(__name__)

_ROUNDS_OF_SILENCE = 3
_LEAST_SILENCE_SECONDS = 30.0
_CLOCKS_APART_SECONDS = 300.0


def _silence_seconds(options: RefreshOptions) -> float:
    """For so long an attempt that lives may commit nothing to its ledger."""
    return max(_LEAST_SILENCE_SECONDS, _ROUNDS_OF_SILENCE * options.round_seconds)


class OtherRun:
    """What a run has seen of another one at the same refresh.

    :param clock: seconds that go on evenly
    """

    def __init__(
        self,
        target: str,
        run_key: str | None,
        options: RefreshOptions,
        clock: Callable[[], float] = time.monotonic,
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
        """A sentence that says what to wait for; None to go on.

        :param has_ended: whether the other run said that it is over; asked last
        :raises RefreshBusyError: another run is at it, and ``on_busy`` is ``fail``
        """
        if header is None or self._options.on_busy is OnBusy.TAKE_OVER:
            return None
        if not self._is_alive(header, now) or has_ended():
            return None
        holder = header.run_key or "a run outside of Airflow"
        told = (
            f"{self._target} is being refreshed by {holder} (generation {header.generation},"
            f" {header.partitions_done} of {header.partitions} partitions done)"
        )
        if self._options.on_busy is OnBusy.FAIL:
            raise RefreshBusyError(f"{told}; let it end, or set on_busy to wait or take_over")
        return f"{told}, unless it commits nothing for {_silence_seconds(self._options):.0f} s"

    def _is_alive(self, header: LedgerHeader, now: datetime | None) -> bool:
        """Whether another run is at it; to be asked again and again."""
        if header.state is not RefreshState.OPEN or _same_task(header.run_key, self._run_key):
            return False
        if header.committed_at != self._seen:
            self._seen, self._since = header.committed_at, self._clock()
        longest = _silence_seconds(self._options)
        age = ((now or datetime.now(timezone.utc)) - header.committed_at).total_seconds()
        return self._clock() - self._since <= longest and age <= longest + _CLOCKS_APART_SECONDS


class Heartbeat:
    """A context manager around an attempt: its ledger gets a commit where the work itself makes none for a while."""

    def __init__(self, ledger: Ledger, options: RefreshOptions) -> None:
        self._ledger = ledger
        self._seconds = _silence_seconds(options) / 2
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rfr-signs-of-life", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 10)):
            if self._ledger.silent_seconds < self._seconds:
                continue
            try:
                self._ledger.commit([])
            except FencedError:
                # The work itself finds out before it commits, and tells it.
                return
            except Exception:
                log.debug("no sign of life can be given now", exc_info=True)


def _same_task(holder: str | None, run_key: str | None) -> bool:
    """Whether both are the same task of the same run; the last part of a key counts its clears."""
    if holder is None or run_key is None:
        return holder is run_key
    return holder == run_key or ("/" in run_key and holder.rpartition("/")[0] == run_key.rpartition("/")[0])


@dataclass(frozen=True, slots=True)
class Relocations:
    """Where an API was and is.

    :ivar addresses: base URLs, the oldest first, the present one last
    :ivar logins: the same of the user that it was asked as
    :ivar upstream: names another API than there was before at the connection; None while there was one only
    """

    addresses: Sequence[str] = ()
    logins: Sequence[str] = ()
    upstream: str | None = None

    @classmethod
    def of(cls, moved: Sequence[Any]) -> Relocations:
        """From the document's ``run.moved``."""
        return cls(
            [each.base_url.rstrip("/") for each in moved if each.base_url],
            [each.login for each in moved if each.login],
            next((each.upstream for each in reversed(moved) if each.upstream), None),
        )

    def as_begun(self, fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fingerprint with the first address and login in the place of the present ones."""
        found = {key: self._text_by_text(value) for key, value in fingerprint.items()}
        return found if self.upstream is None else {**found, "upstream": self.upstream}

    def token(self, text: str | None) -> str | None:
        """A page token's JSON; an address that leads to a former place leads to the present one."""
        if text is None or len(self.addresses) < 2:
            return text
        # The longest first: one address may be the beginning of another.
        for place in sorted(self.addresses, key=len, reverse=True):
            if text.startswith((f'"{place}/', f'"{place}?', f'"{place}"')):
                return f'"{self.addresses[-1]}{text[len(place) + 1 :]}'
        return text

    def follow(self, book: PartitionBook) -> None:
        """Move the cursors of a refresh that is resumed."""
        if len(self.addresses) < 2:
            return
        for ordinal, cursor in book.cursors.items():
            book.cursors[ordinal] = replace(cursor, token=self.token(cursor.token))
        for ordinal, overlap in book.overlaps.items():
            book.overlaps[ordinal] = replace(overlap, token_in=self.token(overlap.token_in))

    def _text_by_text(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._text_by_text(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._text_by_text(each) for each in value]
        return self._former(value) if isinstance(value, str) else value

    def _former(self, text: str) -> str:
        if len(self.logins) > 1 and text == self.logins[-1]:
            return self.logins[0]
        present = self.addresses[-1] if len(self.addresses) > 1 else None
        if present is not None and (text == present or text.startswith((f"{present}/", f"{present}?"))):
            return self.addresses[0] + text[len(present) :]
        return text


class Opening(str, Enum):
    """What an attempt does first."""

    NEW = "new"
    RESUME = "resume"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice, and the reason that the log gives for it."""

    opening: Opening
    reason: str


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """What a generation was read and is typed with.

    :ivar read: of the stream's requests; pages read under another one are not mixed
    :ivar publish: of schema and key; a complete generation is typed anew under another one
    :ivar rules: of all that decides whether rows can be published: that, the options, and the table's columns
    """

    read: str
    publish: str
    rules: str


def fingerprints_of(
    stream: Stream, moves: Relocations | None = None, options: RefreshOptions | None = None, table: str | None = None
) -> Fingerprints:
    """The stream's fingerprints; secrets are not part of them.

    :param moves: of the API, which is the same one wherever it is
    :param table: text of the target's columns and partitioning
    """
    published = {"json_schema": stream.json_schema, "primary_key": stream.primary_key}
    read = stream.fingerprint()
    rules = {"published": published, "options": (options or RefreshOptions()).publish_rules(), "table": table}
    return Fingerprints(_digest(read if moves is None else moves.as_begun(read)), _digest(published), _digest(rules))


def decide(
    header: LedgerHeader | None,
    prints: Fingerprints,
    options: RefreshOptions,
    run_key: str | None,
    *,
    on_target: bool,
    now: datetime | None = None,
) -> Decision:
    """Choose what the attempt does with the newest generation.

    :param on_target: whether that generation is published on the target, whatever its header says
    """
    if header is None:
        return Decision(Opening.NEW, "no refresh of this table was begun before")
    own = run_key is not None and header.run_key == run_key
    if header.state is RefreshState.PUBLISHED or on_target:
        # A laptop's run has no key: the one that finds its generation published but not marked so was cut off there.
        if own or (run_key is None and header.state is RefreshState.OPEN):
            return Decision(Opening.PUBLISHED, f"generation {header.generation} is published already")
        return Decision(Opening.NEW, f"generation {header.generation} is published")
    if options.force_restart and not own:
        return Decision(Opening.NEW, f"force_restart: generation {header.generation} is abandoned")
    return _decide_open(header, prints, options, now or datetime.now(timezone.utc), own)


def _decide_open(
    header: LedgerHeader, prints: Fingerprints, options: RefreshOptions, now: datetime, own: bool
) -> Decision:
    number = header.generation
    if prints.read != header.read_fingerprint:
        return Decision(
            Opening.NEW,
            f"the source's definition, configuration or page size changed since generation {number} was begun,"
            " so it is abandoned",
        )
    complete = header.partitions_done == header.partitions and header.partitions > 0
    if prints.publish != header.publish_fingerprint and not complete:
        return Decision(Opening.NEW, f"the schema changed since generation {number} was begun, so it is abandoned")
    if header.refused_under == prints.rules and not own:
        return Decision(
            Opening.NEW,
            f"generation {number} was read whole and refused at its publish, and neither schema, options nor table"
            " changed since, so this run reads anew",
        )
    age = (now - (header.progressed_at or header.opened_at)).total_seconds()
    if age > options.resume_within:
        return Decision(
            Opening.NEW,
            f"generation {number} stood still for {age:.0f} s, longer than resume_within"
            f" ({options.resume_within:.0f} s), so it is abandoned",
        )
    return Decision(
        Opening.RESUME, f"generation {number} goes on: {header.partitions_done} of {header.partitions} partitions done"
    )


def _digest(value: Mapping[str, Any]) -> str:
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return hashlib.blake2b(text, digest_size=16).hexdigest()

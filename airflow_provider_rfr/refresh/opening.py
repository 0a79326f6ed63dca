"""Which generation an attempt works on: a new one, the open one, or none because it is published already."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import orjson

from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.moves import Moves
from airflow_provider_rfr.streams.core import Stream


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
    stream: Stream, moves: Moves | None = None, options: RefreshOptions | None = None, table: str | None = None
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

"""One manifest against the CDK's own read of it, in a process that ``tests.manifests.campaign`` starts.

``python -m tests.manifests.case MANIFEST --out FILE`` writes one JSON object a line to FILE: what is known of the
whole manifest, then of each stream. ``--reader`` is the other process, which reads every other page.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.refresh.cursor_values import comparable, moment_in
from airflow_provider_rfr.streams import Complete
from airflow_provider_rfr.streams.airbyte import _cdk, _installed
from airflow_provider_rfr.streams.incremental import CursorColumn
from airflow_provider_rfr.streams.loader import load_streams
from tests.manifests.api import NOW, MadeUpApi
from tests.manifests.source import Loader, guessed, prepared, serve

_MOST_PAGES: Final = 10
_REASON: Final = 200
_MOST_DATES: Final = 4
_MISREAD: Final = re.compile(r"time data '(.+?)' does not match format '(.+?)'")
_ROOT: Final = Path(__file__).resolve().parents[2]


def stop_the_clock(days: int = 0) -> None:
    """Let templates and windows that end now give the same in every read.

    :param days: after :data:`NOW`
    """
    from airbyte_cdk.sources.declarative.interpolation import jinja
    from airbyte_cdk.sources.streams.concurrent.state_converters import datetime_stream_state_converter as converter
    from airbyte_cdk.utils.datetime_helpers import ab_datetime_parse

    now = datetime.fromisoformat(NOW).astimezone(timezone.utc) + timedelta(days=days)
    converter.ab_datetime_now = lambda: ab_datetime_parse(now.isoformat())
    clock = {
        "now_utc": lambda: now,
        "today_utc": now.date,
        "today_with_timezone": lambda zone: now.date(),
        "day_delta": lambda num_days, format="%Y-%m-%dT%H:%M:%S.%f%z": (now + timedelta(num_days)).strftime(format),
    }
    jinja._ENVIRONMENT.globals.update(clock)


class Oracle:
    """The CDK by itself: its own sessions, partitions and paging."""

    def __init__(self, manifest: Mapping[str, Any], config: Mapping[str, Any], components: str | None) -> None:
        from airbyte_cdk.sources.message import NoopMessageRepository

        self._made_from = manifest, config, components
        with _cdk.registering():
            source = self._source([])
            # Its own waits in a queue that only a whole sync empties.
            source._message_repository = source._constructor._message_repository = NoopMessageRepository()
            self.streams = {stream.name: stream for stream in source.streams(source._config)}

    def _source(self, states: Sequence[Any], only: str | None = None) -> Any:
        """Return a source.

        :param only: the only stream, to interpret no others; None for all
        """
        from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

        manifest, config, components = self._made_from
        if components:
            _cdk._register(components)
        source = ConcurrentDeclarativeSource(
            config=json.loads(json.dumps(config)),
            state=list(states),
            source_config=json.loads(json.dumps(_only(manifest, only))),
            custom_components_trusted=components is not None,
        )
        # Parents are cached in files.
        source._constructor._disable_cache = True
        return source

    def sync(self, name: str, state: Any) -> tuple[list[Any], dict[str, Any]]:
        """Records of the CDK's own concurrent read after a state, and its last state."""
        from airbyte_cdk.models import ConfiguredAirbyteCatalogSerializer

        stream = {"name": name, "json_schema": {}, "supported_sync_modes": ["full_refresh", "incremental"]}
        modes = {"sync_mode": "incremental", "destination_sync_mode": "append"}
        catalog = ConfiguredAirbyteCatalogSerializer.load({"streams": [{"stream": stream, **modes}]})
        states = [] if state is None else [_cdk._state_message(name, state)]
        records, last = [], {}
        with _cdk.registering():
            source = self._source(states, name)
            for message in source.read(logging.getLogger("airbyte"), source._config, catalog, states):
                if message.type.name == "RECORD":
                    records.append(plain(message.record.data))
                if message.type.name == "STATE":
                    last = plain(message.state.stream.stream_state.__dict__)
        return records, last

    def read(self, name: str, most_slices: int) -> tuple[int, list[Any]]:
        """Number of slices, and records in order."""
        partitions = list(islice(self.streams[name].generate_partitions(), most_slices))
        return len(partitions), [plain(record.data) for part in partitions for record in part.read()]


def _only(manifest: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """Return the manifest with that stream alone; with all where it is None, or where the API lists the streams."""
    streams = [stream for stream in manifest.get("streams") or () if stream.get("name") == name]
    return {**manifest, "streams": streams, "dynamic_streams": []} if streams else manifest


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


class OtherProcess:
    """Reads pages of a source in a process of its own."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.manifests.case", "--reader"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        self._say(source)

    def _say(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def read_page(self, name: str, stream_slice: Any, token: Any) -> dict[str, Any]:
        page: dict[str, Any] = self._answer(["page", name, stream_slice, token])
        return page

    def state_after(self, name: str, state: Any, slices: Any, largest: Mapping[int, str]) -> dict[str, Any]:
        after: dict[str, Any] = self._answer(["state", name, state, slices, largest])
        return after

    def stop_the_clock(self, days: int) -> None:
        self._answer(["clock", "", days])

    def _answer(self, question: Any) -> Any:
        self._say(question)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The CDK may print, too.
            if line.startswith(_ANSWER):
                return json.loads(line[len(_ANSWER) :])
        raise RuntimeError("the other process ended")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


_ANSWER: Final = "answer: "


def read_for_others() -> None:
    """Print the pages and states that standard input asks for. The other process runs this."""
    streams = load_streams(json.loads(sys.stdin.readline()))
    stop_the_clock()
    answers = {"page": page_of, "state": state_of, "clock": lambda _, days: stop_the_clock(days)}
    for line in sys.stdin:
        what, name, *arguments = json.loads(line)
        print(_ANSWER + json.dumps(answers[what](streams.get(name), *arguments)), flush=True)


def state_of(stream: Any, state: Any, slices: Any, largest: Mapping[str, str]) -> Any:
    values = {int(ordinal): datetime.fromisoformat(value) for ordinal, value in largest.items()}
    try:
        return plain(stream.incremental.state_after(state, slices, values, datetime.now(timezone.utc)))
    except RfrError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def page_of(stream: Any, stream_slice: Any, token: Any) -> dict[str, Any]:
    try:
        page = stream.read_page(stream_slice, token)
    except RfrError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    following = None if isinstance(page.next, Complete) else page.next.token
    return {"records": plain(page.records), "token": following}


class Ours:
    """Our streams; each page of a chain by the reader that did not read the page before: this process or another."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.streams = load_streams(source)
        self.other = OtherProcess(source)
        self._is_here = False

    def read(self, name: str, most_slices: int) -> tuple[int, int, list[Any]]:
        """Number of slices, most pages of a slice, and records in order.

        :raises RuntimeError: a page can't be read
        """
        records: list[Any] = []
        slices = plain(list(islice(self.streams[name].stream_slices(), most_slices)))
        pages = [len(list(self._chain(name, stream_slice, records))) for stream_slice in slices]
        return len(slices), max(pages, default=0), records

    def sync(self, name: str, state: Any) -> tuple[int, list[Any], dict[str, Any]]:
        """Most pages of a slice, records in order, and the state that the other process computes.

        :param state: of the sync before; None for the first one
        :raises RuntimeError: a page can't be read
        """
        stream: Any = self.streams[name]
        slices = plain(list(stream.stream_slices() if state is None else stream.incremental.slices_after(state)))
        records: list[Any] = []
        pages, largest = 0, {}
        for ordinal, stream_slice in enumerate(slices):
            before = len(records)
            pages = max(pages, len(list(self._chain(name, stream_slice, records))))
            if (value := largest_of(records[before:], stream.incremental.column)) is not None:
                largest[ordinal] = value.isoformat()
        after = self.other.state_after(name, state, slices, largest)
        if "error" in after:
            raise RuntimeError(after["error"])
        return pages, records, after

    def _chain(self, name: str, stream_slice: Any, records: list[Any]) -> Iterator[int]:
        stream, token = self.streams[name], None
        for number in range(_MOST_PAGES):
            self._is_here = not self._is_here
            read = page_of if self._is_here else lambda one, *rest: self.other.read_page(one.name, *rest)
            page = read(stream, stream_slice, plain(token))
            if "error" in page:
                raise RuntimeError(page["error"])
            records += page["records"]
            token = page["token"]
            yield number
            if token is None:
                return
        raise RuntimeError(f"more than {_MOST_PAGES} pages")

    def close(self) -> None:
        self.other.close()


def largest_of(records: Sequence[Mapping[str, Any]], column: CursorColumn) -> datetime | None:
    """Return the largest cursor value, read as from a column of the table."""
    values = [value for record in records if (value := record.get(column.name)) is not None]
    if {type(value) for value in values} - {int, float}:
        values = [str(value) for value in values]
    largest = pc.max(comparable(pa.array(values), column)).as_py() if values else None
    return None if largest is None else moment_in(largest)


def compared(oracle: Oracle, ours: Ours, api: MadeUpApi, name: str, most_slices: int) -> dict[str, Any]:
    """Compare the reads of one stream: ``equal``, ``resumed``, and a reason if it is not."""
    # What a read that failed has sent is not of this stream.
    api.taken()
    try:
        wanted_slices, expected = oracle.read(name, most_slices)
    except Exception as error:
        return {"outcome": "not tested", "reason": f"the CDK's own read fails: {words(error)}"}
    expected_requests = api.taken()
    try:
        slices, pages, records = ours.read(name, most_slices)
    except Exception as error:
        return {"outcome": "different", "reason": words(error)}
    requests = api.taken()
    if not expected and not records:
        reason = "the made-up API gives it no slices" if not wanted_slices else "the made-up API gives it no records"
        return {"outcome": "not tested", "reason": reason}
    if (slices, records) != (wanted_slices, expected):
        problem = f"{slices} slices and {len(records)} records, the CDK {wanted_slices} and {len(expected)}"
        return {"outcome": "different", "reason": problem}
    if sorted(requests) != sorted(expected_requests):
        return {"outcome": "different", "reason": f"{len(requests)} requests, the CDK {len(expected_requests)}"}
    stream: Any = ours.streams[name]
    by_page = stream.paging.by_page
    why = "" if by_page and pages > 1 else (stream.paging.why if not by_page else "one page a slice")
    return {
        "outcome": "equal",
        "resumed": by_page and pages > 1,
        "records": len(records),
        "pages": pages,
        "reason": why,
    }


def compared_syncs(oracle: Oracle, ours: Ours, api: MadeUpApi, name: str) -> dict[str, Any]:
    """Compare two syncs of one stream, with changes in between, as :func:`compared` does a full read."""
    if ours.streams[name].incremental is None:
        return {"outcome": "not tested", "reason": ours.streams[name].why_not_incremental[0]}
    state: Any = None
    outcome: dict[str, Any] = {"outcome": "equal", "reason": "", "records": 0, "pages": 0}
    for number in (1, 2):
        api.changes = number
        stop_the_clock(2 * number)
        ours.other.stop_the_clock(2 * number)
        api.taken()
        try:
            expected, state_of_cdk = oracle.sync(name, state)
        except Exception as error:
            return {"outcome": "not tested", "reason": f"the CDK's own read fails: {words(error)}"}
        expected_requests = api.taken()
        try:
            pages, records, state = ours.sync(name, state)
        except Exception as error:
            return {"outcome": "different", "reason": f"sync {number}: {words(error)}"}
        problem = _difference(
            (sorted(map(json.dumps, expected)), sorted(expected_requests), without_duration(state_of_cdk)),
            (sorted(map(json.dumps, records)), sorted(api.taken()), without_duration(state)),
        )
        if problem:
            return {"outcome": "different", "reason": f"sync {number}: {problem}"}
        outcome["records"] += len(records)
        outcome["pages"] = max(outcome["pages"], pages)
    if not outcome["records"]:
        return {"outcome": "not tested", "reason": "the made-up API gives it no records"}
    return {**outcome, "resumed": outcome["pages"] > 1}


def _difference(expected: Sequence[Any], found: Sequence[Any]) -> str:
    for what, wanted, got in zip(("records", "requests", "state"), expected, found, strict=True):
        if wanted != got:
            first = (wanted, got) if what == "state" else (f"{len(wanted)} of the CDK", f"{len(got)} of ours")
            return f"{what}: {first[0]}, {first[1]}"
    return ""


def without_duration(state: Any) -> Any:
    """A state, and those of parents in it, without the seconds that a sync took, and without an order."""
    if not isinstance(state, dict):
        return state
    state = {field: without_duration(value) for field, value in state.items() if field != "lookback_window"}
    if "states" in state:
        state["states"] = sorted(state["states"], key=lambda part: json.dumps(part, sort_keys=True))
    return state


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_REASON]


def built(make: Any, *arguments: Any) -> tuple[Any, str]:
    """Return an object and an empty text, or None and the reason."""
    try:
        return make(*arguments), ""
    except Exception as error:
        return None, words(error)


def components_of(manifest: Path) -> str | None:
    """``components.py`` beside a ``manifest.yaml``, or the file with the manifest's name and ``.py``."""
    beside = manifest.parent / "components.py" if manifest.stem == "manifest" else manifest.with_suffix(".py")
    return beside.read_text() if beside.is_file() else None


def run(path: Path, most_slices: int, out: IO[str], *, incremental: bool = False) -> None:
    """Write the results of a manifest, and those of each stream as soon as they are there.

    :param incremental: compare two syncs of the streams that are read incrementally, not one full read of all
    """

    def say(value: Mapping[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    _installed.cdk_version()
    manifest = yaml.load(path.read_text(), Loader)
    components = components_of(path)
    api = MadeUpApi(incremental)
    oracle: Any = None
    for all_fields in (False, True):
        config = guessed(manifest, api.url, all_fields=all_fields)
        for _ in range(_MOST_DATES):
            ready = prepared(manifest, api)
            serve(ready, config, api, few_parents=incremental)
            stop_the_clock()
            oracle, problem = built(Oracle, ready, config, components)
            if (misread := _MISREAD.search(problem)) is None:
                break
            # The specification does not say which form of a date the streams read.
            start = datetime.fromisoformat(NOW) - timedelta(days=31)
            config = {
                name: start.strftime(misread[2]) if value == misread[1] else value for name, value in config.items()
            }
        if oracle is not None:
            break
    source = {"manifest": ready, "config": config, "secrets": {}}
    ours, our_problem = built(Ours, {**source, "components": components} if components else source)
    say({"cdk_builds": oracle is not None, "builds": ours is not None, "cdk": problem, "ours": our_problem})
    api.taken()
    for name in oracle.streams if oracle is not None and ours is not None else ():
        if name not in ours.streams:
            say({"stream": name, "outcome": "different", "reason": "we do not have it"})
        elif not incremental:
            say({"stream": name, **compared(oracle, ours, api, name, most_slices)})
        elif oracle.streams[name].cursor_field is not None:
            say({"stream": name, **compared_syncs(oracle, ours, api, name)})
    if ours:
        ours.close()
    say({"done": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", type=Path, nargs="?")
    parser.add_argument("--slices", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reader", action="store_true")
    parser.add_argument("--incremental", action="store_true")
    options = parser.parse_args()
    if options.reader:
        read_for_others()
    else:
        with options.out.open("w") as out:
            run(options.manifest, options.slices, out, incremental=options.incremental)


if __name__ == "__main__":
    main()

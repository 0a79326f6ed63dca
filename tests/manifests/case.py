"""One manifest against the CDK's own read of it, in a process that ``tests.manifests.campaign`` starts.

``python -m tests.manifests.case MANIFEST --out FILE`` writes one JSON object a line to FILE: what is known of the
whole manifest, then of each stream. ``--reader`` is the other process, which reads every other page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import yaml

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.streams import Complete
from airflow_provider_rfr.streams.airbyte import _cdk, _installed
from airflow_provider_rfr.streams.loader import load_streams
from airflow_provider_rfr.streams.paged import PagedStream
from tests.manifests.api import NOW, MadeUpApi
from tests.manifests.source import Loader, guessed, prepared, serve

_MOST_PAGES: Final = 10
_REASON: Final = 200
_ROOT: Final = Path(__file__).resolve().parents[2]


def stop_the_clock() -> None:
    """Let templates and windows that end now give the same in every read."""
    from airbyte_cdk.sources.declarative.interpolation import jinja
    from airbyte_cdk.sources.streams.concurrent.state_converters import datetime_stream_state_converter as converter
    from airbyte_cdk.utils.datetime_helpers import ab_datetime_parse

    now = datetime.fromisoformat(NOW).astimezone(timezone.utc)
    converter.ab_datetime_now = lambda: ab_datetime_parse(NOW)
    clock = {"now_utc": lambda: now, "today_utc": now.date, "today_with_timezone": lambda zone: now.date()}
    jinja._ENVIRONMENT.globals.update(clock)


class Oracle:
    """The CDK by itself: its own sessions, partitions and paging."""

    def __init__(self, manifest: Mapping[str, Any], config: Mapping[str, Any], components: str | None) -> None:
        from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource
        from airbyte_cdk.sources.message import NoopMessageRepository

        with _cdk.registering():
            if components:
                _cdk._register(components)
            source = ConcurrentDeclarativeSource(
                config=json.loads(json.dumps(config)),
                source_config=json.loads(json.dumps(manifest)),
                custom_components_trusted=components is not None,
            )
            # Its own waits in a queue that only a whole sync empties; parents are cached in files.
            source._message_repository = source._constructor._message_repository = NoopMessageRepository()
            source._constructor._disable_cache = True
            self.streams = {stream.name: stream for stream in source.streams(source._config)}

    def read(self, name: str, most_slices: int) -> tuple[int, list[Any]]:
        """Number of slices, and records in order."""
        partitions = list(islice(self.streams[name].generate_partitions(), most_slices))
        return len(partitions), [plain(record.data) for part in partitions for record in part.read()]


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
        self._say([name, stream_slice, token])
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The CDK may print, too.
            if line.startswith(_PAGE):
                page: dict[str, Any] = json.loads(line[len(_PAGE) :])
                return page
        raise RuntimeError("the other process ended")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


_PAGE: Final = "page: "


def read_for_others() -> None:
    """Print the pages that standard input asks for. The other process runs this."""
    streams = load_streams(json.loads(sys.stdin.readline()))
    stop_the_clock()
    for line in sys.stdin:
        name, stream_slice, token = json.loads(line)
        print(_PAGE + json.dumps(page_of(streams[name], stream_slice, token)), flush=True)


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
        self._other = OtherProcess(source)
        self._is_here = False

    def read(self, name: str, most_slices: int) -> tuple[int, int, list[Any]]:
        """Number of slices, most pages of a slice, and records in order.

        :raises RuntimeError: a page can't be read
        """
        stream = self.streams[name]
        assert isinstance(stream, PagedStream)
        records: list[Any] = []
        slices = plain(list(islice(stream.stream_slices(), most_slices)))
        pages = [len(list(self._chain(stream, stream_slice, records))) for stream_slice in slices]
        return len(slices), max(pages, default=0), records

    def _chain(self, stream: PagedStream, stream_slice: Any, records: list[Any]) -> Iterator[int]:
        token = None
        for number in range(_MOST_PAGES):
            self._is_here = not self._is_here
            read = page_of if self._is_here else lambda one, *rest: self._other.read_page(one.name, *rest)
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
        self._other.close()


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


def run(path: Path, most_slices: int, out: IO[str]) -> None:
    """Write the results of a manifest, and those of each stream as soon as they are there."""

    def say(value: Mapping[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    _installed.cdk_version()
    manifest = yaml.load(path.read_text(), Loader)
    components = components_of(path)
    api = MadeUpApi()
    oracle: Any = None
    for all_fields in (False, True):
        config = guessed(manifest, api.url, all_fields=all_fields)
        ready = prepared(manifest, api)
        serve(ready, config, api)
        stop_the_clock()
        oracle, problem = built(Oracle, ready, config, components)
        if oracle is not None:
            break
    source = {"manifest": ready, "config": config, "secrets": {}}
    ours, our_problem = built(Ours, {**source, "components": components} if components else source)
    say({"cdk_builds": oracle is not None, "builds": ours is not None, "cdk": problem, "ours": our_problem})
    api.taken()
    for name in oracle.streams if oracle is not None and ours is not None else ():
        if name not in ours.streams:
            say({"stream": name, "outcome": "different", "reason": "we do not have it"})
        else:
            say({"stream": name, **compared(oracle, ours, api, name, most_slices)})
    if ours:
        ours.close()
    say({"done": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", type=Path, nargs="?")
    parser.add_argument("--slices", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reader", action="store_true")
    options = parser.parse_args()
    if options.reader:
        read_for_others()
    else:
        with options.out.open("w") as out:
            run(options.manifest, options.slices, out)


if __name__ == "__main__":
    main()

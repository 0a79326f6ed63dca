"""Real Airbyte manifests, read page by page, against the CDK's own read of them, on an API made up from each.

``python -m tests.manifests.campaign FOLDER`` takes ``FOLDER/*.yaml`` and ``FOLDER/*/manifest.yaml``, with the
components beside them. It prints a line for each manifest and, as its last line, one JSON object. Three numbers, never
one: how many are built, how many streams give the CDK's records in order by the same requests, and how many of these
were resumed at every page, half of the pages in another process. What could not be tried is "not tested", with the
reason. It fails if a stream is different.

With ``--incremental``, two syncs of the streams that are read incrementally are compared instead: records, requests and
state as of the CDK's own concurrent read, each state computed by the process that did not list the slices.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class ManifestCase:
    """The results that one manifest's process has written, as far as it came.

    :ivar whole: whether the CDK, and whether we build it, and why not
    :ivar ended: why the process ended before its end; empty if it did not
    """

    name: str
    whole: Mapping[str, Any] = field(default_factory=dict)
    streams: list[Mapping[str, Any]] = field(default_factory=list)
    ended: str = ""

    def count(self, outcome: str) -> int:
        return sum(stream["outcome"] == outcome for stream in self.streams)

    @property
    def resumed(self) -> int:
        return sum(bool(stream.get("resumed")) for stream in self.streams)

    def line(self) -> str:
        if not self.whole.get("builds"):
            return f"{self.name}: not built: {self.whole.get('ours') or self.ended}"
        counts = f"{self.count('equal')} equal, {self.resumed} resumed, {self.count('different')} different"
        return f"{self.name}: {counts}, {self.count('not tested')} not tested{self.ended and '; ' + self.ended}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.manifests.campaign", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="manifests whose name holds this")
    parser.add_argument("--slices", type=int, default=2, help="most slices that are read of a stream")
    parser.add_argument("--incremental", action="store_true", help="compare two syncs with changes in between")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds for one manifest")
    parser.add_argument("--processes", type=int, default=2, help="manifests at one time")
    parser.add_argument("--out", type=Path, help="folder for each manifest's results, one JSON object a line")
    return parser.parse_args(arguments)


def manifests_in(folder: Path, only: str | None) -> dict[str, Path]:
    """Return the manifests' paths by name of the connector."""
    paths = {path.stem: path for path in folder.glob("*.yaml")}
    paths |= {path.parent.name: path for path in folder.glob("*/manifest.yaml")}
    return {name: paths[name] for name in sorted(paths) if not only or only in name}


def run_one(name: str, manifest: Path, options: argparse.Namespace, folder: Path) -> ManifestCase:
    """Run one manifest in a process of its own, which can neither stop the others nor outlive its deadline."""
    out = folder / f"{name}.jsonl"
    command = [sys.executable, "-m", "tests.manifests.case", str(manifest), f"--out={out}"]
    command += [f"--slices={options.slices}", *(["--incremental"] if options.incremental else [])]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=_ROOT, start_new_session=True)
        ended = ""
        try:
            if process.wait(options.deadline):
                ended = f"its process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = "its deadline has passed"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    case = _read(name, out, ended)
    print(case.line(), flush=True)
    return case


def _read(name: str, out: Path, ended: str) -> ManifestCase:
    case = ManifestCase(name, ended=ended)
    for line in out.read_text().splitlines() if out.exists() else ():
        value = json.loads(line)
        if "stream" in value:
            case.streams.append(value)
        elif "builds" in value:
            case.whole = value
    return case


def figures(cases: Sequence[ManifestCase]) -> dict[str, Any]:
    """Return the numbers of built, equal and resumed ones, and the reasons of the others."""
    streams = [stream for case in cases for stream in case.streams]
    cdk = [case for case in cases if case.whole.get("cdk_builds")]
    ours = [case for case in cdk if case.whole.get("builds")]
    reasons = Counter(_kind(stream["reason"]) for stream in streams if stream["outcome"] == "not tested")
    return {
        "builds": {"manifests": len(ours), "of_those_that_the_cdk_builds": len(cdk), "of_all": len(cases)},
        "equal": {
            "streams": sum(case.count("equal") for case in cases),
            "records": sum(stream.get("records", 0) for stream in streams),
            "manifests_with_one": sum(case.count("equal") > 0 for case in cases),
        },
        "resumed": {
            "streams": sum(case.resumed for case in cases),
            "manifests_with_one": sum(case.resumed > 0 for case in cases),
        },
        "equal_in_one_page": dict(Counter(s["reason"] for s in streams if s["outcome"] == "equal" and s["reason"])),
        "different": {
            f"{case.name} {stream['stream']}": stream["reason"]
            for case in cases
            for stream in case.streams
            if stream["outcome"] == "different"
        },
        "not_tested": {"streams": sum(reasons.values()), "reasons": dict(reasons.most_common())},
        "not_built": {case.name: _why(case) for case in cases if case not in ours},
        "ended_early": {case.name: case.ended for case in cases if case.ended},
        "streams": len(streams),
        "airbyte_cdk": version("airbyte-cdk"),
    }


def _why(case: ManifestCase) -> str:
    whose = "we" if case.whole.get("cdk_builds") else "neither the CDK nor we"
    return f"{whose}: {case.whole.get('ours') or case.whole.get('cdk') or case.ended}"


def _kind(reason: str) -> str:
    """Return a reason without the parts that differ from stream to stream."""
    return re.sub(r"['\"‘].*", "...", reason)[:100]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    paths = manifests_in(options.folder, options.only)
    with tempfile.TemporaryDirectory(prefix="rfr-manifests-") as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.processes) as pool:
            cases = list(pool.map(lambda name: run_one(name, paths[name], options, folder), paths))
    result = figures(cases)
    print(json.dumps(result))
    return 1 if result["different"] or not cases else 0


if __name__ == "__main__":
    sys.exit(main())

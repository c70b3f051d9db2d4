"""Measure `diode serve` over ten million timings, alone and with twenty readers while the daemon ingests.

    python benchmarks/bench_explorer.py                         # makes the warehouse first: 1 minute, 1 GB
    python benchmarks/bench_explorer.py --database warehouse.db --seconds 60

First every page is requested alone: as it is, then in new states that its links lead to, then once more. The data
behind the pages is computed once for each state of the cache. The ratio is to the time of this computation, which a
page without it would need. Then readers request a page every few seconds, while the daemon gets timings at a fixed
rate. All timings must be stored and shown at the end. Targets: 1 s a page (0.3 s a problem) on 2 cores, and 3 s with
readers.
"""

from __future__ import annotations

import argparse
import html
import http.client
import json
import os
import random
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import scale
import shipped_data

from diode_explorer.pages import PAGES
from diode_store.cache.cache import cache_of
from diode_store.command_line.console import print_rows
from diode_store.query.analytics import open_cache
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes, pack_payload

PROGRAM = Path(sys.executable).with_name("diode")
HOST = "127.0.0.1"
TIMEOUT_S = 30
STATES = 6
"""Number of states per page, beside the page as it is."""
SEGMENTS_A_SECOND = 5
DRAIN_S = 120
_LINK = re.compile(r'href="(/[^"]+)"')


@dataclass
class Asked:
    """Answer to one request."""

    page: str
    seconds: float
    status: int


@dataclass
class Site:
    """A running `diode serve`."""

    process: subprocess.Popen[str]
    port: int
    answers: list[Asked] = field(default_factory=list)

    @classmethod
    def start(cls, database: Path, spool: Path) -> Site:
        """Start the site, and wait until it prints its address."""
        command = [PROGRAM, "serve", "--database", database, "--spool", spool, "--listen", f"{HOST}:0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = process.stderr
        found = re.search(r":(\d+)/ shows", said.readline()) if said else None
        if said is None or found is None:
            raise SystemExit(f"diode serve did not start: {said.read() if said else ''}")
        threading.Thread(target=said.read, daemon=True).start()
        site = cls(process, int(found[1]))
        while site.get("/live").status != http.client.OK:
            time.sleep(0.05)
        return site

    def get(self, address: str) -> Asked:
        """Request a page, and return time and size."""
        return self.text(address)[0]

    def text(self, address: str) -> tuple[Asked, str]:
        """Request a page, and return its text as well."""
        begin = time.perf_counter()
        try:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_S)
            connection.request("GET", address)
            answer = connection.getresponse()
            status, body = answer.status, answer.read().decode()
            connection.close()
        except OSError:
            status, body = 0, ""
        asked = Asked(address.partition("?")[0].strip("/"), time.perf_counter() - begin, status)
        self.answers.append(asked)
        return asked, body

    def resident_mib(self) -> tuple[int, int]:
        """Return the current and the peak memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        now, most = (int(re.search(rf"{name}:\s+(\d+)", text)[1]) // 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
        return now, most

    def end(self) -> None:
        """Stop the site."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", type=Path, help="warehouse of benchmarks/scale.py (default: make one)")
    parser.add_argument("--timings", type=int, default=10_000_000, help="timings of a new warehouse")
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--every-s", type=float, default=5.0, help="seconds between requests of a reader")
    parser.add_argument("--rate", type=int, default=100_000, help="timings to ingest per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of reading; 0 to skip it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spool = root / "spool"
        spool.mkdir(0o700)
        database = options.database or root / "warehouse.db"
        if options.database is None:
            print(f"{scale.fill(str(database), options.timings):,} timings made", file=sys.stderr)
        begin = time.perf_counter()
        site = Site.start(database, spool)
        print(f"ready after {time.perf_counter() - begin:.1f} s, {site.resident_mib()[0]:,} MiB resident")
        addresses = alone(site, database)
        if options.seconds:
            together(site, database, spool, addresses, options)
        site.end()


def alone(site: Site, database: Path) -> dict[str, list[str]]:
    """Request every page and its links one at a time; print the times, and return the addresses by page."""
    whole_s = worked_out_s(database)
    rows = []
    addresses = {name: found for name in PAGES if (found := states_of(site, name))}
    for name, found in addresses.items():
        first = [site.get(address) for address in found]
        again = [site.get(address).seconds for address in found]
        cold = [asked.seconds for asked in first]
        failed = sum(asked.status != http.client.OK for asked in first)
        figures = (statistics.median(cold), max(cold), statistics.median(again), max(cold) / whole_s)
        rows.append((name, str(len(found)), str(failed), *(f"{figure:.3f}" for figure in figures)))
    columns = (
        "page",
        "states",
        "failed",
        "first, median s",
        "first, most s",
        "again, median s",
        "most, of working out",
    )
    print_rows(columns, rows, title=f"One reader; working out best_times takes {whole_s:.2f} s")
    print("resident now and at most: {:,} and {:,} MiB".format(*site.resident_mib()))
    return addresses


def worked_out_s(database: Path) -> float:
    """Return the seconds to compute the data behind the pages."""
    connection = open_cache(cache_of(str(database)))
    begin = time.perf_counter()
    connection.execute("CREATE TABLE kept AS FROM best_times")
    connection.close()
    return time.perf_counter() - begin


def states_of(site: Site, name: str) -> list[str]:
    """Return a sample of the page's states that other pages link to and nobody has requested."""
    _, text = site.text(f"/{name}")
    linked = (html.unescape(link).partition("#")[0] for link in _LINK.findall(text) if "sort=" not in link)
    others = sorted({link for link in linked if link.startswith(f"/{name}?")})
    return random.Random(0).sample(others, min(STATES, len(others))) or [f"/{name}"]  # noqa: S311 - no secret


def together(
    site: Site, database: Path, spool: Path, addresses: dict[str, list[str]], options: argparse.Namespace
) -> None:
    """Let readers request pages while the daemon ingests; print the results."""
    staged = spool.with_name("staged")
    fed, timings = stage(staged, options.rate, options.seconds)
    before = count(database)
    daemon = subprocess.Popen(
        [PROGRAM, "ingest", "run", "--spool", spool, "--database", database, "--listen", "off"],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDG_CONFIG_HOME": str(spool.parent)},
    )
    site.answers.clear()
    ends = time.monotonic() + options.seconds
    feeder = threading.Thread(target=feed, args=(staged, spool))
    flat = [address for found in addresses.values() for address in (*found, found[0].partition("?")[0])]
    readers = [
        threading.Thread(target=read, args=(site, flat, number, ends, options.every_s))
        for number in range(options.readers)
    ]
    for thread in (feeder, *readers):
        thread.start()
    for thread in (feeder, *readers):
        thread.join()
    behind_s = drained(spool)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(DRAIN_S)
    slowest = max(site.answers, key=lambda asked: asked.seconds)
    seconds = sorted(asked.seconds for asked in site.answers)
    failed = sum(asked.status != http.client.OK for asked in site.answers)
    print(
        f"{options.readers} readers, a page each every {options.every_s:g} s, beside {timings / options.seconds:,.0f}"
        f" timings a second for {options.seconds:g} s: {len(seconds)} pages, {failed} failed; median"
        f" {statistics.median(seconds):.2f} s, P95 {seconds[int(0.95 * len(seconds))]:.2f} s, slowest"
        f" {slowest.seconds:.2f} s (/{slowest.page})"
    )
    print(f"{fed:,} measurements fed, {count(database) - before:,} stored; the daemon was done {behind_s:.1f} s later")
    print("resident now and at most: {:,} and {:,} MiB".format(*site.resident_mib()))
    print(f"all of them were on the overview {shown(site, before + fed):.1f} s later")


def stage(folder: Path, rate: int, seconds: float) -> tuple[int, int]:
    """Make the segments to ingest; return their numbers of measurements and timings."""
    folder.mkdir()
    bundled = [measurement for measurement in shipped_data.measurements() if len(measurement.timings) > 1]
    draws = random.Random(1)  # noqa: S311 - no secret
    measurements = timings = 0
    for number in range(round(seconds * SEGMENTS_A_SECOND)):
        frames, held = [], 0
        while held < rate / SEGMENTS_A_SECOND:
            measurement = replace(draws.choice(bundled), uid=os.urandom(16))
            frames.append(frame_to_bytes(measurement.uid, pack_payload(encode(measurement), compress=True)))
            held += len(measurement.timings)
        header = Header(os.urandom(16), 0, compressed=True).to_bytes()
        (folder / f"{number:020d}-0-000000.seg").write_bytes(b"".join((header, *frames, end_to_bytes(len(frames)))))
        measurements, timings = measurements + len(frames), timings + held
    return measurements, timings


def feed(staged: Path, spool: Path) -> None:
    """Move segments into the spool, at a fixed rate."""
    begin = time.monotonic()
    for number, path in enumerate(sorted(staged.iterdir())):
        time.sleep(max(0.0, begin + number / SEGMENTS_A_SECOND - time.monotonic()))
        path.rename(spool / path.name)


def read(site: Site, addresses: list[str], number: int, ends: float, every_s: float) -> None:
    """Request sampled pages until the end, at staggered times."""
    draws = random.Random(number)  # noqa: S311 - no secret
    time.sleep(draws.random() * every_s)
    while time.monotonic() < ends:
        took = site.get(draws.choice(addresses)).seconds
        time.sleep(max(0.0, every_s - took))


def drained(spool: Path) -> float:
    """Wait until the daemon has ingested everything; return the seconds."""
    begin = time.monotonic()
    while any(spool.glob("*.seg")) and time.monotonic() - begin < DRAIN_S:
        time.sleep(0.05)
    return time.monotonic() - begin


def shown(site: Site, measurements: int) -> float:
    """Wait until the overview counts all measurements that are not superseded; return the seconds."""
    begin = time.monotonic()
    while time.monotonic() - begin < DRAIN_S:
        if sum(row["measurements"] for row in json.loads(site.text("/overview/machines.json")[1])) >= measurements:
            return time.monotonic() - begin
        time.sleep(0.2)
    raise SystemExit(f"the overview does not show all {measurements:,} measurements after {DRAIN_S} s")


def count(database: Path) -> int:
    """Return the number of stored measurements."""
    with sqlite3.connect(database) as connection:
        ((found,),) = connection.execute("SELECT count(*) FROM measurements")
    connection.close()
    return int(found)


if __name__ == "__main__":
    main()

"""Measure what `diode-ingest run` costs at rest, and when it is ready: with an empty, a full and a damaged spool.

The daemon is ready when systemd gets `READY=1`. The baseline in the same run is `python -c pass`, an interpreter that
does nothing. At rest means an empty spool, an SQLite warehouse, and served health and metrics. The backlogs have
10,000 sealed segments of one bundled measurement each; in the damaged one every tenth has a flipped bit.

    python benchmarks/bench_daemon.py
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import shipped_data

from diode_collectors.spool.spool import Spool
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes, pack_payload

if TYPE_CHECKING:
    from diode_store.records import Measurement

PROGRAM = Path(sys.executable).with_name("diode-ingest")
TICKS = os.sysconf("SC_CLK_TCK")
DAMAGED_EVERY = 10
DRAIN_S = 120


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rest", type=float, default=20.0, metavar="S", help="seconds to watch it at rest")
    parser.add_argument("--segments", type=int, default=10_000, help="segments in each backlog")
    parser.add_argument("--rounds", type=int, default=3, help="number of starts; the median counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        starts(root, options.rounds)
        rest(root, options.rest)
        small = min(shipped_data.measurements(), key=lambda m: abs(len(m.timings) - 20))
        backlog(root / "full", small, options.segments, damaged=False)
        backlog(root / "damaged", small, options.segments, damaged=True)


def starts(root: Path, rounds: int) -> None:
    """Print the seconds until the daemon is ready, beside those of a bare interpreter."""
    pairs = [(bare_start(), one_start(root / f"start{number}")) for number in range(rounds)]
    bare = statistics.median(bare for bare, _ in pairs)
    wall = statistics.median(daemon.ready_s for _, daemon in pairs)
    cpu = statistics.median(daemon.ready_cpu_s for _, daemon in pairs)
    print(f"python -c pass      {bare:6.3f} s wall (baseline)")
    print(f"start to ready      {wall:6.3f} s wall, {cpu:.2f} s CPU  ratio {wall / bare:.0f}  (target: 1 s)")


def rest(root: Path, seconds: float) -> None:
    """Print memory and CPU share of an idle daemon."""
    daemon = Daemon(root / "rest")
    time.sleep(1)  # the first passes belong to the start
    before_s, begin = daemon.cpu_s(), time.monotonic()
    time.sleep(seconds)
    share = (daemon.cpu_s() - before_s) / (time.monotonic() - begin)
    resident = daemon.resident_mib()
    daemon.end()
    print(f"at rest             {resident:6.1f} MiB resident (target: 120), {100 * share:.2f}% CPU (target: 1%)")


def backlog(root: Path, measurement: Measurement, segments: int, *, damaged: bool) -> None:
    """Print the seconds until the daemon is ready on a full spool, and until the spool is empty."""
    fill(root / "spool", measurement, segments, damaged=damaged)
    begin = time.monotonic()
    daemon = Daemon(root)
    while any((root / "spool").glob("*.seg")) and time.monotonic() - begin < DRAIN_S:
        time.sleep(0.05)
    drained_s = time.monotonic() - begin
    resident, cpu_s = daemon.resident_mib(), daemon.cpu_s()
    daemon.end()
    status = Spool(root / "spool").status()
    print(
        f"{segments:,} segments{', damaged' if damaged else ''}: ready after {daemon.ready_s:.2f} s, emptied after "
        f"{drained_s:.1f} s ({cpu_s:.1f} s CPU), {resident:.0f} MiB, {status.segments:,} left, "
        f"{status.quarantined:,} in quarantine"
    )


def fill(spool: Path, measurement: Measurement, segments: int, *, damaged: bool) -> None:
    """Write the segments of a backlog."""
    spool.mkdir(parents=True)
    for number in range(segments):
        uid = number.to_bytes(16)
        payload = pack_payload(encode(replace(measurement, uid=uid)), compress=True)
        content = bytearray(Header(uid, 0, compressed=True).to_bytes() + frame_to_bytes(uid, payload) + end_to_bytes(1))
        if damaged and number % DAMAGED_EVERY == 0:
            content[len(content) // 2] ^= 1
        (spool / f"{number:020d}-0-000000.seg").write_bytes(content)


def bare_start() -> float:
    """Return the seconds of an interpreter that does nothing."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - begin


def one_start(root: Path) -> Daemon:
    """Start a daemon, and stop it once it is ready."""
    daemon = Daemon(root)
    daemon.end()
    return daemon


class Daemon:
    """A running `diode-ingest run`."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        shipped_data.make_warehouse(str(root / "warehouse.db"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(str(root / "notify"))
            systemd.settimeout(DRAIN_S)
            command = [PROGRAM, "run", "--spool", root / "spool", "--database", root / "warehouse.db"]
            environment = {"NOTIFY_SOCKET": str(root / "notify"), "XDG_CONFIG_HOME": str(root)}
            begin = time.monotonic()
            self.process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0"],
                env={**os.environ, **environment},
                stderr=(root / "log").open("w"),
            )
            while b"READY=1" not in systemd.recv(4096):
                pass
            self.ready_s = time.monotonic() - begin
        self.ready_cpu_s = self.cpu_s()

    def cpu_s(self) -> float:
        """Return the user and system time of the daemon."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_mib(self) -> float:
        """Return the resident memory of the daemon."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    def end(self) -> None:
        """Stop the daemon."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=60):
            raise RuntimeError("the daemon failed")


if __name__ == "__main__":
    main()

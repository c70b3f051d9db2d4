from __future__ import annotations

import contextlib
import http.client
import logging
import os
import select
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest
from daemon_process import ANY_PORT, Daemon
from daemon_samples import PROGRAM, fill, stored_in
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from spool_samples import header_bytes

from diode_collectors.ingest.monitoring.health import Health
from diode_collectors.ingest.monitoring.metrics import Metrics
from diode_collectors.ingest.monitoring.serving import StatusServer
from diode_collectors.ingest.report import IngestProgress, IngestReport
from diode_store.errors import DatabaseError, SettingsError, SpoolError
from diode_store.system.urls import Address
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def daemon(directory: Path, database_path: Path) -> Iterator[Daemon]:
    """Return a real daemon that listens."""
    with Daemon(directory, database_path, *ANY_PORT) as running:
        yield running


def test_a_healthy_daemon_says_so(daemon: Daemon) -> None:
    """It is alive, it becomes ready, other paths do not exist, and it listens on loopback alone."""
    eventually(lambda: daemon.get("/readyz") == (200, "ready\n"))
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.get("/secrets")[0] == 404
    assert daemon.address.startswith("127.0.0.1:")
    assert daemon.end(signal.SIGTERM) == 0


def test_readiness_follows_the_database(daemon: Daemon, directory: Path, database_path: Path) -> None:
    """While the database is away the daemon is alive and not ready, and says why; then it recovers by itself."""
    eventually(lambda: daemon.get("/readyz")[0] == 200)
    aside = database_path.with_name("aside.db")
    database_path.rename(aside)
    fill(directory, range(3))
    eventually(lambda: daemon.get("/readyz")[0] == 503)
    assert str(database_path) in daemon.get("/readyz")[1]
    assert daemon.get("/healthz")[0] == 200
    assert daemon.metrics()["diode_ingest_database_up"] == 0
    aside.rename(database_path)
    eventually(lambda: daemon.get("/readyz") == (200, "ready\n"))
    eventually(lambda: stored_in(database_path) == [0, 1, 2])
    shown = daemon.metrics()
    assert shown["diode_ingest_database_up"] == 1
    assert shown[f'diode_ingest_failures_total{{part="database",spool="{directory}"}}'] >= 1


def test_readiness_follows_segments_that_cannot_be_read(daemon: Daemon, directory: Path, database_path: Path) -> None:
    """A folder, a pipe or a link in its place is named and counted until it is gone; no other one waits."""
    gauge = f'diode_ingest_unreadable_segments{{spool="{directory}"}}'
    eventually(lambda: daemon.get("/readyz")[0] == 200)
    assert daemon.metrics()[gauge] == 0
    (directory / "0.seg").mkdir()
    (directory / "1.seg").symlink_to("nowhere")
    (directory / "2.open").symlink_to("nowhere")
    for name in ("3.open", "3.seg"):
        os.mkfifo(directory / name)
    fill(directory, range(3))
    eventually(lambda: stored_in(database_path) == [0, 1, 2])
    link = "it is a link"
    expected = (
        f"{directory}/2.open: cannot be read: {link}; move it away\n"
        f"{directory}/3.open: cannot be read: it is not a regular file; move it away\n"
        f"{directory}/0.seg: cannot be read: it is not a regular file; move it away\n"
        f"{directory}/1.seg: cannot be read: {link}; move it away\n"
        f"{directory}/3.seg: cannot be read: it is not a regular file; move it away\n"
    )
    eventually(lambda: daemon.get("/readyz") == (503, expected))
    assert (daemon.metrics()[gauge], daemon.metrics()["diode_ingest_ready"]) == (5, 0)
    (directory / "0.seg").rmdir()
    for name in ("1.seg", "2.open", "3.open", "3.seg"):
        (directory / name).unlink()
    eventually(lambda: daemon.get("/readyz") == (200, "ready\n"))
    assert daemon.metrics()[gauge] == 0


def test_liveness_sees_a_loop_that_hangs(directory: Path, database_path: Path) -> None:
    """Stuck in a locked database for longer than allowed it counts as hung, and no longer once it goes on."""
    with Daemon(directory, database_path, *ANY_PORT, "--hang-after", 1) as daemon:
        eventually(lambda: daemon.get("/readyz")[0] == 200)
        rival = sqlite3.connect(database_path)
        rival.execute("BEGIN IMMEDIATE")
        fill(directory, range(3))
        eventually(lambda: daemon.get("/healthz")[0] == 503)
        assert daemon.get("/healthz")[1].startswith("no sign of life for ")
        assert daemon.get("/readyz")[0] == 503
        rival.rollback()
        rival.close()
        eventually(lambda: daemon.get("/healthz") == (200, "ok\n"))


def test_metrics_count_what_happened(daemon: Daemon, directory: Path, database_path: Path) -> None:
    """Rows, duplicates, rejections, segments, batches and what is in the spool are as they are on the disk."""
    fill(directory, range(120))
    eventually(lambda: len(stored_in(database_path)) == 120)
    fill(directory, range(20))
    (directory / "newer").write_bytes(header_bytes(version=2))
    (directory / "newer").rename(directory / "newer.seg")  # so that it is never found half written
    spool = f'spool="{directory}"'
    eventually(lambda: daemon.metrics()[f"diode_ingest_segments_ingested_total{{{spool}}}"] == 4)
    refused = f'diode_ingest_rejected_total{{reason="newer_format",{spool}}}'
    eventually(lambda: daemon.metrics()[refused])  # it is there from the start, with 0
    shown = {name.removeprefix("diode_ingest_"): value for name, value in daemon.metrics().items()}
    assert shown[f'rows_ingested_total{{{spool},table="measurements"}}'] == 120
    assert shown[f'rows_ingested_total{{{spool},table="timings"}}'] == 240
    assert shown[refused.removeprefix("diode_ingest_")] == 1
    assert shown[f"segments_ingested_total{{{spool}}}"] == 4
    assert shown[f"batch_seconds_count{{{spool}}}"] >= 1
    assert shown[f"spool_bytes{{{spool}}}"] == shown[f"segments_waiting{{{spool}}}"] == 0
    assert shown[f"quarantine_bytes{{{spool}}}"] == sum(p.stat().st_size for p in (directory / "quarantine").iterdir())
    assert shown["ready"] == 1
    assert shown["holding"] == 0


def test_metrics_are_what_prometheus_reads(daemon: Daemon) -> None:
    """The text parses as Prometheus parses it, and OpenMetrics is served to who asks for it."""
    eventually(lambda: daemon.get("/readyz")[0] == 200)
    families = {family.name for family in text_string_to_metric_families(daemon.get("/metrics")[1])}
    assert {"diode_ingest_rows_ingested", "diode_ingest_batch_seconds", "diode_ingest_build_info"} <= families
    connection = http.client.HTTPConnection(daemon.address)
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.read().endswith(b"# EOF\n")
    connection.close()


def test_a_port_in_use_is_one_line(directory: Path, database_path: Path) -> None:
    """It ends at once with the address and what to do, before it ingests anything."""
    fill(directory, range(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [PROGRAM, "run", "--spool", directory, "--database", database_path, "--listen", address]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert (finished.returncode, len(errors)) == (1, 1)
    assert errors[0].startswith(f"error: cannot listen on {address}: Address already in use; name another address")
    assert len(list(directory.glob("*.seg"))) == 1


@long
def test_nobody_can_occupy_it(daemon: Daemon) -> None:
    """Clients that connect and say nothing do not keep others from an answer for long, nor take threads for ever."""
    eventually(lambda: daemon.get("/readyz")[0] == 200)
    host, _, port = daemon.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        eventually(lambda: _answers(daemon))
    finally:
        for connection in silent:
            connection.close()


def _answers(daemon: Daemon) -> bool:
    try:
        return daemon.get("/healthz")[0] == 200
    except OSError:
        return False


# Health and metrics by themselves


def test_health_is_of_every_spool_and_the_database(tmp_path: Path) -> None:
    """One spool's failure is not cured by another one's success; stopping ends readiness."""
    now = 100.0
    health = Health(10, clock=lambda: now)
    assert health.problems() == ["the warehouse is not open yet"]
    health.connected()
    health.failed(tmp_path / "a", SpoolError("a is bad"), 1)
    health.passed(tmp_path / "b", IngestReport(), 0.1)
    assert health.problems() == ["a is bad"]
    health.failed(tmp_path / "b", DatabaseError("away"), 1)
    health.guarded(["no space"], holds=True)
    assert health.problems() == ["away", "a is bad", "no space"]
    health.passed(tmp_path / "a", IngestReport(), 0.1)
    health.guarded([], holds=False)
    assert health.problems() == []
    now = 111.0
    assert health.hung() == "no sign of life for 11 s"
    health.progressed(tmp_path, IngestProgress(IngestReport(), 0, 0))
    assert health.hung() is None
    health.stopped()
    assert health.problems() == ["stopped"]


def test_what_cannot_be_read_is_remembered_when_a_pass_ends_early(tmp_path: Path) -> None:
    """Such a pass did not come to every segment; only a whole one shows that all can be read again."""
    health = Health(10)
    metrics = Metrics(health)
    metrics.started([tmp_path])
    for report, expected in (
        (IngestReport(unreadable=("a", "b")), ["a", "b"]),
        (IngestReport(stopped=True), ["a", "b"]),
        (IngestReport(unreadable=("b", "c"), stopped=True), ["a", "b", "c"]),
        (IngestReport(unreadable=("c",)), ["c"]),
        (IngestReport(), []),
    ):
        for observer in (health, metrics):
            observer.passed(tmp_path, report, 0.1)
        assert health.problems() == expected
        gauge = metrics.registry.get_sample_value("diode_ingest_unreadable_segments", {"spool": str(tmp_path)})
        assert gauge == len(expected)


def test_many_segments_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    """A whole spool of the wrong owner makes a few lines, not thousands."""
    health = Health(10)
    health.passed(tmp_path, IngestReport(unreadable=tuple(f"{n}.seg: bad" for n in range(1_006))), 0.1)
    assert health.problems() == [*(f"{n}.seg: bad" for n in range(5)), f"{tmp_path}: 1,001 more cannot be read"]


def test_a_pass_is_counted_once(tmp_path: Path) -> None:
    """IngestProgress within a pass, its end, a failed one and the next add up to what was done."""
    now = 0.0
    metrics = Metrics(Health(10), clock=lambda: now)
    label = {"spool": str(tmp_path)}

    def value(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(f"diode_ingest_{name}", {**label, **labels}) or 0.0

    metrics.progressed(tmp_path, IngestProgress(IngestReport(measurements=2, timings=4), 1, 9))
    now = 3.0
    metrics.progressed(tmp_path, IngestProgress(IngestReport(measurements=5, timings=10), 5, 9))
    metrics.failed(tmp_path, DatabaseError("away"), 1)
    report = IngestReport(measurements=1, timings=2, duplicates=5, rejected=3, rejected_by_reason={"bad_crc": 3})
    metrics.passed(tmp_path, report, 0.5)
    assert value("rows_ingested_total", table="measurements") == 6
    assert value("rows_ingested_total", table="timings") == 12
    assert value("duplicates_total") == 5
    assert value("rejected_total", reason="bad_crc") == 3
    assert value("failures_total", part="database") == 1
    assert (value("batch_seconds_count"), value("batch_seconds_sum")) == (3, 3.0)


def test_an_address_that_is_not_ours() -> None:
    """It is refused in one line, and nothing is left open."""
    health = Health(1)
    server = StatusServer(Address("192.0.2.1", 1), health, Metrics(health), None)
    with pytest.raises(SettingsError, match=r"cannot listen on 192.0.2.1:1: .*or `off`"):
        server.started([])
    assert server.address is None
    server.close()


class Broken(Collector):
    """A metric that cannot be collected while there is an error."""

    error: Exception | None = OSError(5, "Input/output error")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Fail, or return one metric."""
        if self.error:
            raise self.error
        yield GaugeMetricFamily("repaired", "Works.", value=1)

    def describe(self) -> list[GaugeMetricFamily]:
        """Name nothing."""
        return []


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusServer]:
    """Return what serves health and metrics, alone, with ``Broken`` among the metrics."""
    monkeypatch.setattr(logging.getLogger("diode"), "propagate", True)
    caplog.set_level(logging.ERROR, "diode")
    health = Health(1)
    metrics = Metrics(health)
    metrics.registry.register(Broken())
    serving = StatusServer(Address("127.0.0.1", 0), health, metrics, None)
    serving.started([])
    yield serving
    serving.close()


def ask(server: StatusServer, path: str) -> tuple[int, str]:
    """Return status and body of an answer."""
    connection = http.client.HTTPConnection(str(server.address))
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_metrics_that_fail_are_told(
    server: StatusServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scraper gets 500, not an empty answer, the log says once what failed and where; then it works again."""
    for _ in range(3):
        assert ask(server, "/metrics") == (500, "this failed; see event=not_answered in the daemon's log\n")
    assert ask(server, "/healthz")[0] == 200
    (record,) = caplog.records
    fields = {"path": "/metrics", "error": "OSError(5, 'Input/output error')"}
    assert (record.message, record.fields) == ("not_answered", fields)  # type: ignore[attr-defined]
    assert record.exc_info
    monkeypatch.setattr(Broken, "error", None)
    assert "\nrepaired 1.0\n" in ask(server, "/metrics")[1]
    monkeypatch.setattr(Broken, "error", OSError(5, "Input/output error"))
    ask(server, "/metrics")
    assert len(caplog.records) == 2


def test_clients_that_go_away_are_no_news(server: StatusServer, caplog: pytest.LogCaptureFixture) -> None:
    """One resets its connection as soon as it has asked, another in the middle of its request: nothing is logged."""
    assert server.address is not None
    for text in (b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /hea"):
        with socket.create_connection(server.address) as client:
            client.sendall(text)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(server, "/healthz")[0] == 200
    eventually(lambda: not any("process_request_thread" in each.name for each in threading.enumerate()))
    assert caplog.records == []


def _dripping(address: Address, count: int) -> list[socket.socket]:
    """Return connections that have sent the first part of a request."""
    found = [socket.create_connection(address) for _ in range(count)]
    for each in found:
        each.sendall(b"GET /healthz HTTP/1.0\r\nX-Slow: ")
    return found


def test_slow_connections_lose_their_places(server: StatusServer) -> None:
    """However many clients drip, whoever sends a whole request is answered at once; the oldest of them go first."""
    assert server.address is not None
    slow = _dripping(server.address, 40)
    try:
        assert ask(server, "/nowhere")[0] == 404
        slow[0].settimeout(5)
        assert slow[0].recv(1) == b""
        slow[-1].sendall(b"\r\n\r\n")
        assert slow[-1].recv(9) == b"HTTP/1.0 "
    finally:
        for each in slow:
            each.close()


def test_a_request_has_one_deadline(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on sending a byte now and then is dropped when the time for a whole request is over."""
    monkeypatch.setattr("diode_collectors.ingest.monitoring.serving._REQUEST_S", 0.5)
    assert server.address is not None
    (slow,) = _dripping(server.address, 1)
    began = time.monotonic()
    with slow, contextlib.suppress(ConnectionError):
        while select.select([slow], [], [], 0.1)[0] == [] and time.monotonic() - began < 5:
            slow.sendall(b"x")
    assert 0.5 <= time.monotonic() - began < 3
    eventually(lambda: not any("process_request_thread" in each.name for each in threading.enumerate()))


def test_scrapes_that_hang_leave_room_for_health(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs keeps two scrapes waiting; the next ones are told so, and health is answered."""
    hangs = threading.Event()
    monkeypatch.setattr(Broken, "collect", lambda _self: hangs.wait() and [])
    assert server.address is not None
    scrapes = [socket.create_connection(tuple(server.address)) for _ in range(20)]
    try:
        for each in scrapes:
            each.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        eventually(lambda: ask(server, "/metrics")[0] == 503)
        for each in scrapes:
            each.close()
        assert ask(server, "/nowhere")[0] == 404
    finally:
        hangs.set()
    eventually(lambda: ask(server, "/metrics")[0] == 200)

"""`diode serve`: real requests to a real server, over a warehouse that grows."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import samples
from diode_explorer import needed
from diode_explorer.commands import serve
from diode_store.warehouse.store import Store
from served import PROGRAM, Site, ended, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


HOSTILE = "<script>alert('1')</script>"
TOKEN = "a1" * 16


@pytest.fixture(scope="module")
def site(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server over two measurements, one from a host whose name is a script."""
    database = shutil.copy(_template_database, tmp_path_factory.mktemp("serve") / "warehouse.db")
    with Store.open(str(database)) as store:
        store.write([samples.measurement(1, host="gpu01"), samples.measurement(2, host=HOSTILE)])
    found = started(str(database))
    yield found
    ended(found)


def test_the_overview_shows_what_there_is(site: Site) -> None:
    """Devices, environments, machines; a name is text, whatever is in it."""
    page = site.get("/overview")
    assert page.status == 200
    assert samples.H200.name in page.text
    assert "gpu01" in page.text
    assert HOSTILE not in page.text
    assert "&lt;script&gt;" in page.text
    assert site.get("/").headers["location"] == "/overview"


def test_a_filter_is_in_the_address(site: Site) -> None:
    """A value links to the page with it alone; the filter can be taken away; the SQL has it as a literal."""
    page = site.get(f"/overview?machine={quote(HOSTILE)}")
    assert ">gpu01</a></td>" not in page.text
    assert "machine=%3Cscript%3E" in site.get("/overview").text
    assert '<a href="/overview">Clear</a>' in page.text
    assert "alert(&#39;&#39;1&#39;&#39;)" in page.text  # quotes are doubled, and escaped
    assert "Nothing matches the filters." in site.get("/overview?device=none").text


def test_downloads_are_what_is_shown(site: Site) -> None:
    """In three formats."""
    csv, found, parquet = (site.get(f"/overview/machines.{suffix}") for suffix in ("csv", "json", "parquet"))
    rows = json.loads(found.body)
    assert {row["machine"] for row in rows} >= {"gpu01", HOSTILE}
    assert pyarrow.csv.read_csv(io.BytesIO(csv.body)).column("machine").to_pylist() == [r["machine"] for r in rows]
    assert pyarrow.parquet.read_table(io.BytesIO(parquet.body)).num_rows == len(rows)
    assert csv.headers["content-disposition"] == 'attachment; filename="overview-machines.csv"'


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "path", ["/overview", "/live", "/theme.css", "/static/site.js", "/drawing/draw.js", "/nope", "/overview?x=1"]
)
def test_every_answer_says_what_a_page_may_do(site: Site, path: str) -> None:
    """Nothing from elsewhere, no inline script, no frame; nothing is kept."""
    headers = site.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-cache" if path.startswith(("/static", "/drawing")) else "no-store")
    assert "server" not in headers


def test_a_page_asks_for_nothing_from_elsewhere(site: Site) -> None:
    """No address in it names another host, and no script or style is inside it."""
    text = site.get("/overview").text
    assert re.findall(r'(?:src|href)="(?!/|data:,|#)[^"]*"', text) == []
    assert re.findall(r"<script(?![^>]*(?:src=|application/json))|<style|\son\w+=|\sstyle=", text) == []


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nope", 404, "there is no such page; the pages are overview"),
        (
            "/overview/devices.exe",
            404,
            "Overview has gains, devices, environments, machines, stale, each as csv, json, parquet",
        ),
        ("/overview/nope.csv", 404, "Overview has gains, devices"),
        ("/overview?x=1", 400, "unknown parameter"),
        ("/overview?device=a&device=b", 400, "device is given twice"),
        ("/overview?device=%00", 400, "device is too long, or not printable"),
        (f"/overview?device={'x' * 501}", 400, "device is too long, or not printable"),
        (f"/overview?device={'x' * 5000}", 414, "this address is too long"),
        ("/static/../feed.py", 404, "there is nothing at this address"),
        ("/static/%2e%2e/feed.py", 404, "there is nothing at this address"),
    ],
)
def test_what_makes_no_sense(site: Site, path: str, status: int, said: str) -> None:
    """A page that says what is wrong."""
    answer = site.get(path)
    assert (answer.status, said in answer.text) == (status, True)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {}, 405),
        ("DELETE", {}, 405),
        ("HEAD", {}, 200),
        ("GET", {"Host": "evil.example"}, 421),
        ("GET", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("GET", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}, 403),
        ("GET", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}, 200),
        ("GET", {"Sec_Fetch_Site": "same-origin"}, 200),
        ("GET", {"Sec_Fetch_Site": "same-origin", "Origin": "https://a.proxy.example"}, 200),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("GET", {"Origin": "null"}, 403),
    ],
)
def test_who_may_ask(site: Site, method: str, headers: dict[str, str], status: int) -> None:
    """Only what reads, only by a name of this server, and no other site's script or frame."""
    assert site.get("/overview", method, **headers).status == status


def test_anything_in_an_address(site: Site) -> None:
    """Is answered, and never by a failure."""
    draws = random.Random(0)  # noqa: S311 - any will do
    alphabet = [
        "%00",
        "%27",
        "'",
        ";",
        "--",
        "%22",
        "$device",
        "{{7*7}}",
        "../",
        "%F0%9F%98%80",
        "%ff",
        "a",
        "&",
        "=",
        "+",
    ]
    for _ in range(150):
        junk = "".join(draws.choices(alphabet, k=draws.randrange(1, 12)))
        where = draws.choice(["/overview?device=", "/overview?", "/overview/devices.csv?machine=", "/overview/", "/"])
        answer = site.get(where + junk.replace("{", "%7B").replace("}", "%7D"))
        assert answer.status in {200, 400, 404}, (where, junk, answer.text)
        assert "Traceback" not in answer.text


def test_what_is_new_appears(site: Site) -> None:
    """Without a restart: the number of the state grows, and the page has the row."""
    before = json.loads(site.get("/live").body)["generation"]
    with Store.open(site.database) as store:
        store.write([samples.measurement(3, host="gpu02")])
    ends = time.monotonic() + 30
    while json.loads(site.get("/live").body)["generation"] == before:
        assert time.monotonic() < ends
        time.sleep(0.2)
    assert "gpu02" in site.get("/overview").text


def test_a_token(database_url: str, tmp_path: Path) -> None:
    """Without it nothing is shown; once in an address it is kept in a cookie."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    site = started(database_url, "--listen", "127.0.0.1:0", "--token-file", str(path))
    try:
        assert {site.get(where).status for where in ("/overview", "/static/site.js", "/overview?token=wrong")} == {401}
        assert site.get("/overview", Authorization=f"Bearer {TOKEN}").status == 200
        entered = site.get(f"//evil.example/overview?token={TOKEN}")
        assert (entered.status, entered.headers["location"]) == (303, "/evil.example/overview")
        entered = site.get(f"/overview?device=a&token={TOKEN}")
        assert (entered.status, entered.headers["location"]) == (303, "/overview?device=a")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()
        kept = cookie.partition(";")[0]
        assert str(site.port) in kept
        for others in ("", 'theme={"a":1}; ', "flag; "):
            assert site.get("/overview", Cookie=others + kept).status == 200
    finally:
        ended(site, signal.SIGTERM)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--listen", "0.0.0.0:0"), "other machines can reach --listen 0.0.0.0:0; give a --token-file"),
        (("--listen", "somewhere"), "must be PORT or HOST:PORT"),
        (("--token-file", "absent"), "cannot be read (No such file or directory)"),
        (("--token-file", "short"), "16 letters and digits or more"),
        (("--token-file", "open"), "others can read it; chmod 600"),
        (("--database", "absent.db"), "diode db upgrade"),
    ],
)
def test_what_cannot_be_served(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str], said: str
) -> None:
    """One line that says what to do."""
    monkeypatch.chdir(tmp_path)
    for name, mode, text in (("short", 0o600, "abc"), ("open", 0o644, TOKEN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    named = () if "--database" in options else ("--database", database_url)
    command = [str(PROGRAM), "serve", *named, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    told = " ".join(result.stderr.split())
    assert (result.returncode, result.stdout, "Traceback" in told) == (1, "", False)
    assert said in told


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_says_that_it_stopped(database_url: str, number: int) -> None:
    """In one line, whether Ctrl-C or an operator ends it."""
    site = started(database_url)
    site.process.send_signal(number)
    site.process.wait(timeout=20)
    assert site.log.splitlines()[1:] == ["stopped"]
    site.said.close()


@pytest.mark.long
def test_a_port_in_use(database_url: str) -> None:
    """Is said with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [str(PROGRAM), "serve", "--database", database_url, "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    told = " ".join(result.stderr.split())
    assert f"port {port} of 127.0.0.1 is in use; choose another with --port" in told


@pytest.mark.long
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(needed, "find_spec", lambda name: None if name == "starlette" else object())
    result = CliRunner().invoke(serve.app, ["--database", "absent.db"])
    assert "pip install 'torch-diode[web]'" in str(result.exception)

"""`diode_store.open`: what docs/python.md says, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from recipe_page import fill

import diode_store
from diode_store.errors import QueryError, SchemaError

if TYPE_CHECKING:
    from view_warehouse import Warehouse

    from conftest import MakeMeasurement
    from diode_store.cache.cache import Cache
    from diode_store.warehouse.store import Store

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
WITH_PANDAS = find_spec("pandas") is not None


@pytest.mark.usefixtures("default_database")
def test_the_page(views: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks run in order over a small warehouse, and say what they say; the one with pandas where it is there."""
    fill(views)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if ".pandas()" not in block or WITH_PANDAS:
            exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    assert names["table"].column("runtime_us").to_pylist() == [6.56, 8.2, 11.0, 18.0]
    assert "    8.20 us  triton::mm\n" in capsys.readouterr().out
    assert f"# {names['message']}\n" in "".join(BLOCKS)
    if WITH_PANDAS:
        assert list(names["frame"].columns) == ["op", "dtype", "speedup"]


def test_ways_to_read_a_result(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Rows, a list and a table hold the same, as often as they are asked for and beside each other."""
    store.write([make_measurement(1)])
    with diode_store.open(database_url) as warehouse:
        result = warehouse.query("SELECT config_id, runtime_us FROM timings ORDER BY ALL")
        other = warehouse.query("SELECT ?::INT AS a, ? AS b", [1, "x"])
        assert result.columns == ("config_id", "runtime_us")
        rows = iter(result)
        first = next(rows)
        assert other.rows() == [(1, "x")]
        assert [first, *rows] == result.rows() == [tuple(row.values()) for row in result.arrow().to_pylist()]
        assert warehouse.query("SELECT $a AS a", {"a": 7}).rows() == [(7,)]


def test_sums_are_integers(database_url: str) -> None:
    """DuckDB sums integers to 128 bits, which Arrow has as decimals alone; only what needs them stays one."""
    with diode_store.open(database_url) as warehouse:
        table = warehouse.query("SELECT sum(range) AS small, sum(range)::HUGEINT << 60 AS large FROM range(99)").arrow()
    assert table.schema.field("small").type == pa.int64()
    assert table.to_pylist() == [{"small": 4851, "large": Decimal(4851 << 60)}]


def test_new_measurements_are_seen(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Opening syncs first, unless told not to."""
    count = "SELECT count(*) FROM measurements"
    for number in (1, 2):
        store.write([make_measurement(number)])
        assert diode_store.open(database_url).query(count).rows() == [(number,)]
    store.write([make_measurement(3)])
    assert diode_store.open(database_url, sync=False).query(count).rows() == [(2,)]


def test_a_cache_elsewhere(store: Store, database_url: str, tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """It is made where it was named, and read there."""
    store.write([make_measurement(1)])
    with diode_store.open(database_url, cache=tmp_path / "elsewhere") as warehouse:
        assert warehouse.query("SELECT count(*) FROM measurements").rows() == [(1,)]
    assert (tmp_path / "elsewhere" / "state.json").exists()


def test_closing_lets_go(store: Store, database_url: str, cache: Cache, make_measurement: MakeMeasurement) -> None:
    """Afterwards nothing can be asked, not even an old result, and the cache's files are released."""
    store.write([make_measurement(1)])
    with diode_store.open(database_url) as warehouse:
        result = warehouse.query("SELECT 1")
    for ask in (result.rows, result.arrow, lambda: warehouse.query("SELECT 1")):
        with pytest.raises(QueryError, match="closed; open it again"):
            ask()
    warehouse.close()
    held = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [path for path in held if path.is_relative_to(cache.path)]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM timings", "read-only"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv() is refused"),
        ("SELECT opp FROM problems", 'Candidate bindings: "op"'),
        ("SELECT 1; SELECT 2", "2 statements at once"),
    ],
)
def test_mistakes_are_told_at_once(database_url: str, sql: str, expected: str) -> None:
    """As `diode query` says it, before anything is run."""
    with diode_store.open(database_url) as warehouse, pytest.raises(QueryError) as raised:
        warehouse.query(sql)
    assert expected in str(raised.value)


def test_errors_on_the_way(database_url: str) -> None:
    """They are errors of ours in every way to read."""
    with diode_store.open(database_url) as warehouse:
        result = warehouse.query("SELECT CASE WHEN range < 240000 THEN 1 ELSE error('far') END FROM range(250_000)")
        for ask in (result.rows, result.arrow):
            with pytest.raises(QueryError, match="far"):
                ask()


def test_no_warehouse(tmp_path: Path) -> None:
    """The remedy is named, with a sync and without."""
    for sync in (True, False):
        with pytest.raises(SchemaError, match="create it with `diode db upgrade"):
            diode_store.open(tmp_path / "none.db", sync=sync)


@pytest.mark.skipif(WITH_PANDAS, reason="pandas is installed")
def test_without_pandas(database_url: str) -> None:
    """What to do is said."""
    with diode_store.open(database_url) as warehouse, pytest.raises(QueryError, match="pip install pandas"):
        warehouse.query("SELECT 1").pandas()


def test_importing_is_light() -> None:
    """Neither DuckDB nor Arrow is imported before something is opened, and the version is the distribution's."""
    code = (
        "import sys, diode_store; loaded = set(sys.modules); print(diode_store.__version__);"
        "print(*sorted(loaded & {'duckdb', 'pyarrow', 'numpy', 'sqlalchemy', 'importlib.metadata'}), dir(diode_store))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == f"{version('torch-diode')}\n['__version__', 'open']\n"
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = diode_store.opne

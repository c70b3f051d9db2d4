"""A PostgreSQL database that is replaced while a store has it open: by a backup, or a standby that lagged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from stored import content

import samples
from diode_store.warehouse.store import Store
from postgres_server import missing

if TYPE_CHECKING:
    from postgres_server import PostgresServer

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_rows_that_have_other_ids_now(postgres_server: PostgresServer, postgres_url: str) -> None:
    """What the store knew of the old database is forgotten: timings go to their own configs and problem."""
    name = sa.make_url(postgres_url).database or ""
    old, other = samples.measurement(1), samples.measurement(2, problem=samples.matmul(512, 512, 512))
    other = replace(other, timings=samples.timings_of({samples.triton_config(256): 3.0}))
    again = replace(old, uid=bytes([9] * 16))
    with Store.open(postgres_url) as store:
        store.write([old])
        postgres_server.drop_database(name)
        postgres_server.create_database(name, "warehouse_template")
        with Store.open(postgres_url) as another:
            another.write([other])
        store.write([again])
    assert sorted(content(postgres_url), key=lambda m: m.uid) == [other, again]

"""Products that a similar device's model decided on this device: products that people compile here."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_collectors.problems.problem import FLOAT32, SweepProblem
from diode_store.errors import NoWarehouseError, SettingsError
from diode_store.records import ProblemShape
from diode_trainer.data.dataset import NOT_LEARNED

if TYPE_CHECKING:
    from diode_store.records import Hardware

_NAME = "near/decided"


def decided_by_near(url: str, hardware: Hardware) -> list[SweepProblem]:
    """Return the products that a similar device's model decided on a device, the latest first.

    Raises:
        SchemaError: the warehouse has another revision.
        DatabaseError: the warehouse cannot be read.
    """
    import sqlalchemy as sa

    from diode_store.warehouse import schema
    from diode_store.warehouse.store import Store

    decisions, problems, devices = schema.decisions, schema.problems, schema.hardware
    columns = [problems.c[name] for name in ("op", "dtype", "b", "m", "n", "k", "layout", "dimensions", "scalars")]
    query = (
        sa.select(*columns)
        .join_from(problems, decisions, decisions.c.problem_id == problems.c.id)
        .join(devices, decisions.c.hardware_id == devices.c.id)
        .where(devices.c.key == hardware.key, decisions.c.similar_to.is_not(None), problems.c.m.is_not(None))
        .group_by(problems.c.id)
        .order_by(sa.func.max(decisions.c.decided_at).desc(), problems.c.id)
    )
    try:
        with Store.open(url) as store, store.engine.connect() as connection:
            rows = connection.execute(query).all()
    except NoWarehouseError:
        return []
    found: dict[SweepProblem, None] = {}
    for op, dtype, b, m, n, k, layout, dimensions, scalars in rows:
        tf32 = dtype == FLOAT32 and dict(scalars).get("ALLOW_TF32") is True
        shape = ProblemShape(op, dtype, b, m, n, k, layout, tf32, tuple(sorted((dimensions or {}).items())))
        if op in NOT_LEARNED:
            continue
        with contextlib.suppress(SettingsError):  # no sweep can time the product
            found.setdefault(SweepProblem.of_shape(shape, _NAME))
    return list(found)

"""${message}.

Revision: ${up_revision}, after ${down_revision | comma,n}
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
# What going back loses, table by table, for `diode db downgrade` to say.
LOSES: dict[str, str] = {}
# SQL conditions of the lost rows, for tables that lose only some; others lose all.
LOST_ROWS: dict[str, str] = {}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}

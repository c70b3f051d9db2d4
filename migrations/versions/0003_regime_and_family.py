"""Say how a kernel's launches were surrounded when it was timed, and which family of problems it was swept for.

Revision: 0003, after 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
LOSES: dict[str, str] = {}


def upgrade() -> None:
    op.add_column("measurements", sa.Column("regime", sa.String()))
    op.add_column("measurements", sa.Column("family", sa.String()))


def downgrade() -> None:
    op.drop_column("measurements", "family")
    op.drop_column("measurements", "regime")

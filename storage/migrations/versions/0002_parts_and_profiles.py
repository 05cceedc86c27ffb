"""Parts of a run that are written by themselves, and cost profiles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_part",
        sa.Column("run_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_part_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_run_part")),
    )
    op.create_table(
        "cost_profile",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_cost_profile")),
    )


def downgrade() -> None:
    op.drop_table("cost_profile")
    op.drop_table("run_part")

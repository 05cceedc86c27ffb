"""Runs, their requests, and the journal of steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATUSES = "status IN ('running', 'done', 'cancelled', 'failed', 'interrupted')"
_MOMENT = sa.DateTime(timezone=True)
_DOUBLE = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("touched_at", _MOMENT, nullable=False),
        sa.Column("finished_at", _MOMENT),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("search_text", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("provenance", sa.JSON, nullable=False),
        sa.Column("summary", sa.JSON),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("process_started", _DOUBLE, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.CheckConstraint(_STATUSES, name=op.f("ck_run_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_index(op.f("ix_run_status"), "run", ["status"])
    op.create_table(
        "request",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("run_id", sa.String(26), nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("finished_at", _MOMENT),
        sa.Column("drafter", sa.String(64), nullable=False),
        sa.Column("gamma", sa.Integer, nullable=False),
        sa.Column("temperature", _DOUBLE, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("engine_request_id", sa.Text),
        sa.Column("finish_reason", sa.String(16)),
        sa.Column("lossless", sa.Boolean),
        sa.Column("error", sa.Text),
        sa.Column("text", sa.JSON, nullable=False),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("num_output_tokens", sa.Integer, nullable=False),
        sa.Column("tokens_per_s", _DOUBLE),
        sa.Column("draft_acceptance_rate", _DOUBLE),
        sa.Column("mean_acceptance_length", _DOUBLE),
        sa.Column("tokens_per_target_pass", _DOUBLE),
        sa.Column("alpha", _DOUBLE),
        sa.Column("wasted_draft_fraction", _DOUBLE),
        sa.Column("queue_ms", _DOUBLE),
        sa.Column("ttft_ms", _DOUBLE),
        sa.Column("tpot_ms", _DOUBLE),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("timings", sa.JSON, nullable=False),
        sa.Column("trace", sa.LargeBinary),
        sa.CheckConstraint(_STATUSES, name=op.f("ck_request_status")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_request_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request")),
    )
    op.create_index(op.f("ix_request_run_id_position"), "request", ["run_id", "position"])
    op.create_index(op.f("ix_request_status"), "request", ["status"])
    op.create_index(op.f("ix_request_drafter_gamma"), "request", ["drafter", "gamma"])
    op.create_table(
        "step_journal",
        sa.Column("request_id", sa.String(26), nullable=False),
        sa.Column("idx", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["request.id"], name=op.f("fk_step_journal_request_id_request"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", "idx", name=op.f("pk_step_journal")),
    )


def downgrade() -> None:
    op.drop_table("step_journal")
    op.drop_table("request")
    op.drop_table("run")

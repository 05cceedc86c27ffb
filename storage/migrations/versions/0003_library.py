"""Tags, notes, deleting with a way back, and columns to filter and sort runs by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_DOUBLE = sa.Float(53)
_MOMENT = sa.DateTime(timezone=True)
_TEXTS = ("device", "notes", "remark_text")
_run = sa.table(
    "run",
    sa.column("id", sa.String),
    sa.column("params", sa.JSON),
    sa.column("provenance", sa.JSON),
    sa.column("summary", sa.JSON(none_as_null=True)),
    *(sa.column(name, sa.Text) for name in _TEXTS),
    sa.column("tokens_per_s", _DOUBLE),
    sa.column("speedup", _DOUBLE),
)
_request = sa.table("request", sa.column("run_id", sa.String), sa.column("drafter", sa.String))
_facet = sa.table("run_facet", sa.column("run_id", sa.String), sa.column("name", sa.String), sa.column("value", sa.String))


def upgrade() -> None:
    with op.batch_alter_table("run") as batch:
        for name in _TEXTS:
            batch.add_column(sa.Column(name, sa.Text))
        batch.add_column(sa.Column("tokens_per_s", _DOUBLE))
        batch.add_column(sa.Column("speedup", _DOUBLE))
        batch.add_column(sa.Column("imported_at", _MOMENT))
        batch.add_column(sa.Column("deleted_at", _MOMENT))
    op.create_table(
        "run_facet",
        sa.Column("run_id", sa.String(26), nullable=False),
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("value", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_facet_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", "value", name=op.f("pk_run_facet")),
    )
    op.create_index(op.f("ix_run_facet_name_value"), "run_facet", ["name", "value"])
    _fill(op.get_bind())
    with op.batch_alter_table("run") as batch:
        for name in _TEXTS:
            batch.alter_column(name, existing_type=sa.Text(), nullable=False)


def downgrade() -> None:
    op.drop_table("run_facet")
    with op.batch_alter_table("run") as batch:
        for name in (*_TEXTS, "tokens_per_s", "speedup", "imported_at", "deleted_at"):
            batch.drop_column(name)


def _fill(connection: sa.Connection) -> None:
    """The new columns and rows of the runs there are."""
    facets: set[tuple[str, str, str]] = set()
    runs = connection.execute(sa.select(_run.c.id, _run.c.params, _run.c.provenance, _run.c.summary)).all()
    for run_id, params, provenance, summary in runs:
        chip = provenance.get("gpu") or provenance.get("cpu_model")
        values = {
            "device": " · ".join(str(part) for part in (provenance.get("device"), chip) if part),
            "notes": "",
            "remark_text": "",
            "tokens_per_s": _real(summary, "tokens_per_s"),
            "speedup": _real(summary, "speedup"),
        }
        connection.execute(sa.update(_run).where(_run.c.id == run_id).values(values))
        facets |= {(run_id, name, value) for name, value in _named(params)}
    used = sa.select(_request.c.run_id, _request.c.drafter).where(_request.c.drafter != "null").distinct()
    facets |= {(run_id, "drafter", drafter) for run_id, drafter in connection.execute(used)}
    rows = [{"run_id": run_id, "name": name, "value": value} for run_id, name, value in sorted(facets)]
    if rows:
        connection.execute(sa.insert(_facet), rows)


def _named(params: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Drafters and tasks: `drafter` is a name or an object with one, a sweep's `settings` hold several."""
    settings = params.get("settings") or {}
    drafters = [params.get("drafter"), *settings.get("drafters", ())]
    names = [one.get("name") if isinstance(one, Mapping) else one for one in drafters]
    found = {("drafter", str(name)[:64]) for name in names if name}
    return found | {("task", str(task)[:64]) for task in settings.get("tasks") or ()}


def _real(summary: Mapping[str, Any] | None, name: str) -> float | None:
    value = (summary or {}).get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

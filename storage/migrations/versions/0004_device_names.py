"""Provenance tells the device for torch (`device`) from its name for people (`device_name`), which was `gpu` for GPUs alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_run = sa.table("run", sa.column("id", sa.String), sa.column("provenance", sa.JSON), sa.column("device", sa.Text))
_BOTH = re.compile(r"(\w+) \((.+)\)")  # "cuda (NVIDIA H200)"


def upgrade() -> None:
    _rewrite(_apart)


def downgrade() -> None:
    _rewrite(_together)


def _rewrite(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    connection = op.get_bind()
    for run_id, before in connection.execute(sa.select(_run.c.id, _run.c.provenance)).all():
        after = change(dict(before))
        if after != before:
            name = after.get("device_name") or after.get("gpu") or after.get("cpu_model")
            device = " · ".join(str(part) for part in (after.get("device"), name) if part)
            values = {"provenance": after, "device": device}
            connection.execute(sa.update(_run).where(_run.c.id == run_id).values(values))


def _apart(provenance: dict[str, Any]) -> dict[str, Any]:
    gpu = provenance.pop("gpu", None)
    if both := _BOTH.fullmatch(str(provenance.get("device"))):
        provenance["device"], gpu = both[1], gpu or both[2]
    name = gpu or provenance.get("cpu_model")
    if name and "device_name" not in provenance:
        provenance["device_name"] = name
    return provenance


def _together(provenance: dict[str, Any]) -> dict[str, Any]:
    name = provenance.pop("device_name", None)
    if "device" in provenance or name:
        provenance["gpu"] = None if provenance.get("device") == "cpu" else name
    return provenance

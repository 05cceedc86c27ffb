"""The tables: a run has requests and parts, a finished request has one compressed trace, a running one has journal rows.

Change a table here and add a migration in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage.values import storable

ID_LENGTH = 26
KIND_LENGTH = 32
NAME_LENGTH = 64
Status = Literal["running", "done", "cancelled", "failed", "interrupted"]

# Columns of `request` that carry the metric of the same name, so that plots and lists need not open any JSON.
METRIC_COLUMNS = (
    "tokens_per_s",
    "draft_acceptance_rate",
    "mean_acceptance_length",
    "tokens_per_target_pass",
    "alpha",
    "wasted_draft_fraction",
    "queue_ms",
    "ttft_ms",
    "tpot_ms",
)

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A moment; SQLite forgets the time zone, so it is always UTC on the way in and marked as UTC on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class SafeText(TypeDecorator[str]):
    """Text of people or models in a text column (see `storage.values.storable`)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


def _status_check() -> CheckConstraint:
    allowed = ", ".join(f"'{status}'" for status in get_args(Status))
    return CheckConstraint(f"status IN ({allowed})", name="status")


class RunRow(Base):
    """One press of Run, one sweep: everything that belongs under one permalink.

    Attributes:
        title, search_text: beginning of the prompt for lists; what a search looks into (see `storage.values.searchable`).
        device: what it ran on, for people and filters; "" when not known.
        tokens_per_s, speedup: of its summary, for sorting.
        notes, remark_text: what somebody wrote beside it; tags and notes in the form that a search looks into.
        imported_at: when it came from another store; None when it was measured here.
        deleted_at: when it was thrown away; it is brought back, or purged after some days (see `storage.curation`).
        pid, process_started, host: the process that writes the run; `process_started` (seconds since 1970) tells it from a later
            process with the same pid.
        touched_at: last sign of life, renewed every few seconds while the process writes anything.
    """

    __tablename__ = "run"
    __table_args__ = (_status_check(), Index(None, "status"))

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    kind: Mapped[str] = mapped_column(String(KIND_LENGTH))
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    touched_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    title: Mapped[str] = mapped_column(SafeText)
    search_text: Mapped[str] = mapped_column(SafeText)
    model: Mapped[str] = mapped_column(SafeText)
    params: Mapped[dict[str, Any]] = mapped_column(JSON)
    provenance: Mapped[dict[str, Any]] = mapped_column(JSON)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    device: Mapped[str] = mapped_column(SafeText)
    tokens_per_s: Mapped[float | None] = mapped_column(Float(53))
    speedup: Mapped[float | None] = mapped_column(Float(53))
    notes: Mapped[str] = mapped_column(SafeText)
    remark_text: Mapped[str] = mapped_column(SafeText)
    imported_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    pid: Mapped[int] = mapped_column(BigInteger)
    process_started: Mapped[float] = mapped_column(Float(53))
    host: Mapped[str] = mapped_column(SafeText)


class RequestRow(Base):
    """One request of a run.

    Attributes:
        text: the output as a JSON string, because a model may well emit NUL.
        trace: see `storage.trace`; None while the request runs.
    """

    __tablename__ = "request"
    __table_args__ = (_status_check(), Index(None, "run_id", "position"), Index(None, "status"), Index(None, "drafter", "gamma"))

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    label: Mapped[str] = mapped_column(SafeText)
    position: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    drafter: Mapped[str] = mapped_column(String(64))
    gamma: Mapped[int]
    temperature: Mapped[float] = mapped_column(Float(53))
    seed: Mapped[int] = mapped_column(BigInteger)
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    engine_request_id: Mapped[str | None] = mapped_column(SafeText)
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    lossless: Mapped[bool | None]
    error: Mapped[str | None] = mapped_column(SafeText)
    text: Mapped[str] = mapped_column(JSON)
    prompt_tokens: Mapped[int | None]
    num_output_tokens: Mapped[int]
    tokens_per_s: Mapped[float | None] = mapped_column(Float(53))
    draft_acceptance_rate: Mapped[float | None] = mapped_column(Float(53))
    mean_acceptance_length: Mapped[float | None] = mapped_column(Float(53))
    tokens_per_target_pass: Mapped[float | None] = mapped_column(Float(53))
    alpha: Mapped[float | None] = mapped_column(Float(53))
    wasted_draft_fraction: Mapped[float | None] = mapped_column(Float(53))
    queue_ms: Mapped[float | None] = mapped_column(Float(53))
    ttft_ms: Mapped[float | None] = mapped_column(Float(53))
    tpot_ms: Mapped[float | None] = mapped_column(Float(53))
    metrics: Mapped[dict[str, Any]] = mapped_column(JSON)
    timings: Mapped[dict[str, Any]] = mapped_column(JSON)
    trace: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True, deferred_raiseload=True)


class StepJournalRow(Base):
    """Steps of a request that still runs, one row for each batch written; `idx` is the index of the first step in it."""

    __tablename__ = "step_journal"

    request_id: Mapped[str] = mapped_column(ForeignKey("request.id", ondelete="CASCADE"), primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    blob: Mapped[bytes] = mapped_column(LargeBinary)


class RunPartRow(Base):
    """A piece of a run that is written by itself, such as one measurement of a sweep; lists of runs never read it."""

    __tablename__ = "run_part"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)


class FacetRow(Base):
    """What runs are filtered by where a run may have several: its tags, drafters and tasks (`name` says which)."""

    __tablename__ = "run_facet"
    __table_args__ = (Index(None, "name", "value"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    value: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)


class ProfileRow(Base):
    """A cost profile: what a model's passes cost on a machine; `key` says which model, machine and versions."""

    __tablename__ = "cost_profile"

    key: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)

"""Alembic's entry: runs the migrations on the connection that `storage.schema` hands over."""

from __future__ import annotations

from alembic import context

from storage.models import Base


def run() -> None:
    """Runs inside the caller's transaction, so that a migration happens wholly or not at all."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()

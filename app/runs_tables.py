"""Stored runs as tables of the command line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime

import orjson
from rich.table import Table
from rich.text import Text

from app.cli_common import shown_number
from storage.facets import device_of
from storage.records import DrafterUse, RunDetail, RunSummary, StoredRequest


def run_table(runs: Sequence[RunSummary]) -> Table:
    """A line a run."""
    table = Table(box=None, pad_edge=False)
    for name in ("ID", "Started", "Kind", "Status", "Drafters"):
        table.add_column(name, no_wrap=True)
    for name in ("Tokens", "Tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Tags", no_wrap=True)
    table.add_column("Prompt", overflow="ellipsis", no_wrap=True, ratio=1)
    for run in runs:
        table.add_row(
            run.id,
            _local(run.created_at),
            printable(run.kind),
            run.status,
            printable(", ".join(_use(use) for use in run.drafters)),
            str(run.num_output_tokens),
            ", ".join(shown_number(use.tokens_per_s) for use in run.drafters),
            printable(", ".join(run.tags)),
            printable(run.title),
        )
    return table


def run_header(run: RunDetail) -> Table:
    """What is known of the run as a whole."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    device = ", ".join(part for part in (device_of(run.provenance), str(run.provenance.get("dtype") or "")) if part)
    facts = {
        "Run": run.id,
        "Kind": run.kind,
        "Status": run.status,
        "Started": _local(run.created_at),
        "Finished": "" if run.finished_at is None else _local(run.finished_at),
        "Model": run.model,
        "Device": device,
        "Code": run.provenance.get("git_sha") or "",
        "Prompt": run.title,
        "Imported": "" if run.imported_at is None else _local(run.imported_at),
        "Tags": ", ".join(run.tags),
        "Notes": run.notes,
        **{name: orjson.dumps(value).decode() for name, value in run.summary.items()},
    }
    for name, fact in facts.items():
        if fact:
            table.add_row(printable(name), printable(str(fact)))
    return table


def request_table(requests: Sequence[StoredRequest]) -> Table:
    """The figures of each request."""
    table = Table(box=None, pad_edge=False)
    for name in ("Request", "Status", "Ended by"):
        table.add_column(name)
    for name in ("Tokens", "Tokens/s", "Acceptance", "Length", "Tokens/pass", "TTFT ms", "TPOT ms"):
        table.add_column(name, justify="right")
    for request in requests:
        metrics = request.metrics
        table.add_row(
            printable(request_name(request)),
            request.status,
            request.finish_reason or "–",
            str(request.num_output_tokens),
            shown_number(metrics.get("tokens_per_s")),
            shown_number(metrics.get("draft_acceptance_rate"), "{:.0%}"),
            shown_number(metrics.get("mean_acceptance_length"), "{:.2f}"),
            shown_number(metrics.get("tokens_per_target_pass"), "{:.2f}"),
            shown_number(metrics.get("ttft_ms"), "{:.0f}"),
            shown_number(metrics.get("tpot_ms")),
        )
    return table


def request_name(request: StoredRequest) -> str:
    """What the request was: its label, drafter and draft length."""
    drafter = request.params["drafter"]
    used = _use(DrafterUse(drafter["name"], drafter["gamma"], 1, 0, None))
    return f"{request.label} ({used})" if request.label else used


def _use(use: DrafterUse) -> str:
    return use.name if use.name == "null" else f"{use.name} γ={use.gamma}"


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str, style: str = "") -> Text:
    """Text of people and models without markup, and without control characters, which could steer the terminal."""
    shown = "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)
    return Text(shown, style=style)

"""The endpoint `/sweep` for programs: measures a grid on this machine and gives its cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import orjson

from app.pages.answers import PLAIN
from app.prompt_files import builtin_prompts, parse_prompts
from app.sweep_desk import SweepDesk
from app.sweep_options import parse_drafters
from app.sweep_report import crossover_document
from app.sweep_run import prompt_pool
from engine.errors import DraftboardError
from engine.sweep_finding import finding
from engine.sweep_plan import SweepSettings

LOOK_S = 0.3
CONCURRENT_SWEEPS = 4  # one measures, the others queue


@dataclass(frozen=True, slots=True)
class SweepEndpoint:
    """The endpoint; the sweeps themselves are the desk's."""

    desk: SweepDesk

    def build(self) -> None:
        """Adds the endpoint to the current Blocks."""
        gr.api(self.sweep, api_name="sweep", concurrency_limit=CONCURRENT_SWEEPS)

    async def sweep(
        self,
        drafters: list[str] | None = None,
        gammas: list[int] | None = None,
        batch_sizes: list[int] | None = None,
        tasks: dict[str, float] | None = None,
        repeats: int = 2,
        max_tokens: int = 96,
        cell_tokens: int = 512,
        seed: int = 0,
        prompts: list[dict[str, Any]] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Measures drafters × draft lengths × batch sizes, plain decoding in every block; it is stored as it goes.

        A client that goes away or cancels stops the sweep; what is measured stays, and can be gone on with.

        Args:
            drafters: names, settings behind colons ("eagle:total_tokens=24"); all of this engine when left out.
            gammas: draft lengths, (2, 4, 8) when left out.
            batch_sizes: 1 to 64, (1, 2, 4, 8, 16, 32) when left out.
            tasks: task → weight of its share of the traffic; all tasks of the prompts alike when left out.
            repeats: measurements of each cell.
            max_tokens: most tokens of an answer.
            cell_tokens: tokens measured at batch 1; at batch b it is this times b^0.2.
            seed: of prompts, orders and intervals.
            prompts: objects with `prompt`, and `task` and `id` where wanted; the built-in ones when left out.

        Returns:
            {run_id, finished: false, state, fraction, left_s} while it runs; at the end {run_id, finished: true, status, error,
            finding, notes, crossover, cells}, each cell with tokens_per_s, speedup, ci_low, ci_high, predicted_speedup and more.
        """
        default = SweepSettings()
        try:
            settings = SweepSettings(
                drafters=default.drafters if drafters is None else parse_drafters(",".join(drafters)),
                gammas=default.gammas if gammas is None else tuple(gammas),
                batch_sizes=default.batch_sizes if batch_sizes is None else tuple(batch_sizes),
                tasks=tasks or {},
                repeats=repeats,
                max_tokens=max_tokens,
                cell_tokens=cell_tokens,
                seed=seed,
            )
            run_id = await asyncio.to_thread(self._start, settings, prompts)
        except (DraftboardError, TimeoutError) as error:
            raise gr.Error(str(error), print_exception=False) from error
        try:
            while (live := self.desk.live(run_id)) is not None and live.state != "ended":
                progress = self.desk.progress(live)
                yield {"run_id": run_id, "finished": False, **{name: progress[name] for name in ("state", "fraction", "left_s")}}
                await asyncio.sleep(LOOK_S)
        finally:
            self.desk.stop(run_id)
        yield await asyncio.to_thread(self._document, run_id)

    def _start(self, settings: SweepSettings, prompts: Sequence[Mapping[str, Any]] | None) -> str:
        if prompts is None:
            return self.desk.start(settings, prompt_pool(builtin_prompts()))
        lines = "\n".join(orjson.dumps(one).decode() for one in prompts)
        return self.desk.start(settings, prompt_pool(parse_prompts(lines, "prompts.jsonl")))

    def _document(self, run_id: str) -> dict[str, Any]:
        found = self.desk.document(run_id)
        document = {
            **{name: found[name] for name in ("run_id", "status", "error", "notes", "cells")},
            "finished": True,
            "finding": finding(found["cells"]),
            "crossover": crossover_document(found["cells"]),
        }
        return dict(orjson.loads(orjson.dumps(document, option=PLAIN)))

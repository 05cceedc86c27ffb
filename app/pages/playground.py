"""The Playground: one prompt, one drafter, the tokens as they are accepted and rejected."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from starlette.datastructures import Headers

from app.live import LiveBoard
from app.pages.board import make_board, snapshot_of
from app.pages.form import FormWidgets, choice_updates, form_values, make_form, preset_prompt, preset_update, read_form
from app.pages.head import request_language
from app.pages.header import make_header
from app.pages.replay import form_of
from app.pages.run import PlaygroundRun, notice
from app.pages.site import Page
from app.service import EngineService
from app.state import ActiveRuns, PlaygroundForm, join_stops
from engine.config import GenerationRequest
from engine.errors import DraftboardError, UserError
from storage.store import Store

# More browsers than that wait in Gradio's queue; the engine batches what runs.
CONCURRENT_RUNS = 64
SCRIPTS = (
    "token_stream.js",
    "panel.js",
    "steps.js",
    "recent.js",
    "draft_tree.js",
    "teaser.js",
    "copy_as.js",
    "board.js",
    "form.js",
)
STYLES = ("board.css", "token_stream.css", "draft_tree.css", "teaser.css", "copy_as.css")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Playground:
    """What the page's handlers share."""

    service: EngineService
    store: Store
    board: LiveBoard = field(default_factory=LiveBoard)
    active: ActiveRuns = field(default_factory=ActiveRuns)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)  # the loop itself holds tasks only weakly

    def page(self) -> Page:
        """The first page of the site."""
        return Page("", "nav.playground", self.build, SCRIPTS, STYLES)

    def build(self, i18n: gr.I18n) -> None:
        """Lays the page out inside the current Blocks and wires it."""
        make_header(self.service)
        with gr.Row(elem_id="page"):
            with gr.Column(elem_id="form", min_width=280):
                form = make_form(i18n)
            with gr.Column(elem_id="output", min_width=280):
                board = make_board(self.store, self.board)
        self._wire(form, board)
        gr.api(self.generate, api_name="generate", concurrency_limit=CONCURRENT_RUNS)

    def _wire(self, form: FormWidgets, board: gr.HTML) -> None:
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        form.run.click(self.run, form.inputs, board, concurrency_limit=CONCURRENT_RUNS, trigger_mode="multiple", **private)
        form.stop.click(self.stop, None, None, queue=False, **private)
        form.task.input(self.choose_task, form.task, form.preset, queue=False, **private)
        form.preset.input(preset_prompt, [form.task, form.preset], form.prompt, queue=False, **private)
        board.open(self.open_run, None, [*form.inputs, board], concurrency_limit=CONCURRENT_RUNS, **private)
        demo = gr.context.Context.root_block
        assert demo is not None, "the page is built inside Blocks"
        opened = [form.task, form.preset, *form.inputs, board]
        demo.load(self.load, None, opened, concurrency_limit=CONCURRENT_RUNS, **private)
        demo.unload(self.close)

    async def run(self, request: gr.Request, *values: Any) -> AsyncIterator[str]:
        """Run button: ends with the run's first delta, which the page follows by `app.pages.follow`; mistakes are toasts.

        While a Gradio event is under way the browser draws sixty times a second, whatever the event sends.
        """
        try:
            form = read_form(values)
            run = self._prepare(form, form.to_request(), self.active.begin(request.session_hash or ""))
            deltas = self._stream(run, request.session_hash or "")
            async for delta in deltas:
                yield delta
                if run.accepted:
                    break
        except DraftboardError as error:
            yield notice("idle")
            raise gr.Error(str(error), print_exception=False) from error
        task = asyncio.create_task(_exhaust(deltas))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _prepare(self, form: PlaygroundForm, request: GenerationRequest, cancel: threading.Event) -> PlaygroundRun:
        return PlaygroundRun(self.service, self.store, self.board, form, request, cancel)

    async def _stream(self, run: PlaygroundRun, session: str) -> AsyncIterator[str]:
        try:
            async for delta in run.stream():
                yield delta
        finally:
            self.active.end(session, run.cancel)

    def stop(self, request: gr.Request) -> None:
        """Stop button: ends the runs of this browser tab within one engine step."""
        self.active.stop(request.session_hash or "")

    def close(self, request: gr.Request) -> None:
        """The tab was closed or reloaded."""
        self.active.stop(request.session_hash or "")

    def choose_task(self, task: str, request: gr.Request) -> Any:
        """The presets of the chosen task."""
        return preset_update(task, visitor_language(request))

    def load(self, request: gr.Request) -> list[Any]:
        """A page was opened: labels in the visitor's language, and the run of the address when it has one."""
        language = visitor_language(request)
        task, preset, plain = choice_updates(language)
        run_id = dict(request.query_params).get("run")
        restored = self._restored(run_id) if run_id else None
        if restored is None:
            skipped = [gr.skip()] * len(form_values(PlaygroundForm()))
            return [task, preset, *skipped[:-1], plain, gr.skip()]
        *values, chosen_plain, snapshot = restored
        return [task, preset, *values, gr.update(choices=plain["choices"], value=chosen_plain), snapshot]

    def open_run(self, event: gr.EventData) -> list[Any]:
        """A click on a recent run: its settings and its trace."""
        restored = self._restored(str(event.run))
        return restored or [gr.skip()] * (len(form_values(PlaygroundForm())) + 1)

    def _restored(self, run_id: str) -> list[Any] | None:
        """The widgets' values and the board's of a stored run; None (and a toast) when there is no such run."""
        try:
            detail = self.store.get_run(run_id)
            snapshot = snapshot_of(self.board, self.store, run_id)
        except UserError as error:
            gr.Warning(str(error))
            return None
        return [*form_values(form_of(detail)), '{"open":true,' + snapshot[1:]]

    async def generate(
        self,
        request: gr.Request,
        prompt: str,
        drafter: str = "ngram",
        gamma: int | None = None,
        options: dict[str, Any] | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        max_tokens: int = 128,
        stop: list[str] | None = None,
        chat_template: bool = True,
        plain: str = "off",
    ) -> AsyncIterator[dict[str, Any]]:
        """Continues one prompt with speculative decoding; the run is stored and has a link.

        A client that goes away or cancels ends its request within one engine step.

        Args:
            request: of the client.
            prompt: the text to continue.
            drafter: null, ngram, lookahead, draft_model, eagle, medusa, or another that this engine lists.
            gamma: most draft tokens of a step, 0 to 16; 0 is plain decoding, None the drafter's own default on this machine.
            options: settings of the drafter by name, such as {"max_n": 3}.
            temperature: 0 is greedy.
            top_k: keep the k most likely tokens; 0 keeps all.
            top_p: keep the smallest set of tokens with this probability; 1 keeps all.
            seed: the same seed gives the same tokens.
            max_tokens: most tokens to emit.
            stop: texts at which the output is cut.
            chat_template: put the prompt into the model's chat template as a user's message.
            plain: whether plain decoding of the same prompt is measured too: after, before or off.

        Returns:
            {run_id, finished: false} while it runs; at the end {run_id, finished: true, warning, main, plain}, `main` and (unless
            off) `plain` with text, token_ids, finish_reason, error, lossless, metrics and notes (why passes had no draft, say).
        """
        form = PlaygroundForm(
            prompt=prompt,
            chat_template=chat_template,
            drafter=drafter,
            gamma=gamma,
            options=options or {},
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            max_tokens=max_tokens,
            stop=join_stops(stop or ()),
            plain=plain,
        )
        try:
            run = self._prepare(form, form.to_request(), threading.Event())
            async for _ in self._stream(run, ""):
                yield {"run_id": run.run_id, "finished": False}
        except DraftboardError as error:
            raise gr.Error(str(error), print_exception=False) from error
        yield run.document()


def visitor_language(request: gr.Request) -> str:
    """The language of the page that sent an event."""
    return request_language(Headers(dict(request.headers)))


async def _exhaust(deltas: AsyncIterator[str]) -> None:
    """Carries an accepted run to its end; followers read it from the board."""
    try:
        async for _ in deltas:
            pass
    except DraftboardError as error:  # the run's last event says it to the page
        _log.info("A run failed: %s", error)

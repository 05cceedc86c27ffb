"""The left side of the Playground: prompt, presets, drafter, sampling; and its way to and from `PlaygroundForm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import orjson
from gradio.components import Component

from app.i18n import text, text_or
from app.pages.board import make_drafter_picker
from app.presets import load_presets
from app.render import json_bytes
from app.state import PLAIN_RUNS, PlaygroundForm
from engine.config import DEFAULT_GAMMA, MAX_GAMMA
from engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class FormWidgets:
    """The widgets of the form; `inputs` is the order in which `read_form` takes their values."""

    task: gr.Dropdown
    preset: gr.Dropdown
    prompt: gr.Textbox
    run: gr.Button
    stop: gr.Button
    chat: gr.Checkbox
    drafter: gr.HTML
    gamma: gr.Slider
    temperature: gr.Number
    max_tokens: gr.Number
    top_k: gr.Number
    top_p: gr.Number
    seed: gr.Number
    stop_strings: gr.Textbox
    plain: gr.Radio

    @property
    def inputs(self) -> list[Component]:
        return [
            self.prompt,
            self.chat,
            self.drafter,
            self.gamma,
            self.temperature,
            self.max_tokens,
            self.top_k,
            self.top_p,
            self.seed,
            self.stop_strings,
            self.plain,
        ]


def make_form(i18n: gr.I18n) -> FormWidgets:
    """Builds the form inside the current column; texts come in the visitor's language."""
    start = PlaygroundForm()

    def number(key: str, value: Any, low: float, high: float | None, step: float) -> gr.Number:
        label, info = i18n(f"form.{key}"), i18n(f"form.{key}.info")
        return gr.Number(value, label=label, info=info, minimum=low, maximum=high, step=step, elem_id=key, min_width=90)

    with gr.Row(elem_id="presets"):
        task = gr.Dropdown([], label=i18n("form.task"), elem_id="task", min_width=100, interactive=True)
        preset = gr.Dropdown([], label=i18n("form.preset"), elem_id="preset", min_width=150, interactive=True)
    prompt = gr.Textbox(
        label=i18n("form.prompt"),
        placeholder=i18n("form.prompt.placeholder"),
        lines=5,
        max_lines=10,
        elem_id="prompt",
        autofocus=True,
    )
    with gr.Row(elem_id="actions"):
        run = gr.Button(i18n("form.run"), variant="primary", elem_id="run", elem_classes="db-go", min_width=80)
        stop = gr.Button(i18n("form.stop"), variant="stop", elem_id="stop", min_width=80)
    chat = gr.Checkbox(start.chat_template, label=i18n("form.chat"), info=i18n("form.chat.info"), elem_id="chat")
    drafter = make_drafter_picker()
    gamma = gr.Slider(
        0, MAX_GAMMA, DEFAULT_GAMMA, step=1, label=i18n("form.gamma"), info=i18n("form.gamma.info"), elem_id="gamma", buttons=[]
    )
    with gr.Row(elem_id="sampling"):
        temperature = number("temperature", start.temperature, 0, 10, 0.1)
        max_tokens = number("max_tokens", start.max_tokens, 1, None, 1)
        top_k = number("top_k", start.top_k, 0, None, 1)
        top_p = number("top_p", start.top_p, 0, 1, 0.05)
        seed = number("seed", start.seed, 0, None, 1)
        stop_strings = gr.Textbox(
            label=i18n("form.stop_strings"),
            info=i18n("form.stop_strings.info"),
            placeholder=i18n("form.stop_strings.placeholder"),
            lines=1,
            max_lines=4,
            elem_id="stop-strings",
            min_width=90,
        )
    plain = gr.Radio(
        list(PLAIN_RUNS),
        value=start.plain,
        label=i18n("form.plain"),
        info=i18n("form.plain.info"),
        elem_id="plain",
        interactive=True,
    )
    return FormWidgets(
        task, preset, prompt, run, stop, chat, drafter, gamma, temperature, max_tokens, top_k, top_p, seed, stop_strings, plain
    )


def read_form(values: Sequence[Any]) -> PlaygroundForm:
    """The form from the widgets' values in the order of `FormWidgets.inputs`.

    Raises:
        InvalidRequestError: the drafter's value is not what the picker writes.
    """
    prompt, chat, drafter, gamma, temperature, max_tokens, top_k, top_p, seed, stop, plain = values
    chosen = PlaygroundForm()
    name, options = chosen.drafter, dict(chosen.options)
    if drafter:
        try:
            document = orjson.loads(drafter)
            name, options = str(document["drafter"]), dict(document["options"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequestError("drafter", drafter, 'a JSON text {"drafter": name, "options": {…}}') from error
    return PlaygroundForm(
        prompt=prompt or "",
        chat_template=bool(chat),
        drafter=name,
        gamma=gamma,
        options=options,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop or "",
        plain=plain or "",
    )


def form_values(form: PlaygroundForm) -> list[Any]:
    """The widgets' values of a form, in the order of `FormWidgets.inputs`."""
    drafter = json_bytes({"drafter": form.drafter, "options": dict(form.options)}).decode()
    sampling = [form.temperature, form.max_tokens, form.top_k, form.top_p, form.seed]
    return [form.prompt, form.chat_template, drafter, form.gamma, *sampling, form.stop, form.plain]


def choice_updates(language: str) -> tuple[Any, Any, Any]:
    """Tasks, presets of the first task and the choices of plain decoding, labelled in the visitor's language.

    Gradio translates labels itself, but not choices.
    """
    tasks = list(load_presets())
    named = [(text_or(language, f"task.{task}", task), task) for task in tasks]
    plain = [(text(language, f"form.plain.{one}"), one) for one in PLAIN_RUNS]
    return gr.update(choices=named, value=tasks[0]), preset_update(tasks[0], language), gr.update(choices=plain)


def preset_update(task: str, language: str) -> Any:
    """The presets of a task; none is chosen."""
    none = (text(language, "form.preset.none"), "")
    titles = [none] + [(preset.title.get(language, preset.title["en"]), preset.id) for preset in load_presets()[task]]
    return gr.update(choices=titles, value="")


def preset_prompt(task: str, preset_id: str) -> Any:
    """The prompt of a preset; the line that chooses none leaves the prompt alone."""
    return next((preset.prompt for preset in load_presets()[task] if preset.id == preset_id), gr.skip())

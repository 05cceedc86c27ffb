"""The form: what the person typed becomes a request, or one clear sentence."""

from __future__ import annotations

import math
import threading

import pytest

from app.pages.form import form_values, read_form
from app.state import ActiveRuns, PlaygroundForm, join_stops, plain_request
from engine.errors import InvalidRequestError


def test_the_form_becomes_a_request() -> None:
    form = PlaygroundForm(prompt="hi", gamma=3.0, top_k=5.0, temperature=0.5, stop="END\n\\n\\nUser:\n", options={"max_n": 2})
    request = form.to_request()
    assert (request.drafter.name, request.drafter.gamma, dict(request.drafter.options)) == ("ngram", 3, {"max_n": 2})
    assert (request.sampling.top_k, request.sampling.temperature) == (5, 0.5)
    assert request.sampling.stop == ("END", "\n\nUser:")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": "  "}, "prompt is '  '"),
        ({"gamma": -1}, "gamma is -1; allowed: a whole number from 0 to 16."),
        ({"gamma": 2.5}, "gamma is 2.5"),
        ({"gamma": "4"}, "gamma is '4'"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": None}, "temperature is None"),
        ({"top_p": 0}, "top_p is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": -4}, "seed is -4"),
        ({"plain": "sometimes"}, "plain is 'sometimes'; allowed: after, before, off."),
        ({"drafter": ""}, "drafter is ''"),
        ({"stop": "\n".join("abcdefghi")}, "stop is 9"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    form = PlaygroundForm.from_params({"prompt": "hi", **change})
    with pytest.raises(InvalidRequestError) as caught:
        form.to_request()
    assert str(caught.value).startswith(sentence)


def test_a_stored_form_comes_back_whole_and_unknown_names_are_left_out() -> None:
    form = PlaygroundForm(prompt="p", drafter="lookahead", options={"window": 7}, stop="a\nb", seed=11, plain="off")
    assert PlaygroundForm.from_params({**form.to_params(), "of_the_future": 1}) == form


def test_the_widgets_hold_the_form_without_loss() -> None:
    form = PlaygroundForm(prompt="p", drafter="lookahead", gamma=7, options={"window": 7}, top_p=0.9, stop="x", plain="before")
    assert read_form(form_values(form)) == form


def test_a_drafter_that_is_not_json_is_refused() -> None:
    values = form_values(PlaygroundForm(prompt="p"))
    values[2] = "ngram"
    with pytest.raises(InvalidRequestError, match="drafter is 'ngram'"):
        read_form(values)


def test_stop_texts_with_line_breaks_survive_the_form() -> None:
    stops = ("\n\n", "a\tb", "END")
    assert PlaygroundForm(prompt="p", stop=join_stops(stops)).to_request().sampling.stop == stops


def test_plain_decoding_changes_the_drafter_only() -> None:
    request = PlaygroundForm(prompt="p", temperature=0.7, seed=5).to_request()
    plain = plain_request(request)
    assert (plain.drafter.name, plain.drafter.gamma) == ("null", 0)
    assert (plain.prompt, plain.sampling, plain.chat_template) == (request.prompt, request.sampling, request.chat_template)


def test_stop_reaches_the_runs_of_its_own_session_only() -> None:
    active = ActiveRuns()
    mine, other = active.begin("mine"), active.begin("other")
    active.stop("mine")
    assert (mine.is_set(), other.is_set()) == (True, False)


def test_a_new_run_ends_the_earlier_one_of_the_same_session() -> None:
    active = ActiveRuns()
    first = active.begin("mine")
    second = active.begin("mine")
    assert (first.is_set(), second.is_set()) == (True, False)


def test_an_ended_run_leaves_nothing_behind() -> None:
    active = ActiveRuns()
    token = active.begin("mine")
    active.end("mine", token)
    active.end("mine", threading.Event())
    active.stop("mine")
    assert active.count == 0

"""Values and ids on their way into the database."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pytest

from engine.records import Fate
from storage.ids import TimeOrderedIds, is_id
from storage.values import plain, real, searchable, storable, title_of, to_json
from tests.storage.samples import make_request


def test_plain_values_hold_only_what_json_has() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    value = {
        1: (Fate.ACCEPTED, {2.5}),
        "nan": math.nan,
        "inf": [-math.inf],
        "path": Path("a/b"),
        "at": moment,
        "frozen": MappingProxyType({"x": True}),
        "lone": "a\ud83db",
    }
    assert plain(value) == {
        "1": ["A", [2.5]],
        "nan": None,
        "inf": [None],
        "path": "a/b",
        "at": "2026-01-02T03:04:05+00:00",
        "frozen": {"x": True},
        "lone": "a\ufffdb",
    }


def test_plain_requests_hold_every_setting() -> None:
    request = plain(make_request("p", seed=7, stop=("a", "b")))
    assert request["drafter"] == {"name": "ngram", "gamma": 4, "options": {"max_n": 3}}
    assert request["sampling"]["stop"] == ["a", "b"] and request["sampling"]["seed"] == 7


def test_what_has_no_plain_form_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="complex"):
        plain({"z": 1j})


def test_json_keeps_korean_readable_and_escapes_nul() -> None:
    assert to_json({"t": "한\0"}) == '{"t":"한\\u0000"}'
    assert json.loads(to_json("\0한")) == "\0한"


def test_text_columns_get_neither_nul_nor_lone_surrogates() -> None:
    assert storable("a\0b\udfffc한👍") == "a\ufffdb\ufffdc한👍"


def test_titles_are_one_short_line() -> None:
    assert title_of("  two\n\n\tlines ") == "two lines"
    assert title_of("x" * 500) == "x" * 119 + "…"
    assert title_of("x" * 120) == "x" * 120


def test_searches_see_past_case_width_and_decomposed_hangul() -> None:
    assert searchable("  STRASSE  ") == searchable("straße")
    assert searchable("\u1112\u1161\u11ab") == searchable("한")
    assert searchable("ＡＢＣ") == "abc"


def test_metric_columns_take_finite_numbers_only() -> None:
    assert [real(value) for value in (1, 2.5, None, math.nan, math.inf, True, "3")] == [1.0, 2.5, None, None, None, None, None]


def test_ids_rise_also_inside_one_millisecond() -> None:
    ids = TimeOrderedIds()
    made = [ids.next() for _ in range(5000)]
    assert made == sorted(set(made))
    assert all(is_id(one) for one in made)


def test_ids_of_many_threads_are_different() -> None:
    ids = TimeOrderedIds()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.next(), range(4000)))
    assert len(set(made)) == 4000


def test_other_texts_are_no_ids() -> None:
    good = TimeOrderedIds().next()
    for text in ("", good[:-1], good + "0", good.upper(), good[:-1] + "\0", good[:-1] + "u", "../" + good):
        assert not is_id(text)

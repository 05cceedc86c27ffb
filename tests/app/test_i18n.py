"""Two languages with the same keys, and every text that the code asks for exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.i18n import LANGUAGES, choose_language, text, text_or, texts
from app.presets import TASKS
from app.published_figures import published
from engine.records import FinishReason
from tests.fake_facts import DRAFTERS

APP = Path(__file__).resolve().parents[2] / "app"
SCRIPTS = sorted((APP / "static").glob("*.js"))
FIGURES = ("tokens_per_s", "mean_acceptance_length", "target_passes", "drafted", "kv_bytes")
# Keys that the scripts put together from parts.
BUILT = {
    *(f"role.{one}" for one in ("accepted", "rejected", "correction", "bonus", "plain", "untested", "ignored")),
    *(f"role.{one}.note" for one in ("accepted", "correction", "bonus", "plain")),
    *(f"fate.{one}.note" for one in ("rejected", "untested", "ignored")),
    *(f"metric.{one}" for one in ("tps", "speedup", "rate", "len", "tpp", "ttft", "waste", "tokens")),
    *(f"def.{one}" for one in ("tps", "speedup", "rate", "len", "tpp", "ttft", "waste", "tokens")),
    *(f"{kind}.{one}" for kind in ("panel", "def") for one in ("time", "positions")),
    *(f"{kind}.{one}" for kind in ("steps", "def.steps") for one in ("index", "fates", "accepted", "text", "ms")),
    *(f"time.{one}" for one in ("draft", "verify", "other")),
    *(f"speed.{one}" for one in ("faster", "slower", "same")),
    *(f"drafter.{one}{end}" for one in ("lossless", "lossy") for end in ("", ".title")),
    *(f"state.done.{one}" for one in FinishReason.__args__),
    *(f"state.{one}" for one in ("idle", "starting", "loading")),
    *(f"form.plain.{one}" for one in ("after", "before", "off")),
    *(f"batch.state.{one}" for one in ("waiting", "preparing", "profiling", "warming", "measuring", "resting", "running")),
    *(f"batch.state.{one}" for one in ("done", "cancelled", "interrupted", "failed")),
    *(f"batch.form.{one}" for one in ("drafters", "tasks")),
    *(f"batch.form.{one}{end}" for one in ("gammas", "batch_sizes", "repeats") for end in ("", ".info")),
    *(f"batch.form.{one}{end}" for one in ("max_tokens", "cell_tokens", "seed") for end in ("", ".info")),
    *(f"chart.{one}{end}" for one in ("speedup", "residual", "rate", "time", "positions", "tasks") for end in ("", ".note")),
    *(f"chart.{one}{end}" for one in ("gammas", "memory", "roofline") for end in ("", ".note")),
    *(f"finding.{one}" for one in ("unknown", "falls", "dips", "below", "rises", "single", "above")),
    *(f"flag.{one}" for one in ("reused", "preempted", "empty")),
    *(f"owner.{one}" for one in ("target", "drafter", "draft_tokens")),
    *(f"part.{one}" for one in ("draft", "verify", "commit", "other")),
    *(f"roofline.{one}" for one in ("memory", "compute")),
    *(f"table.{one}" for one in ("batch", "curve", "rate", "speedup", "interval", "predicted", "acceptance", "length", "alpha")),
    *(f"table.{one}" for one in ("draft", "verify", "other", "waste", "n")),
    *(f"whatif.{one}" for one in ("alpha", "gamma", "batch", "context")),
    *(f"whatif.figure.{one}" for one in ("speedup", "textbook", "even", "crossover", "gamma_best")),
    *(f"task.{one}" for one in TASKS),
    *(f"phase.{one}{end}" for one in ("draft", "pass", "verdict", "outcome", "commit") for end in ("", ".about")),
    *(f"phase.outcome.{one}" for one in ("correction", "correction.tree", "bonus", "bonus.tree", "plain")),
    *(f"phase.verdict.{one}" for one in ("greedy", "sampled", "lossy")),
    *(f"phase.{one}" for one in ("draft.chain", "draft.tree", "draft.plain", "draft.none", "pass.draft", "pass.plain")),
    *(f"phase.commit.{one}" for one in ("kept", "freed")),
    *(f"replay.fact.{one}" for one in ("step", "time", "passes", "tokens", "accepted", "kv")),
    *(f"play.{one}" for one in ("play", "pause", "back", "forward")),
    *(f"compare.state.{one}" for one in ("waiting", "measuring", "playing", "done")),
    *(f"compare.{one}" for one in ("done", "cancelled", "failed", "interrupted", "running")),
    *(f"compare.way.{one}{end}" for one in ("race", "together") for end in ("", ".about")),
    *(f"compare.{kind}.{one}" for kind in ("note", "measuring") for one in ("race", "together")),
    *(f"compare.best.{one}" for one in ("only", "bare", "plain", "same", "faster")),
    *(f"compare.{one}{end}" for one in ("agree", "differ") for end in ("", ".must")),
    *(f"compare.{one}" for one in ("odd", "odd.again", "column.lane", "column.task", "winner", "winner.near")),
    *(f"{kind}.{one}" for kind in ("compare.column", "def.compare") for one in FIGURES),
    *(f"cards.{one}" for one in ("start", "none", "more", "beside", "best", "notbest")),
    *(f"library.{one}" for one in ("kind", "status", "target", "drafter", "task", "device", "tag", "since", "until", "sort")),
    *(f"library.sort.{one}" for one in ("-created", "created", "-tokens_per_s", "-speedup", "title", "target")),
    *(f"library.column.{one}" for one in ("name", "kind", "drafter", "target", "speed", "speedup", "date", "status")),
    *(f"library.import.{one}" for one in ("added", "skipped", "restored")),
    *(f"library.{one}" for one in ("total", "total.one", "deleted", "deleted.one", "newer", "older", "undo")),
    *(f"library.{one}" for one in ("unselect", "compare")),
    *(f"kind.{one}" for one in ("playground", "generate", "sweep", "compare")),
    *(f"status.{one}" for one in ("running", "done", "cancelled", "failed", "interrupted")),
    *(f"copy.{one}" for one in ("command", "python", "vllm")),
}  # fmt: skip


def asked_keys() -> set[str]:
    """Keys that stand whole in the code."""
    keys: set[str] = set()
    for path in SCRIPTS:
        keys |= set(re.findall(r'\b(?:t|D\.t|say|figure)\(\s*"([a-z_]+\.[\w.]+)"', path.read_text(encoding="utf-8")))
        keys |= set(re.findall(r'D\.explain\([^\n]*?"(def\.[\w.]+)"', path.read_text(encoding="utf-8")))
    for path in APP.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        keys |= set(re.findall(r'\bPage\("[^"]*", "([\w.]+)"', source))
        keys |= (
            set(re.findall(r'\bNote\("([\w.]+)"', source))
            | set(re.findall(r'\bi18n\("([\w.]+)"\)', source))
            | set(re.findall(r'\btext\(\w[^,]*, "([\w.]+)"', source))
        )
    return keys


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_language_lacks_a_key_that_another_has(language: str) -> None:
    everything = set().union(*(texts(one) for one in LANGUAGES))
    assert sorted(everything - set(texts(language))) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_that_the_code_asks_for_exists(language: str) -> None:
    keys = asked_keys()
    assert len(keys) > 50  # the search still finds them
    assert sorted((keys | BUILT) - set(texts(language))) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_drafter_of_the_engine_has_a_name_and_a_line_in_every_language(language: str) -> None:
    names = [f"drafter.{drafter.name}.{part}" for drafter in DRAFTERS for part in ("label", "summary")]
    names += [f"option.{option.name}" for drafter in DRAFTERS for option in drafter.options]
    assert [name for name in names if name not in texts(language)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_setting_and_every_choice_of_the_real_drafters_has_a_text(language: str) -> None:
    from engine.drafters.draft_model import DraftModelDrafter
    from engine.drafters.eagle import EagleDrafter
    from engine.drafters.lookahead import LookaheadDrafter
    from engine.drafters.medusa import MedusaDrafter
    from engine.drafters.ngram import NgramDrafter

    kinds = (DraftModelDrafter, EagleDrafter, LookaheadDrafter, MedusaDrafter, NgramDrafter)
    names = [f"drafter.{kind.name}.{part}" for kind in kinds for part in ("label", "summary")]
    names += [f"option.{option.name}" for kind in kinds for option in kind.options]
    names += [f"choice.{choice}" for kind in kinds for option in kind.options for choice in option.choices]
    assert [name for name in names if name not in texts(language)] == []


def test_why_a_drafter_is_missing_and_what_was_published_is_said_in_every_language() -> None:
    from engine.drafter_loading import LoadedDrafters

    for info in LoadedDrafters({}, {}, {}).infos():
        assert text("en", f"drafter.{info.name}.missing") == info.reason
    assert text("en", "curve.tasks.source") == published()["tasks"]["source"]
    (rule,) = [curve for curve in published()["curves"] if "id" in curve]
    assert (text("en", "curve.rule.name"), text("en", "curve.rule.source")) == (rule["name"], rule["source"])


def test_both_languages_fill_in_the_same_values() -> None:
    def places(language: str) -> dict[str, list[str]]:
        return {key: sorted(re.findall(r"\{(\w+)\}", value)) for key, value in texts(language).items()}

    assert places("en") == places("ko")


def test_no_text_is_empty_and_none_holds_markup() -> None:
    values = [value for language in LANGUAGES for value in texts(language).values()]
    assert all(value.strip() for value in values)
    assert [value for value in values if re.search(r"<[a-z/]", value)] == []


@pytest.mark.parametrize(
    ("cookie", "wish", "language"),
    [
        (None, None, "en"),
        (None, "ko-KR,ko;q=0.9,en-US;q=0.8", "ko"),
        (None, "fr-FR,fr;q=0.9,ko;q=0.3,en;q=0.5", "en"),
        ("ko", "en-US", "ko"),
        ("xx", "ko", "ko"),
        (None, "de;q=nonsense", "en"),
    ],
)
def test_the_language_is_the_chosen_then_the_browsers_then_english(cookie: str | None, wish: str | None, language: str) -> None:
    assert choose_language(cookie, wish) == language


def test_a_missing_key_is_an_error_unless_a_fallback_is_given() -> None:
    with pytest.raises(KeyError):
        text("en", "no.such.key")
    assert text_or("ko", "drafter.new_one.label", "New one") == "New one"

"""What is copied from a run: the command makes the same run, the program compiles, vLLM's flags say what they cannot."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from app.cli import cli, main
from app.compare_request import COMPARE, read_comparison
from app.copy_as import Snippet, snippets
from app.pages.compare_page import Compare
from app.prompt_files import builtin_prompts
from app.state import PlaygroundForm
from app.sweep_options import parse_drafters, parse_numbers, parse_tasks
from app.sweep_run import begin, prompt_pool
from app.vllm_flags import NGRAM_BOUNDS, is_embedded, serve_command
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.sweep_plan import DrafterChoice, PoolPrompt, SweepSettings
from storage.store import Store
from tests.fake_facts import INFO
from tests.fakes import FakeEngine, FakeScript
from tests.storage.samples import make_result

URL = "http://127.0.0.1:7860/"
EVIL = "--drafter null; $(rm -rf /) 'quoted' \"twice\" `id`\nsecond line \\n 한글 {url} #"
REQUESTS = [
    GenerationRequest("plain", DrafterSpec("null", 0)),
    GenerationRequest(
        EVIL, DrafterSpec("ngram", 3, {"max_n": 2}), SamplingParams(0.75, 40, 0.9, 2**63 - 1, 24, ("\n", "'", "-x"))
    ),
    GenerationRequest("p", DrafterSpec("lookahead", 5, {"window": 3}), SamplingParams(max_tokens=8), chat_template=False),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


def stored(store: Store, kind: str, request: GenerationRequest, **provenance: Any) -> dict[str, Snippet]:
    params = {"prompt": request.prompt, "drafter": request.drafter.name}
    run_id = store.start_run(kind, params, {"model": "SmolLM2-135M-Instruct (embedded)", **provenance})
    store.finish_request(store.start_request(run_id, request), make_result(request, []))
    return snippets(store.get_run(run_id), URL)


@pytest.mark.parametrize("kind", ["generate", "playground"])
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.drafter.name)
def test_the_copied_command_makes_the_same_request(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, request_: GenerationRequest
) -> None:
    text = stored(store, kind, request_)["command"].text
    words = shlex.split(text)
    assert words[:4] == ["python", "-m", "app", "generate"]
    database = f"sqlite:///{tmp_path / 'again.db'}"
    code = main([*words[3:], "--db", database], make_engine=lambda config, progress: FakeEngine(FakeScript(), progress))
    assert code == 0, capsys.readouterr().err
    with Store(database) as again:
        assert again.get_run(again.list_runs()[0].id).requests[0].request() == request_


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.drafter.name)
def test_the_copied_program_calls_the_endpoint_with_the_same_settings(store: Store, request_: GenerationRequest) -> None:
    call = arguments_of(stored(store, "playground", request_)["python"].text)
    assert (call["prompt"], call["drafter"], call["gamma"]) == (request_.prompt, request_.drafter.name, request_.drafter.gamma)
    assert call["options"] == request_.drafter.options and call["stop"] == list(request_.sampling.stop)
    assert (call["temperature"], call["seed"], call["max_tokens"]) == (
        request_.sampling.temperature,
        request_.sampling.seed,
        request_.sampling.max_tokens,
    )
    assert call["chat_template"] is request_.chat_template and call["api_name"] == "/generate"


def arguments_of(program: str) -> dict[str, Any]:
    """What the program hands to `client.predict`."""
    compile(program, "copied", "exec")
    calls = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]
    (predict,) = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "predict"]
    return {
        str(one.arg): one.value.id if isinstance(one.value, ast.Name) else ast.literal_eval(one.value) for one in predict.keywords
    }


def test_a_run_with_its_baseline_is_copied_as_two_requests_the_drafter_first(store: Store) -> None:
    run_id = store.start_run("playground", PlaygroundForm(prompt="p").to_params(), {})
    for label, drafter in (("baseline", "null"), ("", "ngram")):
        request = GenerationRequest("p", DrafterSpec(drafter, 4))
        store.finish_request(store.start_request(run_id, request, label), make_result(request, []))
    found = snippets(store.get_run(run_id), URL)
    assert ["--drafter ngram" in line for line in found["command"].text.splitlines()] == [True, False]
    assert found["python"].text.count("client.predict(") == 2 and found["python"].text.count("import") == 1
    assert found["vllm"].text.count("vllm serve") == 1


def test_a_run_that_never_began_a_request_is_copied_from_its_form(store: Store) -> None:
    run_id = store.start_run("playground", PlaygroundForm(prompt="early", gamma=7).to_params(), {})
    assert "--prompt early --drafter ngram --gamma 7" in snippets(store.get_run(run_id), URL)["command"].text


def test_models_that_do_not_come_along_are_named(store: Store) -> None:
    request = GenerationRequest("p", DrafterSpec("eagle", 4))
    sources = {"model": "Qwen/Qwen3-8B", "eagle": "AngelSlim/Qwen3-8B_eagle3", "draft_model": "Qwen/Qwen3-0.6B"}
    assert stored(store, "generate", request, **sources)["command"].text.endswith(
        "--target Qwen/Qwen3-8B --eagle AngelSlim/Qwen3-8B_eagle3"
    )
    shipped = stored(store, "generate", request, eagle="assets/drafters/smollm2/eagle")["command"].text
    assert "--eagle" not in shipped and "--target" not in shipped


SETTINGS = SweepSettings(
    drafters=(DrafterChoice("ngram"), DrafterChoice("eagle", {"total_tokens": 24})),
    gammas=(2, 4),
    batch_sizes=(1, 8),
    tasks={"code": 0.5, "math": 1.5},
    repeats=3,
    max_tokens=64,
    cell_tokens=256,
    seed=7,
)


@pytest.mark.parametrize("own_prompts", [False, True])
def test_the_copied_sweep_has_the_same_settings(store: Store, own_prompts: bool) -> None:
    pool = [PoolPrompt("1", "code", "x"), PoolPrompt("2", "math", "y")] if own_prompts else prompt_pool(builtin_prompts())
    sweep = begin(store, INFO, SETTINGS, pool, engine={"model": "some/model", "threads": 2, "dtype": None})
    found = snippets(store.get_run(sweep.run_id), URL)
    words = shlex.split(found["command"].text)
    context = get_command(cli).commands["sweep"].make_context("sweep", words[4:])  # type: ignore[attr-defined]
    assert _settings_of(context.params) == SETTINGS
    assert (context.params["target"], context.params["threads"], context.params["dtype"]) == ("some/model", 2, None)
    assert (context.params["prompts"] is not None) is own_prompts
    assert [note.key for note in found["command"].notes] == (["copy.note.prompts"] if own_prompts else [])
    call = arguments_of(found["python"].text)
    read = [choice for text in call.pop("drafters") for choice in parse_drafters(text)]
    assert (call.pop("api_name"), call.pop("prompts", None) is not None) == ("/sweep", own_prompts)
    lists = {name: tuple(call.pop(name)) for name in ("gammas", "batch_sizes")}
    assert SweepSettings(drafters=tuple(read), **lists, **call) == SETTINGS
    assert found["vllm"].text.count("vllm serve") == 4  # two drafters at two draft lengths


def test_a_sweep_that_the_page_began_names_the_model_that_it_measured(store: Store) -> None:
    run = store.get_run(begin(store, INFO, SETTINGS, prompt_pool(builtin_prompts())).run_id)
    assert snippets(run, URL)["command"].text.endswith("--target fake/model")


@pytest.mark.parametrize("tasks", [[], ["code", "math"]])
def test_the_copied_comparison_asks_for_the_same(store: Store, tmp_path: Path, tasks: list[str]) -> None:
    lanes = [
        {"drafter": "null", "gamma": 0, "options": {}},
        {"drafter": "ngram", "gamma": 3, "options": {"max_n": 5}},
    ]
    what = {"tasks": tasks, "per_task": 1} if tasks else {"prompt": EVIL}
    asked = read_comparison({**what, "lanes": lanes, "way": "race", "seed": 3, "max_tokens": 8, "chat_template": False})
    run_id = store.start_run(COMPARE, asked.to_params(), {"model": "fake/model"})
    found = snippets(store.get_run(run_id), URL)
    words = shlex.split(found["command"].text)
    assert words[3] == "compare" and words[-2:] == ["--target", "fake/model"]
    database = f"sqlite:///{tmp_path / 'again.db'}"
    assert main([*words[3:], "--db", database], make_engine=lambda config, progress: FakeEngine(FakeScript(), progress)) == 0
    with Store(database) as again:
        made = again.get_run(again.list_runs()[0].id)
    assert made.params["lanes"] == lanes and made.params["seed"] == 3 and made.params["chat_template"] is False
    assert made.title == store.get_run(run_id).title
    call = arguments_of(found["python"].text)
    assert call.pop("api_name") == "/compare" and set(call) <= set(signature(Compare.compare).parameters)
    assert read_comparison(call) == asked


def test_a_copied_comparison_serves_every_lane_and_says_what_cannot_be(store: Store) -> None:
    lanes = [{"drafter": "null"}, {"drafter": "ngram", "gamma": 3}, {"drafter": "lookahead", "gamma": 2}]
    asked = read_comparison({"prompt": "p", "lanes": lanes, "temperature": 0.5})
    found = snippets(store.get_run(store.start_run(COMPARE, asked.to_params(), {"model": "m"})), URL)["vllm"]
    assert [line for line in found.text.splitlines() if line.startswith("#")] == [f"# {label}" for label in asked.labels]
    served = [shlex.split(line, comments=True) for line in found.text.splitlines()]
    assert [words[:3] for words in served if words] == [["vllm", "serve", "m"]] * 3
    assert found.text.count("--speculative-config") == 1
    assert [note.key.removeprefix("copy.note.") for note in found.notes] == ["lanes", "plain", "ngram", "none", "request"]
    assert json.loads(found.notes[-1].values["body"])["temperature"] == 0.5


def test_a_prompt_set_without_a_number_is_copied_with_one_prompt_of_each_task(store: Store) -> None:
    asked = read_comparison({"tasks": ["code"], "lanes": [{"drafter": "null"}, {"drafter": "ngram"}]})
    run_id = store.start_run(COMPARE, asked.to_params(), {})
    assert "--tasks code --per-task 1" in snippets(store.get_run(run_id), URL)["command"].text


def _settings_of(params: Mapping[str, Any]) -> SweepSettings:
    return SweepSettings(
        parse_drafters(params["drafters"]),
        parse_numbers("gammas", params["gammas"]),
        parse_numbers("batch-sizes", params["batch_sizes"]),
        parse_tasks(params["tasks"]),
        *(params[name] for name in ("repeats", "max_tokens", "cell_tokens", "seed")),
    )


@pytest.mark.parametrize(
    ("drafter", "source", "config", "notes"),
    [
        (
            DrafterSpec("ngram", 4, {"max_n": 3}),
            "",
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3},
            ["ngram"],
        ),
        (
            DrafterSpec("draft_model", 5),
            "Qwen/Qwen3-0.6B",
            {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5},
            [],
        ),
        (
            DrafterSpec("eagle", 3, {"total_tokens": 24}),
            "yuhuili/EAGLE-LLaMA3-Instruct-8B",
            {"method": "eagle", "model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 3},
            ["eagle_tree", "eagle"],
        ),
        (
            DrafterSpec("eagle", 3),
            "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3},
            ["eagle"],
        ),
        (
            DrafterSpec("medusa", 4, {"acceptance": "typical"}),
            "assets/drafters/smollm2/medusa",
            {"method": "medusa", "model": "assets/drafters/smollm2/medusa", "num_speculative_tokens": 4},
            ["medusa", "typical", "weights"],
        ),
        (DrafterSpec("lookahead", 4), "", None, ["none"]),
        (DrafterSpec("ngram_eagle", 4), "", None, ["none"]),
        (DrafterSpec("null", 0), "", None, ["plain"]),
        (DrafterSpec("ngram", 0), "", None, ["plain"]),
    ],
    ids=lambda value: value.name if isinstance(value, DrafterSpec) else "",
)
def test_vllm_flags_of_each_drafter(drafter: DrafterSpec, source: str, config: dict[str, Any] | None, notes: list[str]) -> None:
    flags = serve_command("Qwen/Qwen3-8B", "bfloat16 (tiles)", drafter, {drafter.name: source})
    words = shlex.split(flags.text)
    assert words[:5] == ["vllm", "serve", "Qwen/Qwen3-8B", "--dtype", "bfloat16"]
    assert words[5:6] == ([] if config is None else ["--speculative-config"])
    assert config is None or json.loads(words[6]) == config
    assert [note.key.removeprefix("copy.note.") for note in flags.notes] == notes


def test_vllm_gets_the_published_weights_of_the_embedded_model_and_the_requests_sampling(store: Store) -> None:
    found = stored(store, "generate", REQUESTS[1])["vllm"]
    assert shlex.split(found.text)[2] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    body = next(note.values["body"] for note in found.notes if note.key == "copy.note.request")
    assert json.loads(body) == {
        "temperature": 0.75, "top_k": 40, "top_p": 0.9, "seed": 2**63 - 1, "max_tokens": 24, "stop": ["\n", "'", "-x"],
    }  # fmt: skip


def test_what_is_written_here_of_the_engine_is_true() -> None:
    from engine.drafters.ngram import NgramDrafter
    from engine.models.loader import EMBEDDED_NAME

    assert is_embedded(EMBEDDED_NAME) and not is_embedded("Qwen/Qwen3-8B")
    assert {one.name: one.default for one in NgramDrafter.options if one.name in NGRAM_BOUNDS} == NGRAM_BOUNDS

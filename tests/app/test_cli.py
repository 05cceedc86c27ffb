"""The commands `generate` and `serve` over the fake engine: documents, exit codes and one-line failures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from rich.console import Console

from app.cli import BAD_USAGE, DONE, FAILED, main
from app.contracts import MakeEngine
from app.generate_cli import INTERRUPTED, parse_options
from app.serve_cli import _CutStreams, bind, serve_until_stopped
from app.service import EngineService
from engine.config import EngineConfig, GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError, ModelNotFoundError, PortInUseError
from storage.store import Store
from tests.fake_infos import info_with
from tests.fakes import FAULT, FakeEngine, FakeScript, after, expected_text, fake_factory

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., tuple[int, str, str]]


def make_fake(script: FakeScript | None = None) -> MakeEngine:
    return lambda config, progress: FakeEngine(script, progress)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], database: str) -> Run:
    """Runs `generate` on the fake engine with a database of the test's own: exit code, stdout, stderr."""

    def run_generate(*arguments: str, script: FakeScript | None = None) -> tuple[int, str, str]:
        code = main(["generate", "--db", database, *arguments], make_engine=make_fake(script))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_generate


def stored_runs(database: str) -> list[Any]:
    store = Store(database)
    try:
        return list(store.list_runs())
    finally:
        store.close()


def test_generate_prints_the_text_and_a_summary_apart_from_it(run: Run) -> None:
    code, out, err = run("--prompt", "hello world", "--max-tokens", "24")
    expected = expected_text(GenerationRequest("hello world", sampling=SamplingParams(max_tokens=24)))
    assert (code, out) == (DONE, expected + "\n")
    assert "24 tokens (length)" in err and "acceptance rate" in err


def test_the_json_document_has_exactly_the_documented_fields(run: Run) -> None:
    code, out, _ = run("--prompt", "hello world", "--drafter", "ngram", "--gamma", "3", "--max-tokens", "24", "--json")
    document = json.loads(out)
    assert code == DONE
    assert list(document) == [
        "text", "token_ids", "finish_reason", "drafter", "gamma", "options", "lossless", "error", "metrics", "notes", "timings",
        "steps", "run_id",
    ]  # fmt: skip
    assert (document["drafter"], document["gamma"], document["lossless"]) == ("ngram", 3, True)
    assert document["finish_reason"] == "length"
    assert len(document["token_ids"]) == 24
    step = document["steps"][1]
    assert list(step) == ["root", "draft", "emitted", "draft_ms", "verify_ms"]
    assert list(step["draft"][0]) == ["id", "text", "parent", "q", "p", "fate"]
    assert [token["fate"] for token in step["draft"]] == ["A", "A", "R"]
    assert [token for step in document["steps"] for token in step["emitted"]] == document["token_ids"]
    assert document["metrics"]["fates"].keys() == {"A", "R", "U", "I"}
    assert document["timings"].keys() == {"queue_ms", "ttft_ms", "total_ms", "preemptions"}


def test_a_request_that_fails_alone_is_exit_1_with_its_sentence_and_kept(run: Run, database: str) -> None:
    code, out, err = run("--prompt", "hello poison", "--max-tokens", "24", script=FakeScript(fail_alone="poison"))
    assert code == FAILED and err.endswith(f"Error: {FAULT}\n") and "Traceback" not in err
    assert out.strip()
    code, out, _ = run("--prompt", "hello poison", "--max-tokens", "24", "--json", script=FakeScript(fail_alone="poison"))
    document = json.loads(out)
    assert code == FAILED and (document["finish_reason"], document["error"]) == ("failed", FAULT)
    with Store(database) as store:
        kept = store.get_run(document["run_id"])
        assert (kept.status, kept.requests[0].status, kept.requests[0].error) == ("failed", "failed", FAULT)
        assert kept.requests[0].token_ids == document["token_ids"] != []


def test_a_drafter_that_could_not_draft_says_so_beside_the_figures(
    run: Run, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = FakeScript(no_draft="its KV cache is full")
    code, out, err = run("--prompt", "hello world", "--max-tokens", "12", "--json", script=script)
    document = json.loads(out)
    reasons = document["metrics"]["passes_without_draft"]
    count, passes = reasons["its KV cache is full"], document["metrics"]["num_target_passes"]
    note = f"No draft in {count} of {passes} passes: its KV cache is full."
    assert code == DONE and 0 < count < passes and document["notes"] == [note]
    assert f"Note: {note}" in run("--prompt", "hello world", "--max-tokens", "12", script=script)[2]
    assert main(["runs", "show", document["run_id"], "--db", database]) == DONE
    assert note in capsys.readouterr().out
    with Store(database) as store:
        steps = store.get_run(document["run_id"]).requests[0].steps
        assert sum(step.no_draft == "its KV cache is full" for step in steps) == count


def test_a_run_is_stored_with_its_result(run: Run, database: str) -> None:
    _, out, _ = run("--prompt", "hello world", "--json")
    run_id = json.loads(out)["run_id"]
    store = Store(database)
    detail = store.get_run(run_id)
    store.close()
    assert detail.status == "done"
    assert [request.text for request in detail.requests] == [json.loads(out)["text"]]


def test_a_draft_length_that_is_not_given_is_the_drafters_and_is_stored_with_the_run(run: Run, database: str) -> None:
    script = FakeScript(info=info_with("ngram", gamma=2))
    code, out, _ = run("--prompt", "hello world", "--json", script=script)
    document = json.loads(out)
    store = Store(database)
    detail = store.get_run(document["run_id"])
    store.close()
    stored = detail.requests[0].request().drafter
    assert (code, document["gamma"], stored.gamma, detail.params["drafter"]["gamma"]) == (DONE, 2, 2, 2)
    _, out, _ = run("--prompt", "hello world", "--gamma", "5", "--json", script=script)
    assert json.loads(out)["gamma"] == 5


def test_no_store_keeps_nothing(run: Run, database: str) -> None:
    _, out, _ = run("--prompt", "hello world", "--no-store", "--json")
    assert json.loads(out)["run_id"] is None
    assert stored_runs(database) == []


def test_a_refused_request_leaves_no_stored_run(run: Run, database: str) -> None:
    code, _, err = run("--prompt", "hello world", "--drafter", "oracle")
    assert code == BAD_USAGE
    assert err.startswith("Error: drafter is 'oracle'; allowed: ") and err.count("\n") == 1
    assert stored_runs(database) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "prompt is 'nothing'; allowed: either --prompt TEXT or --prompt-file FILE."),
        (("--prompt", "  "), "prompt is '  '; allowed: a text that is not empty."),
        (("--prompt", "a", "--prompt-file", "b"), "prompt is 'both'"),
        (("--prompt-file", "missing.txt"), "prompt-file is 'missing.txt'; allowed: a readable text file in UTF-8."),
        (("--prompt", "a", "--gamma", "-1"), "gamma is -1; allowed: a whole number from 0 to 16."),
        (("--prompt", "a", "--gamma", "four"), "Invalid value for '--gamma'"),
        (("--prompt", "a", "--temperature", "nan"), "temperature is nan; allowed: a number from 0 to 10."),
        (("--prompt", "a", "--temperature", "-0.5"), "temperature is -0.5"),
        (("--prompt", "a", "--top-p", "0"), "top_p is 0"),
        (("--prompt", "a", "--max-tokens", "0"), "max_tokens is 0"),
        (("--prompt", "a", "--stop", ""), "stop is ('',)"),
        (("--prompt", "a", "--option", "max_n"), "option is 'max_n'; allowed: name=value, for example max_n=3."),
        (("--prompt", "a", "--option", "depth=3"), "depth"),
        (("--prompt", "a", "--kv-budget", "much"), "kv_budget is 'much'"),
        (("--prompt", "a", "--dtype", "int8"), "dtype is 'int8'"),
        (("--prompt", "a", "--drafter", "draft_model"), "no draft model is loaded"),
        (("--prompt", "word " * 9000), "9000 tokens"),
        (("--promt", "a"), "No such option"),
    ],
)
def test_bad_usage_is_one_line_on_stderr_and_exit_2(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (BAD_USAGE, "")
    assert words in err
    assert err.startswith("Error: ") and err.count("\n") == 1


def test_an_unknown_command_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generat"]) == BAD_USAGE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["runs"], ["generate", "--help"]])
def test_help_goes_to_stdout_and_is_no_failure(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == DONE
    captured = capsys.readouterr()
    assert "Usage: python -m app" in captured.out
    assert captured.err == ""


def test_a_model_that_is_not_there_is_one_line_and_exit_2(run: Run) -> None:
    error = ModelNotFoundError("There is no model named nothing/here.")
    code, out, err = run("--prompt", "hello", script=FakeScript(load_error=error))
    assert (code, out, err) == (BAD_USAGE, "", "Error: There is no model named nothing/here.\n")


def test_a_broken_engine_is_one_line_and_exit_1_and_keeps_what_came(run: Run, database: str) -> None:
    code, out, err = run("--prompt", "hello world", script=FakeScript(fail_at_step=3))
    assert code == FAILED
    assert out.startswith(" hello world")
    assert "the fake engine broke" in err.splitlines()[-1]
    assert [stored.status for stored in stored_runs(database)] == ["failed"]


def test_a_database_that_cannot_be_opened_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    url = f"sqlite:///{tmp_path}/file/runs.db"
    assert main(["generate", "--prompt", "a", "--db", url], make_engine=make_fake()) == BAD_USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_a_prompt_comes_from_a_text_file_or_a_jsonl_file_with_one_prompt(run: Run, tmp_path: Path) -> None:
    text, jsonl, several = tmp_path / "a.txt", tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    text.write_text("안녕 세계", encoding="utf-8")
    jsonl.write_text('{"prompt": "hello jsonl", "task": "chat"}\n', encoding="utf-8")
    several.write_text('{"prompt": "one"}\n{"prompt": "two"}\n', encoding="utf-8")
    assert run("--prompt-file", str(text), "--max-tokens", "2")[1] == " 안녕 세계\n"
    assert run("--prompt-file", str(jsonl), "--max-tokens", "2")[1] == " hello jsonl\n"
    code, _, err = run("--prompt-file", str(several))
    assert code == BAD_USAGE and "b.jsonl with 2 prompts" in err


def test_drafter_options_are_read_as_numbers_where_they_are_numbers() -> None:
    assert parse_options(["max_n=3", "rate=0.5", "mode=best"]) == {"max_n": 3, "rate": 0.5, "mode": "best"}
    with pytest.raises(InvalidRequestError):
        parse_options(["=3"])


def test_the_flags_reach_the_engine(database: str) -> None:
    configs: list[EngineConfig] = []

    def make(config: EngineConfig, progress: Callable[[str, float], None]) -> FakeEngine:
        configs.append(config)
        return FakeEngine(None, progress)

    flags = [
        "--target",
        "some/model",
        "--dtype",
        "fp32",
        "--kv-budget",
        "64MiB",
        "--threads",
        "3",
        "--draft-model",
        "other/model",
        "--eagle",
        "some/head",
        "--medusa",
        "none",
    ]
    assert main(["generate", "--prompt", "a", "--db", database, *flags], make_engine=make) == DONE
    (config,) = configs
    assert (config.model, config.draft_model, config.dtype) == ("some/model", "other/model", "fp32")
    assert (config.eagle, config.medusa) == ("some/head", "none")
    assert (config.kv_budget_bytes, config.threads) == (64 << 20, 3)


INTERRUPTIBLE = """
import signal
import sys
# A job in the background of a script inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from app.cli import main
from tests.fakes import FakeEngine, FakeScript
raise SystemExit(main(sys.argv[1:], make_engine=lambda config, progress: FakeEngine(FakeScript(step_delay_s=0.02), progress)))
"""


def test_ctrl_c_keeps_what_was_done(database: str) -> None:
    command = [sys.executable, "-c", INTERRUPTIBLE, "generate", "--prompt", "hello", "--max-tokens", "6000", "--db", database]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": "."}
    )
    assert process.stdout is not None
    first = process.stdout.read(6)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, errors
    assert (first + rest).decode().startswith(" hello the cat")
    assert "(cancelled)" in errors.decode()
    (stored,) = stored_runs(database)
    assert stored.status == "cancelled"


def test_serving_on_a_port_that_is_taken_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--db", database], make_engine=make_fake()) == BAD_USAGE
    expected = f"Error: Port {port} on 127.0.0.1 is in use; choose another with --port, or 0 for a free one.\n"
    assert capsys.readouterr().err == expected


def test_a_host_that_is_not_this_machine_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="host is '203.0.113.1'"):
        bind("203.0.113.1", 0)  # an address kept for documentation


def test_a_bound_port_cannot_be_bound_again_until_it_is_closed() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


async def bare_app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """An application that answers nothing: these tests only start and stop the server."""


def test_a_server_whose_model_cannot_be_loaded_ends_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    service = EngineService(fake_factory(FakeScript(load_error=ModelNotFoundError("There is no model."), load_gate=after(0.1))))
    service.start()
    server = uvicorn.Server(uvicorn.Config(bare_app, lifespan="off", log_level="warning"))
    with bind("127.0.0.1", 0) as listener:
        with pytest.raises(ModelNotFoundError, match="There is no model"):
            serve_until_stopped(server, listener, service, Console(stderr=True))
    service.stop()
    assert "Draftboard serves on http://127.0.0.1:" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "shown"), [(asyncio.CancelledError(), False), (ValueError("a fault"), True)])
def test_only_the_streams_that_a_stop_cuts_are_kept_out_of_the_log(error: BaseException, shown: bool) -> None:
    record = logging.makeLogRecord({"msg": "Exception in ASGI application", "exc_info": (type(error), error, None)})
    assert _CutStreams().filter(record) is shown

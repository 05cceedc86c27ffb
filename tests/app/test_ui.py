"""The application over HTTP: the named endpoint, the document, the health check."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import ModelNotFoundError
from tests.e2e.served import Served, served, wait_until
from tests.fakes import FakeScript, expected_text

PROMPT = "한국어 and <img src=x onerror=alert(1)> {{value}}"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("app"), FakeScript(step_delay_s=0.005)) as running:
        yield running


@pytest.fixture(scope="module")
def client(app: Served) -> Iterator[Client]:
    made = Client(app.url, verbose=False)
    yield made
    made.close()


def get(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_the_named_endpoint_gives_the_whole_result_and_its_stored_run(app: Served, client: Client) -> None:
    out = client.predict(prompt=PROMPT, drafter="ngram", gamma=3, max_tokens=20, api_name="/generate")
    request = GenerationRequest(PROMPT, DrafterSpec("ngram", 3), SamplingParams(max_tokens=20))
    assert out["main"]["text"] == expected_text(request)
    assert (out["finished"], out["warning"], len(out["main"]["token_ids"])) == (True, None, 20)
    run = app.store.get_run(out["run_id"])
    assert (run.kind, run.status, run.params["gamma"], run.requests[0].text) == ("playground", "done", 3, out["main"]["text"])


def test_plain_decoding_is_really_run_and_stored_as_the_baseline(app: Served, client: Client) -> None:
    out = client.predict(prompt="a b c", max_tokens=16, plain="before", api_name="/generate")
    assert out["plain"]["token_ids"] == out["main"]["token_ids"]
    run = app.store.get_run(out["run_id"])
    assert [request.label for request in run.requests] == ["baseline", ""]
    speeds = [out[lane]["metrics"]["tokens_per_s"] for lane in ("main", "plain")]
    assert run.summary["speedup"] == pytest.approx(speeds[0] / speeds[1])
    assert run.summary["comparison"]["same"] is True


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "prompt is ''; allowed: a text that is not empty."),
        ({"gamma": -1}, "gamma is -1; allowed: a whole number from 0 to 16."),
        ({"temperature": -1.0}, "temperature is -1.0; allowed: a number from 0 to 10."),
        ({"drafter": "psychic"}, "drafter is 'psychic'"),
        ({"drafter": "draft_model"}, "drafter is 'draft_model'"),
        ({"prompt": "word " * 9000}, "The prompt has 9000 tokens"),
    ],
)
def test_a_mistake_is_one_sentence_and_stores_nothing(
    app: Served, client: Client, change: dict[str, object], sentence: str
) -> None:
    before = len(app.store.list_runs())
    with pytest.raises(AppError) as caught:
        client.predict(**{"prompt": "x", "api_name": "/generate", **change})
    assert str(caught.value).startswith(sentence)
    assert "Traceback" not in str(caught.value)
    assert len(app.store.list_runs()) == before


def test_a_client_that_cancels_frees_its_request(app: Served, client: Client) -> None:
    job = client.submit(prompt="never ending", max_tokens=5000, api_name="/generate")
    wait_until(lambda: app.service.num_requests == 1)
    job.cancel()
    wait_until(lambda: app.service.num_requests == 0)
    wait_until(lambda: app.store.list_runs(limit=1)[0].status == "cancelled")


def test_only_the_named_endpoints_are_offered_to_programs(client: Client) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert sorted(named) == ["/compare", "/generate", "/sweep"]


def test_the_document_speaks_the_visitors_language(app: Served) -> None:
    assert '<html\n\tlang="ko"' in get(app.url, **{"Accept-Language": "ko-KR,ko;q=0.9"})
    assert '<html\n\tlang="en"' in get(app.url, **{"Accept-Language": "fr"})
    assert '<html\n\tlang="ko"' in get(app.url, **{"Accept-Language": "en", "Cookie": "draftboard_lang=ko"})


def test_the_document_names_only_files_that_are_served(app: Served) -> None:
    document = get(app.url)
    files = re.findall(r'(?:href|src)="(board/[^"]+)"', document)
    assert len(files) >= 8
    assert all(get(app.url + file) for file in files)
    assert "</script" not in document[document.index("window.Draftboard =") : document.index("};</script>")]


def test_health_tells_the_state_of_the_engine(app: Served) -> None:
    assert orjson.loads(get(app.url + "healthz"))["state"] == "ready"


def test_health_says_why_a_model_could_not_be_loaded(tmp_path: Path) -> None:
    script = FakeScript(load_error=ModelNotFoundError("There is no model 'nope'."))
    with served(tmp_path, script, loaded=False) as broken:
        wait_until(lambda: broken.service.status.state == "failed")
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(broken.url + "healthz")
        assert caught.value.code == 503
        assert orjson.loads(caught.value.read())["message"] == "There is no model 'nope'."
        caught.value.close()

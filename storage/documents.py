"""What an exported run must look like, checked value by value; a fault is one sentence that names its place."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from engine.config import GenerationRequest
from engine.errors import ImportRefusedError, InvalidRequestError
from engine.records import FinishReason, StepRecord, Timings
from storage.ids import is_id
from storage.models import KIND_LENGTH, NAME_LENGTH, Status
from storage.records import request_of

_LARGEST = 2**31 - 1  # of an integer column


def _id(text: str) -> str:
    if not is_id(text):
        raise ValueError("is no id of a run or request")
    return text


def _step(step: StepRecord) -> StepRecord:
    if any(not -1 <= token.parent < place for place, token in enumerate(step.draft)):
        raise ValueError("has a draft token whose parent does not come before it")
    if any(not -1 <= token.draft < len(step.draft) for token in step.emitted):
        raise ValueError("has an emitted token that names no draft token")
    return step


def _steps(steps: list[StepRecord]) -> list[StepRecord]:
    if any(step.index <= before.index for before, step in zip(steps, steps[1:], strict=False)):
        raise ValueError("are not in order")
    return steps


Id = Annotated[str, AfterValidator(_id)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Steps = Annotated[list[Annotated[StepRecord, AfterValidator(_step)]], AfterValidator(_steps)]


class _Checked(BaseModel):
    """Types as they are written, no infinities, and names that this version does not know are passed over."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


class RunHead(_Checked):
    """The run itself; the names are those of `storage.records.RunDetail`."""

    id: Id
    kind: str = Field(min_length=1, max_length=KIND_LENGTH)
    status: Status
    created_at: AwareDatetime
    finished_at: AwareDatetime | None
    title: str
    model: str
    params: dict[str, Any]
    provenance: dict[str, Any]
    summary: dict[str, Any]
    tags: list[str] = []
    notes: str = ""


class RequestDocument(_Checked):
    """A request of the run; the names are those of `storage.records.StoredRequest`."""

    id: Id
    label: str
    position: Count
    status: Status
    created_at: AwareDatetime
    finished_at: AwareDatetime | None
    params: dict[str, Any]
    request_id: str | None
    finish_reason: FinishReason | None
    lossless: bool | None
    error: str | None
    text: str
    prompt_tokens: Count | None
    num_output_tokens: Count
    metrics: dict[str, Any]
    timings: Timings
    token_ids: list[int]
    steps: Steps
    _request: GenerationRequest = PrivateAttr()

    @property
    def request(self) -> GenerationRequest:
        """`params` as a request."""
        return self._request

    def model_post_init(self, context: Any) -> None:
        if len(self.token_ids) != self.num_output_tokens:
            raise ValueError(f"has {len(self.token_ids)} token_ids, but num_output_tokens {self.num_output_tokens}")
        try:
            self._request = request_of(self.params)
        except (InvalidRequestError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"has params that are no request ({type(error).__name__}: {error})") from error


class RunDocument(_Checked):
    """A whole run, as `storage.export.to_document` writes it."""

    run: RunHead
    requests: list[RequestDocument]
    parts: dict[Annotated[str, Field(min_length=1, max_length=NAME_LENGTH)], dict[str, Any]]


def check_document(json: bytes, place: str = "") -> RunDocument:
    """The document of one run.

    Args:
        json: its text.
        place: where it stands in its file, for the sentence.

    Raises:
        ImportRefusedError: something is missing, of another type, out of range or contradicts itself.
    """
    try:
        return RunDocument.model_validate_json(json)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in (place, *fault["loc"]) if part != "")
        raise ImportRefusedError(f"The file is damaged: {where} {_answer(fault)}.") from error


def _answer(fault: Any) -> str:
    """What is wrong, behind the name of the place."""
    if fault["type"] == "missing":
        return "is missing"
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    given = repr(fault["input"])
    message = fault["msg"][0].lower() + fault["msg"][1:]
    return f"is {given if len(given) <= 60 else given[:59] + '…'} ({message})"

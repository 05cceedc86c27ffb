"""A draft model that takes the target's embedding and has an LM head for the most frequent tokens alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.draft import Draft
from engine.drafters.draft_model import DraftModelDrafter
from engine.engine import Engine
from engine.errors import CorruptWeightsError, UnsupportedModelError, UserError
from engine.loading import Parts, load_parts
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.models.build import make_decoder
from engine.models.decoder import Decoder, DecoderLike
from engine.models.draft_files import drafted_tokens
from engine.models.fused.decoder import FusedDecoder
from engine.models.kernel import PLAIN_FP32, TILES, Kernel
from engine.models.loader import load_tensors, locate
from engine.records import RequestResult
from tests.engine.kernels import KERNELS
from tests.engine.stubs import make_sequence
from tests.heads import PROMPTS

Maker = Callable[..., Path]
ROWS = 200
CPU = torch.device("cpu")
# Heads of 16 run in the plain decoder, heads of 32 in the compiled pass.
TARGETS = {"plain": {"layers": 3}, "compiled": {"layers": 3, "heads": 2, "kv_heads": 1}}
BATCH = [*PROMPTS, "one more", "and another one", "def f(x):\n    return x"]


def folders(tiny_folder: Maker, tiny_head: Maker, kind: str = "plain") -> tuple[Path, Path]:
    target = tiny_folder(seed=1, **TARGETS[kind])
    return target, tiny_head("draft_model", target, rows=ROWS)


def config_of(target: Path, draft: Path, kind: str = "plain") -> EngineConfig:
    dtype = "fp32" if kind == "plain" else "auto"
    return EngineConfig(model=str(target), draft_model=str(draft), dtype=dtype, threads=1, max_batch_size=8)


@pytest.fixture(scope="module", params=list(TARGETS))
def engine(request: pytest.FixtureRequest, tiny_folder: Maker, tiny_head: Maker) -> Engine:
    return Engine(config_of(*folders(tiny_folder, tiny_head, request.param), request.param))


@pytest.fixture(scope="module", params=list(TARGETS))
def parts(request: pytest.FixtureRequest, tiny_folder: Maker, tiny_head: Maker) -> Parts:
    config = config_of(*folders(tiny_folder, tiny_head, request.param), request.param)
    return load_parts(config, lambda message, fraction: None)


def requests(gamma: int, temperature: float = 0.0, tokens: int = 40) -> list[GenerationRequest]:
    spec = DrafterSpec("draft_model" if gamma else "null", gamma)
    return [GenerationRequest(p, spec, SamplingParams(temperature, seed=i, max_tokens=tokens)) for i, p in enumerate(BATCH)]


def ids(results: list[RequestResult]) -> list[list[int]]:
    return [result.token_ids for result in results]


@pytest.mark.parametrize("gamma", [1, 5])
def test_greedy_output_equals_plain_decoding_alone_and_eight_at_once(engine: Engine, gamma: int) -> None:
    plain = ids([engine.generate([request])[0] for request in requests(0)])
    alone = [engine.generate([request])[0] for request in requests(gamma)]
    together = engine.generate(requests(gamma))
    assert ids(alone) == ids(together) == plain
    # A model that drafted rows for tokens, or took another embedding, would be right by chance only (1 in 320).
    assert all(result.metrics["draft_acceptance_rate"] > 0.2 for result in alone)
    engine.target.pool.check_integrity()
    assert engine.target.pool.used_blocks == 0 and not any(engine.draft_kv_bytes().values())


def test_sampled_output_does_not_depend_on_the_batch(engine: Engine) -> None:
    drawn = requests(3, temperature=0.8)
    assert ids(engine.generate(drawn)) == ids([engine.generate([request])[0] for request in drawn])


def test_the_embedding_is_the_targets_own_and_is_not_counted_again(parts: Parts) -> None:
    drafter = parts.drafters["draft_model"]
    assert isinstance(drafter, DraftModelDrafter)
    draft, target = drafter._runner.decoder, parts.target.decoder
    assert draft.embedding is target.embedding
    layers = target.parameters - 2 * 320 * 64
    assert draft.parameters == layers + _padded(ROWS, draft) * 64
    assert draft.weight_bytes == draft.parameters * draft.kernel.weight.itemsize


def _padded(rows: int, decoder: DecoderLike) -> int:
    return -(-rows // 16) * 16 if isinstance(decoder, FusedDecoder) else rows


def test_keys_and_values_are_accounted_while_it_drafts_and_freed_after(engine: Engine) -> None:
    engine.add(requests(4)[0])
    for _ in range(3):
        engine.step()
    # It has as many layers as the target and holds the same tokens, but for the last one of the step.
    held, theirs = engine.draft_kv_bytes()["draft_model"], engine.target.used_bytes
    assert 0 < held and abs(held - theirs) <= 16 * engine.info.kv_bytes_per_token
    while engine.has_work():
        engine.step()
    assert engine.draft_kv_bytes()["draft_model"] == 0


@torch.inference_mode()
def test_drafts_and_their_q_keep_to_the_tokens_that_have_rows(parts: Parts, tiny_folder: Maker, tiny_head: Maker) -> None:
    draft = _propose(parts, temperature=1.5)
    assert draft.probs is not None and draft.probs.shape == (5, 320)
    torch.testing.assert_close(draft.probs.sum(-1), torch.ones(5))
    kind = "compiled" if isinstance(parts.target.decoder, FusedDecoder) else "plain"
    known = _tokens(folders(tiny_folder, tiny_head, kind)[1])
    assert set(draft.probs.nonzero()[:, 1].tolist()) == known
    assert set(draft.token_ids) | set(_propose(parts, temperature=0.0).token_ids) <= known
    assert all(draft.probs[i, token] > 0 for i, token in enumerate(draft.token_ids))


def _propose(parts: Parts, temperature: float) -> Draft:
    drafter = parts.drafters["draft_model"]
    sequence = make_sequence(parts.tokenizer.encode(PROMPTS[0], True), drafter=drafter, gamma=5, temperature=temperature)
    draft = drafter.propose([sequence])[0]
    drafter.finish(sequence.seq_id)
    return draft


def _tokens(draft: Path) -> set[int]:
    d2t = load_file(draft / "model.safetensors")["d2t"]
    return {row + int(shift) for row, shift in enumerate(d2t)}


@pytest.mark.parametrize("kernel", KERNELS)
@torch.inference_mode()
def test_compiled_logits_are_those_of_the_plain_decoder(tiny_folder: Maker, tiny_head: Maker, kernel: Kernel) -> None:
    target, draft = folders(tiny_folder, tiny_head, "compiled")
    prompt = torch.randint(3, 320, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    expected, got = (_logits(target, draft, each, prompt) for each in (PLAIN_FP32, kernel))
    assert got.shape == (150, ROWS)
    assert (got - expected).abs().mean() < (0.02 if kernel is TILES else 0.01) * expected.std()


@torch.inference_mode()
def test_logits_are_those_of_the_same_model_with_an_embedding(tiny_folder: Maker, tiny_head: Maker) -> None:
    target, draft = folders(tiny_folder, tiny_head)
    prompt = torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(4)).tolist()
    files = locate(str(target), lambda message, fraction: None)
    tensors = load_tensors(locate(str(draft), lambda message, fraction: None))
    rows = drafted_tokens("", tensors, 320)
    assert rows is not None
    head = torch.zeros(320, 64).index_copy_(0, rows, tensors["lm_head.weight"].float())
    complete = load_tensors(files) | tensors | {"lm_head.weight": head}
    decoder = Decoder(files.spec, complete, PLAIN_FP32, CPU)
    expected = _run(decoder, prompt)[:, rows]
    torch.testing.assert_close(_logits(target, draft, PLAIN_FP32, prompt, rounded=False), expected, atol=1e-4, rtol=0)


def _logits(target: Path, draft: Path, kernel: Kernel, prompt: list[int], rounded: bool = True) -> Tensor:
    files, cut = (locate(str(folder), lambda message, fraction: None) for folder in (target, draft))
    # Rounded beforehand, all decoders have the same weights, and only the arithmetic differs.
    theirs, ours = (
        {name: t.bfloat16().float() if t.dim() > 1 and rounded else t for name, t in load_tensors(each).items()}
        for each in (files, cut)
    )
    owner = make_decoder(files.spec, theirs, kernel, CPU, 2)
    return _run(make_decoder(cut.spec, ours, kernel, CPU, 2, owner), prompt)


def _run(decoder: DecoderLike, prompt: list[int]) -> Tensor:
    runner = ModelRunner(decoder, max_sequences=2, max_tokens=256, budget_bytes=1 << 26, block_size=16)
    return runner.forward([Row(0, 0, prompt)], [len(prompt)]).logits[0].clone()


@pytest.fixture
def pair(tiny_folder: Maker, tiny_head: Maker, tmp_path: Path) -> tuple[Path, Path]:
    """A target and a draft model to damage."""
    target, draft = folders(tiny_folder, tiny_head)
    return target, Path(shutil.copytree(draft, tmp_path / "draft"))


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite(draft: Path, **tensors: Tensor) -> None:
    path = draft / "model.safetensors"
    stored = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(stored | tensors, path)


def refusal(target: Path, draft: Path, kind: type[UserError]) -> str:
    with pytest.raises(kind) as caught:
        Engine(config_of(target, draft))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_card_of_another_target_is_refused(pair: tuple[Path, Path]) -> None:
    edit(pair[1] / "card.json", target="other", target_hash="sha256:abcdef")
    message = refusal(*pair, UnsupportedModelError)
    assert "was made for another target: its card names other (sha256:abcdef), this target is sha256:" in message


@pytest.mark.parametrize("shape", [{"hidden": 96}, {"vocab": 352}, {"heads": 2, "kv_heads": 1}], ids=str)
def test_a_target_of_another_shape_is_refused(pair: tuple[Path, Path], tiny_folder: Maker, shape: dict[str, int]) -> None:
    other = tiny_folder(seed=1, layers=3, **shape)
    edit(pair[1] / "card.json", target_hash=locate(str(other), lambda message, fraction: None).model_hash)
    message = refusal(other, pair[1], UnsupportedModelError)
    assert "takes the target's embedding, but was made for another target: its " in message


@pytest.mark.parametrize("wrong", [-1, 320, "twice"])
def test_a_token_table_that_points_elsewhere_is_refused(pair: tuple[Path, Path], wrong: int | str) -> None:
    d2t = load_file(pair[1] / "model.safetensors")["d2t"].clone()
    d2t[3] = d2t[4] + 1 if wrong == "twice" else int(wrong) - 3
    rewrite(pair[1], d2t=d2t)
    assert "names tokens twice, or tokens that the target has not" in refusal(*pair, CorruptWeightsError)


def test_a_token_table_of_fractions_is_refused(pair: tuple[Path, Path]) -> None:
    rewrite(pair[1], d2t=torch.zeros(ROWS))
    assert "d2t of " in (message := refusal(*pair, UnsupportedModelError)) and message.endswith("supported: int64, int32.")


@pytest.mark.parametrize("name", ["lm_head.weight", "d2t"])
def test_another_number_of_rows_than_the_configuration_says_is_refused(pair: tuple[Path, Path], name: str) -> None:
    rewrite(pair[1], **{name: load_file(pair[1] / "model.safetensors")[name][:-1].clone()})
    assert f"{name} of " in (message := refusal(*pair, CorruptWeightsError)) and "config.json asks for 200" in message


def test_an_embedding_of_its_own_beside_a_token_table_is_refused(pair: tuple[Path, Path]) -> None:
    rewrite(pair[1], **{"model.embed_tokens.weight": torch.zeros(320, 64)})
    assert "has not: model.embed_tokens.weight" in refusal(*pair, CorruptWeightsError)


@pytest.mark.parametrize("values", [{"draft_vocab_size": 321}, {"tie_word_embeddings": True}, {"draft_vocab_size": 0}], ids=str)
def test_a_draft_vocabulary_that_cannot_be_is_refused(pair: tuple[Path, Path], values: dict[str, object]) -> None:
    edit(pair[1] / "config.json", **values)
    assert "draft_vocab_size" in refusal(*pair, UnsupportedModelError)


@pytest.mark.parametrize("card", ["missing", "silent"])
def test_without_tokenizer_files_the_card_must_name_the_target(pair: tuple[Path, Path], card: str) -> None:
    (pair[1] / "card.json").unlink()
    if card == "silent":
        (pair[1] / "card.json").write_text("{}")
    assert "has no tokenizer.json and no card.json that names its target" in refusal(*pair, UnsupportedModelError)


def test_with_tokenizer_files_no_card_is_needed(pair: tuple[Path, Path]) -> None:
    (pair[1] / "card.json").unlink()
    shutil.copy(pair[0] / "tokenizer.json", pair[1])
    assert Engine(config_of(*pair)).info.draft_model == str(pair[1])


def test_it_cannot_be_a_target(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UnsupportedModelError, match="is a draft model without an embedding; use it with --draft-model"):
        Engine(EngineConfig(model=str(pair[1]), dtype="fp32", threads=1))

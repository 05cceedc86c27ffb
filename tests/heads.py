"""Drafting heads for tiny targets, half right: trained for seconds on the target's own continuations of a few prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from engine.config import EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.models.attention import Row
from engine.models.eagle_head import EagleHead, causal_attention, rotary_angles
from engine.models.head_parts import TargetParts
from engine.models.loader import load_tensors, locate
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.training.eagle import eagle_config
from engine.training.saving import save_eagle, save_medusa
from engine.training.vocabulary import DraftVocabulary, draft_vocabulary

PROMPTS = (
    "def add(a, b):\n    return a",
    "가나다 라마바",
    "one two three one two three one two",
    "x",
    "The cat sat on the mat. The cat",
)
STEPS = 100


class Teacher(NamedTuple):
    """A target and texts that it wrote, padded to one length.

    Attributes:
        engine, parts: the target.
        token_ids: [texts, tokens].
        hidden: [texts, tokens, layers, hidden], its states behind each captured layer.
        wanted: [texts, tokens, draft vocab], its distribution over the head's tokens.
        real: bool [texts, tokens], False for padding.
        vocabulary: of the head: the tokens that the texts have most.
    """

    engine: Engine
    parts: TargetParts
    token_ids: Tensor
    hidden: Tensor
    wanted: Tensor
    real: Tensor
    vocabulary: DraftVocabulary


def target_parts(folder: Path) -> TargetParts:
    """Embedding, norm and head of a tiny target."""
    files = locate(str(folder), lambda message, fraction: None)
    tensors = load_tensors(files)
    embedding = tensors["model.embed_tokens.weight"].float()
    return TargetParts(
        embedding,
        tensors["model.norm.weight"].float(),
        tensors.get("lm_head.weight", embedding).float(),
        files.spec.rms_norm_eps,
    )


def make_teacher(folder: Path, prompts: Sequence[str], capture: tuple[int, ...], draft_vocab: int) -> Teacher:
    """A target with texts that it wrote: several prompts answered greedily and once sampled, or a single one sampled often."""
    engine = Engine(EngineConfig(model=str(folder), dtype="fp32", threads=1, max_batch_size=32))
    temperatures, length = ((0.0, 0.8), 40) if len(prompts) > 1 else ((0.8,) * 24, 4)
    requests = [
        GenerationRequest(p, sampling=SamplingParams(t, seed=seed, max_tokens=length, ignore_eos=True), trace=False)
        for p in prompts
        for seed, t in enumerate(temperatures)
    ]
    ids: list[Tensor] = []
    hidden: list[Tensor] = []
    logits: list[Tensor] = []
    for request, result in zip(requests, engine.generate(requests), strict=True):
        tokens = engine.tokenizer.encode(request.prompt, True) + result.token_ids
        ids.append(torch.tensor(tokens))
        with torch.inference_mode():
            output = engine.target.forward([Row(0, 0, tokens)], [len(tokens)], capture)
            hidden.append(torch.stack([layer[0] for layer in output.hidden], 1))
            logits.append(output.logits[0].clone())
    counts = torch.bincount(torch.cat(ids), minlength=engine.info.vocab_size)
    kept = counts.argsort(descending=True, stable=True)[:draft_vocab].sort().values
    wanted = [rows[:, kept].softmax(-1) for rows in logits]
    real = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in ids], batch_first=True)
    # Tensors made in inference mode cannot be trained on.
    padded = [pad_sequence(rows, batch_first=True).clone() for rows in (ids, hidden, wanted)]
    vocabulary = draft_vocabulary(kept, engine.info.vocab_size)
    return Teacher(engine, target_parts(folder), padded[0], padded[1], padded[2], real, vocabulary)


def eagle_folder(
    folder: Path, target: Path, layout: Any, prompts: Sequence[str] = PROMPTS, draft_vocab: int = 240, context: bool = False
) -> Path:
    """Write an EAGLE head for a tiny target; `draft_vocab` 0: all tokens and, in the `eagle` layout, the target's LM head.

    `context`: it can draft tokens of the context too, with the target's rows as they are.
    """
    layers = locate(str(target), lambda message, fraction: None).spec.num_layers
    capture = (layers - 1,) if layout == "eagle" else (0, layers // 2, layers - 1)
    teacher = make_teacher(target, prompts, capture, draft_vocab or 1 << 20)
    spec = teacher.engine.target.decoder.spec
    head = EagleHead(eagle_config(spec, layout, capture, len(teacher.vocabulary.token_ids), bool(draft_vocab), context))
    _fill(head, torch.Generator().manual_seed(5))
    if context:
        head.context_proj.weight.data.copy_(torch.eye(spec.hidden_size))
    if layout == "eagle" and draft_vocab:
        head.lm_head.weight.data.copy_(teacher.parts.head[teacher.vocabulary.token_ids])
    _train(head, lambda: _eagle_loss(head, teacher))
    card = {"target": "tiny", "target_hash": teacher.engine.info.model_hash}
    save_eagle(head, teacher.vocabulary, card, folder)
    return folder


def medusa_folder(folder: Path, target: Path, heads: int = 3, prompts: Sequence[str] = PROMPTS, draft_vocab: int = 240) -> Path:
    """Write Medusa heads for a tiny target, with one LM head for all of them when the vocabulary is reduced."""
    layers = locate(str(target), lambda message, fraction: None).spec.num_layers
    teacher = make_teacher(target, prompts, (layers - 1,), draft_vocab or 1 << 20)
    spec, rows = teacher.engine.target.decoder.spec, len(teacher.vocabulary.token_ids)
    made = MedusaHeads(MedusaConfig(spec.hidden_size, spec.vocab_size, rows, heads, shared_head=bool(draft_vocab)))
    _fill(made, torch.Generator().manual_seed(6))
    _train(made, lambda: _medusa_loss(made, teacher))
    save_medusa(made, teacher.vocabulary, {"target_hash": teacher.engine.info.model_hash}, folder)
    return folder


def _fill(module: nn.Module, generator: torch.Generator) -> None:
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(1.0 + 0.1 * noise if "norm" in name else noise / weight.shape[-1] ** 0.5)


def _train(module: nn.Module, loss_of: Callable[[], Tensor]) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=4e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()


def _cross_entropy(logits: Tensor, wanted: Tensor, real: Tensor) -> Tensor:
    return -(wanted * logits.log_softmax(-1)).sum(-1)[real].mean()


def _eagle_loss(head: EagleHead, teacher: Teacher) -> Tensor:
    """Cross-entropy on true features, and once more on the head's own outputs."""
    tokens, parts, wide = teacher.token_ids, teacher.parts, head.config.layout == "eagle3"
    angles = rotary_angles(head.config, torch.arange(tokens.shape[1] - 1))
    features = teacher.hidden[:, :-1]
    g = head.fuse(features.flatten(2)) if wide else parts.normed(features[:, :, 0])
    real = teacher.real[:, 1:]  # slot t: the target's distribution after token t + 1
    total = torch.zeros(())
    for _ in range(2):
        a = head(parts.embedding[tokens[:, 1:]], g, angles, causal_attention)
        table = head.lm_head.weight if head.config.own_head else parts.head
        total = total + _cross_entropy(F.linear(head.head_input(a), table), teacher.wanted[:, 1:], real)
        if not wide:
            total = total + F.smooth_l1_loss(a[real], parts.normed(teacher.hidden[:, 1:, 0])[real])
        g = torch.cat([g[:, :1], head.feedback(a)[:, :-1]], 1)
    return total


def _medusa_loss(heads: MedusaHeads, teacher: Teacher) -> Tensor:
    total = torch.zeros(())
    for i, logits in enumerate(heads(teacher.parts.normed(teacher.hidden[:, :, 0]))):
        total = total + _cross_entropy(logits[:, : -i - 1], teacher.wanted[:, i + 1 :], teacher.real[:, i + 1 :])
    return total

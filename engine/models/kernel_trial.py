"""A trial of the compiled kernels: small random models through the compiled pass and through torch's plain operations.

Two kinds of statement are tried. Numbers are those of the plain decoder within the rounding of bf16; and what a token gives has
the same bits alone, in a ragged batch, as a chain, as a tree and behind a committed path, which lossless drafting rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.draft import Draft
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.models.build import make_decoder
from engine.models.eagle_head import EagleConfig, EagleHead, Layout
from engine.models.eagle_pass import HeadRow, PlainEagle
from engine.models.head_parts import TargetParts
from engine.models.kernel import PLAIN_FP32, Kernel
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.models.medusa_pass import PlainMedusa
from engine.models.spec import ModelSpec

_CPU = torch.device("cpu")
_VOCAB, _HIDDEN = 200, 72
# Mean distance from the plain result in its standard deviations: bf16 keeps 8 bits, and a missing panel is off by whole ones.
_NEAR = 0.02


def try_kernel(kernel: Kernel, threads: int) -> list[str]:
    """What is wrong with a compiled kernel, in words; empty when nothing is."""
    failures: list[str] = []

    def check(what: str, trial: Callable[[], bool]) -> None:
        try:
            sound = trial()
        except Exception as error:  # noqa: BLE001 - whatever a broken kernel raises is the finding
            failures.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if not sound:
                failures.append(what)

    with torch.inference_mode():
        for spec in (_spec(heads=3, kv_heads=1, head_dim=64), _spec(heads=4, kv_heads=2, head_dim=32, qk_norm=True)):
            trial = _DecoderTrial(spec, kernel, threads)
            name = f"{spec.num_heads} heads of {spec.head_dim}"
            check(f"a chain differs from the plain decoder ({name})", trial.chain_is_near)
            check(f"a ragged batch differs from its sequences alone ({name})", trial.batch_has_the_bits_of_each_alone)
            check(f"a tree differs from its paths as chains ({name})", trial.tree_has_the_bits_of_its_paths)
            check(f"a committed path differs from the same tokens fed alone ({name})", trial.committed_path_has_the_bits)
        check("an EAGLE-3 head differs from the plain head", partial(_eagle_is_near, "eagle3", kernel, threads))
        check("an EAGLE head differs from the plain head", partial(_eagle_is_near, "eagle", kernel, threads))
        check("Medusa heads differ from the plain heads", partial(_medusa_is_near, kernel, threads))
        check("the small loops over rows are wrong", _loops_are_right)
    return failures


def _spec(heads: int, kv_heads: int, head_dim: int, qk_norm: bool = False) -> ModelSpec:
    return ModelSpec(
        architecture="Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLM",
        vocab_size=_VOCAB,
        hidden_size=_HIDDEN,
        num_layers=2,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=100,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        qkv_bias=not qk_norm,
        o_bias=not qk_norm,
        mlp_bias=False,
        qk_norm=qk_norm,
        eos_token_ids=(),
    )


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers that bf16 holds as they are, so that both sides have the same weights and only the arithmetic differs."""
    drawn = torch.randn(*shape, generator=generator)
    return (drawn / shape[-1] ** 0.5).bfloat16().float() if len(shape) > 1 else 1.0 + 0.2 * drawn


def _tensors(spec: ModelSpec) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden, inner, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    widths = {"q": spec.num_heads * dim, "k": spec.num_kv_heads * dim, "v": spec.num_kv_heads * dim}
    tensors = {"model.embed_tokens.weight": 8 * _random(generator, spec.vocab_size, hidden)}
    tensors["model.norm.weight"] = _random(generator, hidden)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        for name, width in widths.items():
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = _random(generator, width, hidden)
            if spec.qkv_bias:
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = _random(generator, width)
        tensors[f"{prefix}self_attn.o_proj.weight"] = _random(generator, hidden, widths["q"])
        if spec.o_bias:
            tensors[f"{prefix}self_attn.o_proj.bias"] = _random(generator, hidden)
        if spec.qk_norm:
            for name in "qk":
                tensors[f"{prefix}self_attn.{name}_norm.weight"] = _random(generator, dim)
        for name in ("gate", "up"):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = _random(generator, inner, hidden)
        tensors[f"{prefix}mlp.down_proj.weight"] = _random(generator, hidden, inner)
        for name in ("input", "post_attention"):
            tensors[f"{prefix}{name}_layernorm.weight"] = _random(generator, hidden)
    return tensors


class _DecoderTrial:
    """One small decoder, compiled and plain."""

    PROMPT, TREE = list(range(3, 64)), Draft([50, 60, 70, 80, 90, 100], [-1, -1, 0, 0, 2, 1])

    def __init__(self, spec: ModelSpec, kernel: Kernel, threads: int) -> None:
        self._spec, self._kernel, self._threads = spec, kernel, threads
        self._tensors = _tensors(spec)

    def chain_is_near(self) -> bool:
        rows = [Row(0, 0, self.PROMPT)]
        counts = [len(self.PROMPT)]
        return _near(_logits(self._runner(), rows, counts)[0], _logits(self._runner(PLAIN_FP32), rows, counts)[0])

    def batch_has_the_bits_of_each_alone(self) -> bool:
        texts = [self.PROMPT[: 9 + 13 * lane] for lane in range(4)]
        runner = self._runner()
        _logits(runner, [Row(lane, 0, ids[:-5]) for lane, ids in enumerate(texts)], [0] * 4)
        rows = [Row(lane, len(ids) - 5, ids[-5:]) for lane, ids in enumerate(texts)]
        together = _logits(runner, rows, [5] * 4)
        return all(torch.equal(part, self._alone(ids, 5)) for part, ids in zip(together, texts, strict=True))

    def tree_has_the_bits_of_its_paths(self) -> bool:
        runner, tree = self._runner(), self.TREE
        _logits(runner, [Row(0, 0, self.PROMPT[:-1])], [0])
        begin = len(self.PROMPT) - 1
        row = Row(0, begin, [self.PROMPT[-1], *tree.token_ids], tree.parents, tree.depths)
        got = _logits(runner, [row], [1 + len(tree.token_ids)])[0]
        chains = [[*self.PROMPT, *_path(tree, node)] for node in range(len(tree.token_ids))]
        return all(torch.equal(part, self._alone(chain, 1)[0]) for part, chain in zip(got[1:], chains, strict=True))

    def committed_path_has_the_bits(self) -> bool:
        runner, tree = self._runner(), self.TREE
        runner.pool.open("a")
        runner.pool.reserve("a", len(self.PROMPT) + 8)
        _logits(runner, [Row(0, 0, self.PROMPT[:-1])], [0])
        begin = len(self.PROMPT) - 1
        row = Row(0, begin, [self.PROMPT[-1], *tree.token_ids], tree.parents, tree.depths)
        _logits(runner, [row], [1])
        runner.keep("a", begin, [1, 5])
        got = _logits(runner, [Row(0, begin + 3, [33])], [1])[0]
        return torch.equal(got, self._alone([*self.PROMPT, 60, 100, 33], 1))

    def _alone(self, ids: list[int], count: int) -> Tensor:
        return _logits(self._runner(), [Row(0, 0, ids)], [count])[0]

    def _runner(self, kernel: Kernel | None = None) -> ModelRunner:
        decoder = make_decoder(self._spec, self._tensors, kernel or self._kernel, _CPU, self._threads)
        return ModelRunner(decoder, max_sequences=4, max_tokens=256, budget_bytes=1 << 24, block_size=16)


def _path(tree: Draft, node: int) -> list[int]:
    ids: list[int] = []
    while node >= 0:
        ids.insert(0, tree.token_ids[node])
        node = tree.parents[node]
    return ids


def _logits(runner: ModelRunner, rows: Sequence[Row], counts: Sequence[int]) -> list[Tensor]:
    return [part.clone() for part in runner.forward(rows, counts).logits]


def _near(got: Tensor, expected: Tensor) -> bool:
    return bool(got.isfinite().all() and (got - expected).abs().mean() < _NEAR * expected.std())


def _target(generator: torch.Generator) -> TargetParts:
    embedding, head = (_random(generator, _VOCAB, _HIDDEN) for _ in range(2))
    return TargetParts(embedding, _random(generator, _HIDDEN), head, 1e-5)


def _fill(module: torch.nn.Module, generator: torch.Generator) -> None:
    for weight in module.parameters():
        weight.copy_(_random(generator, *weight.shape))


def _eagle_is_near(layout: Layout, kernel: Kernel, threads: int) -> bool:
    from engine.models.fused.head import FusedEagle, TargetPanels
    from engine.models.fused.panels import pack

    wide = layout == "eagle3"
    config = EagleConfig(
        layout, _HIDDEN, 4, 2, 32, 100, 1e-5, 10000.0, _VOCAB, 50 if wide else _VOCAB, (0, 1, 2) if wide else (1,), own_head=wide
    )
    generator = torch.Generator().manual_seed(2)
    head = EagleHead(config)
    _fill(head, generator)
    target = _target(generator)
    ids = torch.arange(50) if wide else None
    plain = PlainEagle(head, target, ids, None, torch.float32, _CPU)
    panels = TargetPanels(*(pack(weight.numpy()) for weight in (target.embedding, target.head)))
    fused = FusedEagle(head, target, panels, ids, None, kernel, threads, 128)
    features = [torch.randn(12, _HIDDEN, generator=generator) for _ in config.capture]
    drawn = torch.randn(5, _HIDDEN, generator=generator)
    tree = HeadRow(Row(0, 12, [3, 4, 5, 6, 7], [-1, -1, 0, 2], [1, 1, 2, 3]), drawn, 5)
    results = []
    for one in (plain, fused):
        cache = one.make_cache(2, 128)
        g = one.fuse(features)
        first = one.forward([HeadRow(Row(0, 0, list(range(20, 32))), g, 1)], cache)
        outputs = [g, first.a.clone(), first.logits.clone()]
        second = one.forward([tree, HeadRow(Row(1, 0, [9, 8]), drawn[:2], 2)], cache)
        results.append([*outputs, second.a.clone(), second.logits.clone()])
    return all(_near(got, expected) for expected, got in zip(*results, strict=True))


def _medusa_is_near(kernel: Kernel, threads: int) -> bool:
    from engine.models.fused.medusa import FusedMedusa

    generator = torch.Generator().manual_seed(3)
    heads = MedusaHeads(MedusaConfig(_HIDDEN, _VOCAB, num_heads=3, shared_head=True, draft_vocab_size=50))
    _fill(heads, generator)
    target = _target(generator)
    plain, fused = PlainMedusa(heads, target, torch.float32, _CPU), FusedMedusa(heads, target, kernel, threads)
    hidden = torch.randn(5, _HIDDEN, generator=generator)
    return all(_near(fused.forward(hidden[:rows], 3), plain.forward(hidden[:rows], 3)) for rows in (1, 5))


def _loops_are_right() -> bool:
    from engine.models.fused.rows import largest, products

    x = np.random.default_rng(4).standard_normal((3, 100), np.float32)
    found: Any = np.zeros((3, 5), np.int64)
    largest(x, found, np.full((3, 5), -np.inf, np.float32))
    out: Any = np.empty((3, 3), np.float32)
    products(x, x, out)
    return bool((found == np.argsort(-x, axis=1)[:, :5]).all() and np.allclose(out, x @ x.T, atol=1e-3))

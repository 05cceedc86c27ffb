"""A tiny target with texts of its own and their features, made once and shared by the training tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from engine.config import EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.models.loader import ModelFiles, locate
from engine.training.examples import Split, Texts, build_texts, save_texts
from engine.training.features import FeatureStore, extract_features
from engine.training.inputs import Inputs, load_inputs
from tests.tiny import tiny_model

LAYERS = (0, 1, 2)
_SUBJECTS = ("the fox", "the dog", "a garden", "안녕하세요", "the rain", "def add", "a cat", "여우와 개", "return a", "1234")
_VERBS = ("jumps over", "is in", "falls on", "and", "plus", "에서", "sees", "runs to")


class World(NamedTuple):
    """Attributes:
    folder: of the target; `data` the npz file, `features` the store's folder.
    """

    folder: Path
    files: ModelFiles
    engine: Engine
    texts: Texts
    data: Path
    features: Path
    store: FeatureStore

    def inputs(self) -> Inputs:
        """Trained on all texts and measured on some of them (see `make_world`)."""
        inputs = load_inputs(str(self.folder), [self.data], self.features, torch.device("cpu"), None, 5)
        return replace(inputs, split=Split(np.arange(len(self.texts)), np.arange(0, len(self.texts), 6)))


def make_world(root: Path, prompts: int = 60) -> World:
    """A target of three layers that answers `prompts` prompts with 24 tokens, two of three drawn at temperature 1.

    Random weights have no habits that carry over from one text to another, so tests of learning measure on texts that were
    trained on.
    """
    folder = tiny_model(root / "target", layers=3, seed=3)
    engine = Engine(EngineConfig(model=str(folder), dtype="fp32", max_batch_size=16, threads=1))
    asked = [f"{s} {v} {t}" for t in _SUBJECTS for v in _VERBS for s in _SUBJECTS if s != t][:: 720 // prompts][:prompts]
    temps = [float(i % 3 > 0) for i in range(len(asked))]
    requests = [
        GenerationRequest(
            prompt,
            sampling=SamplingParams(temperature=temp, seed=i, max_tokens=24, ignore_eos=True),
            chat_template=False,
            trace=False,
        )
        for i, (prompt, temp) in enumerate(zip(asked, temps, strict=True))
    ]
    results = engine.generate(requests)
    prompt_ids = [engine.tokenizer.encode(prompt, False) for prompt in asked]
    sequences = [np.array(ids + list(result.token_ids)) for ids, result in zip(prompt_ids, results, strict=True)]
    tasks = ["code" if i % 2 else "chat" for i in range(len(sequences))]
    texts = build_texts(sequences, [len(ids) for ids in prompt_ids], temps, tasks)
    data, features = root / "texts.npz", root / "features"
    save_texts(texts, data)
    store = extract_features(engine.target, "tiny", engine.info.model_hash, texts, features, LAYERS, top=16, batch_tokens=256)
    return World(folder, locate(str(folder), lambda message, fraction: None), engine, texts, data, features, store)

"""The training loop: schedule, checkpoints, resume, log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from engine.errors import InvalidRequestError
from engine.training.acceptance import Walk

CHECKPOINT = "checkpoint.pt"
LOG = "log.json"
# Steps after which the speed is known well enough to fix the number of steps that fit a budget of minutes.
_PROBE_STEPS = 12
_AUTOCAST = torch.bfloat16


class StepLoss(NamedTuple):
    """Attributes:
    loss: mean over what was predicted, with gradient.
    tokens: answer tokens that were predicted at depth 0.
    matched: of those, how many rightly.
    """

    loss: Tensor
    tokens: int
    matched: int


class Trainee(Protocol):
    """Something to train."""

    @property
    def module(self) -> nn.Module: ...

    def batches(self, position: int) -> Iterator[tuple[int, np.ndarray]]:
        """See `examples.batches`."""

    def loss(self, batch: np.ndarray) -> StepLoss: ...

    def evaluate(self) -> dict[str, Walk]:
        """On held-out texts, by task (see `acceptance.walk_texts`)."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How to train.

    Attributes:
        steps: optimiser steps; 0: as many as fit into `minutes`.
        minutes: budget of training time, used when `steps` is 0.
        lr: of AdamW; the learning rate rises over `warmup` of the steps and falls as a cosine to zero.
        muon_lr: of Muon (Jordan et al. 2024) for matrices inside the head; 0 trains them with AdamW too.
        batch_tokens: tokens of a batch, padding included.
        seed: of the order of the data and of whatever is drawn.
        evaluate_every, checkpoint_every: steps between them.
    """

    steps: int = 0
    minutes: float = 10.0
    lr: float = 1e-3
    muon_lr: float = 0.02
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 1.0
    batch_tokens: int = 2400
    seed: int = 0
    evaluate_every: int = 200
    checkpoint_every: int = 200


@dataclass(slots=True)
class History:
    """What happened: `log` has an entry for each evaluation."""

    step: int = 0
    total_steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)


Report = Callable[[History, str], None]


def train(trainee: Trainee, settings: TrainSettings, folder: Path, resume: bool, report: Report) -> History:
    """Train `trainee.module` in place; checkpoints and the log lie in `folder`.

    A resumed run takes the same steps on the same data as one that was never stopped.

    Args:
        resume: go on from the folder's checkpoint.
        report: called with the history and a line of text, about every five seconds and at evaluations.

    Raises:
        InvalidRequestError: nothing to resume, or a checkpoint made with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Probabilities near zero would otherwise be computed a hundred times slower than others.
    torch.set_flush_denormal(True)
    try:
        return _train(trainee, settings, folder, resume, report)
    finally:
        torch.set_flush_denormal(False)


def _train(trainee: Trainee, settings: TrainSettings, folder: Path, resume: bool, report: Report) -> History:
    module = trainee.module
    optimizers = _optimizers(module, settings)
    history = History(total_steps=settings.steps)
    if resume:
        history = _load(folder, module, optimizers, settings)
    device = next(module.parameters()).device.type
    stretch = _Stretch()
    if not history.log:
        _evaluate(trainee, history, stretch, folder, report)
    base, probe, shown = history.seconds, time.perf_counter(), 0.0
    begun = probe
    for number, batch in trainee.batches(history.step):
        if history.total_steps and number >= history.total_steps:
            break
        if not history.total_steps and number == _PROBE_STEPS:
            each = (time.perf_counter() - probe) / (_PROBE_STEPS - 2)
            history.total_steps = max(_PROBE_STEPS + 1, int(settings.minutes * 60 / each))
        if number == 2:
            probe = time.perf_counter()  # the first steps also wake things up
        # Before the number of steps is known, only the warm-up matters.
        factor = _schedule(number, history.total_steps or 2000, settings.warmup)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        module.train()
        with torch.autocast(device, dtype=_AUTOCAST):
            step = trainee.loss(batch)
        step.loss.backward()
        nn.utils.clip_grad_norm_([p for p in module.parameters() if p.requires_grad], settings.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        history.step, history.tokens = number + 1, history.tokens + step.tokens
        history.seconds = base + time.perf_counter() - begun
        stretch.add(step)
        last = history.step == history.total_steps
        if history.step % settings.evaluate_every == 0 or last:
            _evaluate(trainee, history, stretch, folder, report)
        if history.step % settings.checkpoint_every == 0 or last:
            _save(folder, module, optimizers, history, settings)
        if time.perf_counter() - shown > 5:
            shown = time.perf_counter()
            report(history, stretch.line(history))
    return history


class _Stretch:
    """Sums since the last evaluation."""

    def __init__(self) -> None:
        self.loss, self.steps, self.tokens, self.matched = 0.0, 0, 0, 0

    def add(self, step: StepLoss) -> None:
        self.loss += float(step.loss.detach())
        self.steps += 1
        self.tokens += step.tokens
        self.matched += step.matched

    def line(self, history: History) -> str:
        left = ""
        if history.total_steps:
            rate = history.seconds / max(1, history.step)
            left = f", {(history.total_steps - history.step) * rate / 60:.1f} min left"
        total = history.total_steps or "?"
        loss, match = self.loss / max(1, self.steps), self.matched / max(1, self.tokens)
        speed = history.tokens / max(history.seconds, 1e-9)
        return f"step {history.step}/{total}, loss {loss:.3f}, match {match:.3f}, {speed:.0f} tokens/s{left}"


def _evaluate(trainee: Trainee, history: History, stretch: _Stretch, folder: Path, report: Report) -> None:
    trainee.module.eval()
    walks = trainee.evaluate()
    entry = {
        "step": history.step,
        "tokens": history.tokens,
        "hours": round(history.seconds / 3600, 4),
        "loss": round(stretch.loss / stretch.steps, 4) if stretch.steps else None,
        "train_match": round(stretch.matched / stretch.tokens, 4) if stretch.tokens else None,
        "held_out": {task: walk.as_dict() for task, walk in walks.items()},
    }
    history.log.append(entry)
    partial = folder / (LOG + ".partial")
    partial.write_text(json.dumps(history.log, indent=1), encoding="utf-8")
    partial.replace(folder / LOG)
    found = walks["all"]
    rates = " ".join("-" if rate is None else f"{rate:.3f}" for rate in found.conditional)
    length = found.mean_acceptance_length
    shown = "-" if length is None else f"{length:.3f}"
    report(history, f"{stretch.line(history)} | held out: acceptance length {shown}, by depth {rates}")
    stretch.__init__()  # type: ignore[misc]


def _schedule(step: int, total: int, warmup: float) -> float:
    rise = max(1, min(200, int(total * warmup)))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, total - rise))))


def _optimizers(module: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside the head (it needs fewer steps there), AdamW for LM heads, embeddings and vectors."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    inner = [p for name, p in named if p.ndim == 2 and "head" not in name and "embed" not in name] if settings.muon_lr else []
    taken = {id(p) for p in inner}
    matrices = [p for _, p in named if p.ndim == 2 and id(p) not in taken]
    vectors = [p for _, p in named if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    optimizers: list[torch.optim.Optimizer] = []
    if groups:
        optimizers.append(torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98)))
    if inner:
        decay = settings.weight_decay
        optimizers.append(torch.optim.Muon(inner, lr=settings.muon_lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _save(
    folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer], history: History, settings: TrainSettings
) -> None:
    state = {
        "module": module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "history": asdict(history),
        "settings": asdict(settings),
    }
    partial = folder / (CHECKPOINT + ".partial")
    torch.save(state, partial)
    partial.replace(folder / CHECKPOINT)


def _load(folder: Path, module: nn.Module, optimizers: list[torch.optim.Optimizer], settings: TrainSettings) -> History:
    path = folder / CHECKPOINT
    if not path.is_file():
        raise InvalidRequestError("resume", str(folder), f"a folder with {CHECKPOINT} from an earlier run")
    state = torch.load(path, map_location=next(module.parameters()).device, weights_only=True)
    changed = {
        name for name, value in asdict(settings).items() if state["settings"][name] != value and name not in ("minutes", "steps")
    }
    if changed:
        raise InvalidRequestError("resume", sorted(changed), "the settings of the run that is resumed")
    module.load_state_dict(state["module"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    history = History(**state["history"])
    if settings.steps:
        history.total_steps = settings.steps
    elif history.step and settings.minutes != state["settings"]["minutes"]:
        # More time than the run had: the schedule is stretched over all of it.
        history.total_steps = max(history.step, int(settings.minutes * 60 * history.step / history.seconds))
    return history

"""Training of EAGLE heads: the closed-form start, the unrolled loss, and the measure on held-out texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.models.eagle_head import EagleConfig, EagleHead, Layout, take_slots
from engine.models.spec import ModelSpec
from engine.training.acceptance import GAMMA
from engine.training.batch_vocabulary import BatchVocabulary
from engine.training.inputs import Inputs
from engine.training.loop import StepLoss, TrainSettings
from engine.training.ridge import Ridge
from engine.training.slots import SlotBatch
from engine.training.trainee import SlotTrainee
from engine.training.unroll import unroll
from engine.training.vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True)
class EagleSettings:
    """What to train.

    Attributes:
        depth: passes on the head's own output in training (training-time test).
        decay: weight of each further depth's loss.
        feature_weight: of SmoothL1 between output and the target's next feature (EAGLE-1/2: 1.0, with `ce_weight` 0.1 and
            depth 0).
        ce_weight: of the cross-entropy.
        top: stored best tokens of the target that the cross-entropy uses.
        noise: uniform noise added to true features (EAGLE-1: 0.2, on features of size 1).
        train_head: whether the LM head is the head's own and trained, or the target's rows as they are.
    """

    layout: Layout = "eagle"
    depth: int = 3
    decay: float = 0.8
    feature_weight: float = 0.0
    ce_weight: float = 1.0
    top: int = 32
    noise: float = 0.0
    train_head: bool = True


def eagle_config(
    spec: ModelSpec, layout: Layout, capture: tuple[int, ...], draft_vocab_size: int, own_head: bool, context_rows: bool = False
) -> EagleConfig:
    """A head of the target's own width."""
    return EagleConfig(
        layout=layout,
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        rms_norm_eps=spec.rms_norm_eps,
        rope_theta=spec.rope_theta,
        vocab_size=spec.vocab_size,
        draft_vocab_size=draft_vocab_size,
        capture=capture,
        own_head=own_head or layout == "eagle3",
        context_rows=context_rows,
    )


class EagleTrainee(SlotTrainee):
    """See `loop.Trainee`.

    Args:
        config: of the head; its capture must be in the store.
    """

    module: EagleHead

    def __init__(
        self,
        config: EagleConfig,
        settings: EagleSettings,
        run: TrainSettings,
        inputs: Inputs,
        vocabulary: DraftVocabulary,
        device: torch.device,
        *,
        compiled: bool = False,
    ) -> None:
        last = inputs.store.meta.layers[-1]
        layers = config.capture if last in config.capture else (*config.capture, last)
        super().__init__(run, inputs, vocabulary, device, layers, reach=max(settings.depth, GAMMA))
        self._config, self._settings = config, settings
        self._rows = self._target_rows()
        self._random = torch.Generator(device=device).manual_seed(run.seed)
        self._unroll: Callable[..., list[Tensor]] = torch.compile(unroll, dynamic=True) if compiled else unroll
        self.module = EagleHead(config).to(device)

    @torch.no_grad()
    def start(self) -> None:
        """Put the head where it is the ridge regression onto the target's next feature: `fc` solves it, residual branches
        are zero.

        The rest is drawn from a generator with the run's seed.
        """
        generator = torch.Generator().manual_seed(self.run.seed)
        for name, weight in self.module.named_parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[1] ** -0.5)
            elif name.endswith("bias"):
                weight.zero_()
            else:
                weight.fill_(1.0)
        layer = self.module.layer
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        if self._config.own_head:
            self.module.lm_head.weight.copy_(self._rows)
        if self._config.context_rows:
            self.module.context_proj.weight.copy_(torch.eye(self._config.hidden_size))
        if self._config.layout == "eagle3":
            self.module.norm.weight.copy_(self.inputs.weights.norm)
        width = self._config.hidden_size
        ridge = Ridge(self.module.fc.in_features, width)
        for batch in self._start_slots():
            embeddings, features, following, known = self._inputs(batch)
            # The next feature exists for all slots but the last.
            known = known[:, :-1]
            x = features if self._config.layout == "eagle3" else torch.cat([embeddings, features], -1)
            ridge.add(x[:, :-1][known], following[:, 1:][known])
        self.module.fc.weight.copy_(ridge.solve().to(self.module.fc.weight.device))

    def _inputs(self, batch: SlotBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embeddings and features of the slots, the feature that the output should be (one slot later), and which slots count."""
        embeddings = F.embedding(batch.tokens[:, 1:], self.inputs.weights.embedding)
        final = batch.features[:, :, -1]
        if self._config.layout == "eagle":
            feature = self.inputs.weights.normed(final)
            return embeddings, feature, feature, batch.labels_at(0) >= 0
        taken = batch.features[:, :, : len(self._config.capture)].flatten(2)
        return embeddings, taken, final, batch.labels_at(0) >= 0

    def loss(self, batch: np.ndarray) -> StepLoss:
        slots = self._loader.load(batch)
        embeddings, features, following, _ = self._inputs(slots)
        settings = self._settings
        if settings.noise:
            shift = torch.rand(features.shape, generator=self._random, device=features.device) - 0.5
            features = features + settings.noise * shift
        anchors = _anchors(slots)
        outputs = self._unroll(self.module, embeddings, self.module.fuse(features), settings.depth, anchors)
        draftable, table = self._draftable(slots)
        total = following.new_zeros(())
        tokens = matched = 0
        weight_sum = 0.0
        for depth, a in enumerate(outputs):
            labels = slots.labels_at(depth).gather(1, anchors)
            known = labels >= 0
            count = max(1, int(known.sum()))
            hidden = self.module.head_input(a[known])
            found = self._head_loss(hidden, table, labels[known], settings.top, draftable, _barred(draftable, known, anchors))
            weight = settings.decay**depth
            total = total + weight * settings.ce_weight * found.loss / count
            if settings.feature_weight:
                total = total + weight * settings.feature_weight * _feature_loss(a, following, known, anchors + depth + 1)
            weight_sum += weight
            if depth == 0:
                tokens, matched = int(known.sum()), int(found.matches)
        return StepLoss(total / weight_sum, tokens, matched)

    def _draftable(self, slots: SlotBatch) -> tuple[BatchVocabulary, Tensor]:
        own = self.module.lm_head.weight if self._config.own_head else self._rows
        return self._with_context(slots, own, self.module.context_proj if self._config.context_rows else None)

    def _drafts(self, slots: SlotBatch) -> list[Tensor]:
        embeddings, features, _, _ = self._inputs(slots)
        drafts = []
        anchors = _anchors(slots)
        draftable, table = self._draftable(slots)
        for depth, a in enumerate(unroll(self.module, embeddings, self.module.fuse(features), GAMMA - 1, anchors)):
            labels = slots.labels_at(depth)
            known = labels.gather(1, anchors) >= 0
            logits = self.module.head_input(a[known]) @ table.T
            best = self._best(logits, known, draftable, _barred(draftable, known, anchors))
            drafts.append(torch.full(labels.shape, -1).scatter_(1, anchors.cpu(), best))
        return drafts


def _anchors(slots: SlotBatch) -> Tensor:
    """[batch, anchors] the slots that predict a text's answer, as many as the longest has; behind them slots without a label."""
    known = slots.labels_at(0) >= 0
    count = int(known.sum(1).max())
    first = known.byte().argmax(1)
    return (first[:, None] + torch.arange(count, device=first.device)).clamp(max=known.shape[1] - 1)


def _barred(draftable: BatchVocabulary, known: Tensor, anchors: Tensor) -> Tensor:
    """What the known anchors cannot draft: a slot's draft begins behind the token that follows its position."""
    texts, places = known.nonzero(as_tuple=True)
    return draftable.barred(texts, anchors[texts, places] + 1)


def _feature_loss(a: Tensor, following: Tensor, known: Tensor, slots: Tensor) -> Tensor:
    """SmoothL1 between a and the target's feature that it stands for, that of these slots [batch, anchors]."""
    inside = known & (slots < following.shape[1])
    expected = take_slots(following, slots.clamp(max=following.shape[1] - 1))
    return F.smooth_l1_loss(a[inside].float(), expected[inside])

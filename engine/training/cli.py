"""The command line: `python -m engine.training generate | features | eagle | medusa | draft-model | evaluate`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from engine.config import EngineConfig
from engine.devices import choose_device
from engine.engine import Engine
from engine.errors import DraftboardError, InvalidRequestError, UserError
from engine.loading import load_parts
from engine.models.loader import locate
from engine.models.medusa_heads import MedusaConfig
from engine.threads import default_threads
from engine.training.documents import read_documents
from engine.training.draft_model import DraftModelSettings, DraftModelTrainee
from engine.training.eagle import EagleSettings, EagleTrainee, eagle_config
from engine.training.earlier import Earlier
from engine.training.evaluate import evaluate as evaluate_folder
from engine.training.examples import HELD_OUT_EVERY, load_texts
from engine.training.features import TOP, default_layers, extract_features
from engine.training.generate import GenerateSettings, generate_texts
from engine.training.inputs import Inputs, load_inputs
from engine.training.loop import History, TrainSettings, train
from engine.training.medusa import MedusaTrainee
from engine.training.prompt_mix import PromptMix
from engine.training.saving import make_card, save_draft_model, save_eagle, save_medusa
from engine.training.trainee import SlotTrainee
from engine.training.vocabulary import DraftVocabulary

cli = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Make drafters for a target model.", pretty_exceptions_enable=False
)

Model = Annotated[str, typer.Option(help="The target: 'embedded', a folder or a Hugging Face id.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int, typer.Option(help="Threads of torch; 0: as many cores as the process may use.")]
Data = Annotated[list[Path], typer.Option(help="npz files of texts, or folders of such; give it again for more.")]
Features = Annotated[Path, typer.Option(help="Folder of stored features.")]
Out = Annotated[Path, typer.Option(help="Folder to write into.")]
MaxLength = Annotated[int, typer.Option(help="Cut texts to so many tokens.")]
Minutes = Annotated[float, typer.Option(help="Budget of training time.")]
Steps = Annotated[int, typer.Option(help="Optimiser steps instead of a budget: repeats a run exactly.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")]
Begin = Annotated[Path | None, typer.Option("--from", help="Start from this earlier result and its vocabulary.")]
Seed = Annotated[int, typer.Option(help="Of data order and of everything drawn.")]
Lr = Annotated[float, typer.Option(help="Learning rate of AdamW.")]
MuonLr = Annotated[float, typer.Option(help="Learning rate of Muon for inner matrices; 0: AdamW trains them too.")]
BatchTokens = Annotated[int, typer.Option(help="Tokens of a batch.")]
VocabSize = Annotated[int, typer.Option(help="Rows of the drafting head: the most frequent tokens; 0: all.")]
EvaluateEvery = Annotated[int, typer.Option(help="Steps between measures on held-out texts (and checkpoints).")]
HeldOut = Annotated[int, typer.Option(help="Hold out one text in so many.")]


@cli.command()
def generate(
    out: Out,
    model: Model = "embedded",
    answer_tokens: Annotated[int, typer.Option(help="Stop behind so many tokens of answers.")] = 1_000_000,
    batch: Annotated[int, typer.Option(help="Answers written at once.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 256,
    own_prompts: Annotated[
        float, typer.Option(help="Share of prompts that the target writes itself; the others are templates.")
    ] = 0.5,
    documents: Annotated[
        list[Path] | None, typer.Option(help="A folder whose Python files and prose make prompts; give it again for more.")
    ] = None,
    documented: Annotated[float, typer.Option(help="Share of prompts made from documents.")] = 0.3,
    shard: Annotated[int, typer.Option(help="Prompts of a file; a killed run loses at most one file.")] = 1024,
    seed: Seed = 1,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Let the target answer templates, messages of its own and prompts from documents; run again to go on."""
    config = EngineConfig(
        model, "none", "none", "none", device=device, threads=threads, max_batch_size=batch, max_model_len=_context(model, 2048)
    )
    engine = Engine(config)
    mix = PromptMix(own_prompts, documented, read_documents(documents)) if documents else PromptMix(own_prompts)
    settings = GenerateSettings(answer_tokens, shard, max_tokens, seed, mix=mix)
    generate_texts(engine, settings, out, lambda done, of, rate: _say(
        f"{done:,} of {of:,} answer tokens, {rate:.0f} tokens/s, {max(0, of - done) / rate / 60:.0f} min left"))  # fmt: skip


@cli.command()
def features(
    data: Data,
    out: Out,
    model: Model = "embedded",
    layers: Annotated[str, typer.Option(help="0-based layers, e.g. 1,14,26,29; empty: low, middle, high and last.")] = "",
    top: Annotated[int, typer.Option(help="Best tokens kept for each answer token.")] = TOP,
    max_length: MaxLength = 1024,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a pass.")] = 1024,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Run texts through the target and store what it computes; run again to go on."""
    config = EngineConfig(model=model, device=device, threads=threads, max_model_len=_context(model, max_length + 1))
    parts = load_parts(config, lambda message, fraction: None)
    count = parts.target.decoder.spec.num_layers
    chosen = tuple(int(layer) for layer in layers.split(",")) if layers else default_layers(count)
    if any(not 0 <= layer < count for layer in chosen) or chosen[-1] != count - 1:
        raise InvalidRequestError("layers", layers, f"numbers from 0 to {count - 1}, the last of them {count - 1}")
    extract_features(parts.target, parts.info.model, parts.info.model_hash, load_texts(data, max_length), out, chosen,
                     top=top, batch_tokens=batch_tokens, progress=lambda done, of, rate: _say(
                         f"{done} of {of} texts, {rate:.0f} tokens/s"))  # fmt: skip


@cli.command()
def eagle(
    data: Data,
    features: Features,
    out: Out,
    model: Model = "embedded",
    layout: Annotated[str, typer.Option(help="eagle (EAGLE-1/2) or eagle3.")] = "eagle",
    layers: Annotated[str, typer.Option(help="EAGLE-3: stored layers to fuse; empty: all stored but the last.")] = "",
    depth: Annotated[int, typer.Option(help="Passes on the head's own output in training.")] = 3,
    feature_weight: Annotated[float, typer.Option(help="Weight of SmoothL1 on features.")] = 0.0,
    ce_weight: Annotated[float, typer.Option(help="Weight of the cross-entropy.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Uniform noise on true features.")] = 0.0,
    own_head: Annotated[bool, typer.Option(help="Train an LM head of its own; else the target's rows.")] = True,
    context_rows: Annotated[bool, typer.Option(help="Layout eagle: tokens of the context can be drafted too.")] = True,
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile (needs a C++ compiler).")] = False,
    vocab: VocabSize = 4096,
    minutes: Minutes = 20.0,
    steps: Steps = 0,
    lr: Lr = 3e-4,
    muon_lr: MuonLr = 5e-4,
    batch_tokens: BatchTokens = 1200,
    seed: Seed = 0,
    evaluate_every: EvaluateEvery = 200,
    held_out: HeldOut = HELD_OUT_EVERY,
    max_length: MaxLength = 1024,
    begin: Begin = None,
    resume: Resume = False,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Train an EAGLE head."""
    if layout not in ("eagle", "eagle3"):
        raise InvalidRequestError("layout", layout, "eagle, eagle3")
    place = _device(device, threads)
    earlier = Earlier(begin) if begin else None
    inputs = load_inputs(model, data, features, place, max_length, held_out)
    stored = inputs.store.meta.layers
    last = inputs.files.spec.num_layers - 1
    fused = tuple(int(layer) for layer in layers.split(",")) if layers else stored[:-1]
    capture = (last,) if layout == "eagle" else fused
    settings = EagleSettings(layout, depth, feature_weight=feature_weight, ce_weight=ce_weight, noise=noise, train_head=own_head)  # type: ignore[arg-type]
    run = _settings(minutes, steps, lr, muon_lr, batch_tokens, seed, evaluate_every)
    vocabulary = _vocabulary(inputs, vocab, earlier)
    config = eagle_config(
        inputs.files.spec, settings.layout, capture, len(vocabulary.token_ids), own_head, context_rows and layout == "eagle"
    )
    trainee = EagleTrainee(config, settings, run, inputs, vocabulary, place, compiled=compiled)
    history = _train(trainee, out, resume, earlier)
    save_eagle(trainee.module, vocabulary, _card("eagle", trainee, history, asdict(settings), earlier), out)


@cli.command()
def medusa(
    data: Data,
    features: Features,
    out: Out,
    model: Model = "embedded",
    heads: Annotated[int, typer.Option(help="Tokens predicted behind the root.")] = 4,
    shared_head: Annotated[bool, typer.Option(help="One LM head for all heads (low cost).")] = True,
    vocab: VocabSize = 4096,
    minutes: Minutes = 10.0,
    steps: Steps = 0,
    lr: Lr = 1e-3,
    muon_lr: MuonLr = 2e-3,
    batch_tokens: BatchTokens = 2400,
    seed: Seed = 0,
    evaluate_every: EvaluateEvery = 200,
    held_out: HeldOut = HELD_OUT_EVERY,
    max_length: MaxLength = 1024,
    begin: Begin = None,
    resume: Resume = False,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Train Medusa heads."""
    place = _device(device, threads)
    earlier = Earlier(begin) if begin else None
    inputs = load_inputs(model, data, features, place, max_length, held_out)
    run = _settings(minutes, steps, lr, muon_lr, batch_tokens, seed, evaluate_every)
    vocabulary = _vocabulary(inputs, vocab, earlier)
    spec = inputs.files.spec
    config = MedusaConfig(spec.hidden_size, spec.vocab_size, len(vocabulary.token_ids), heads, 1, shared_head)
    trainee = MedusaTrainee(config, run, inputs, vocabulary, place)
    history = _train(trainee, out, resume, earlier)
    card = _card("medusa", trainee, history, asdict(config), earlier)
    card["rank_rates"] = [[round(rate, 5) for rate in head] for head in trainee.rank_rates()]
    save_medusa(trainee.module, vocabulary, card, out)


@cli.command("draft-model")
def draft_model(
    data: Data,
    features: Features,
    out: Out,
    model: Model = "embedded",
    layers: Annotated[str, typer.Option(help="The target's layers that it is made of.")] = "0,1,2,3",
    vocab: VocabSize = 4096,
    minutes: Minutes = 20.0,
    steps: Steps = 0,
    lr: Lr = 1e-3,
    muon_lr: MuonLr = 2e-3,
    batch_tokens: BatchTokens = 2400,
    seed: Seed = 0,
    evaluate_every: EvaluateEvery = 200,
    held_out: HeldOut = HELD_OUT_EVERY,
    max_length: MaxLength = 1024,
    begin: Begin = None,
    resume: Resume = False,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Cut a draft model out of the target and distil it."""
    place = _device(device, threads)
    earlier = Earlier(begin) if begin else None
    inputs = load_inputs(model, data, features, place, max_length, held_out)
    run = _settings(minutes, steps, lr, muon_lr, batch_tokens, seed, evaluate_every)
    settings = DraftModelSettings(tuple(int(layer) for layer in layers.split(",")))
    vocabulary = _vocabulary(inputs, vocab, earlier)
    trainee = DraftModelTrainee(settings, run, inputs, vocabulary, place)
    history = _train(trainee, out, resume, earlier)
    card = _card("draft_model", trainee, history, asdict(settings), earlier)
    save_draft_model(trainee.module, trainee.config, vocabulary, card, out)


@cli.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Of a trained drafter.")],
    data: Data,
    features: Features,
    model: Model = "embedded",
    max_length: MaxLength = 1024,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Measure a trained drafter on other texts and write that on its card."""
    place = _device(device, threads)
    found = evaluate_folder(folder, load_inputs(model, data, features, place, max_length, HELD_OUT_EVERY), place)
    for task, walk in found.items():
        typer.echo(f"{task}: mean acceptance length {walk['mean_acceptance_length']} in {walk['steps']} steps")


def _settings(
    minutes: float, steps: int, lr: float, muon_lr: float, batch_tokens: int, seed: int, evaluate_every: int
) -> TrainSettings:
    return TrainSettings(steps=steps, minutes=minutes, lr=lr, muon_lr=muon_lr, batch_tokens=batch_tokens, seed=seed,
                         evaluate_every=evaluate_every, checkpoint_every=evaluate_every)  # fmt: skip


def _vocabulary(inputs: Inputs, size: int, earlier: Earlier | None) -> DraftVocabulary:
    return earlier.vocabulary(inputs.files.spec.vocab_size) if earlier else inputs.vocabulary(size)


def _train(trainee: SlotTrainee, out: Path, resume: bool, earlier: Earlier | None) -> History:
    if earlier and not resume:
        earlier.fill(trainee.module)
    elif not resume:
        trainee.start()
    return train(trainee, trainee.run, out, resume, lambda history, line: _say(line))


def _card(
    drafter: str, trainee: SlotTrainee, history: History, details: dict[str, Any], earlier: Earlier | None
) -> dict[str, Any]:
    parameters = sum(weight.numel() for weight in trainee.module.parameters() if weight.requires_grad)
    card = make_card(drafter, trainee.inputs, trainee.run, history, details, parameters)
    return card | {"from": earlier.summary} if earlier else card


def _context(model: str, most: int) -> int:
    """So many tokens, or the model's own context where that is shorter."""
    return min(most, locate(model, lambda message, fraction: None).spec.max_position_embeddings)


def _device(name: str, threads: int) -> torch.device:
    torch.set_num_threads(threads or default_threads())
    return choose_device(name)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def main() -> None:
    """Run; a user's mistake is one line on stderr and exit code 2, a failure 1."""
    try:
        cli()
    except DraftboardError as error:
        _say(str(error))
        sys.exit(2 if isinstance(error, UserError) else 1)

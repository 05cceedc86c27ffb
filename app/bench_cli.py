"""`python -m app bench …`: the figures that the documentation quotes, for anyone to repeat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.cli_common import engine_flags, engine_options
from app.settings import load_settings
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from engine.engine import Engine

bench_app = typer.Typer(help="Measure this machine, the engine and a peer.", no_args_is_help=True)

PROMPTS = (
    "Write a Python class for a bank account with deposit, withdraw and a history of transactions.",
    "Explain to a child why ships float although they are made of steel.",
    "A train leaves at 9:40 and arrives at 13:05 with two stops of 7 minutes. How long does it move?",
    "Summarize: The library will close for repairs in May. Readers may keep their books until June, and a van will visit the "
    "villages on Tuesdays. The reading room reopens with longer hours and a new garden.",
)

Rounds = Annotated[int, typer.Option(help="Rounds, each measuring everything once.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@bench_app.command()
@engine_options
def decode(
    ctx: typer.Context,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8,32",
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 96,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Plain decoding against transformers' generate in fp32 and bf16, same prompts, interleaved; greedy, prefill included."""
    from app.peer import transformers_rates
    from engine.benchmark import decode_rate, interleaved, summary

    config = _config(ctx)
    engine = _load(config)
    peers = transformers_rates(config.model, PROMPTS, tokens, engine.info.threads)
    rows = []
    for size in _numbers(batch):
        measures = {"draftboard": decode_rate(engine, PROMPTS, size, tokens, DrafterSpec("null", 0))}
        measures |= {f"transformers {name}": rate(size) for name, rate in peers.items()}
        values = {name: summary(v) for name, v in interleaved(measures, rounds).items()}
        best = max(v["median"] for name, v in values.items() if name != "draftboard")
        rows.append({"batch_size": size, "tokens_per_s": values, "ratio": values["draftboard"]["median"] / best})
    _show(json, {"dtype": engine.info.dtype, "threads": engine.info.threads, "tokens": tokens, "rows": rows}, _decode_table(rows))


@bench_app.command()
@engine_options
def floor(
    ctx: typer.Context,
    context: Annotated[int, typer.Option(help="Tokens of KV behind the pass.")] = 128,
    rounds: Rounds = 15,
    json: Json = False,
) -> None:
    """One target pass against the memory floor (weight bytes over read bandwidth), and what verifying more tokens costs."""
    from engine.benchmark import interleaved, pass_time, read_bandwidth, summary

    engine = _load(_config(ctx))
    shapes = [(1, 1), (1, 2), (1, 3), (1, 5), (1, 9), (8, 1), (8, 5), (32, 1), (32, 5)]
    measures = {"bandwidth": read_bandwidth()}
    measures |= {f"{rows}x{tokens}": pass_time(engine, rows, tokens, context) for rows, tokens in shapes}
    values = {name: summary(v) for name, v in interleaved(measures, rounds).items()}
    bandwidth = values.pop("bandwidth")["median"]
    least = engine.info.weight_bytes / bandwidth
    one = values["1x1"]["median"]
    document = {
        "dtype": engine.info.dtype,
        "threads": engine.info.threads,
        "weight_bytes": engine.info.weight_bytes,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "floor_ms": least * 1e3,
        "times_floor": one / least,
        "five_over_one": values["1x5"]["median"] / one,
        "pass_ms": {name: {key: seconds * 1e3 for key, seconds in v.items()} for name, v in values.items()},
    }
    table = Table("rows × tokens", "median ms", "least ms", "× of 1×1", title=f"One target pass, context {context}")
    for name, v in values.items():
        table.add_row(name, f"{v['median'] * 1e3:.1f}", f"{v['least'] * 1e3:.1f}", f"{v['median'] / one:.2f}")
    table.caption = f"floor {least * 1e3:.1f} ms at {bandwidth / 1e9:.1f} GB/s; one token takes {one / least:.2f} times that"
    _show(json, document, table)


@bench_app.command()
@engine_options
def exactness(
    ctx: typer.Context,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with `prompt`; the built-in presets when left out.")] = None,
    limit: Annotated[int, typer.Option(help="Most prompts, taken evenly over the tasks.")] = 40,
    tokens: Annotated[int, typer.Option(help="Most tokens of each answer.")] = 48,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    gamma: Annotated[int, typer.Option(help="Draft tokens a step.")] = 4,
    tree: Annotated[str, typer.Option(help="Sizes of EAGLE's trees, which are measured beside its chain.")] = "16,24",
    json: Json = False,
) -> None:
    """Greedy output of every lossless drafter against plain decoding, token by token; in fp32 unless --dtype says otherwise."""
    from app.prompt_files import builtin_prompts, read_prompts, spread_over_tasks
    from engine.benchmark import exactness as measure

    engine = _load(_config(ctx, dtype="fp32"))
    chosen = spread_over_tasks(builtin_prompts() if prompts is None else read_prompts(prompts), limit)
    requests = [GenerationRequest(p.prompt, sampling=SamplingParams(max_tokens=tokens)) for p in chosen]
    specs = [DrafterSpec(d.name, gamma) for d in engine.info.drafters if d.available and d.lossless]
    has_eagle = any(spec.name == "eagle" for spec in specs)
    specs += [DrafterSpec("eagle", gamma, {"total_tokens": size}) for size in _numbers(tree) if has_eagle]
    rows = measure(engine, requests, specs, _numbers(batch))
    table = Table("drafter", "batch", "equal", "of", "tokens", "first differences (position, logit gap)", title=engine.info.dtype)
    for row in rows:
        places = ", ".join(f"{d.position} ({'?' if d.gap is None else format(d.gap, '.3f')})" for d in row["differences"])
        name = " ".join([row["drafter"], *(f"{option}={value}" for option, value in row["options"].items())])
        table.add_row(name, str(row["batch_size"]), str(row["equal"]), str(row["prompts"]), str(row["tokens"]), places)
    _show(json, {"dtype": engine.info.dtype, "gamma": gamma, "rows": rows}, table)


def _config(ctx: typer.Context, **defaults: str) -> EngineConfig:
    """The engine that the command line and the environment ask for; `defaults` where the command line says nothing."""
    given = {name: value for name, value in engine_flags(ctx).items() if value is not None}
    return load_settings(**{**defaults, **given}).engine_config()


def _load(config: EngineConfig) -> Engine:
    # Imported here: torch takes seconds, and `--help` does not need it.
    from engine.engine import Engine

    return Engine(config)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as fault:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 1,8,32") from fault


def _decode_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("batch", *rows[0]["tokens_per_s"], "ratio to the better", title="Tokens/s, median (least–largest)")
    for row in rows:
        cells = [f"{v['median']:.1f} ({v['least']:.1f}–{v['largest']:.1f})" for v in row["tokens_per_s"].values()]
        table.add_row(str(row["batch_size"]), *cells, f"{row['ratio']:.2f}×")
    return table


def _show(json: bool, document: dict[str, Any], table: Table) -> None:
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        Console().print(table)

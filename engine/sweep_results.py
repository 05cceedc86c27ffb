"""From measurements to cells: speed-ups with intervals, acceptance, time split, KV bytes, waste."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.sweep_cell import PARTS, Measurement
from engine.sweep_counts import Counts, add_up

RESAMPLES = 2000
Array = NDArray[np.float64]


class CellKey(NamedTuple):
    """Which cell: drafter with its settings, draft length, batch size."""

    drafter: str
    gamma: int
    options: tuple[tuple[str, Any], ...]
    batch_size: int

    @property
    def line(self) -> CellKey:
        """The curve that the cell belongs to: batch size 0."""
        return self._replace(batch_size=0)

    @property
    def label(self) -> str:
        """Drafter and draft length for people.

        Example: ngram, 4 → "ngram γ=4".
        """
        settings = "".join(f" {name}={value}" for name, value in self.options)
        return self.drafter if self.drafter == "null" else f"{self.drafter} γ={self.gamma}{settings}"


def key_of(cell: Mapping[str, Any] | Measurement) -> CellKey:
    """The key of a cell or of a measurement."""
    values = cell.to_dict() if isinstance(cell, Measurement) else cell
    options = tuple(sorted(values["options"].items()))
    return CellKey(values["drafter"], values["gamma"], options, values["batch_size"])


def summarize_cells(measurements: Sequence[Measurement], seed: int = 0, resamples: int = RESAMPLES) -> list[dict[str, Any]]:
    """All cells that were measured, by batch size, the null drafter first.

    Speed-up: tokens/s of the cell over tokens/s of the null cells of the same blocks. With E tokens per row and step and S
    seconds per step, both over all full steps of those measurements, it is (E / S) / (E₀ / S₀).

    Interval (95 %, percentiles of `resamples` draws), three sources drawn together:
        prompts: bootstrap over prompts, paired: a prompt drawn k times counts k times in the cell and in its baseline (in which
            every row gives exactly one token a step, so the prompts move E more than E₀).
        step times: in each measurement up to 16 stretches of consecutive steps are drawn with replacement, S from those.
        machine: measurements of the null drafter in different blocks, same batch size, differ by more than their steps do;
            the pooled standard deviation σ of the logarithm of their S moves S / S₀ by a factor with deviation
            σ · sqrt(1 / blocks of the cell + 1 / blocks of its baseline). That takes cell and baseline of a block as
            independent, so where the machine drifts slowly the interval is wider than it need be.

    A figure that is not known (no full step, no baseline beside it) is None.
    """
    groups: dict[CellKey, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(key_of(measurement), []).append(measurement)
    baselines = {m.block: m for m in measurements if m.drafter == "null"}
    spread = machine_spread(list(baselines.values()))
    ordered = sorted(groups, key=lambda key: (key.batch_size, key.drafter != "null", key))
    return [_cell(key, groups[key], baselines, spread, seed, resamples) for key in ordered]


def machine_spread(baselines: Sequence[Measurement]) -> float:
    """Pooled standard deviation of log(seconds per step) of null measurements around the mean of their batch size."""
    by_batch: dict[int, list[float]] = {}
    for measurement in baselines:
        if measurement.steps:
            by_batch.setdefault(measurement.batch_size, []).append(math.log(measurement.seconds / measurement.steps))
    several = [np.array(values) for values in by_batch.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in several)
    return math.sqrt(squares / freedom) if freedom else 0.0


def _cell(
    key: CellKey,
    group: Sequence[Measurement],
    baselines: Mapping[int, Measurement],
    spread: float,
    seed: int,
    resamples: int,
) -> dict[str, Any]:
    counts = add_up(Counts(**m.counts) for m in group)
    chain = all(m.chain for m in group)
    steps, seconds, row_steps = sum(m.steps for m in group), sum(m.seconds for m in group), sum(m.row_steps for m in group)
    time_ms = {part: _ratio(1e3 * sum(m.time_s[part] for m in group), steps) for part in PARTS}
    figures = counts.figures(chain)
    waste, draft_ms = figures["wasted_draft_fraction"], time_ms["draft"]
    pairs = [(m, baselines[m.block]) for m in group if m.block in baselines]
    speedup = (1.0, 1.0, 1.0) if key.drafter == "null" else compare(pairs, spread, seed, resamples)
    return {
        "drafter": key.drafter,
        "gamma": key.gamma,
        "options": dict(key.options),
        "batch_size": key.batch_size,
        "tokens_per_s": _ratio(sum(m.tokens for m in group), seconds),
        "speedup": speedup[0],
        "ci_low": speedup[1],
        "ci_high": speedup[2],
        **figures,
        "by_task": _by_task(group, chain),
        "draft_ms": draft_ms,
        "verify_ms": time_ms["verify"],
        "commit_ms": time_ms["commit"],
        "other_ms": time_ms["other"],
        "step_ms": _ratio(1e3 * seconds, steps),
        "overhead_fraction": _ratio(sum(m.time_s["commit"] + m.time_s["other"] for m in group), seconds),
        "wasted_draft_ms": None if waste is None or draft_ms is None else waste * draft_ms,
        "nodes_per_row": _ratio(sum(m.nodes for m in group), row_steps),
        "context": _ratio(sum((m.context or 0.0) * m.row_steps for m in group), row_steps),
        "kv_bytes": {owner: max(m.kv_bytes[owner] for m in group) for owner in group[0].kv_bytes},
        "fill_s": sum(m.fill_s for m in group),
        "n": {
            "measurements": len(group),
            "steps": steps,
            "tokens": sum(m.tokens for m in group),
            "prompts": len({(p["task"], p["id"]) for m in group for p in m.prompts}),
        },
        "preemptions": sum(m.preemptions for m in group),
        "prompts_reused": sum(m.prompts_reused for m in group),
    }


def compare(
    pairs: Sequence[tuple[Measurement, Measurement]], spread: float, seed: int, resamples: int = RESAMPLES
) -> tuple[float | None, float | None, float | None]:
    """Speed-up of cells over the baselines of their blocks with its interval (see `summarize_cells`)."""
    pairs = [(cell, base) for cell, base in pairs if cell.steps and base.steps]
    if not pairs:
        return None, None, None
    cells, bases = [cell for cell, _ in pairs], list({base.block: base for _, base in pairs}.values())
    prompts = sorted({_prompt_key(m, p) for m in (*cells, *bases) for p in m.prompts})
    tables = [_by_prompt(side, prompts) for side in (cells, bases)]
    steps = [np.array([[m.steps, m.seconds] for m in side], dtype=float).sum(axis=0) for side in (cells, bases)]
    rates = [table[:, 0].sum() / table[:, 1].sum() * step[0] / step[1] for table, step in zip(tables, steps, strict=True)]
    rng = np.random.default_rng([seed, len(prompts), cells[0].batch_size, cells[0].gamma])
    drawn = rng.multinomial(len(prompts), np.full(len(prompts), 1 / len(prompts)), size=resamples).astype(float)
    yields = [(drawn @ table[:, 0]) / np.maximum(drawn @ table[:, 1], 1e-12) for table in tables]
    times = [sum(_draw_steps(m, rng, resamples) for m in side) for side in (cells, bases)]
    seconds = [np.asarray(part)[:, 1] / np.asarray(part)[:, 0] for part in times]
    machine = np.exp(rng.normal(0.0, 1.0, resamples) * spread * math.sqrt(1 / len(cells) + 1 / len(bases)))
    ratios = yields[0] / np.maximum(yields[1], 1e-12) * seconds[1] / seconds[0] * machine
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(rates[0] / rates[1]), float(low), float(high)


def _prompt_key(measurement: Measurement, prompt: Mapping[str, Any]) -> tuple[int, str, str]:
    return measurement.repeat, prompt["task"], prompt["id"]


def _by_prompt(side: Sequence[Measurement], prompts: Sequence[tuple[int, str, str]]) -> Array:
    """[prompts, 2]: tokens and row-steps of each prompt."""
    place = {prompt: i for i, prompt in enumerate(prompts)}
    table = np.zeros((len(prompts), 2))
    for measurement in side:
        for prompt in measurement.prompts:
            table[place[_prompt_key(measurement, prompt)]] += prompt["tokens"], prompt["row_steps"]
    return table


def _draw_steps(measurement: Measurement, rng: np.random.Generator, resamples: int) -> Array:
    """[resamples, 2]: steps and seconds of stretches drawn with replacement."""
    chunks = np.array(measurement.chunks, dtype=float)
    drawn: Array = rng.multinomial(len(chunks), np.full(len(chunks), 1 / len(chunks)), size=resamples) @ chunks
    return drawn


def _by_task(group: Sequence[Measurement], chain: bool) -> dict[str, dict[str, Any]]:
    tasks = sorted({task for m in group for task in m.counts_by_task})
    rows: dict[str, dict[str, Any]] = {}
    for task in tasks:
        counts = add_up(Counts(**m.counts_by_task[task]) for m in group if task in m.counts_by_task)
        rows[task] = {"num_output_tokens": counts.tokens, **counts.figures(chain)}
    return rows


def _ratio(count: float, total: float) -> float | None:
    return count / total if total else None

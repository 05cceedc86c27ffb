"""What people and models may give: sampling settings and rows of logits, the odd ones above all."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from engine.config import SamplingParams

_LARGEST = 2.0**127
_SMALLEST = math.ulp(0.0)  # of fp64: nothing in fp32


def sampling_params(greedy: bool = True, max_tokens: int = 8) -> st.SearchStrategy[SamplingParams]:
    """Every setting that a request may have; `greedy`: temperature 0 too."""
    temperatures = st.one_of(
        st.sampled_from([_SMALLEST, 1e-45, 1e-30, 0.5, 1.0, 10.0, *([0.0] if greedy else [])]),
        st.floats(0.0, 10.0, exclude_min=True),
    )
    top_ps = st.one_of(st.sampled_from([_SMALLEST, 1e-46, 1e-45, 1e-38, 0.5, 1.0]), st.floats(0.0, 1.0, exclude_min=True))
    top_ks = st.one_of(st.sampled_from([0, 1, 2, 320, 1_000_000]), st.integers(0, 400))
    return st.builds(SamplingParams, temperatures, top_ks, top_ps, st.integers(0, 2**63 - 1), st.just(max_tokens))


def logit_rows(max_size: int = 40) -> st.SearchStrategy[Tensor]:
    """A row [1, vocab] of logits with a finite maximum: ties, minus infinity, numbers at the ends of fp32."""
    usual = st.floats(-50.0, 50.0, width=32)
    odd = st.sampled_from([0.0, -0.0, -math.inf, _LARGEST, -_LARGEST, 1e-45])
    rows = st.one_of(
        st.lists(st.one_of(usual, odd), min_size=1, max_size=max_size),
        st.builds(lambda value, count: [value] * count, usual, st.integers(1, max_size)),
    )
    return rows.filter(lambda row: max(row) > -math.inf).map(lambda row: torch.tensor([row], dtype=torch.float32))

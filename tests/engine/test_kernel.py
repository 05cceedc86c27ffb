"""Which kernel a dtype, a device and a model get."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InvalidRequestError
from engine.models.kernel import PLAIN_FP32, TILES, VECTORS, choose_kernel, has_tiles
from tests.engine.stubs import tiny_spec

CPU = torch.device("cpu")
WIDE, NARROW = tiny_spec(head_dim=32), tiny_spec(head_dim=16)


def test_the_cpu_gets_the_compiled_pass_where_the_heads_allow_it() -> None:
    fastest = TILES if has_tiles() else VECTORS
    assert choose_kernel("auto", CPU, WIDE) == choose_kernel("bf16", CPU, WIDE) == fastest
    assert choose_kernel("auto", CPU, NARROW) == PLAIN_FP32
    kernel = choose_kernel("bf16", CPU, NARROW)
    assert (kernel.name, kernel.weight, kernel.kv) == ("plain", torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_fp32_is_plain_everywhere(device: str) -> None:
    assert choose_kernel("fp32", torch.device(device), WIDE) == PLAIN_FP32


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        ("auto", "cuda", torch.bfloat16),
        ("fp16", "cuda", torch.float16),
        ("auto", "mps", torch.float16),
        ("fp16", "mps", torch.float16),
    ],
)
def test_other_devices_take_half_precision(dtype: str, device: str, expected: torch.dtype) -> None:
    kernel = choose_kernel(dtype, torch.device(device), WIDE)
    assert (kernel.name, kernel.weight, kernel.activation, kernel.kv) == ("plain", expected, expected, expected)


def test_fp16_on_the_cpu_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(InvalidRequestError, match="fp16.*auto, fp32 or bf16 on the CPU"):
        choose_kernel("fp16", CPU, WIDE)

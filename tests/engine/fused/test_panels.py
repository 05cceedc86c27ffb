"""The layout of packed weights, and of keys and values in the cache."""

from __future__ import annotations

import numpy as np
import torch

from engine.models.fused.kv_blocks import PanelCache, key_place, value_place
from engine.models.fused.panels import aligned, bf16_bits, pack, pack_pair, padded
from tests.engine.stubs import tiny_spec


def unpacked(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_bf16_bits_are_torchs_rounding() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1)) * 3
    expected = values.bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(bf16_bits(values.numpy()), expected)
    ties = np.array([1.00390625, 1.01171875], np.float32)  # half-way between two bf16: to the even one
    assert bf16_bits(ties).tolist() == [0x3F80, 0x3F82]


def test_a_panel_holds_sixteen_columns_with_neighbouring_k_side_by_side() -> None:
    weight = np.arange(20 * 40, dtype=np.float32).reshape(20, 40) % 251
    packed = pack(weight, np.arange(20, dtype=np.float32))
    assert (packed.panels, packed.blocks) == (2, 2)
    grid = unpacked(packed.data).reshape(2, 32, 16, 2)
    for column, k in ((0, 0), (5, 7), (19, 39)):
        assert grid[column // 16, k // 2, column % 16, k % 2] == weight[column, k]
    assert not grid[1, :, 4:].any() and not grid[:, 20:].any(), "padding is zero"
    assert packed.bias is not None and packed.bias.tolist() == [*range(20), *[0] * 12]
    assert packed.data.ctypes.data % 64 == 0


def test_a_pair_of_matrices_alternates_panel_by_panel() -> None:
    gate, up = np.full((32, 32), 1.0, np.float32), np.full((32, 32), 2.0, np.float32)
    packed = pack_pair(gate, up, np.full(32, 3.0, np.float32), np.full(32, 4.0, np.float32))
    assert unpacked(packed.data).reshape(4, -1).mean(1).tolist() == [1, 2, 1, 2]
    assert packed.bias is not None and packed.bias.reshape(4, 16).mean(1).tolist() == [3, 4, 3, 4]


def test_sizes_are_rounded_up() -> None:
    assert [padded(size, 32) for size in (1, 32, 33)] == [32, 32, 64]


def test_memory_starts_at_a_cache_line_and_is_zero() -> None:
    for count in (3, 5000):
        block = aligned(count, np.float32)
        assert block.ctypes.data % 64 == 0 and len(block) == count and not block.any()


def test_every_place_of_a_lane_is_one_key_and_one_value() -> None:
    keys = {key_place.py_func(slot, pair, 64) + odd for slot in range(64) for pair in range(32) for odd in (0, 1)}
    values = {value_place.py_func(slot, dim, 64) for slot in range(64) for dim in range(64)}
    assert keys == values == set(range(64 * 64))


def test_moving_slots_takes_keys_and_values_along() -> None:
    cache = PanelCache(tiny_spec(head_dim=32), 2, 128)
    lane = cache.data[:, :, 1]
    for slot in (29, 31, 40):
        for dim in range(32):
            key = key_place.py_func(slot, dim // 2, 32) + dim % 2
            lane[:, 0].flatten(-2)[..., key] = slot
            lane[:, 1].flatten(-2)[..., value_place.py_func(slot, dim, 32)] = slot + 0.5
    cache.move(1, [29, 31, 40], 30)
    for place, slot in ((30, 29), (31, 31), (32, 40)):
        for dim in range(32):
            key = key_place.py_func(place, dim // 2, 32) + dim % 2
            assert (lane[:, 0].flatten(-2)[..., key] == slot).all()
            assert (lane[:, 1].flatten(-2)[..., value_place.py_func(place, dim, 32)] == slot + 0.5).all()
    assert not cache.data[:, :, 0].any()

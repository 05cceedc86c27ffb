"""Keys and values: where they are written, that reading copies nothing, and that the memory goes back."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest
import torch
from torch import Tensor

from engine.errors import BatchTooLargeError
from engine.kv_cache import KVArena, KVCache
from engine.models.fused.kv_blocks import PanelCache
from tests.engine.stubs import tiny_spec

CPU = torch.device("cpu")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives pages back one by one")


def make_cache(lanes: int = 3, lane_tokens: int = 256, dtype: torch.dtype = torch.float32, **spec: int) -> KVCache:
    return KVCache(tiny_spec(**spec), lanes, lane_tokens, dtype, CPU)


def rows_of(cache: KVCache, lane: int, slots: list[int]) -> Tensor:
    heads = cache.data.shape[3]
    return torch.tensor([(lane * heads + head) * cache.lane_tokens + slot for slot in slots for head in range(heads)])


def resident_pages(block: Tensor) -> int:
    """Pages of a contiguous tensor that are in memory, whole pages only."""
    begin = -(-block.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (block.data_ptr() + block.numel() * block.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    flags = (ctypes.c_ubyte * ((end - begin) // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), flags) == 0, ctypes.get_errno()
    return sum(flag & 1 for flag in flags)


def lane_pages(cache: KVCache, lane: int) -> int:
    layers, pair = cache.data.shape[:2]
    return sum(resident_pages(cache.data[layer, half, lane]) for layer in range(layers) for half in range(pair))


def test_what_was_written_is_read_at_the_same_lane_head_and_slot() -> None:
    cache = make_cache()
    keys, values = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    cache.write(1, rows_of(cache, 2, [0, 5, 200]), keys, values)
    read_keys, read_values = cache.read(1, 2, 1, 201)
    assert torch.equal(read_keys[0, :, [0, 5, 200]].transpose(0, 1), keys)
    assert torch.equal(read_values[0, :, [0, 5, 200]].transpose(0, 1), values)
    assert int(cache.data.count_nonzero()) == keys.numel() + values.numel(), "nothing else was touched"


def test_a_pass_writes_to_several_lanes_at_once() -> None:
    cache = make_cache()
    keys, values = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    cache.write(0, torch.cat([rows_of(cache, 0, [7]), rows_of(cache, 1, [9])]), keys, values)
    assert torch.equal(cache.data[0, 0, 0, :, 7], keys[0])
    assert torch.equal(cache.data[0, 1, 1, :, 9], values[1])


def test_reading_neighbouring_lanes_gives_views_not_copies() -> None:
    cache = make_cache()
    keys, values = cache.read(1, 1, 2, 10)
    assert keys.shape == values.shape == (2, 2, 10, 8)
    assert keys.data_ptr() == cache.data[1, 0, 1].data_ptr()
    assert values.data_ptr() == cache.data[1, 1, 1].data_ptr()
    cache.data[1, 0, 2, 1, 9] = 3.0
    assert bool((keys[1, 1, 9] == 3.0).all()), "a later write shows in an earlier read"


def test_a_slot_never_written_reads_as_zero() -> None:
    keys, values = make_cache().read(0, 0, 3, 256)
    assert not keys.any()
    assert not values.any()


def test_bytes_of_a_token_count_keys_and_values_of_all_layers_and_heads() -> None:
    assert tiny_spec().kv_bytes_per_token(4) == 2 * 2 * 2 * 8 * 4
    assert tiny_spec().kv_bytes_per_token(2) == 2 * 2 * 2 * 8 * 2


def test_an_accepted_path_moves_to_consecutive_slots_in_every_layer() -> None:
    cache = make_cache()
    cache.data.copy_(torch.randn(cache.data.shape))
    before = cache.data.clone()
    # Sources and target overlap: slot 12 is written before slot 14 is done, so a copy slot by slot must not read it again.
    cache.move(1, [12, 13, 17], 11)
    expected = before.clone()
    expected[:, :, 1, :, 11:14] = before[:, :, 1, :, [12, 13, 17]]
    assert torch.equal(cache.data, expected)


@on_linux
def test_reserved_address_space_is_not_memory_until_a_token_is_written() -> None:
    cache = make_cache(lanes=64, lane_tokens=1 << 16)
    arena = cache.data.numel() * cache.data.element_size()
    assert arena > 1 << 29
    assert resident_pages(cache.data[0, 0, 0]) == 0
    cache.write(0, rows_of(cache, 0, [0]), torch.ones(1, 2, 8), torch.ones(1, 2, 8))
    assert resident_pages(cache.data[0, 0, 0]) == 2, "one page a KV head, whatever the system's huge pages are set to"


@on_linux
@pytest.mark.parametrize("lane", [0, 1, 2])
def test_closing_a_lane_gives_its_memory_back_and_leaves_its_neighbours(lane: int) -> None:
    cache = make_cache(lane_tokens=1024)
    cache.data.fill_(1.0)
    full = lane_pages(cache, lane)
    assert full == 2 * 2 * 2 * 1024 * 8 * 4 // mmap.PAGESIZE
    cache.release(lane, 1024)
    assert lane_pages(cache, lane) == 0
    assert [lane_pages(cache, other) for other in range(3) if other != lane] == [full, full]
    assert not cache.data[:, :, lane].any(), "the next sequence of this lane finds zeros"
    assert bool((cache.data[:, :, [other for other in range(3) if other != lane]] == 1.0).all())


@on_linux
def test_memory_of_rejected_drafts_behind_the_kept_tokens_goes_back_too() -> None:
    cache = make_cache(lane_tokens=4096)
    slots = list(range(1000))
    for layer in range(2):
        cache.write(layer, rows_of(cache, 1, slots), torch.ones(1000, 2, 8), torch.ones(1000, 2, 8))
    assert lane_pages(cache, 1) > 0
    cache.release(1, 1000)
    assert lane_pages(cache, 1) == 0


@on_linux
def test_a_lane_that_shares_pages_with_its_neighbours_gives_back_only_its_own() -> None:
    cache = make_cache(lane_tokens=64 * 5, dtype=torch.bfloat16, head_dim=10, num_kv_heads=1)
    size = 64 * 5 * 10 * 2
    assert size % mmap.PAGESIZE, "the case is about lanes that do not end at a page"
    cache.data.fill_(1.0)
    assert lane_pages(cache, 1) > 0
    cache.release(1, 64 * 5)
    assert bool((cache.data[:, :, [0, 2]] == 1.0).all())
    assert lane_pages(cache, 1) == 0
    assert not cache.data[:, :, 1].any(), "the next sequence of this lane finds zeros"


@pytest.mark.parametrize("layout", [KVCache, PanelCache])
def test_a_closed_lane_reads_as_zeros_where_pages_cannot_go_back(monkeypatch: pytest.MonkeyPatch, layout: type[KVArena]) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    spec = tiny_spec(head_dim=32)
    cache = PanelCache(spec, 3, 128) if layout is PanelCache else KVCache(spec, 3, 128, torch.float32, CPU)
    cache.data.fill_(torch.nan)
    # Of a longer lane only what was written is touched: the rest would become real memory.
    cache.release(1, 50)
    if isinstance(cache, PanelCache):
        assert not cache.keys(1).flatten(2, 3)[:, :, :64].any() and not cache.values(1).flatten(2, 4)[:, :, :64].any()
    else:
        assert not cache.data[:, :, 1, :, :64].any()
    assert int(cache.data[:, :, 1].isnan().sum()) == cache.data[:, :, 1].numel() // 2
    assert bool(cache.data[:, :, [0, 2]].isnan().all())


@on_linux
def test_more_lanes_than_there_is_address_space_are_a_mistake_that_can_be_mended() -> None:
    with pytest.raises(
        BatchTooLargeError, match=r"GiB of address space for 1048576 sequences of .* --max-batch or --max-model-len"
    ):
        make_cache(lanes=1 << 20, lane_tokens=1 << 24)

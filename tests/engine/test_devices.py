"""Devices: which one is taken, what it is called, and the memory for keys and values; CUDA is faked where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.devices import choose_device, device_name, kv_budget, processor_name
from engine.errors import InvalidRequestError
from engine.loading import load_parts

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says on a machine with one GPU; like torch's own, these take nothing but devices."""

    def name_of(device: Any) -> str:
        assert torch.device(device).type == "cuda"
        return "NVIDIA H100 80GB HBM3"

    def memory_of(device: Any) -> tuple[int, int]:
        assert torch.device(device).type == "cuda"
        return 60 << 30, 80 << 30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", name_of)
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory_of)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing but its processor."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("cuda")
def test_a_gpu_is_taken_where_there_is_one() -> None:
    assert [str(choose_device(name)) for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]


@pytest.mark.usefixtures("bare")
def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert choose_device("auto") == choose_device("cpu") == CPU
    for name in ("cuda", "mps"):
        with pytest.raises(InvalidRequestError, match=f"device is '{name}'; allowed: auto, cpu on this machine"):
            choose_device(name)


@pytest.mark.usefixtures("cuda")
def test_keys_and_values_take_half_of_a_gpus_free_memory_and_a_gib_of_the_cpus() -> None:
    assert (kv_budget(0, CUDA), kv_budget(0, CPU)) == (30 << 30, 1 << 30)
    assert (kv_budget(7, CUDA), kv_budget(7, CPU), kv_budget(60 << 30, CUDA)) == (7, 7, 60 << 30)


@pytest.mark.usefixtures("cuda")
def test_more_than_a_gpus_free_memory_is_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kv_budget(61 << 30, CUDA)
    assert str(caught.value) == "kv_budget is '61.0 GiB'; allowed: at most 60.0 GiB, the free memory of NVIDIA H100 80GB HBM3."


@pytest.mark.usefixtures("cuda")
def test_a_gpu_has_its_own_name_and_the_cpu_the_processors() -> None:
    assert device_name(CUDA) == device_name(torch.device("cuda:0")) == "NVIDIA H100 80GB HBM3"
    assert device_name(CPU) == processor_name()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14 \nstepping\t: 1\n", "AMD EPYC 9B14"),
        ("processor\t: 0\nBogoMIPS\t: 108\n\nModel\t\t: Raspberry Pi 5 Model B\n", "Raspberry Pi 5 Model B"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "by the platform"),
        (None, "by the platform"),
    ],
)
def test_the_processors_name_is_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.processor", lambda: "by the platform")
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert processor_name(file) == name


def test_an_engine_tells_its_device_apart_from_the_name(tiny_folder: Callable[..., Path]) -> None:
    config = EngineConfig(model=str(tiny_folder()), device="cpu", dtype="fp32", threads=1)
    info = load_parts(config, lambda message, fraction: None).info
    assert torch.device(info.device) == CPU
    assert info.device_name == info.processor == processor_name()
    assert info.shown_device == (f"cpu · {info.processor}" if info.processor else "cpu")

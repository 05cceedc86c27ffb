"""What an engine says of itself on a GPU, for tests on machines without one."""

from __future__ import annotations

from dataclasses import replace

from tests.fake_facts import INFO

CUDA_INFO = replace(
    INFO, device="cuda:0", device_name="NVIDIA H100 80GB HBM3", dtype="bfloat16 (plain)", processor="Intel Xeon 8481C"
)

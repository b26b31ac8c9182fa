"""What NVIDIA's compiler says of kernels, where it is installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpo.hardware import Gpu
from tpo.measure.cuda import CubinError, Launch, Program, Resources, resources, resources_of
from tpo.targets import resolve

A100 = Gpu("cuda", 80, 1024, 32, 163 * 1024)
needs_nvcc = pytest.mark.skipif(resources.compiler() is None, reason="nvcc is not installed")


def program(body: str, threads: int = 128, shared: int = 0) -> Program:
    source = f'extern "C" __global__ void kernel_(float* out) {{ {body} }}'
    return Program(source, (4096,), 1, (Launch("kernel_", (0,), (1, 1, 1), (threads, 1, 1), shared),))


@needs_nvcc
def test_registers_and_shared_memory_are_read():
    body = """
  __shared__ float s[256];
  s[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = s[127 - threadIdx.x];"""
    (found,) = resources_of(program(body, shared=1000), A100)
    assert 0 < found.registers < 64 and found.spilled == 0
    assert found.shared == 1024 + 1000 and found.threads == 128
    assert found.refusal(A100) == ""


@needs_nvcc
def test_spills_are_seen():
    body = """
  float v[300];
  #pragma unroll
  for (int k = 0; k < 300; ++k) v[k] = out[k * 7];
  __syncthreads();
  float s = 0;
  #pragma unroll
  for (int k = 0; k < 300; ++k) s += v[k] * v[(k * 7) % 300];
  out[threadIdx.x] = s;"""
    few = program(body)
    few = replace(few, source=few.source.replace("void", "void __launch_bounds__(1024)"))
    (found,) = resources_of(few, A100)
    assert found.spilled > 0 and "spilled" in found.refusal(A100)


@needs_nvcc
def test_what_does_not_compile_is_said_in_a_line():
    with pytest.raises(CubinError, match="error"):
        resources_of(program("nonsense;"), A100)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Resources("k", 32, 0, 0, 2048, 1.0), "2048 threads"),
        (Resources("k", 32, 0, 200_000, 128, 0.1), "200000 bytes of shared memory"),
        (Resources("k", 128, 0, 0, 1024, 0.0), "128 registers for each of 1024"),
        (Resources("k", 255, 80, 0, 128, 0.1), "80 bytes of registers are spilled"),
    ],
)
def test_limits_are_named(found, said):
    assert said in found.refusal(A100)


def test_limits_are_those_of_the_target():
    named = resolve("nvidia/nvidia-a100").gpu
    assert named is not None and named.sm == 80 and named.max_threads_per_block == 1024
    made = resolve("cuda", arch="sm_90").gpu
    assert made is not None and made.sm == 90 and made.shared_bytes == 227 * 1024

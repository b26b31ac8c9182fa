"""CUDA C on the CPU: right kernels give the right numbers, wrong ones are caught."""

from __future__ import annotations

import numpy as np
import pytest

from tpo.measure.cuda import ORDERS, EmulationError, Emulator, Launch, Program

COUNT = 64


def program(body: str, threads: int = COUNT, shared: int = 0, blocks: int = 1, count: int = COUNT) -> Program:
    """A kernel from `in` to `out`, arrays of so many floats."""
    source = f"""
extern "C" __global__ void kernel_(float* __restrict__ in, float* __restrict__ out) {{
  int t = (int)threadIdx.x;
{body}
}}"""
    launch = Launch("kernel_", (0, 1), (blocks, 1, 1), (threads, 1, 1), shared)
    return Program(source, (4 * count, 4 * count), 2, (launch,))


def run(made: Program, order: str = ORDERS[0], count: int = COUNT) -> np.ndarray:
    values = np.arange(count, dtype=np.float32)
    with Emulator(made) as emulator:
        return emulator.run([values, np.zeros(count, np.float32)], [1], order)[1]


REVERSED = np.arange(COUNT, dtype=np.float32)[::-1]


@pytest.mark.parametrize("order", ORDERS)
def test_threads_exchange_values_through_shared_memory(order):
    body = "__shared__ float s[64]; s[t] = in[t]; __syncthreads(); out[t] = s[63 - t];"
    np.testing.assert_array_equal(run(program(body), order), REVERSED)


def test_a_missing_barrier_is_caught_in_one_of_the_orders():
    body = "__shared__ float s[64]; s[t] = in[t]; out[t] = s[63 - t];"
    right = [np.array_equal(run(program(body), order), REVERSED) for order in ORDERS]
    assert not all(right)


def test_a_barrier_that_only_helps_in_one_order_is_not_enough():
    """What later threads write, earlier ones read: going backwards it would look right."""
    body = "__shared__ float s[65]; s[t] = in[t]; out[t] = t < 63 ? s[t + 1] : 0;"
    expected = np.append(np.arange(1, COUNT, dtype=np.float32), 0)
    found = {order: np.array_equal(run(program(body), order), expected) for order in ORDERS}
    assert found == {"forwards": False, "backwards": True}


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_sum_up_a_warp(order):
    body = """
  float v = in[t];
  for (int k = 16; k > 0; k /= 2) v += __shfl_down_sync(0xffffffff, v, k, 32);
  v = __shfl_sync(0xffffffff, v, 0, 32);
  out[t] = v;"""
    expected = np.repeat([sum(range(32)), sum(range(32, 64))], 32).astype(np.float32)
    np.testing.assert_array_equal(run(program(body), order), expected)


COPY = """
  __shared__ alignas(16) float s[64];
  {
    void* from = &in[t];
    unsigned int to = __cvta_generic_to_shared(&s[t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(4));
  }
  asm volatile("cp.async.commit_group;" : :);
"""


@pytest.mark.parametrize("order", ORDERS)
def test_asynchronous_copies_are_there_when_they_were_waited_for(order):
    body = COPY + 'asm volatile("cp.async.wait_group 0;" : :); __syncthreads(); out[t] = s[63 - t];'
    np.testing.assert_array_equal(run(program(body), order), REVERSED)


def test_a_copy_that_nobody_waits_for_is_not_there():
    assert not np.array_equal(run(program(COPY + "__syncthreads(); out[t] = s[63 - t];")), REVERSED)


def test_waiting_for_all_groups_but_the_last_leaves_the_last_out():
    body = COPY + 'asm volatile("cp.async.wait_group 1;" : :); __syncthreads(); out[t] = s[63 - t];'
    assert not np.array_equal(run(program(body)), REVERSED)


def test_memory_that_nobody_has_written_is_no_number():
    assert np.isnan(run(program("__shared__ float s[64]; out[t] = s[t];"))).all()
    assert np.isnan(run(program("if (t > 0) out[t] = in[t];"))[0])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("out[t] = in[t + 100000];", "beyond the end"),
        (
            "if (t < 32) __syncthreads(); else while (1) __syncwarp(); out[t] = 0;",
            "does not end|wait for others",
        ),
        ("if (t == 0) __syncwarp(); else __syncthreads(); out[t] = in[t];", "wait for others"),
        ('asm volatile ("mma.sync.aligned;" : : ); out[t] = 0;', "assembly that cannot be emulated"),
        ("out[t] = nothing_like_this(in[t]);", "error"),
    ],
    ids=["out of bounds", "endless", "barriers apart", "assembly", "not C++"],
)
def test_what_no_gpu_would_run_is_refused(body, said):
    with pytest.raises(EmulationError, match=said), Emulator(program(body)) as emulator:
        emulator.run([np.zeros(COUNT, np.float32)] * 2, [1], timeout=5.0)


def test_blocks_do_not_see_each_others_shared_memory():
    body = """
  __shared__ float s[64];
  if (blockIdx.x == 0) s[t] = 1;
  __syncthreads();
  if (blockIdx.x) out[t] = s[t];"""
    assert np.isnan(run(program(body, blocks=2))).all()


def test_kernels_follow_each_other():
    source = """
extern "C" __global__ void first(float* in, float* middle) { middle[threadIdx.x] = in[threadIdx.x] + 1; }
extern "C" __global__ void second(float* middle, float* out) { out[threadIdx.x] = middle[63 - threadIdx.x]; }
"""
    launches = tuple(
        Launch(n, b, (1, 1, 1), (64, 1, 1), 0) for n, b in (("first", (0, 2)), ("second", (2, 1)))
    )
    made = Program(source, (256, 256, 256), 2, launches)
    np.testing.assert_array_equal(run(made), REVERSED + 1)


WMMA = """
#include <mma.h>
extern "C" __global__ void kernel_(half* a, half* b, float* c) {
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> fa;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::row_major> fb;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums;
  nvcuda::wmma::fill_fragment(sums, 0.0f);
  nvcuda::wmma::load_matrix_sync(fa, a, 16);
  nvcuda::wmma::load_matrix_sync(fb, b, 16);
  nvcuda::wmma::mma_sync(sums, fa, fb, sums);
  nvcuda::wmma::store_matrix_sync(c, sums, 16, nvcuda::wmma::mem_row_major);
}"""


@pytest.mark.parametrize("order", ORDERS)
def test_tensor_cores_multiply(order):
    launch = Launch("kernel_", (0, 1, 2), (1, 1, 1), (32, 1, 1), 0)
    rng = np.random.default_rng(0)
    a, b = (rng.random((16, 16)).astype(np.float16) for _ in range(2))
    with Emulator(Program("#include <cuda_fp16.h>\n" + WMMA, (512, 512, 1024), 3, (launch,))) as emulator:
        found = emulator.run([a, b, np.zeros((16, 16), np.float32)], [2], order)[2]
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-5)

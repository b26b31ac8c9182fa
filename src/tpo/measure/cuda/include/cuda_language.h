// What CUDA adds to C++, as far as TVM's generated code uses it.
#pragma once

#include "emulation.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emulated_shared")))
#define __CUDA_ARCH__ 800

inline void __syncthreads() { emulation::yield(emulation::State::at_block_barrier); }
inline void __syncwarp(unsigned lanes = ~0u) { emulation::wait_for_warp(lanes); }
inline unsigned __activemask() { return emulation::live_lanes(emulation::running / emulation::warp_size); }

template <class T>
T __shfl_sync(unsigned lanes, T value, int from, int width = 32) {
  const unsigned first = emulation::lane() & ~(width - 1u);
  return emulation::shuffled(lanes, value, first | (from & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned lanes, T value, unsigned by, int width = 32) {
  const unsigned lane = emulation::lane(), from = lane + by;
  return emulation::shuffled(lanes, value, from / width == lane / width ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned lanes, T value, unsigned by, int width = 32) {
  const unsigned lane = emulation::lane();
  return emulation::shuffled(lanes, value, lane % width >= by ? lane - by : lane);
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = 32) {
  const unsigned lane = emulation::lane(), from = lane ^ mask;
  return emulation::shuffled(lanes, value, from / width <= lane / width ? from : lane);
}

template <class T>
T __ldg(const T *address) {
  return *address;
}

// Vectors of two to four numbers.
#define TPO_VECTORS(type, name)                                                              \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                   \
  struct name##3 { type x, y, z; };                                                          \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };                             \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                           \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
TPO_VECTORS(float, float)
TPO_VECTORS(int, int)
TPO_VECTORS(unsigned, uint)
TPO_VECTORS(signed char, char)
TPO_VECTORS(unsigned char, uchar)
TPO_VECTORS(short, short)
TPO_VECTORS(unsigned short, ushort)
#undef TPO_VECTORS
// CUDA aligns no vector to more than 16 bytes.
#define TPO_PAIR(type, name)                                \
  struct alignas(16) name##2 { type x, y; };                \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }
TPO_PAIR(double, double)
TPO_PAIR(long long, longlong)
TPO_PAIR(unsigned long long, ulonglong)
#undef TPO_PAIR

using std::max;
using std::min;

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Four products of bytes and their sum.
namespace emulation {
template <class Left, class Right>
void dot_of_bytes(int &to, int left, int right, int sum) {
  for (int k = 0; k < 32; k += 8) sum += (Left)(left >> k) * (Right)(right >> k);
  to = sum;
}
}  // namespace emulation
inline int __dp4a(int left, int right, int sum) {
  emulation::dot_of_bytes<int8_t, int8_t>(sum, left, right, sum);
  return sum;
}

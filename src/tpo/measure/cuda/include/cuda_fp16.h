// Half precision: computed in single precision and rounded after every operation, as GPUs do.
#pragma once

#include "cuda_language.h"

struct alignas(2) __half {
  _Float16 value;
  __half() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, _Float16>>>
  __half(T number) : value((_Float16)number) {}
  operator float() const { return (float)value; }
  __half &operator+=(__half other) { return *this = __half(float(*this) + float(other)); }
  __half &operator-=(__half other) { return *this = __half(float(*this) - float(other)); }
  __half &operator*=(__half other) { return *this = __half(float(*this) * float(other)); }
  __half &operator/=(__half other) { return *this = __half(float(*this) / float(other)); }
};
using half = __half;

struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;

inline half operator+(half a, half b) { return half(float(a) + float(b)); }
inline half operator-(half a, half b) { return half(float(a) - float(b)); }
inline half operator*(half a, half b) { return half(float(a) * float(b)); }
inline half operator/(half a, half b) { return half(float(a) / float(b)); }
inline half operator-(half a) { return half(-float(a)); }
inline bool operator<(half a, half b) { return float(a) < float(b); }
inline bool operator>(half a, half b) { return float(a) > float(b); }
inline bool operator<=(half a, half b) { return float(a) <= float(b); }
inline bool operator>=(half a, half b) { return float(a) >= float(b); }
inline bool operator==(half a, half b) { return float(a) == float(b); }
inline bool operator!=(half a, half b) { return float(a) != float(b); }

inline half __hadd(half a, half b) { return a + b; }
inline half __hsub(half a, half b) { return a - b; }
inline half __hmul(half a, half b) { return a * b; }
inline half __hfma(half a, half b, half c) { return half(fmaf(a, b, c)); }
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline bool __hge(half a, half b) { return a >= b; }
inline bool __hle(half a, half b) { return a <= b; }
inline bool __heq(half a, half b) { return a == b; }
inline half __hmax(half a, half b) { return half(fmaxf(a, b)); }
inline half __hmin(half a, half b) { return half(fminf(a, b)); }
inline half __habs(half a) { return half(fabsf(a)); }
inline half hexp(half a) { return half(expf(a)); }
inline half hlog(half a) { return half(logf(a)); }
inline half hsqrt(half a) { return half(sqrtf(a)); }
inline half hrsqrt(half a) { return half(rsqrtf(a)); }
inline half hsin(half a) { return half(sinf(a)); }
inline half hcos(half a) { return half(cosf(a)); }
inline half hfloor(half a) { return half(floorf(a)); }
inline half hceil(half a) { return half(ceilf(a)); }
inline half htrunc(half a) { return half(truncf(a)); }
inline half hrint(half a) { return half(rintf(a)); }
inline float __half2float(half a) { return float(a); }
inline half __float2half(float a) { return half(a); }
inline half __float2half_rn(float a) { return half(a); }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline unsigned short __half_as_ushort(half a) {
  unsigned short bits;
  std::memcpy(&bits, &a, sizeof bits);
  return bits;
}
inline half __ushort_as_half(unsigned short bits) {
  half value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Tensor cores: small matrix products that the lanes of a warp compute together.
//
// Lane 0 has the whole matrix and does all the work. All lanes have to come before it begins, but nothing
// tells the others when it is done: what is stored to shared memory is there after a barrier.
#pragma once

#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k>
struct shape;
template <int m, int n, int k>
struct shape<matrix_a, m, n, k> {
  static constexpr int rows = m, columns = k;
};
template <int m, int n, int k>
struct shape<matrix_b, m, n, k> {
  static constexpr int rows = k, columns = n;
};
template <int m, int n, int k>
struct shape<accumulator, m, n, k> {
  static constexpr int rows = m, columns = n;
};

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static constexpr int rows = shape<Use, m, n, k>::rows, columns = shape<Use, m, n, k>::columns;
  T element[rows][columns];
};

// Whether this lane does the work, as soon as all lanes are here.
inline bool works() {
  emulation::wait_for_warp(~0u);
  return emulation::lane() == 0;
}

template <class Fragment, class T>
void fill_fragment(Fragment &made, T value) {
  if (!works()) return;
  for (auto &row : made.element)
    for (auto &element : row) element = value;
}

template <class Fragment, class T>
void load(Fragment &made, const T *from, unsigned stride, bool by_columns) {
  if (!works()) return;
  for (int i = 0; i < Fragment::rows; ++i)
    for (int j = 0; j < Fragment::columns; ++j)
      made.element[i][j] = by_columns ? from[j * stride + i] : from[i * stride + j];
}

template <class Use, int m, int n, int k, class T, class Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &made, const T *from, unsigned stride) {
  load(made, from, stride, std::is_same_v<Layout, col_major>);
}

template <int m, int n, int k, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, T> &made, const T *from, unsigned stride, layout_t layout) {
  load(made, from, stride, layout == mem_col_major);
}

template <int m, int n, int k, class T>
void store_matrix_sync(T *to, const fragment<accumulator, m, n, k, T> &from, unsigned stride, layout_t layout) {
  if (!works()) return;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      to[layout == mem_col_major ? j * stride + i : i * stride + j] = from.element[i][j];
}

// Sums are exact enough in single precision, or in 32 bits; halves are rounded once at the end.
template <int m, int n, int k, class T, class Operand, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, m, n, k, T> &made,
              const fragment<matrix_a, m, n, k, Operand, LayoutA> &left,
              const fragment<matrix_b, m, n, k, Operand, LayoutB> &right,
              const fragment<accumulator, m, n, k, T> &before) {
  if (!works()) return;
  using Sum = std::conditional_t<std::is_same_v<T, int>, int, float>;
  Sum sums[m][n];
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) sums[i][j] = (Sum)before.element[i][j];
  for (int i = 0; i < m; ++i)
    for (int l = 0; l < k; ++l)
      for (int j = 0; j < n; ++j) sums[i][j] += (Sum)left.element[i][l] * (Sum)right.element[l][j];
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) made.element[i][j] = (T)sums[i][j];
}

}  // namespace nvcuda::wmma

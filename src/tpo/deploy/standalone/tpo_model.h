/* What a standalone library that `tpo compile` wrote offers to a program in C or C++.
 *
 * Link with it or open it with dlopen. Arrays lie in memory row by row, without gaps, from addresses that
 * are multiples of 64. One thread may run a library at a time: it has one piece of memory to work in.
 */
#ifndef TPO_MODEL_H
#define TPO_MODEL_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tpo_tensor {
  const char *name;
  const char *type; /* as numpy's files have it, such as "<f4" */
  int32_t dimensions;
  const int64_t *shape;
  uint64_t bytes;
};

extern const struct tpo_tensor tpo_inputs[], tpo_results[];
extern const int32_t tpo_input_count, tpo_result_count;

/* Computes all results from all inputs, in the order of the tables above; 0, or an error, told on stderr. */
int tpo_run(const void *const *inputs, void *const *results);

#ifdef __cplusplus
}
#endif
#endif

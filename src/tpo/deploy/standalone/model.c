/* A model as a list of calls of the functions that TVM has compiled. The lists are in tables.h, which
 * `tpo compile` writes for every model: what is called with which tensors, and where these are in memory.
 */
#include "tpo_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* TVM's calling convention. */
typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DataType;
typedef struct {
  void *data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;
typedef struct { int32_t type, zero; union { int64_t number; void *pointer; } value; } Any;
typedef int (*Function)(void *, const Any *, int32_t, Any *);
enum { TYPE_TENSOR = 7, DEVICE_CPU = 1, ALIGNMENT = 64 };

/* Where a tensor is: of the inputs or results of a call the number, else the offset in bytes. */
enum place { INPUT, RESULT, CONSTANT, WORKSPACE };
struct home { uint8_t place; uint64_t at; };
struct spec { uint8_t code, bits; int32_t ndim, shape_at; struct home home; };
struct step { Function function; int32_t first, count; };
struct copy { int32_t result; struct home from; uint64_t bytes; };

#include "tables.h"

__asm__(".section .rodata\n.balign 64\ntpo_constants:\n.incbin \"constants.bin\"\n.previous\n");
extern const unsigned char tpo_constants[] __attribute__((visibility("hidden")));

static unsigned char workspace[WORKSPACE_BYTES] __attribute__((aligned(ALIGNMENT)));

/* What a compiled function may ask of its surroundings: memory, threads (one), and a place for errors. It
 * calls them by their names, or through pointers. */
#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN void *TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  void *memory = NULL;
  return posix_memalign(&memory, ALIGNMENT, bytes ? bytes : ALIGNMENT) ? NULL : memory;
}

HIDDEN int TVMBackendFreeWorkspace(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}

typedef struct { void *barrier; int32_t tasks; } Group;

HIDDEN int TVMBackendParallelLaunch(int (*body)(int, Group *, void *), void *data, int tasks) {
  Group group = {NULL, tasks > 0 ? tasks : 1};
  for (int k = 0; k < group.tasks; k++) {
    int code = body(k, &group, data);
    if (code) return code;
  }
  return 0;
}

HIDDEN int TVMBackendParallelBarrier(int task, Group *group) {
  (void)task, (void)group;
  return 0;
}

HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "error: %s: ", kind);
  for (int32_t k = 0; k < count; k++) fputs(parts[k], stderr);
  fputc('\n', stderr);
}

HIDDEN void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1);
}

/* Not all of them are used by every model. */
extern void *__TVMBackendAllocWorkspace __attribute__((weak)) HIDDEN;
extern void *__TVMBackendFreeWorkspace __attribute__((weak)) HIDDEN;
extern void *__TVMBackendParallelLaunch __attribute__((weak)) HIDDEN;
extern void *__TVMBackendParallelBarrier __attribute__((weak)) HIDDEN;
extern void *__TVMFFIErrorSetRaisedFromCStr __attribute__((weak)) HIDDEN;
extern void *__TVMFFIErrorSetRaisedFromCStrParts __attribute__((weak)) HIDDEN;

__attribute__((constructor)) static void provide(void) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = (void *)TVMBackendAllocWorkspace;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = (void *)TVMBackendFreeWorkspace;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void *)TVMBackendParallelLaunch;
  if (&__TVMBackendParallelBarrier) __TVMBackendParallelBarrier = (void *)TVMBackendParallelBarrier;
  if (&__TVMFFIErrorSetRaisedFromCStr) __TVMFFIErrorSetRaisedFromCStr = (void *)TVMFFIErrorSetRaisedFromCStr;
  if (&__TVMFFIErrorSetRaisedFromCStrParts) __TVMFFIErrorSetRaisedFromCStrParts = (void *)TVMFFIErrorSetRaisedFromCStrParts;
}

static void *address(struct home home, const void *const *inputs, void *const *results) {
  switch (home.place) {
    case INPUT: return (void *)inputs[home.at];
    case RESULT: return results[home.at];
    case CONSTANT: return (void *)(tpo_constants + home.at);
    default: return workspace + home.at;
  }
}

int tpo_run(const void *const *inputs, void *const *results) {
  Tensor tensors[MOST_ARGUMENTS];
  Any arguments[MOST_ARGUMENTS];
  for (int32_t k = 0; k < STEP_COUNT; k++) {
    const struct step *step = &steps[k];
    for (int32_t n = 0; n < step->count; n++) {
      const struct spec *spec = &specs[step_arguments[step->first + n]];
      tensors[n] = (Tensor){.data = address(spec->home, inputs, results),
                            .device = {DEVICE_CPU, 0},
                            .ndim = spec->ndim,
                            .dtype = {spec->code, spec->bits, 1},
                            .shape = (int64_t *)shapes + spec->shape_at};
      arguments[n] = (Any){.type = TYPE_TENSOR, .value.pointer = &tensors[n]};
    }
    Any result = {0};
    int code = step->function(NULL, arguments, step->count, &result);
    if (code) return code;
  }
  for (int32_t k = 0; k < COPY_COUNT; k++)
    memcpy(results[copies[k].result], address(copies[k].from, inputs, results), copies[k].bytes);
  return 0;
}

/* Runs one function of a library that TVM has compiled, without TVM's runtime.
 *
 *     harness LIBRARY FUNCTION ARGUMENTS RESULTS CALLS MEMORY
 *
 * ARGUMENTS holds all parameters, results included: a count, then for each its type code, bits and number
 * of dimensions (32 bit each), the dimensions and the size in bytes (64 bit each), and the bytes. After
 * the last call the contents of all parameters are written to RESULTS, without headers. Each call prints
 * "TIME seconds". The calls stand between two instructions that do nothing and that a plugin of QEMU
 * knows; before them, every parameter is touched, so that caches are as warm as they can be. A function that
 * asks for more than MEMORY bytes at a time ends the program with code 4, anything else that fails with code 3.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

enum { FAILED = 3, OUT_OF_MEMORY = 4 };

static int fail(const char *what, const char *why) {
  fprintf(stderr, "error: %s: %s\n", what, why);
  return FAILED;
}

/* What a compiled function may ask of its surroundings: memory, threads (one), and a place for errors. It
 * calls them by their names, or through pointers. */

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "error: %s: ", kind);
  for (int32_t k = 0; k < count; k++) fputs(parts[k], stderr);
  fputc('\n', stderr);
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1);
}

static uint64_t most_memory;

void *TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  void *memory = NULL;
  if (bytes > most_memory || posix_memalign(&memory, ALIGNMENT, bytes ? bytes : ALIGNMENT)) {
    fail("out of memory", "the function asks for too much");
    exit(OUT_OF_MEMORY);
  }
  return memory;
}

int TVMBackendFreeWorkspace(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}

typedef struct { void *barrier; int32_t tasks; } Group;

int TVMBackendParallelLaunch(int (*body)(int, Group *, void *), void *data, int tasks) {
  Group group = {NULL, tasks > 0 ? tasks : 1};
  for (int k = 0; k < group.tasks; k++) {
    int code = body(k, &group, data);
    if (code) return code;
  }
  return 0;
}

int TVMBackendParallelBarrier(int task, Group *group) {
  (void)task, (void)group;
  return 0;
}

/* Functions by name are TVM's: there are none here. */

int TVMFFIHandleInitOnce(void **handle, int (*initialise)(void)) { return *handle ? 0 : initialise(); }

int TVMFFIEnvModLookupFromImports(void *context, const char *name, void **found) {
  (void)context, (void)found;
  fail(name, "there is no such function on this machine");
  return -1;
}

static void provide(void *library, const char *name, void *what) {
  void **place = dlsym(library, name);
  if (place) *place = what;
}

static void provide_all(void *library) {
  provide(library, "__TVMBackendAllocWorkspace", (void *)TVMBackendAllocWorkspace);
  provide(library, "__TVMBackendFreeWorkspace", (void *)TVMBackendFreeWorkspace);
  provide(library, "__TVMBackendParallelLaunch", (void *)TVMBackendParallelLaunch);
  provide(library, "__TVMBackendParallelBarrier", (void *)TVMBackendParallelBarrier);
  provide(library, "__TVMFFIHandleInitOnce", (void *)TVMFFIHandleInitOnce);
  provide(library, "__TVMFFIEnvModLookupFromImports", (void *)TVMFFIEnvModLookupFromImports);
  provide(library, "__TVMFFIErrorSetRaisedFromCStr", (void *)TVMFFIErrorSetRaisedFromCStr);
  provide(library, "__TVMFFIErrorSetRaisedFromCStrParts", (void *)TVMFFIErrorSetRaisedFromCStrParts);
}

static int read_tensor(FILE *file, Tensor *tensor, uint64_t *bytes) {
  uint32_t head[3];
  if (fread(head, sizeof head, 1, file) != 1) return 0;
  tensor->device = (Device){DEVICE_CPU, 0};
  tensor->dtype = (DataType){(uint8_t)head[0], (uint8_t)head[1], 1};
  tensor->ndim = (int32_t)head[2];
  tensor->shape = calloc(head[2] + 1, sizeof *tensor->shape);
  if (head[2] && fread(tensor->shape, sizeof *tensor->shape, head[2], file) != head[2]) return 0;
  if (fread(bytes, sizeof *bytes, 1, file) != 1) return 0;
  if (posix_memalign(&tensor->data, ALIGNMENT, *bytes + ALIGNMENT)) return 0;
  return fread(tensor->data, 1, *bytes, file) == *bytes;
}

#ifdef __riscv
#define BEGIN_COUNTING __asm__ volatile("slti x0, x0, 0x7a1" ::: "memory")
#define END_COUNTING __asm__ volatile("slti x0, x0, 0x7a2" ::: "memory")
#else
#define BEGIN_COUNTING
#define END_COUNTING
#endif

int main(int argc, char **argv) {
  if (argc != 7) return fail("usage", "harness LIBRARY FUNCTION ARGUMENTS RESULTS CALLS MEMORY");
  most_memory = strtoull(argv[6], NULL, 10);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(argv[1], dlerror());
  Function function = (Function)dlsym(library, argv[2]);
  if (!function) return fail(argv[2], dlerror());
  provide_all(library);

  FILE *file = fopen(argv[3], "rb");
  uint32_t count = 0;
  if (!file || fread(&count, sizeof count, 1, file) != 1) return fail(argv[3], "cannot be read");
  Tensor *tensors = calloc(count + 1, sizeof *tensors);
  Any *arguments = calloc(count + 1, sizeof *arguments);
  uint64_t *bytes = calloc(count + 1, sizeof *bytes);
  for (uint32_t k = 0; k < count; k++) {
    if (!read_tensor(file, &tensors[k], &bytes[k])) return fail(argv[3], "is too short");
    arguments[k].type = TYPE_TENSOR;
    arguments[k].value.pointer = &tensors[k];
  }
  fclose(file);

  volatile unsigned char sink = 0;
  for (uint32_t k = 0; k < count; k++)
    for (uint64_t at = 0; at < bytes[k]; at += ALIGNMENT) sink += ((unsigned char *)tensors[k].data)[at];
  int calls = atoi(argv[5]);
  for (int k = 0; k < calls; k++) {
    Any result = {0};
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    BEGIN_COUNTING;
    int code = function(NULL, arguments, (int32_t)count, &result);
    END_COUNTING;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (code) return fail(argv[2], "it returned an error");
    printf("TIME %.9f\n", (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
  }

  file = fopen(argv[4], "wb");
  if (!file) return fail(argv[4], "cannot be written");
  for (uint32_t k = 0; k < count; k++)
    if (fwrite(tensors[k].data, 1, bytes[k], file) != bytes[k]) return fail(argv[4], "cannot be written");
  return fclose(file) ? fail(argv[4], "cannot be written") : 0;
}

/* Runs one kernel that TVM compiled, on a machine that has no TVM.
 *
 *   run_kernel (CODE BITS AxBxC FILE)...
 *
 * Every argument is a tensor: DLPack's type code, bits of an element, shape, and a file with its elements.
 * After the call, the files hold what the tensors hold.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define MAX_TENSORS 16
#define MAX_DIMS 8
#define ALIGNMENT 64 /* of everything TVM allocates */
#define TASKS 3      /* parallel loops are cut into this many pieces, which run one after the other */

int __tvm_ffi_kernel(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* What kernels ask of TVM's runtime; they call it through these variables. */

typedef struct {
  void* sync_handle;
  int32_t num_task;
} ParallelEnv;

typedef int (*ParallelLambda)(int task, ParallelEnv* env, void* data);

static void* aligned(uint64_t bytes) {
  size_t whole = (bytes / ALIGNMENT + 1) * ALIGNMENT;
  /* Every byte 255 is a NaN: who reads what was never written will be noticed. */
  return memset(aligned_alloc(ALIGNMENT, whole), 255, whole);
}

static void* alloc_workspace(int device, int id, uint64_t bytes, int code, int bits) { return aligned(bytes); }

static int free_workspace(int device, int id, void* memory) {
  free(memory);
  return 0;
}

static int parallel_launch(ParallelLambda lambda, void* data, int wanted) {
  ParallelEnv env = {NULL, wanted ? wanted : TASKS};
  for (int task = 0; task < env.num_task; ++task) {
    int failed = lambda(task, &env, data);
    if (failed) return failed;
  }
  return 0;
}

void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = alloc_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = free_workspace;
int (*__TVMBackendParallelLaunch)(ParallelLambda, void*, int) = parallel_launch;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t k = 0; k < count; ++k)
    if (parts[k]) fputs(parts[k], stderr);
  fputc('\n', stderr);
}

/* The tensors, from and to files. */

static size_t bytes_of(const DLTensor* tensor) {
  size_t count = 1;
  for (int k = 0; k < tensor->ndim; ++k) count *= tensor->shape[k];
  return count * tensor->dtype.bits / 8;
}

static void parse(char** words, DLTensor* tensor, int64_t* shape) {
  memset(tensor, 0, sizeof *tensor);
  tensor->device.device_type = kDLCPU;
  tensor->dtype = (DLDataType){atoi(words[0]), atoi(words[1]), 1};
  tensor->shape = shape;
  for (char* dim = strtok(words[2], "x"); dim; dim = strtok(NULL, "x")) shape[tensor->ndim++] = atoll(dim);
}

static void transfer(const char* path, DLTensor* tensor, const char* mode) {
  size_t bytes = bytes_of(tensor);
  FILE* file = fopen(path, mode);
  size_t done = !file          ? 0
                : *mode == 'r' ? fread(tensor->data, 1, bytes, file)
                               : fwrite(tensor->data, 1, bytes, file);
  if (done != bytes || fclose(file)) {
    fprintf(stderr, "%s: not %zu bytes\n", path, bytes);
    exit(2);
  }
}

int main(int count, char** words) {
  int tensors = (count - 1) / 4;
  if (tensors < 1 || tensors > MAX_TENSORS) return 2;
  DLTensor tensor[MAX_TENSORS];
  int64_t shape[MAX_TENSORS][MAX_DIMS];
  TVMFFIAny args[MAX_TENSORS], result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  for (int k = 0; k < tensors; ++k) {
    char** own = words + 1 + 4 * k;
    parse(own, &tensor[k], shape[k]);
    tensor[k].data = aligned(bytes_of(&tensor[k]));
    transfer(own[3], &tensor[k], "rb");
    args[k].type_index = kTVMFFIDLTensorPtr;
    args[k].v_ptr = &tensor[k];
  }
  int failed = __tvm_ffi_kernel(NULL, args, tensors, &result);
  for (int k = 0; k < tensors; ++k) transfer(words[4 + 4 * k], &tensor[k], "wb");
  return failed ? 1 : 0;
}

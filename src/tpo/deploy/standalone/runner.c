/* Runs a standalone library on arrays from files.
 *
 *     tpo-run MODEL.so [-n CALLS] [-o FOLDER] INPUT.npy ...
 *
 * One file for every input, in the model's order (without any, the inputs are listed). Results become .npy
 * files in FOLDER, by their numbers. Each call prints "TIME seconds".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tpo_model.h"

enum { FAILED = 3, USAGE = 2, ALIGNMENT = 64 };

static int fail(int code, const char *what, const char *why) {
  fprintf(stderr, "error: %s: %s\n", what, why);
  return code;
}

/* The header of a .npy file for a tensor, padded as the format wants it; its length. */
static size_t header_of(const struct tpo_tensor *tensor, char *buffer, size_t size) {
  char shape[256] = "";
  for (int32_t k = 0; k < tensor->dimensions; k++) {
    size_t used = strlen(shape);
    snprintf(shape + used, sizeof shape - used, "%lld,", (long long)tensor->shape[k]);
  }
  memcpy(buffer, "\x93NUMPY\x01\x00", 8);
  int length = snprintf(buffer + 10, size - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                        tensor->type, shape);
  size_t total = 10 + (size_t)length;
  while ((total + 1) % ALIGNMENT) buffer[total++] = ' ';
  buffer[total++] = '\n';
  buffer[8] = (char)((total - 10) & 0xff);
  buffer[9] = (char)((total - 10) >> 8);
  return total;
}

/* Only what the header must say is looked at: the type, the order, and that the size is right. */
static const char *read_array(const char *path, const struct tpo_tensor *tensor, void *memory) {
  unsigned char head[10];
  char text[65536] = "", type[16];
  FILE *file = fopen(path, "rb");
  if (!file) return "cannot be read";
  const char *why = NULL;
  if (fread(head, sizeof head, 1, file) != 1 || memcmp(head, "\x93NUMPY", 6) || head[6] != 1) {
    why = "is no .npy file of version 1";
  } else {
    size_t length = head[8] | (size_t)head[9] << 8;
    snprintf(type, sizeof type, "'%s'", tensor->type);
    if (fread(text, 1, length, file) != length || !strstr(text, type)) why = "has numbers of another type";
    else if (strstr(text, "'fortran_order': True")) why = "is stored column by column";
    else if (fread(memory, 1, tensor->bytes, file) != tensor->bytes || fgetc(file) != EOF) why = "has another size";
  }
  fclose(file);
  return why;
}

static int list(const char *title, const struct tpo_tensor *tensors, int32_t count) {
  for (int32_t k = 0; k < count; k++) {
    printf("%s %d: %s %s", title, k, tensors[k].name, tensors[k].type);
    for (int32_t d = 0; d < tensors[k].dimensions; d++) printf("%c%lld", d ? 'x' : ' ', (long long)tensors[k].shape[d]);
    printf("\n");
  }
  return 0;
}

#ifdef __riscv
#define BEGIN_COUNTING __asm__ volatile("slti x0, x0, 0x7a1" ::: "memory")
#define END_COUNTING __asm__ volatile("slti x0, x0, 0x7a2" ::: "memory")
#else
#define BEGIN_COUNTING
#define END_COUNTING
#endif

int main(int argc, char **argv) {
  const char *folder = NULL, *files[1024];
  int calls = 1, given = 0;
  if (argc < 2) return fail(USAGE, "usage", "tpo-run MODEL.so [-n CALLS] [-o FOLDER] INPUT.npy ...");
  for (int k = 2; k < argc; k++) {
    if (!strcmp(argv[k], "-n") && k + 1 < argc) calls = atoi(argv[++k]);
    else if (!strcmp(argv[k], "-o") && k + 1 < argc) folder = argv[++k];
    else if (given < 1024) files[given++] = argv[k];
  }
  char library_path[4096];
  snprintf(library_path, sizeof library_path, "%s%s", strchr(argv[1], '/') ? "" : "./", argv[1]);
  void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(FAILED, argv[1], dlerror());
  const struct tpo_tensor *inputs = dlsym(library, "tpo_inputs"), *results = dlsym(library, "tpo_results");
  const int32_t *inputs_known = dlsym(library, "tpo_input_count"), *results_known = dlsym(library, "tpo_result_count");
  int (*run)(const void *const *, void *const *) = (int (*)(const void *const *, void *const *))dlsym(library, "tpo_run");
  if (!inputs || !results || !inputs_known || !results_known || !run)
    return fail(FAILED, argv[1], "is no standalone library of tpo's");
  int32_t input_count = *inputs_known, result_count = *results_known;
  if (!given && input_count) return list("input", inputs, input_count) || list("result", results, result_count);
  if (given != input_count) {
    char why[64];
    snprintf(why, sizeof why, "takes %d inputs, %d files were given", (int)input_count, given);
    return fail(USAGE, argv[1], why);
  }
  const void **in = calloc((size_t)input_count + 1, sizeof *in);
  void **out = calloc((size_t)result_count + 1, sizeof *out);
  for (int32_t k = 0; k < input_count; k++) {
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, inputs[k].bytes + ALIGNMENT)) return fail(FAILED, files[k], "out of memory");
    const char *why = read_array(files[k], &inputs[k], memory);
    if (why) return fail(USAGE, files[k], why);
    in[k] = memory;
  }
  for (int32_t k = 0; k < result_count; k++)
    if (posix_memalign(&out[k], ALIGNMENT, results[k].bytes + ALIGNMENT)) return fail(FAILED, argv[1], "out of memory");
  for (int k = 0; k < calls; k++) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    BEGIN_COUNTING;
    int code = run(in, out);
    END_COUNTING;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (code) return fail(FAILED, argv[1], "it returned an error");
    printf("TIME %.9f\n", (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
  }
  for (int32_t k = 0; folder && k < result_count; k++) {
    char path[4096], header[1024];
    snprintf(path, sizeof path, "%s/%d.npy", folder, (int)k);
    size_t length = header_of(&results[k], header, sizeof header);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(header, 1, length, file) != length ||
        fwrite(out[k], 1, results[k].bytes, file) != results[k].bytes || fclose(file))
      return fail(FAILED, path, "cannot be written");
  }
  return 0;
}

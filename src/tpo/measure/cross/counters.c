/* A TCG plugin for QEMU: counts what guest code for RISC-V does between two markers.
 *
 * It prints one line for each counted region: "TPO name=value name=value ...". Work of vector
 * instructions is counted in eighths of a vector register, from the VL, SEW and LMUL that are in
 * force: how many cycles that takes is for others to say. Caches are modelled from the start, so
 * that what was touched before the region is warm.
 *
 * QEMU's packages come without a header, so the few functions used are declared here: version 1 of
 * the plugin interface, as of QEMU 7.2.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { CB_NO_REGS = 0, INLINE_ADD = 0, MEM_READ_WRITE = 3 };
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, uint32_t, uint64_t, void *),
                                      int, int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

/* What is counted. Instructions first, then the work of vector instructions, then misses. */
#define COUNTERS(X)                                                                                     \
  X(scalar) X(load) X(store) X(branch) X(multiply) X(divide) X(fp) X(fp_divide)                         \
  X(vset) X(vector)                                                                                     \
  X(vector_memory) X(vector_simple) X(vector_multiply) X(vector_divide) X(vector_permute)               \
  X(vector_reduction) X(vector_elements) X(l1_miss) X(l2_miss)
#define NAME_ENUM(name) C_##name,
#define NAME_TEXT(name) #name,
enum counter { COUNTERS(NAME_ENUM) COUNTER_COUNT };
static const char *const names[] = {COUNTERS(NAME_TEXT)};

static uint64_t counts[COUNTER_COUNT], at_start[COUNTER_COUNT];

/* Caches ------------------------------------------------------------------------------------------- */

enum { LINE_BITS = 6 };
struct cache {
  uint64_t *lines;
  uint32_t *used;
  uint32_t sets, ways, clock;
};
static struct cache l1, l2;

static void make_cache(struct cache *cache, uint32_t bytes, uint32_t ways) {
  cache->ways = ways;
  cache->sets = bytes / (ways << LINE_BITS);
  size_t places = (size_t)cache->sets * ways;
  cache->lines = malloc(places * sizeof *cache->lines);
  memset(cache->lines, 0xff, places * sizeof *cache->lines);
  cache->used = calloc(places, sizeof *cache->used);
}

/* Whether a line was there; it is afterwards, in the place of the one not used for longest. */
static bool touch(struct cache *cache, uint64_t line) {
  size_t set = (line % cache->sets) * cache->ways, oldest = set;
  cache->clock++;
  for (size_t k = set; k < set + cache->ways; k++) {
    if (cache->lines[k] == line) {
      cache->used[k] = cache->clock;
      return true;
    }
    if (cache->used[k] < cache->used[oldest]) oldest = k;
  }
  cache->lines[oldest] = line;
  cache->used[oldest] = cache->clock;
  return false;
}

static uint64_t last_line = UINT64_MAX;

static void on_access(unsigned vcpu, uint32_t info, uint64_t address, void *data) {
  (void)vcpu, (void)info, (void)data;
  uint64_t line = address >> LINE_BITS;
  if (line == last_line) return; /* elements of a vector come one by one */
  last_line = line;
  if (touch(&l1, line)) return;
  counts[C_l1_miss]++;
  if (!touch(&l2, line)) counts[C_l2_miss]++;
}

/* Vector state --------------------------------------------------------------------------------------- */

static unsigned vlen = 256;

struct state {
  uint32_t sew;     /* bits of an element */
  uint32_t eighths; /* of a register that an operation on VL elements of SEW bits fills */
  uint32_t vl;
};
static struct state now = {64, 8, 4}; /* at the beginning of the block of code that runs */

static uint32_t bits(uint32_t word, int high, int low) { return word >> low & ((1u << (high - low + 1)) - 1); }

static uint32_t eighths_of(uint64_t vl, uint32_t width) {
  uint64_t found = (8 * vl * width + vlen - 1) / vlen;
  return found ? (uint32_t)found : 1;
}

/* The state after vsetvli or vsetivli, which say it all; a length from a register is taken to be the most. */
static struct state state_after(uint32_t word) {
  uint32_t type = bits(word, 31, 30) == 3 ? bits(word, 29, 20) : bits(word, 30, 20);
  uint32_t sew = 8u << bits(type, 5, 3), lmul = bits(type, 2, 0);
  uint32_t most = lmul < 4 ? (vlen / sew) << lmul : (vlen / sew) >> (8 - lmul);
  uint32_t vl = bits(word, 31, 30) == 3 && bits(word, 19, 15) < most ? bits(word, 19, 15) : most;
  return (struct state){sew, eighths_of(vl, sew), vl};
}

/* What one vector instruction adds: to which counter, and how. */
enum amount { BY_GROUP, BY_TWO_GROUPS, BY_PERMUTATION, BY_WIDTH, BY_REGISTERS, BY_ELEMENTS };
struct work {
  uint8_t counter, amount;
  uint16_t width; /* of memory in bits, or a number of registers */
};

static uint64_t amount_of(struct work work, struct state state) {
  switch (work.amount) {
    case BY_TWO_GROUPS: return 2 * state.eighths;
    case BY_PERMUTATION: return (uint64_t)state.eighths * ((state.eighths + 7) / 8);
    case BY_WIDTH: return eighths_of(state.vl, work.width);
    case BY_REGISTERS: return 8u * work.width;
    case BY_ELEMENTS: return state.vl;
    default: return state.eighths;
  }
}

/* Instructions --------------------------------------------------------------------------------------- */

enum { OP_LOAD = 0x03, OP_LOAD_FP = 0x07, OP_STORE = 0x23, OP_STORE_FP = 0x27, OP_INT = 0x33, OP_INT32 = 0x3b,
       OP_FMADD = 0x43, OP_FMSUB = 0x47, OP_FNMSUB = 0x4b, OP_FNMADD = 0x4f, OP_FP = 0x53, OP_VECTOR = 0x57,
       OP_BRANCH = 0x63, OP_JALR = 0x67, OP_JAL = 0x6f };
enum { OPIVV, OPFVV, OPMVV, OPIVI, OPIVX, OPFVF, OPMVX, OPCFG };

static bool is_vector_memory(uint32_t word) {
  uint32_t op = bits(word, 6, 0), width = bits(word, 14, 12);
  return (op == OP_LOAD_FP || op == OP_STORE_FP) && (width == 0 || width >= 5);
}

static bool is_vset(uint32_t word) { return bits(word, 6, 0) == OP_VECTOR && bits(word, 14, 12) == OPCFG; }

static struct work memory_work(uint32_t word) {
  static const uint16_t widths[] = {8, 0, 0, 0, 0, 16, 32, 64};
  uint32_t mode = bits(word, 27, 26), fields = bits(word, 31, 29) + 1, width = widths[bits(word, 14, 12)];
  if (mode) return (struct work){C_vector_elements, BY_ELEMENTS, 0}; /* strided, indexed */
  switch (bits(word, 24, 20)) {
    case 8: return (struct work){C_vector_memory, BY_REGISTERS, fields}; /* whole registers */
    case 11: return (struct work){C_vector_memory, BY_WIDTH, 1};         /* masks */
    default: return (struct work){fields > 1 ? C_vector_elements : C_vector_memory,
                                  fields > 1 ? BY_ELEMENTS : BY_WIDTH, width};
  }
}

static struct work arithmetic_work(uint32_t word) {
  uint32_t form = bits(word, 14, 12), f6 = bits(word, 31, 26);
  bool is_int = form == OPIVV || form == OPIVX || form == OPIVI, is_float = form == OPFVV || form == OPFVF;
  struct work simple = {C_vector_simple, BY_GROUP, 0};
  if (is_int) {
    if (form == OPIVV && (f6 == 0x30 || f6 == 0x31)) return (struct work){C_vector_reduction, BY_GROUP, 0};
    if (f6 == 0x0c || (form == OPIVV && f6 == 0x0e)) return (struct work){C_vector_permute, BY_PERMUTATION, 0};
    if (f6 == 0x27 && form == OPIVI) return (struct work){C_vector_simple, BY_REGISTERS, bits(word, 17, 15) + 1};
    return (struct work){C_vector_simple, f6 >= 0x2c && f6 <= 0x2f ? BY_TWO_GROUPS : BY_GROUP, 0};
  }
  uint8_t wide = f6 >= 0x30 ? BY_TWO_GROUPS : BY_GROUP;
  if (is_float) {
    if (form == OPFVV && (f6 == 1 || f6 == 3 || f6 == 5 || f6 == 7 || f6 == 0x31 || f6 == 0x33))
      return (struct work){C_vector_reduction, BY_GROUP, 0};
    if (f6 == 0x20 || f6 == 0x21 || (f6 == 0x13 && bits(word, 19, 15) == 0))
      return (struct work){C_vector_divide, BY_GROUP, 0};
    if (f6 == 0x10) return (struct work){C_vector_simple, BY_ELEMENTS, 0}; /* one scalar in or out; see below */
    return (struct work){f6 >= 0x24 ? C_vector_multiply : C_vector_simple, wide, 0};
  }
  if (form == OPMVV && f6 < 8) return (struct work){C_vector_reduction, BY_GROUP, 0};
  if (f6 >= 0x20 && f6 <= 0x23) return (struct work){C_vector_divide, BY_GROUP, 0};
  if (form == OPMVV && f6 == 0x17) return (struct work){C_vector_permute, BY_PERMUTATION, 0};
  if ((f6 >= 0x24 && f6 <= 0x2f) || f6 >= 0x38) return (struct work){C_vector_multiply, wide, 0};
  return f6 >= 0x30 ? (struct work){C_vector_simple, wide, 0} : simple;
}

static bool moves_one_element(uint32_t word) {
  uint32_t form = bits(word, 14, 12);
  return bits(word, 31, 26) == 0x10 && (form == OPFVV || form == OPFVF || form == OPMVV || form == OPMVX) &&
         (bits(word, 19, 15) == 0 || bits(word, 24, 20) == 0);
}

static enum counter scalar_counter(uint32_t word, size_t size) {
  if (size == 2) {
    uint32_t quadrant = bits(word, 1, 0), function = bits(word, 15, 13);
    if (quadrant == 0) return function == 0 ? C_scalar : function < 4 ? C_load : C_store;
    if (quadrant == 1) return function >= 5 ? C_branch : C_scalar;
    if (function == 0) return C_scalar;
    if (function == 4) return bits(word, 6, 2) == 0 ? C_branch : C_scalar;
    return function < 4 ? C_load : C_store;
  }
  switch (bits(word, 6, 0)) {
    case OP_LOAD: case OP_LOAD_FP: return C_load;
    case OP_STORE: case OP_STORE_FP: return C_store;
    case OP_BRANCH: case OP_JAL: case OP_JALR: return C_branch;
    case OP_FMADD: case OP_FMSUB: case OP_FNMSUB: case OP_FNMADD: return C_fp;
    case OP_FP: return bits(word, 31, 27) == 0x03 || bits(word, 31, 27) == 0x0b ? C_fp_divide : C_fp;
    case OP_INT: case OP_INT32:
      if (bits(word, 31, 25) != 1) return C_scalar;
      return bits(word, 14, 12) >= 4 ? C_divide : C_multiply;
    default: return C_scalar;
  }
}

/* Regions -------------------------------------------------------------------------------------------- */

static void on_begin(unsigned vcpu, void *data) {
  (void)vcpu, (void)data;
  memcpy(at_start, counts, sizeof counts);
}

static void on_end(unsigned vcpu, void *data) {
  (void)vcpu, (void)data;
  char line[2048] = "TPO";
  size_t length = 3;
  for (int k = 0; k < COUNTER_COUNT; k++)
    length += (size_t)snprintf(line + length, sizeof line - length, " %s=%" PRIu64, names[k], counts[k] - at_start[k]);
  fprintf(stderr, "%s\n", line);
}

/* Blocks of code ------------------------------------------------------------------------------------- */

/* Vector instructions before the first vset of a block, whose state only shows when the block runs. */
struct open_work {
  size_t count;
  struct work items[];
};

static void on_open_work(unsigned vcpu, void *data) {
  (void)vcpu;
  const struct open_work *open = data;
  for (size_t k = 0; k < open->count; k++) counts[open->items[k].counter] += amount_of(open->items[k], now);
}

static void on_vset(unsigned vcpu, void *data) {
  (void)vcpu;
  uint32_t word = (uint32_t)(uintptr_t)data;
  if (bits(word, 31, 30) != 2) now = state_after(word); /* else both come from registers: as before */
}

static void on_translated(plugin_id id, struct qemu_plugin_tb *block) {
  (void)id;
  size_t count = qemu_plugin_tb_n_insns(block);
  uint64_t added[COUNTER_COUNT] = {0};
  struct open_work *open = calloc(1, sizeof *open + count * sizeof(struct work));
  struct qemu_plugin_insn *last_vset = NULL;
  struct state state = now;
  uint32_t vset_word = 0;
  for (size_t k = 0; k < count; k++) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, k);
    size_t size = qemu_plugin_insn_size(insn);
    uint32_t word = 0;
    memcpy(&word, qemu_plugin_insn_data(insn), size < 4 ? 2 : 4);
    if (word == 0x7a102013) qemu_plugin_register_vcpu_insn_exec_cb(insn, on_begin, CB_NO_REGS, NULL);
    if (word == 0x7a202013) qemu_plugin_register_vcpu_insn_exec_cb(insn, on_end, CB_NO_REGS, NULL);
    bool memory = size == 4 && is_vector_memory(word), vector = size == 4 && bits(word, 6, 0) == OP_VECTOR;
    enum counter scalar = memory || vector ? C_vector : scalar_counter(word, size);
    if (memory || scalar == C_load || scalar == C_store)
      qemu_plugin_register_vcpu_mem_cb(insn, on_access, CB_NO_REGS, MEM_READ_WRITE, NULL);
    if (vector && is_vset(word)) {
      added[C_vset]++;
      if (bits(word, 31, 30) != 2) state = state_after(word), last_vset = insn, vset_word = word;
      continue;
    }
    added[scalar]++;
    if (scalar != C_vector) continue;
    struct work work = memory ? memory_work(word) : arithmetic_work(word);
    if (vector && moves_one_element(word)) {
      added[C_vector_simple] += 1;
    } else if (last_vset) {
      added[work.counter] += amount_of(work, state);
    } else {
      open->items[open->count++] = work;
    }
  }
  if (open->count) qemu_plugin_register_vcpu_tb_exec_cb(block, on_open_work, CB_NO_REGS, open);
  else free(open);
  if (last_vset)
    qemu_plugin_register_vcpu_insn_exec_cb(last_vset, on_vset, CB_NO_REGS, (void *)(uintptr_t)vset_word);
  for (int k = 0; k < COUNTER_COUNT; k++)
    if (added[k]) qemu_plugin_register_vcpu_tb_exec_inline(block, INLINE_ADD, &counts[k], added[k]);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  unsigned l1_kib = 32, l2_kib = 512;
  for (int k = 0; k < argc; k++) {
    sscanf(argv[k], "vlen=%u", &vlen);
    sscanf(argv[k], "l1=%u", &l1_kib);
    sscanf(argv[k], "l2=%u", &l2_kib);
  }
  make_cache(&l1, l1_kib * 1024, 8);
  make_cache(&l2, l2_kib * 1024, 8);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
  return 0;
}

// CUDA C, as TVM generates it, compiled as C++ and run on one core, to see whether it computes the right
// numbers. It says nothing about speed.
//
// Every thread of a block is a fiber. It runs until it waits for others, or ends; then the next one runs, in
// one order or in the other: whatever two threads do between two barriers happens either way around. What a
// program may not rely on is made as bad as it can be: memory that nobody has written is all ones (not a
// number, or -1), asynchronous copies happen only when they are waited for, and arrays end where unmapped
// memory begins.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// What threads of a block share without a size of their own: the kernel is launched with one.
inline unsigned char *buf_dyn_shmem_ptr;
// What they share with a size is in a section of its own, so that it can be spoilt for every block.
extern unsigned char __start_emulated_shared[] __attribute__((weak));
extern unsigned char __stop_emulated_shared[] __attribute__((weak));

namespace emulation {

constexpr unsigned warp_size = 32;
constexpr size_t stack_bytes = 1 << 20;
constexpr size_t page = 4096;
constexpr int unwritten = 0xff;
constexpr int refused = 3;  // exit code of a program that does what no GPU would

[[noreturn]] inline void refuse(const std::string &why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(refused);
}

// Memory -----------------------------------------------------------------------------------------------

inline size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Memory right before a page that nobody may touch.
inline unsigned char *guarded(size_t bytes) {
  const size_t room = rounded(std::max<size_t>(bytes, 1), page);
  void *start = mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) refuse("there is not enough memory");
  auto *bytes_of = static_cast<unsigned char *>(start);
  mprotect(bytes_of + room, page, PROT_NONE);
  std::memset(bytes_of, unwritten, room);
  return bytes_of + room - rounded(bytes, 16);  // the widest access is one of 16 bytes
}

inline std::string folder;

inline std::string file_of(unsigned parameter) { return folder + "/" + std::to_string(parameter) + ".bin"; }

// An argument of the function: what its file says, or nothing yet if it is only written.
inline unsigned char *argument(unsigned parameter, size_t bytes) {
  unsigned char *data = guarded(bytes);
  FILE *file = std::fopen(file_of(parameter).c_str(), "rb");
  if (!file) return data;
  if (std::fread(data, 1, bytes, file) != bytes) refuse("cannot read " + file_of(parameter));
  std::fclose(file);
  return data;
}

inline std::vector<unsigned> wanted;  // parameters that are results

// What became of an argument, if it is wanted.
inline void result(unsigned parameter, const unsigned char *data, size_t bytes) {
  if (std::find(wanted.begin(), wanted.end(), parameter) == wanted.end()) return;
  FILE *file = std::fopen(file_of(parameter).c_str(), "wb");
  if (!file || std::fwrite(data, 1, bytes, file) != bytes || std::fclose(file))
    refuse("cannot write " + file_of(parameter));
}

// Threads ----------------------------------------------------------------------------------------------

struct Copy {
  void *to;
  const void *from;
  size_t bytes;
};
using Copies = std::vector<Copy>;

enum class State { runs, at_block_barrier, at_warp_barrier, ended };

struct Thread {
  ucontext_t context;
  State state;
  unsigned lanes;    // of its warp, that it waits for
  uint64_t offered;  // to the other lanes
  Copies issued;
  std::deque<Copies> committed;
};

inline std::vector<Thread> threads;
inline std::vector<unsigned char *> stacks;
inline unsigned running;
inline ucontext_t scheduler;
inline bool backwards;
inline std::function<void()> kernel;

inline Thread &self() { return threads[running]; }

inline void yield(State state) {
  const unsigned me = running;
  threads[me].state = state;
  swapcontext(&threads[me].context, &scheduler);
}

inline void body() {
  kernel();
  self().state = State::ended;
  setcontext(&scheduler);
}

inline void resume(unsigned thread) {
  running = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
  swapcontext(&scheduler, &threads[thread].context);
}

inline void begin_block() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  threads.assign(count, Thread());
  while (stacks.size() < count) stacks.push_back(guarded(stack_bytes));
  for (unsigned k = 0; k < count; ++k) {
    getcontext(&threads[k].context);
    threads[k].context.uc_stack.ss_sp = stacks[k];
    threads[k].context.uc_stack.ss_size = stack_bytes;
    threads[k].state = State::runs;
    makecontext(&threads[k].context, body, 0);
  }
}

inline unsigned lanes_in(unsigned warp, State state) {
  unsigned lanes = 0;
  for (unsigned k = warp * warp_size; k < std::min<size_t>((warp + 1) * warp_size, threads.size()); ++k)
    if (threads[k].state == state) lanes |= 1u << k % warp_size;
  return lanes;
}

inline unsigned live_lanes(unsigned warp) {
  return lanes_in(warp, State::runs) | lanes_in(warp, State::at_block_barrier) |
         lanes_in(warp, State::at_warp_barrier);
}

// Let those lanes go on for whom all wait that they wait for; whether there were any.
inline bool release_warps() {
  bool any = false;
  for (unsigned warp = 0; warp * warp_size < threads.size(); ++warp) {
    const unsigned waiting = lanes_in(warp, State::at_warp_barrier), missing = live_lanes(warp) & ~waiting;
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if (!(waiting >> lane & 1)) continue;
      Thread &thread = threads[warp * warp_size + lane];
      if (thread.lanes & missing) continue;
      thread.state = State::runs;
      any = true;
    }
  }
  return any;
}

// Let all go on if all that have not ended wait for each other; whether they did.
inline bool release_block() {
  bool any = false;
  for (const Thread &thread : threads) {
    if (thread.state != State::at_block_barrier && thread.state != State::ended) return false;
    any |= thread.state == State::at_block_barrier;
  }
  for (Thread &thread : threads)
    if (thread.state == State::at_block_barrier) thread.state = State::runs;
  return any;
}

inline void run_block() {
  begin_block();
  do {
    const unsigned count = threads.size();
    for (unsigned k = 0; k < count; ++k) {
      const unsigned thread = backwards ? count - 1 - k : k;
      if (threads[thread].state == State::runs) resume(thread);
    }
  } while (release_warps() || release_block());
  for (const Thread &thread : threads)
    if (thread.state != State::ended) refuse("threads of a block wait for others that do not come");
}

// Barriers, shuffles, copies ---------------------------------------------------------------------------

inline unsigned lane() { return running % warp_size; }

inline void wait_for_warp(unsigned lanes) {
  self().lanes = lanes;
  yield(State::at_warp_barrier);
}

// A lane's value; nobody knows that of a lane which does not take part.
template <class T>
T shuffled(unsigned lanes, T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "shuffles move up to 8 bytes");
  std::memcpy(&self().offered, &value, sizeof value);
  wait_for_warp(lanes);
  const unsigned other = running / warp_size * warp_size + from % warp_size;
  T taken;
  std::memset(&taken, unwritten, sizeof taken);
  if (other < threads.size() && lanes >> from % warp_size & 1)
    std::memcpy(&taken, &threads[other].offered, sizeof taken);
  wait_for_warp(lanes);
  return taken;
}

inline void copy_later(void *to, const void *from, size_t bytes) { self().issued.push_back({to, from, bytes}); }

inline void copy_later_if(bool condition, void *to, const void *from, size_t bytes) {
  if (condition)
    copy_later(to, from, bytes);
  else
    std::memset(to, 0, bytes);
}

inline void commit_copies() {
  self().committed.push_back(std::move(self().issued));
  self().issued.clear();
}

// Carry out all groups of copies but the last so many.
inline void wait_for_copies(size_t but) {
  for (auto &groups = self().committed; groups.size() > but; groups.pop_front())
    for (const Copy &copy : groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
}

inline void wait_for_all_copies() {
  commit_copies();
  wait_for_copies(0);
}

// Launching --------------------------------------------------------------------------------------------

template <class... Parameters, class... Arguments>
void launch(dim3 grid, dim3 block, size_t shared, void (*function)(Parameters...), Arguments... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a kernel wants other arguments");
  gridDim = grid, blockDim = block;
  buf_dyn_shmem_ptr = guarded(shared);
  kernel = [=] { function((Parameters)arguments...); };
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        std::memset(buf_dyn_shmem_ptr, unwritten, shared);
        std::memset(__start_emulated_shared, unwritten, __stop_emulated_shared - __start_emulated_shared);
        run_block();
      }
}

// Arguments of the program: the folder of its arrays, the order of threads, the numbers of its results.
inline void begin(int count, char **given) {
  if (count < 3) refuse("usage: emulated FOLDER forwards|backwards RESULT...");
  folder = given[1];
  backwards = std::string(given[2]) == "backwards";
  for (int k = 3; k < count; ++k) wanted.push_back(std::atoi(given[k]));
}

}  // namespace emulation

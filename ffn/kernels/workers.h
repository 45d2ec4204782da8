// Work shared out among threads, and the time it takes.
#pragma once

#include <time.h>

#include <atomic>
#include <functional>
#include <vector>

namespace ffn {

// What a unit of work is counted as in the profile.
enum Kind { kForward, kDataGradient, kWeightGradient, kRest, kNumKinds };

// Processor time of all threads since the library was loaded, ns.
inline std::atomic<int64_t>& nanoseconds(Kind kind) {
  static std::atomic<int64_t> total[kNumKinds];
  return total[kind];
}

inline int64_t thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// `count` units, each of which writes what no other unit of its stage reads or writes.
struct Work {
  Kind kind;
  int64_t count;
  std::function<void(int worker, int64_t unit)> unit;
};

// The threads of TensorFlow: run(f) calls f(worker) for each worker, all at the same time, and waits for all.
struct Workers {
  int count;
  std::function<void(const std::function<void(int)>&)> run;

  // Do all works, in any order; who does which unit is left to chance, so that must not matter to the result.
  void stage(const std::vector<Work>& works) const {
    std::atomic<int64_t> next{0};
    run([&](int worker) {
      int64_t ticket = next++, before = 0;
      for (const Work& work : works) {
        const int64_t begin = thread_nanoseconds();
        for (; ticket < before + work.count; ticket = next++) work.unit(worker, ticket - before);
        before += work.count;
        nanoseconds(work.kind) += thread_nanoseconds() - begin;
      }
    });
  }
};

}  // namespace ffn

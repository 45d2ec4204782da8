// Large buffers that are kept for the next step: fresh memory costs a page fault every 4 KB, a third of a step in all.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "layout.h"

namespace ffn {

class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(round_up(bytes, kPage)), data_(take(bytes_)) {}
  ~Buffer() {
    std::lock_guard<std::mutex> lock(mutex());
    unused()[bytes_].push_back(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  static constexpr int64_t kPage = 1 << 21;  // huge pages, where Linux grants them

  static void* take(int64_t bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      std::vector<void*>& kept = unused()[bytes];
      if (!kept.empty()) {
        void* data = kept.back();
        kept.pop_back();
        return data;
      }
    }
    void* data = std::aligned_alloc(kPage, bytes);
    if (!data) throw std::bad_alloc();
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<int64_t, std::vector<void*>>& unused() {  // by size; a training needs the same sizes in every step
    static auto* buffers = new std::map<int64_t, std::vector<void*>>;
    return *buffers;
  }

  int64_t bytes_;
  void* data_;
};

}  // namespace ffn

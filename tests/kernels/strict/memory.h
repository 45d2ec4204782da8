// Buffers in which the sanitizers see every mistake: of the exact size, never kept, and full of NaN (0xff...ff).
// Takes the place of ffn/kernels/memory.h, which rounds up to 2 MB and keeps buffers for the next step.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>

#include "layout.h"

namespace ffn {

class Buffer {
 public:
  explicit Buffer(int64_t bytes) {
    if (posix_memalign(&data_, 64, bytes)) throw std::bad_alloc();
    std::memset(data_, 0xff, bytes);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
};

}  // namespace ffn

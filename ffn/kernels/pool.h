// Threads that wait for work, for a process without TensorFlow's.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "workers.h"

namespace ffn {

class Pool {
 public:
  explicit Pool(int threads) {
    try {
      for (int worker = 1; worker < threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
    } catch (...) {  // the system has no more threads; those that began must end before they are destroyed
      stop();
      throw;
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Workers workers() {
    return {static_cast<int>(threads_.size()) + 1, [this](const auto& work) {
              begin(&work);
              work(0);
              std::unique_lock lock(mutex_);
              done_.wait(lock, [this] { return busy_ == 0; });
            }};
  }

 private:
  void stop() {
    begin(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  void begin(const std::function<void(int)>* work) {
    {
      std::lock_guard lock(mutex_);
      work_ = work;
      busy_ = static_cast<int>(threads_.size());
      ++round_;
    }
    begun_.notify_all();
  }

  void serve(int worker) {
    for (int64_t seen = 0;;) {
      const std::function<void(int)>* work;
      {
        std::unique_lock lock(mutex_);
        begun_.wait(lock, [&] { return round_ != seen; });
        seen = round_;
        work = work_;
      }
      if (!work) return;
      (*work)(worker);
      std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable begun_, done_;
  const std::function<void(int)>* work_ = nullptr;
  int busy_ = 0;
  int64_t round_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace ffn

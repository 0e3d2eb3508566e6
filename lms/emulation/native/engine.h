// A card made of host memory: the base of both fronts (computing, dry) and the driver.
//
// A stream is a clock. The time of work is known when it is queued, so queueing adds up
// times, and threads sleep only where CUDA would make them wait. A copy moves its bytes
// when it is queued: kernels compute at their launch, so the bytes are there. On a dry
// card memory is address space without pages, and only small values are moved.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace card {

inline double Setting(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::atof(text);
}

inline bool IsDry() {
  static bool dry = Setting("LMS_CARD_DRY", 0) != 0;
  return dry;
}

constexpr int kMostCards = 8;

enum Direction { kToDevice = 0, kToHost = 1, kWithin = 2 };

struct Counters {
  std::atomic<int64_t> bytes[3]{}, copies[3]{}, pageable[3]{};
  std::atomic<int64_t> device_bytes[kMostCards]{}, pinned_bytes{0}, pinned_peak{0};
  std::atomic<int64_t> kernels{0}, launches{0}, computed{0};
  std::atomic<int64_t> busy[3]{};  // nanoseconds of kernels, copies in, copies out
};

inline Counters& counters() {
  static Counters* all = new Counters;
  return *all;
}

// ------------------------------------------------------------------------- time

// Seconds on the card's clock since the first call: wall time over the time scale.
inline double Scale() {
  static double scale = Setting("LMS_CARD_TIME_SCALE", 1);
  return scale;
}
inline std::chrono::steady_clock::time_point Start() {
  static auto start = std::chrono::steady_clock::now();
  return start;
}
inline double Now() {
  const std::chrono::duration<double> past = std::chrono::steady_clock::now() - Start();
  return past.count() / Scale();
}
inline void SleepUntil(double moment) {
  std::this_thread::sleep_until(
      Start() + std::chrono::nanoseconds(static_cast<int64_t>(moment * Scale() * 1e9)));
}

struct Span {  // a kernel or copy of the trace
  int lane;
  double begin, end, queued;
  int64_t bytes;
  std::string name;
};
struct Trace {
  std::mutex mutex;
  std::vector<Span> spans;
  std::atomic<bool> on{false};
};
inline Trace& trace() {
  static Trace* one = new Trace;
  return *one;
}

class Stream {
 public:
  // Queues work that takes `seconds`.
  void Add(double seconds, int lane, const char* name, int64_t bytes) {
    const double now = Now();
    double begin, end;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      begin = std::max(end_, now);
      end = end_ = begin + seconds;
    }
    counters().busy[lane] += static_cast<int64_t>(seconds * 1e9);
    if (trace().on) {
      std::lock_guard<std::mutex> lock(trace().mutex);
      trace().spans.push_back({lane, begin, end, now, bytes, name});
    }
  }
  double end() {
    std::lock_guard<std::mutex> lock(mutex_);
    return end_;
  }
  void WaitFor(double moment) {
    std::lock_guard<std::mutex> lock(mutex_);
    end_ = std::max(end_, moment);
  }
  bool IsIdle() { return Now() >= end(); }
  void Join() {
    if (!IsIdle()) SleepUntil(end());
  }

 private:
  std::mutex mutex_;
  double end_ = 0;
};

// Host functions that streams queued, run at their moments.
class Calls {
 public:
  static Calls& One() {
    static Calls* one = new Calls;
    return *one;
  }
  void Add(double moment, std::function<void()> call) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.emplace(moment, std::move(call));
    }
    changed_.notify_all();
  }

 private:
  Calls() { std::thread([this] { Run(); }).detach(); }
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !queue_.empty(); });
      auto first = queue_.begin();
      const double moment = first->first;
      auto call = std::move(first->second);
      queue_.erase(first);
      lock.unlock();
      SleepUntil(moment);
      call();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<double, std::function<void()>> queue_;
};

// ----------------------------------------------------------------------- memory

struct Region {
  uintptr_t start = 0;
  size_t size = 0;
  int owner = 0;  // the card of this memory
};

class Regions {  // memory by start address, to find the region of any address
 public:
  void* Take(size_t size, int owner) {
    void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    // Else a small value on a dry card would take a page of 2 MiB.
    if (IsDry()) madvise(start, size, MADV_NOHUGEPAGE);
    Add(reinterpret_cast<uintptr_t>(start), size, owner);
    return start;
  }
  Region Give(void* start) {
    const Region region = Drop(reinterpret_cast<uintptr_t>(start));
    if (region.size != 0) munmap(start, region.size);
    return region;
  }
  // Adds and drops a region whose pages are another's to make and unmake.
  void Add(uintptr_t at, size_t size, int owner) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_[at] = {at, size, owner};
  }
  Region Drop(uintptr_t at) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = all_.find(at);
    if (found == all_.end()) return {};
    const Region region = found->second;
    all_.erase(found);
    return region;
  }
  // Returns the region that holds an address, or an empty one.
  Region Find(const void* at) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(at);
    auto next = all_.upper_bound(address);
    if (next == all_.begin()) return {};
    const Region& found = (--next)->second;
    return address < found.start + found.size ? found : Region{};
  }
  bool Holds(const void* at) { return Find(at).size != 0; }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, Region> all_;
};

inline Regions& device_memory() {
  static Regions* all = new Regions;
  return *all;
}

inline Regions& pinned_memory() {
  static Regions* all = new Regions;
  return *all;
}

// TensorFlow's limit on a card, in bytes.
inline int64_t Memory() {
  static int64_t bytes = static_cast<int64_t>(Setting("LMS_CARD_MEMORY", 512 << 20));
  return bytes;
}

// Counts bytes of a card as taken, or returns that there are not as many.
inline bool Count(size_t size, int card) {
  std::atomic<int64_t>& taken = counters().device_bytes[card];
  const int64_t now = taken.fetch_add(size) + size;
  // TensorFlow's allocator obeys the limit; the runtime's own memory comes on top.
  if (now <= Memory() + (1ll << 31)) return true;
  taken -= size;
  return false;
}

inline void* TakeDevice(size_t size, int card) {
  if (!Count(size, card)) return nullptr;
  void* found = device_memory().Take(size, card);
  if (found == nullptr) counters().device_bytes[card] -= size;
  return found;
}

inline void GiveDevice(void* start) {
  const Region region = device_memory().Give(start);
  counters().device_bytes[region.owner] -= region.size;
}

inline void* TakePinned(size_t size) {
  void* found = pinned_memory().Take(size, 0);
  if (found == nullptr) return nullptr;
  Counters& all = counters();
  const int64_t now = all.pinned_bytes.fetch_add(size) + size;
  int64_t peak = all.pinned_peak;
  while (now > peak && !all.pinned_peak.compare_exchange_weak(peak, now)) {
  }
  return found;
}

inline void GivePinned(void* start) {
  counters().pinned_bytes -= pinned_memory().Give(start).size;
}

// Returns whether values of this size are real: on a dry card up to 16 KiB.
inline bool IsTrue(size_t size) { return !IsDry() || size <= 16384; }

// Counts a copy, moves its bytes now (or later), and returns its seconds: 0 at a rate of 0.
inline double Copy(Direction direction, void* to, const void* from, size_t size,
                   bool now = true) {
  static double rates[3] = {Setting("LMS_CARD_H2D", 0), Setting("LMS_CARD_D2H", 0),
                            Setting("LMS_CARD_BANDWIDTH", 0) / 2};
  static double latency = Setting("LMS_CARD_LATENCY", 0);
  if (now && IsTrue(size)) std::memcpy(to, from, size);
  Counters& all = counters();
  all.bytes[direction] += size;
  all.copies[direction] += 1;
  if (direction != kWithin) {
    const void* host = direction == kToDevice ? from : to;
    if (!pinned_memory().Holds(host)) all.pageable[direction] += size;
  }
  if (rates[direction] <= 0) return 0;
  return (direction == kWithin ? 0 : latency) + size / rates[direction];
}

}  // namespace card

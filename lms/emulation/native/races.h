// A detector of races: which accesses to memory does nothing order?
//
// Each access has byte ranges, a lane (a stream, or the host) and a vector clock, as in
// FastTrack (Flanagan and Freund, PLDI 2009) and ThreadSanitizer, with streams in place of
// threads. Two accesses to one byte, one of them a write, race if the later one's clock
// lacks the earlier one's moment. That holds for the order of calls that was seen: no
// access has to go wrong for a race to be found.
//
//   work is queued on a stream     the stream has all that the host has
//   an event is recorded           the event has all that the stream has
//   a stream waits for an event    the stream has all that the event has
//   the host hears of an event     the host has all that the event has
//   the legacy default stream acts it has all that its card's blocking streams have
//   a blocking stream acts         it has all that its card's legacy stream has
//
// The last two are the "stream synchronization behavior" of CUDA's driver API.
//
// All threads of the host share one lane: they are ordered by the order of their calls,
// since the driver does not see their mutexes. So that this order hides little, the host
// hears of an event late: when nobody else calls the driver.
//
// Late copies (`LMS_CARD_LATE`) are queued and move their bytes when something that is
// ordered after them begins, or after a number of calls that is drawn by a seed.
//
// Known weakness: a race among threads of the host is not seen, nor are accesses of the
// host that neither an op nor the driver makes.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <list>
#include <memory>
#include <random>
#include <set>

#include "engine.h"
#include "range.h"

namespace card {

using Clock = std::vector<uint64_t>;  // by lane: its last moment that is known

inline void Join(Clock* clock, const Clock& other) {
  if (clock->size() < other.size()) clock->resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) (*clock)[i] = std::max((*clock)[i], other[i]);
}
inline uint64_t MomentOf(const Clock& clock, int lane) {
  return static_cast<size_t>(lane) < clock.size() ? clock[lane] : 0;
}

// How a stream is ordered with its card's legacy default stream, and that stream itself.
enum StreamKind { kNonBlocking, kBlocking, kLegacy };

inline bool IsOrdered(StreamKind one, StreamKind other) {
  return (one == kLegacy && other == kBlocking) || (one == kBlocking && other == kLegacy);
}

struct RaceEvent {  // what an event knows
  Clock clock;
  int64_t calls = -1;             // of the driver, when the host last asked
  int64_t polls = 0, asked = 0;   // questions: since the last call, and all
  bool unheard = false;           // a fault: the host does not wait for it
};

class Races {
 public:
  static constexpr int kHost = 0;

  // Returns the detector, or null where nobody asked for one.
  static Races* One() {
    static Races* one = Path() == nullptr && Setting("LMS_CARD_LATE", -1) < 0
                            ? nullptr
                            : new Races;
    return one;
  }

  // Returns whether memory is a card's or pinned: others' is the host's alone.
  static bool IsWatched(const void* at) {
    return device_memory().Holds(at) || pinned_memory().Holds(at);
  }

  int AddLane(int card, StreamKind kind) {
    std::lock_guard<std::mutex> lock(mutex_);
    lanes_.emplace_back();
    lanes_.back().card = card;
    lanes_.back().kind = kind;
    return static_cast<int>(lanes_.size()) - 1;
  }

  // ---------------------------------------------------------------- what is ordered

  void Record(int lane, const std::string& op, RaceEvent* event) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    Follow(lane);
    *event = RaceEvent();
    event->clock = IsFaulty("early", op) ? lanes_[lane].before : lanes_[lane].clock;
    event->unheard = IsFaulty("unheard", op);
  }
  // Returns whether the stream waits.
  bool Wait(int lane, const std::string& op, const RaceEvent& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    if (IsFaulty("wait", op)) return false;
    Follow(lane);
    Join(&lanes_[lane].clock, event.clock);
    return true;
  }
  // Returns whether the host hears of an event that is reached: late, when nobody calls.
  bool Hears(RaceEvent* event) {
    // Questions, some 0.1 ms apart: without other calls; while an op computes, which may
    // itself wait for the host; and while others never cease to call.
    constexpr int kQuiet = 6, kStuck = 300, kMost = 3000;
    std::lock_guard<std::mutex> lock(mutex_);
    if (event->unheard) return true;
    if (event->calls != calls_) event->calls = calls_, event->polls = 0;
    const bool is_early = ++event->polls < (computing_ > 0 ? kStuck : kQuiet);
    if (is_early && ++event->asked < kMost) return false;
    ++calls_;
    Learn(event->clock);
    return true;
  }
  void Hear(const RaceEvent& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!event.unheard) Learn(event.clock);
  }
  void HearStream(int lane) {
    std::lock_guard<std::mutex> lock(mutex_);
    Follow(lane);
    Learn(lanes_[lane].clock);
  }
  void HearCard(int card) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 1; i < lanes_.size(); ++i) {
      if (lanes_[i].card == card) Learn(lanes_[i].clock);
    }
  }

  // ------------------------------------------------------------------- what is done

  // A kernel begins: late copies that are ordered before it take effect.
  void Begin(int lane) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    ++computing_;
    Follow(lane);
    Settle(lanes_[lane].clock);
  }
  // The op of this thread waits for memory (1), or no longer (-1).
  void Pause(int by) {
    std::lock_guard<std::mutex> lock(mutex_);
    computing_ -= by;
  }
  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    --computing_;
  }
  void Access(int lane, const char* kind, const std::string& op, const LmsRange* ranges,
              int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    Settle(Queue(lane, kind));
    Touch(lane, kind, op, ranges, count);
  }
  // Queues a copy; returns whether it is to be made now.
  bool Copy(int lane, const char* kind, const std::string& op, void* to, const void* from,
            size_t size, bool at_once) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Clock& clock = Queue(lane, kind);
    const std::string tensor = LastWritten(from);
    LmsRange ranges[] = {{from, size, 0, tensor.c_str()}, {to, size, 1, tensor.c_str()}};
    for (LmsRange& one : ranges) one.at = IsWatched(one.at) ? one.at : nullptr;
    Touch(lane, kind, op, ranges, 2);
    const int64_t later = late_ < 0 || at_once ? 0 : Later();
    if (later == 0) {
      Settle(clock);
      return true;
    }
    pending_.push_back({clock, lane, clock[lane], to, from, size, calls_ + later});
    return false;
  }
  // Memory goes: what lay there does not count any more.
  void Forget(const void* start, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& copy : pending_) Move(copy);
    pending_.clear();
    const auto from = reinterpret_cast<uintptr_t>(start);
    Split(from);
    Split(from + size);
    cells_.erase(cells_.lower_bound(from), cells_.lower_bound(from + size));
  }
  int64_t found() { return found_; }

 private:
  struct Seen {  // an access
    int lane;
    uint64_t moment;
    const char* kind;
    std::string op, tensor;
    bool writes;
    size_t size;
  };
  using SeenPtr = std::shared_ptr<const Seen>;
  struct Cell {  // bytes with one history, from the key to `end`
    uintptr_t end;
    SeenPtr write;
    std::vector<SeenPtr> reads;  // since the write, one a lane
  };
  struct Lane {
    int card = 0;
    StreamKind kind = kNonBlocking;
    Clock clock, before;  // `before` its last work
    std::map<std::string, int64_t> kinds;
  };
  struct Pending {
    Clock clock;
    int lane;
    uint64_t moment;
    void* to;
    const void* from;
    size_t size;
    int64_t due;
  };

  Races() : lanes_(1), finds_(Path() != nullptr) {
    late_ = Setting("LMS_CARD_LATE", -1);
    draw_.seed(static_cast<uint32_t>(std::max(0.0, late_)));
    const char* fault = std::getenv("LMS_CARD_FAULT");
    if (fault != nullptr) fault_ = fault;
  }
  static const char* Path() {
    const char* path = std::getenv("LMS_CARD_RACES");
    return path == nullptr || *path == 0 ? nullptr : path;
  }
  // Tests remove an order of one op's, as "wait:OP": no stream waits for an event; "early":
  // events are recorded before the stream's last work; "unheard": nor waits the host.
  bool IsFaulty(const char* kind, const std::string& op) const {
    return !fault_.empty() && fault_ == kind + (":" + op);
  }
  int64_t Later() {  // in calls; without a seed (0) as late as can be
    if (late_ == 0) return int64_t{1} << 60;
    return std::uniform_int_distribution<int>(0, 3)(draw_) == 0
               ? 0
               : std::uniform_int_distribution<int>(1, 200)(draw_);
  }

  // What a stream does next comes after what the host knows, and after streams that CUDA
  // orders with it.
  void Follow(int lane) {
    Lane& at = lanes_[lane];
    Join(&at.clock, lanes_[kHost].clock);
    if (at.kind == kNonBlocking) return;
    for (const Lane& other : lanes_) {
      if (other.card == at.card && IsOrdered(at.kind, other.kind)) Join(&at.clock, other.clock);
    }
  }
  const Clock& Queue(int lane, const char* kind) {
    ++calls_;
    Lane& at = lanes_[lane];
    at.before = at.clock;
    ++at.kinds[kind];
    Follow(lane);
    if (at.clock.size() <= static_cast<size_t>(lane)) at.clock.resize(lane + 1);
    ++at.clock[lane];
    while (!pending_.empty()) {  // those whose time has come, and what comes before them
      auto due = std::find_if(pending_.begin(), pending_.end(),
                              [this](const Pending& one) { return one.due <= calls_; });
      if (due == pending_.end()) break;
      Settle(Clock(due->clock));
    }
    return at.clock;
  }
  static void Move(const Pending& copy) {
    if (IsTrue(copy.size)) std::memmove(copy.to, copy.from, copy.size);
  }
  void Learn(const Clock& clock) {
    Join(&lanes_[kHost].clock, clock);
    Settle(lanes_[kHost].clock);
  }
  // Makes the late copies that a clock has; they were queued in an order that is legal.
  void Settle(const Clock& clock) {
    for (auto copy = pending_.begin(); copy != pending_.end();) {
      if (copy->moment > MomentOf(clock, copy->lane)) {
        ++copy;
        continue;
      }
      Move(*copy);
      copy = pending_.erase(copy);
    }
  }

  // A copy knows no tensor: it moves what was last written there.
  std::string LastWritten(const void* from) const {
    auto next = cells_.upper_bound(reinterpret_cast<uintptr_t>(from));
    if (next == cells_.begin()) return "";
    const Cell& cell = std::prev(next)->second;
    if (cell.end <= reinterpret_cast<uintptr_t>(from) || cell.write == nullptr) return "";
    return cell.write->tensor.empty() ? cell.write->op : cell.write->tensor;
  }
  void Split(uintptr_t at) {
    auto next = cells_.upper_bound(at);
    if (next == cells_.begin()) return;
    auto cell = std::prev(next);
    if (cell->first == at || cell->second.end <= at) return;
    Cell second = cell->second;
    cell->second.end = at;
    cells_.emplace_hint(next, at, std::move(second));
  }
  void Touch(int lane, const char* kind, const std::string& op, const LmsRange* ranges,
             int count) {
    if (!finds_) return;
    for (int i = 0; i < count; ++i) {
      if (ranges[i].size == 0 || ranges[i].at == nullptr) continue;
      const bool writes = ranges[i].writes != 0;
      const char* tensor = ranges[i].tensor == nullptr ? "" : ranges[i].tensor;
      auto seen = std::make_shared<const Seen>(
          Seen{lane, MomentOf(lanes_[lane].clock, lane), kind, op, tensor, writes,
               ranges[i].size});
      const auto begin = reinterpret_cast<uintptr_t>(ranges[i].at);
      Mark(begin, begin + ranges[i].size, seen);
    }
  }
  void Mark(uintptr_t begin, uintptr_t end, const SeenPtr& seen) {
    Split(begin);
    Split(end);
    auto cell = cells_.lower_bound(begin);
    for (uintptr_t at = begin; at < end;) {
      if (cell == cells_.end() || cell->first > at) {  // bytes without a history
        const uintptr_t until = cell == cells_.end() ? end : std::min(end, cell->first);
        cell = cells_.emplace_hint(cell, at, Cell{until, nullptr, {}});
      }
      Compare(&cell->second, seen);
      at = cell->second.end;
      cell = seen->writes ? cells_.erase(cell) : std::next(cell);
    }
    if (seen->writes) cells_[begin] = Cell{end, seen, {}};
  }
  void Compare(Cell* cell, const SeenPtr& seen) {
    const Clock& clock = lanes_[seen->lane].clock;
    auto check = [&](const SeenPtr& other) {
      if (other->moment > MomentOf(clock, other->lane)) Report(*other, *seen);
    };
    if (cell->write != nullptr) check(cell->write);
    if (seen->writes) {
      for (const SeenPtr& other : cell->reads) check(other);
      return;
    }
    for (SeenPtr& other : cell->reads) {
      if (other->lane != seen->lane) continue;
      other = seen;
      return;
    }
    cell->reads.push_back(seen);
  }

  // ------------------------------------------------------------------- what is said

  std::string NameOf(int lane) const {
    if (lane == kHost) return "host";
    const Lane& one = lanes_[lane];
    std::string most = "kernel";
    int64_t many = 0;
    for (auto& [kind, count] : one.kinds) {
      if (count > many) most = kind, many = count;
    }
    const std::string use = most == "H2D"    ? "host-to-device"
                            : most == "D2H"  ? "device-to-host"
                            : most == "D2D"  ? "device-to-device"
                            : most == "nccl" ? "collective"
                                             : "compute";
    return use + " stream of card " + std::to_string(one.card);
  }
  std::string Told(const Seen& one) const {
    return std::string(one.kind) + "\t" + (one.writes ? "writes" : "reads") + "\t" + one.op +
           "\t" + NameOf(one.lane) + "\t" + one.tensor + "\t" + std::to_string(one.size);
  }
  // Appends a line to the file, once for two ops: tab-separated, as races.py reads it.
  void Report(const Seen& first, const Seen& second) {
    ++found_;
    const std::string line = "race\t" + Told(first) + "\t" + Told(second) + "\n";
    constexpr size_t kMost = 1000;  // lines
    if (said_.size() < kMost && said_.insert(line).second) Write(line);
  }
  static void Write(const std::string& line) {
    const int file = ::open(Path(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (::write(file, line.data(), line.size()) < 0) std::perror("emulated card");
    ::close(file);
  }

  std::mutex mutex_;
  std::vector<Lane> lanes_;
  const bool finds_;
  std::map<uintptr_t, Cell> cells_;
  std::list<Pending> pending_;
  std::set<std::string> said_;
  std::atomic<int64_t> found_{0};
  int64_t calls_ = 0;   // of the driver: work, records, waits
  int computing_ = 0;   // ops whose kernels run now
  double late_ = -1;    // -1: copies are made at once
  std::mt19937 draw_;
  std::string fault_;
};

}  // namespace card

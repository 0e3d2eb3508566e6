// libnccl.so.2 of emulated cards: MirroredStrategy's reductions. All cards are of one
// process, so the last card that enters a call does the work of all; other cards wait in
// their threads. Values are added in the order of the cards.
//
// Known limit: no point-to-point calls, and copies between cards take no time.
#include <Eigen/Core>

#include <condition_variable>
#include <map>
#include <memory>

#include "third_party/gpus/cuda/include/cuda.h"

#include "engine.h"
#include "range.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" void lms_card_pass(void* stream, double seconds, const char* name,
                              int64_t bytes, int computed);
extern "C" int lms_card_watches();
extern "C" void lms_card_name(const char* op);
extern "C" void lms_card_access(void* stream, const char* kind, const LmsRange* ranges, int count);

namespace {

// As in nccl.h: results, numbers of types and of reductions.
enum { kSuccess = 0, kInvalidArgument = 4 };
enum Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter };

struct Call {
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  int type, reduction, root;
  CUstream stream;
};

struct Meeting {  // one collective call, of all ranks
  std::vector<Call> calls;
  int come = 0;
  bool done = false;
};

struct Group {  // the ranks that share an id
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, std::shared_ptr<Meeting>> meetings;  // by number of the call
};

}  // namespace

struct ncclUniqueId {
  char internal[128];
};
struct ncclComm {
  std::shared_ptr<Group> group;
  int ranks, rank;
  int64_t number = 0;  // number of the next call
};

namespace {

size_t SizeOf(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

template <typename T>
T Reduced(const std::vector<Call>& calls, size_t at, int reduction) {
  auto of = [&](const Call& call) { return static_cast<const T*>(call.from)[at]; };
  T all = of(calls[0]);
  for (size_t i = 1; i < calls.size(); ++i) {
    const T one = of(calls[i]);
    switch (reduction) {
      case 1: all = static_cast<T>(all * one); break;
      case 2: all = std::max(all, one); break;
      case 3: all = std::min(all, one); break;
      default: all = static_cast<T>(all + one);
    }
  }
  return reduction == 4 ? static_cast<T>(all / static_cast<T>(calls.size())) : all;
}

// Reads an element of all ranks before writing it: outputs may be the inputs.
template <typename T>
void Reduce(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t ranks = calls.size();
  auto put = [](const Call& call, size_t at, T value) { static_cast<T*>(call.to)[at] = value; };
  if (first.kind == kReduceScatter) {
    std::vector<T> all(first.count * ranks);
    for (size_t i = 0; i < all.size(); ++i) all[i] = Reduced<T>(calls, i, first.reduction);
    for (size_t i = 0; i < all.size(); ++i) put(calls[i / first.count], i % first.count, all[i]);
    return;
  }
  for (size_t i = 0; i < first.count; ++i) {
    const T value = Reduced<T>(calls, i, first.reduction);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const bool wanted = first.kind == kAllReduce || static_cast<int>(rank) == first.root;
      if (wanted) put(calls[rank], i, value);
    }
  }
}

void Move(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t bytes = first.count * SizeOf(first.type);
  for (size_t to = 0; to < calls.size(); ++to) {
    if (first.kind == kBroadcast) {
      std::memmove(calls[to].to, calls[first.root].from, bytes);
      continue;
    }
    for (size_t from = 0; from < calls.size(); ++from) {
      std::memmove(static_cast<char*>(calls[to].to) + from * bytes, calls[from].from, bytes);
    }
  }
}

// Tells the detector of races: each card reads and writes on its stream.
void Tell(const std::vector<Call>& calls, size_t bytes) {
  const Kind kind = calls[0].kind;
  const size_t parts = calls.size();
  for (const Call& one : calls) {
    const bool is_root = &one - calls.data() == one.root;
    const LmsRange ranges[] = {
        {one.from, kind == kReduceScatter ? parts * bytes : bytes, 0, nullptr},
        {kind != kReduce || is_root ? one.to : nullptr,
         kind == kAllGather ? parts * bytes : bytes, 1, nullptr}};
    lms_card_name("nccl");
    lms_card_access(one.stream, "nccl", ranges, 2);
    lms_card_name("");
  }
}

void Do(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t bytes = first.count * SizeOf(first.type);
  if (lms_card_watches()) Tell(calls, bytes);
  if (card::IsTrue(bytes)) {
    const bool moves = first.kind == kBroadcast || first.kind == kAllGather;
    if (moves) {
      Move(calls);
    } else {
      switch (first.type) {
        case 0: Reduce<int8_t>(calls); break;
        case 1: Reduce<uint8_t>(calls); break;
        case 2: Reduce<int32_t>(calls); break;
        case 3: Reduce<uint32_t>(calls); break;
        case 4: Reduce<int64_t>(calls); break;
        case 5: Reduce<uint64_t>(calls); break;
        case 6: Reduce<Eigen::half>(calls); break;
        case 7: Reduce<float>(calls); break;
        case 8: Reduce<double>(calls); break;
        default: Reduce<Eigen::bfloat16>(calls);
      }
    }
  }
  for (const Call& one : calls) {  // each stream waits for all streams
    CUevent event;
    cuEventCreate(&event, 0);
    cuEventRecord(event, one.stream);
    for (const Call& other : calls) cuStreamWaitEvent(other.stream, event, 0);
    cuEventDestroy(event);
  }
  for (const Call& one : calls) lms_card_pass(one.stream, 0, "nccl", bytes, 1);
}

using Waiting = std::pair<std::shared_ptr<Group>, std::shared_ptr<Meeting>>;
thread_local int depth = 0;  // nesting depth of ncclGroupStart
thread_local std::vector<Waiting> waiting;

void WaitForAll() {
  for (auto& [group, meeting] : waiting) {
    std::unique_lock<std::mutex> lock(group->mutex);
    group->changed.wait(lock, [&, meeting = meeting] { return meeting->done; });
  }
  waiting.clear();
}

int Come(ncclComm* comm, const Call& call) {
  if (call.type < 0 || call.type > 9) return kInvalidArgument;
  {
    std::lock_guard<std::mutex> lock(comm->group->mutex);
    const int64_t number = comm->number++;
    std::shared_ptr<Meeting>& meeting = comm->group->meetings[number];
    if (meeting == nullptr) meeting = std::make_shared<Meeting>();
    meeting->calls.resize(comm->ranks);
    meeting->calls[comm->rank] = call;
    waiting.emplace_back(comm->group, meeting);
    if (++meeting->come == comm->ranks) {
      Do(meeting->calls);
      meeting->done = true;
      comm->group->meetings.erase(number);
    }
  }
  comm->group->changed.notify_all();
  if (depth == 0) WaitForAll();
  return kSuccess;
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
  *version = 22706;
  return kSuccess;
}
EXPORT int ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int64_t> next{1};
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "%lld", static_cast<long long>(next++));
  return kSuccess;
}
EXPORT int ncclCommInitRank(ncclComm** comm, int ranks, ncclUniqueId id, int rank) {
  static std::mutex mutex;
  static auto* all = new std::map<std::string, std::weak_ptr<Group>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Group>& known = (*all)[id.internal];
  auto group = known.lock();
  if (group == nullptr) known = group = std::make_shared<Group>();
  *comm = new ncclComm{group, ranks, rank};
  return kSuccess;
}
EXPORT int ncclCommInitRankConfig(ncclComm** comm, int ranks, ncclUniqueId id, int rank,
                                  void*) {
  return ncclCommInitRank(comm, ranks, id, rank);
}
EXPORT int ncclCommCount(const ncclComm* comm, int* count) {
  *count = comm->ranks;
  return kSuccess;
}
EXPORT int ncclCommUserRank(const ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}
EXPORT int ncclCommGetAsyncError(ncclComm*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
EXPORT int ncclCommFinalize(ncclComm*) { return kSuccess; }
EXPORT int ncclCommDestroy(ncclComm* comm) {
  delete comm;
  return kSuccess;
}
EXPORT int ncclCommAbort(ncclComm* comm) { return ncclCommDestroy(comm); }
EXPORT const char* ncclGetErrorString(int error) {
  return error == kSuccess ? "no error" : "the emulated card does not do this";
}
EXPORT const char* ncclGetLastError(ncclComm*) { return ncclGetErrorString(kInvalidArgument); }
EXPORT int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
EXPORT int ncclGroupEnd() {
  if (--depth == 0) WaitForAll();
  return kSuccess;
}
EXPORT int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction,
                         ncclComm* comm, CUstream stream) {
  return Come(comm, {kAllReduce, from, to, count, type, reduction, 0, stream});
}
EXPORT int ncclReduce(const void* from, void* to, size_t count, int type, int reduction,
                      int root, ncclComm* comm, CUstream stream) {
  return Come(comm, {kReduce, from, to, count, type, reduction, root, stream});
}
EXPORT int ncclReduceScatter(const void* from, void* to, size_t count, int type,
                             int reduction, ncclComm* comm, CUstream stream) {
  return Come(comm, {kReduceScatter, from, to, count, type, reduction, 0, stream});
}
EXPORT int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                         ncclComm* comm, CUstream stream) {
  return Come(comm, {kBroadcast, from, to, count, type, 0, root, stream});
}
EXPORT int ncclAllGather(const void* from, void* to, size_t count, int type, ncclComm* comm,
                         CUstream stream) {
  return Come(comm, {kAllGather, from, to, count, type, 0, 0, stream});
}

// libcuda.so.1, libcudart.so.12 and NVML of an emulated card.
//
// TensorFlow's own GPU runtime runs on this driver: BaseGPUDevice, GPUUtil, the pool of
// pinned memory, logical devices. On a dry card the host code of TensorFlow's CUDA kernels
// runs too, and a launch is only counted; on a computing card such a launch is an error.
#include "third_party/gpus/cuda/include/cuda.h"
#include "third_party/gpus/cuda/include/cuda_runtime_api.h"

#include <cudnn_version.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "engine.h"
#include "mapping.h"
#include "races.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct CUstream_st {
  card::Stream stream;
  int lane = 0;  // number in the detector of races
  int card = 0;
  card::StreamKind kind = card::kNonBlocking;
};
struct CUevent_st {
  std::atomic<double> at{0};  // the moment when the event is reached
  card::RaceEvent known;
};
struct CUctx_st {
  int card = 0;
};

namespace {

using namespace card;

CUctx_st* ContextOf(int card) {
  static CUctx_st* all = [] {
    auto* made = new CUctx_st[kMostCards];
    for (int i = 0; i < kMostCards; ++i) made[i].card = i;
    return made;
  }();
  return all + card;
}
thread_local CUcontext current = nullptr;
int Current() { return current == nullptr ? 0 : current->card; }

// Streams that CUDA orders with others ("Stream synchronization behavior" of the driver
// API): a card's legacy default stream waits for its blocking streams, and they for it.
struct Ordered {
  std::mutex mutex;
  std::set<CUstream_st*> all;
};
Ordered& ordered() {
  static Ordered* one = new Ordered;
  return *one;
}

CUstream_st* Create(int card, StreamKind kind) {
  auto* made = new CUstream_st;
  made->card = card;
  made->kind = kind;
  if (Races* races = Races::One()) made->lane = races->AddLane(card, kind);
  if (kind == kNonBlocking) return made;
  std::lock_guard<std::mutex> lock(ordered().mutex);
  ordered().all.insert(made);
  return made;
}
void Destroy(CUstream_st* stream) {
  {
    std::lock_guard<std::mutex> lock(ordered().mutex);
    ordered().all.erase(stream);
  }
  delete stream;
}

CUstream_st* LegacyStream() {
  static auto* all = [] {
    auto* made = new std::vector<CUstream_st*>;
    for (int i = 0; i < kMostCards; ++i) made->push_back(Create(i, kLegacy));
    return made;
  }();
  return (*all)[Current()];
}
// The default stream of this thread alone, which blocks as created streams do.
CUstream_st* ThreadStream() {
  struct Destroyed {
    void operator()(CUstream_st* stream) { Destroy(stream); }
  };
  static thread_local std::unique_ptr<CUstream_st, Destroyed> all[kMostCards];
  auto& one = all[Current()];
  if (one == nullptr) one.reset(Create(Current(), kBlocking));
  return one.get();
}
CUstream_st* Real(CUstream stream) {
  if (stream == CU_STREAM_PER_THREAD) return ThreadStream();
  return stream == nullptr || stream == CU_STREAM_LEGACY ? LegacyStream() : stream;
}
// Returns a stream whose next work comes after that of streams that CUDA orders with it.
Stream& Of(CUstream stream) {
  CUstream_st* one = Real(stream);
  if (one->kind == kNonBlocking) return one->stream;
  std::lock_guard<std::mutex> lock(ordered().mutex);
  for (CUstream_st* other : ordered().all) {
    if (other->card != one->card || !IsOrdered(one->kind, other->kind)) continue;
    one->stream.WaitFor(other->stream.end());
  }
  return one->stream;
}

thread_local std::string op_of_thread;  // the op that calls the driver, where known

// Counts visible cards by CUDA_VISIBLE_DEVICES, as CUDA's driver does; 0 for "-1".
int Cards() {
  const int all = std::min(kMostCards, static_cast<int>(Setting("LMS_CARD_COUNT", 1)));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return all;
  if (*visible == 0 || *visible == '-') return 0;
  const std::string names(visible);
  return std::min(all, 1 + static_cast<int>(std::count(names.begin(), names.end(), ',')));
}

int Capability() { return static_cast<int>(Setting("LMS_CARD_CAPABILITY", 80)); }

// Names a card by its rates (0: no limit), so that measurements of one card are not used
// for another. A hash of all settings makes names unique; TensorFlow reads 63 characters.
std::string Name() {
  uint32_t all = 2166136261u;  // FNV-1a
  for (const char* name : {"H2D", "D2H", "LATENCY", "FLOPS", "HALF_FLOPS",
                           "BFLOAT16_FLOPS", "BANDWIDTH", "TIME_SCALE", "DRY"}) {
    const double value = Setting((std::string("LMS_CARD_") + name).c_str(), 0);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
    for (size_t i = 0; i < sizeof(value); ++i) all = (all ^ bytes[i]) * 16777619u;
  }
  char name[64];
  std::snprintf(name, sizeof(name), "Emulated card %08x: %.3g+%.3g GB/s %.3g TFLOP/s x%.3g",
                all, Setting("LMS_CARD_H2D", 0) / 1e9, Setting("LMS_CARD_D2H", 0) / 1e9,
                Setting("LMS_CARD_FLOPS", 0) / 1e12, Setting("LMS_CARD_TIME_SCALE", 1));
  return name;
}

// Reports more memory than LMS_CARD_MEMORY, TensorFlow's limit, by the bytes that
// TensorFlow keeps for the system: 225 MiB below 2 GiB, else by compute capability.
int64_t Reported() {
  const int64_t limit = Memory(), small = limit + (225ll << 20);
  const int major = Capability() / 10;
  const int64_t kept = major <= 6 ? 500 : major == 7 ? 1050 : major == 8 ? 1536 : 1800;
  return small < (2ll << 30) ? small : limit + (kept << 20);
}

void* At(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

thread_local int64_t launches = 0;  // launches of the calling thread

void Launch() {
  ++launches;
  counters().launches += 1;
}

// Counts a launch of a GPU kernel on a dry card; fails on a computing card.
bool LaunchKernel() {
  if (!IsDry()) {
    std::fprintf(stderr, "emulated card: a kernel for a GPU was launched\n");
    return false;
  }
  Launch();
  return true;
}

void JoinStream(CUstream stream) {
  Of(stream).Join();
  if (Races* races = Races::One()) races->HearStream(Real(stream)->lane);
}

// Queues a copy; a copy of pageable memory returns only at its end, as CUDA's does.
CUresult Enqueue(CUstream stream, Direction direction, void* to, const void* from,
                 size_t size) {
  static const char* names[3] = {"H2D", "D2H", "D2D"};
  const void* host = direction == kToDevice ? from : to;
  const bool joins = direction != kWithin && !pinned_memory().Holds(host);
  bool now = true;
  if (Races* races = Races::One()) {
    now = races->Copy(Real(stream)->lane, names[direction], op_of_thread, to, from, size, joins);
  }
  const double seconds = Copy(direction, to, from, size, now);
  const int lane = direction == kToDevice ? 1 : direction == kToHost ? 2 : 0;
  Of(stream).Add(seconds, lane, names[direction], size);
  if (direction == kWithin) Launch();
  if (joins) Of(stream).Join();
  // CUDA may return from a copy to the device when it has read pageable memory.
  if (joins && direction == kToHost) JoinStream(stream);
  return CUDA_SUCCESS;
}

// A copy without a stream is in the legacy default stream. The host waits ("API
// synchronization behavior") for a copy of its memory: at the end, or, if it is pageable and
// goes to the device, only until it is read. No host waits for a copy within the device.
CUresult CopyAtOnce(Direction direction, void* to, const void* from, size_t size) {
  const bool ends = direction == kToHost || pinned_memory().Holds(from);
  if (direction == kToDevice && !ends) JoinStream(CU_STREAM_LEGACY);
  Enqueue(CU_STREAM_LEGACY, direction, to, from, size);
  if (direction != kWithin && ends) JoinStream(CU_STREAM_LEGACY);
  return CUDA_SUCCESS;
}

// Tells the detector that memory goes.
void Forget(Regions& memory, void* at) {
  if (Races* races = Races::One()) races->Forget(at, memory.Find(at).size);
}

// Tells the detector of an access of a stream, before it is made.
void Touch(CUstream stream, const char* kind, CUdeviceptr at, size_t size) {
  Races* races = Races::One();
  if (races == nullptr) return;
  const LmsRange range = {At(at), size, 1, nullptr};
  races->Access(Real(stream)->lane, kind, op_of_thread, &range, 1);
}

CUresult Set(CUdeviceptr at, unsigned char value, size_t size, CUstream stream) {
  static double rate = Setting("LMS_CARD_BANDWIDTH", 0);
  Touch(stream, "memset", at, size);
  if (IsTrue(size)) std::memset(At(at), value, size);
  Of(stream).Add(rate > 0 ? size / rate : 0, 0, "memset", size);
  Launch();
  return CUDA_SUCCESS;
}

// The host waits for a memset of its own memory, and for no other.
void JoinIfPinned(CUdeviceptr at) {
  if (pinned_memory().Holds(At(at))) JoinStream(CU_STREAM_LEGACY);
}

int Attribute(CUdevice_attribute which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 166912;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 167936;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1410000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 1215000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 108;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 41943040;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return Capability() / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return Capability() % 10;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
    default: return 0;
  }
}

}  // namespace

// ----------------------------------------------------------------- the driver

EXPORT CUresult cuInit(unsigned int) {
  return Cards() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 12050;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_OF_THE_EMULATED_CARD";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : "the emulated card does not do this";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = Cards();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, length, "%s", Name().c_str());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  std::snprintf(id, length, "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, device + 1, sizeof(*uuid));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, device + 1, sizeof(*uuid));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = Reported();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = Attribute(which);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = Capability() / 10;
  *minor = Capability() % 10;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  *can = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext, unsigned int) { return CUDA_SUCCESS; }
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = ContextOf(device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice, unsigned int) { return CUDA_SUCCESS; }
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
EXPORT CUresult cuCtxPopCurrent(CUcontext* context) { return cuCtxGetCurrent(context); }
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  *device = Current();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize() {
  LegacyStream()->stream.Join();
  if (Races* races = Races::One()) races->HearCard(Current());
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo(size_t* free, size_t* total) {
  *total = Reported();
  *free = Reported() - std::min<int64_t>(counters().device_bytes[Current()], Reported());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAlloc(CUdeviceptr* at, size_t size) {
  *at = reinterpret_cast<CUdeviceptr>(TakeDevice(size, Current()));
  return *at == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemFree(CUdeviceptr at) {
  Forget(device_memory(), At(at));
  GiveDevice(At(at));
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
  *size = kGranule;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                            const CUmemAllocationProp* properties, unsigned long long) {
  return Mappings::One().Create(handle, size, *properties);
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Mappings::One().Release(handle);
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* at, size_t size, size_t alignment, CUdeviceptr,
                                    unsigned long long) {
  return Mappings::One().Reserve(at, size, alignment);
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
  return Mappings::One().Free(at, size);
}
EXPORT CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long) {
  return Mappings::One().Map(at, size, offset, handle);
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc* access,
                               size_t count) {
  return Mappings::One().SetAccess(at, size, access, count);
}
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  Forget(device_memory(), At(at));
  return Mappings::One().Unmap(at, size);
}
// Pools (`TF_GPU_ALLOCATOR=cuda_malloc_async`) count bytes: the driver remaps pages, so there
// is no fragmentation. Bytes that a stream frees can be taken in that stream at once.
struct Pool {
  std::mutex mutex;
  int64_t used = 0, high = 0;
};
static Pool& PoolOf(CUmemoryPool pool) { return *reinterpret_cast<Pool*>(pool); }
static std::mutex in_pools_mutex;
static std::map<CUdeviceptr, std::pair<Pool*, int64_t>>& InPools() {
  static auto* all = new std::map<CUdeviceptr, std::pair<Pool*, int64_t>>;
  return *all;
}
EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  *pool = reinterpret_cast<CUmemoryPool>(new Pool);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool) { return CUDA_SUCCESS; }
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  static Pool defaults[kMostCards];
  *pool = reinterpret_cast<CUmemoryPool>(&defaults[device]);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return cuDeviceGetDefaultMemPool(pool, device);
}
EXPORT CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void*) {
  std::lock_guard<std::mutex> lock(PoolOf(pool).mutex);
  if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH) PoolOf(pool).high = PoolOf(pool).used;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  std::lock_guard<std::mutex> lock(PoolOf(pool).mutex);
  const bool high = which == CU_MEMPOOL_ATTR_USED_MEM_HIGH || which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
  *static_cast<cuuint64_t*>(value) = high ? PoolOf(pool).high : PoolOf(pool).used;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* at, size_t size, CUmemoryPool pool, CUstream) {
  const int64_t bytes = (static_cast<int64_t>(size) + 511) & ~511ll;
  Pool& from = PoolOf(pool);
  {
    std::lock_guard<std::mutex> lock(from.mutex);
    if (from.used + bytes > Memory()) return CUDA_ERROR_OUT_OF_MEMORY;
    from.used += bytes;
    from.high = std::max(from.high, from.used);
  }
  *at = reinterpret_cast<CUdeviceptr>(TakeDevice(std::max<int64_t>(bytes, 512), Current()));
  if (*at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard<std::mutex> lock(in_pools_mutex);
  InPools()[*at] = {&from, bytes};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr* at, size_t size, CUstream stream) {
  CUmemoryPool pool;
  cuDeviceGetDefaultMemPool(&pool, Current());
  return cuMemAllocFromPoolAsync(at, size, pool, stream);
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, CUstream) {
  std::pair<Pool*, int64_t> owner{nullptr, 0};
  {
    std::lock_guard<std::mutex> lock(in_pools_mutex);
    auto found = InPools().find(at);
    if (found == InPools().end()) return CUDA_ERROR_INVALID_VALUE;
    owner = found->second;
    InPools().erase(found);
  }
  {
    std::lock_guard<std::mutex> lock(owner.first->mutex);
    owner.first->used -= owner.second;
  }
  Forget(device_memory(), At(at));
  GiveDevice(At(at));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostAlloc(void** at, size_t size, unsigned int) {
  *at = TakePinned(size);
  return *at == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocHost(void** at, size_t size) {
  return cuMemHostAlloc(at, size, 0);
}
EXPORT CUresult cuMemFreeHost(void* at) {
  Forget(pinned_memory(), at);
  GivePinned(at);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostRegister(void*, size_t, unsigned int) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemHostUnregister(void*) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr at) {
  auto found = device_memory().Find(At(at));
  if (found.size == 0) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found.start;
  if (size != nullptr) *size = found.size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which,
                                      CUdeviceptr at) {
  const Region region = device_memory().Find(At(at));
  const bool on_device = region.size != 0;
  const bool pinned = pinned_memory().Holds(At(at));
  if (!on_device && !pinned) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = ContextOf(region.owner);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned int*>(data) =
          on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = region.owner;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned int*>(data) = 0;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  *stream = Create(Current(), flags & CU_STREAM_NON_BLOCKING ? kNonBlocking : kBlocking);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  return cuStreamCreate(stream, flags);
}
EXPORT CUresult cuStreamDestroy(CUstream stream) {
  Destroy(stream);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamQuery(CUstream stream) {
  if (!Of(stream).IsIdle()) return CUDA_ERROR_NOT_READY;
  JoinStream(stream);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  JoinStream(stream);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  Races* races = Races::One();
  if (races != nullptr && !races->Wait(Real(stream)->lane, op_of_thread, event->known)) {
    return CUDA_SUCCESS;
  }
  Of(stream).WaitFor(event->at);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetPriority(CUstream, int* priority) {
  *priority = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventCreate(CUevent* event, unsigned int) {
  *event = new CUevent_st;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  event->at = Of(stream).end();
  if (Races* races = Races::One()) {
    races->Record(Real(stream)->lane, op_of_thread, &event->known);
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventQuery(CUevent event) {
  Races* races = Races::One();
  if (Now() < event->at) return CUDA_ERROR_NOT_READY;
  if (races != nullptr && !races->Hears(&event->known)) return CUDA_ERROR_NOT_READY;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventSynchronize(CUevent event) {
  SleepUntil(event->at);
  if (Races* races = Races::One()) races->Hear(event->known);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = (end->at - start->at) * 1e3;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  RaceEvent queued;
  if (Races* races = Races::One()) races->Record(Real(stream)->lane, op_of_thread, &queued);
  Calls::One().Add(Of(stream).end(), [=] {
    if (Races* races = Races::One()) races->Hear(queued);
    function(argument);
  });
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size,
                                  CUstream stream) {
  return Enqueue(stream, kToDevice, At(to), from, size);
}
EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size,
                                  CUstream stream) {
  return Enqueue(stream, kToHost, to, At(from), size);
}
EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
                                  CUstream stream) {
  return Enqueue(stream, kWithin, At(to), At(from), size);
}
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                  size_t size, CUstream stream) {
  return Enqueue(stream, kWithin, At(to), At(from), size);
}
EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return CopyAtOnce(kToDevice, At(to), from, size);
}
EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  return CopyAtOnce(kToHost, to, At(from), size);
}
EXPORT CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return CopyAtOnce(kWithin, At(to), At(from), size);
}
EXPORT CUresult cuMemsetD8(CUdeviceptr at, unsigned char value, size_t count) {
  Set(at, value, count, CU_STREAM_LEGACY);
  JoinIfPinned(at);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count,
                                CUstream stream) {
  return Set(at, value, count, stream);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr at, unsigned int value, size_t count,
                                 CUstream stream) {
  Touch(stream, "memset", at, 4 * count);
  if (IsTrue(4 * count)) {
    std::fill_n(static_cast<unsigned int*>(At(at)), count, value);
  }
  Of(stream).Add(0, 0, "memset", 4 * count);
  Launch();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD32(CUdeviceptr at, unsigned int value, size_t count) {
  cuMemsetD32Async(at, value, count, CU_STREAM_LEGACY);
  JoinIfPinned(at);
  return CUDA_SUCCESS;
}

// Handles of modules and functions: any address that is not zero.
namespace {
int something = 0;
template <typename T>
T Something() {
  return reinterpret_cast<T>(&something);
}
}  // namespace

EXPORT CUresult cuModuleLoadData(CUmodule* made, const void*) {
  *made = Something<CUmodule>();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule* made, const void*, unsigned int,
                                   CUjit_option*, void**) {
  *made = Something<CUmodule>();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadFatBinary(CUmodule* made, const void*) {
  *made = Something<CUmodule>();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
EXPORT CUresult cuModuleGetFunction(CUfunction* made, CUmodule, const char*) {
  *made = Something<CUfunction>();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetGlobal(CUdeviceptr* at, size_t* size, CUmodule, const char*) {
  static char global[4096];
  if (at != nullptr) *at = reinterpret_cast<CUdeviceptr>(global);
  if (size != nullptr) *size = sizeof(global);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
  *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int,
                                                            size_t) {
  *blocks = 2;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, CUfunction, int, size_t, unsigned int) {
  *blocks = 2;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int,
                               unsigned int, unsigned int, unsigned int, unsigned int,
                               CUstream, void**, void**) {
  return LaunchKernel() ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) {
  return LaunchKernel() ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

// ---------------------------------------------------------------- the runtime

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  cuDeviceGetCount(count);
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  current = ContextOf(device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = Current();
  return cudaSuccess;
}
EXPORT cudaError_t cudaFree(void*) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 12050;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12050;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  std::snprintf(properties->name, sizeof(properties->name), "%s", Name().c_str());
  properties->totalGlobalMem = Reported();
  properties->major = Capability() / 10;
  properties->minor = Capability() % 10;
  properties->multiProcessorCount = 108;
  properties->clockRate = 1410000;
  properties->memoryClockRate = 1215000;
  properties->memoryBusWidth = 5120;
  properties->l2CacheSize = 41943040;
  properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerMultiprocessor = 167936;
  properties->sharedMemPerBlock = 49152;
  properties->maxThreadsPerBlock = 1024;
  properties->warpSize = 32;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = Attribute(static_cast<CUdevice_attribute>(which));  // both enums have equal numbers
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetLastError() { return cudaSuccess; }
EXPORT cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
EXPORT const char* cudaGetErrorString(cudaError_t) { return "the emulated card does not do this"; }
EXPORT const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheEmulatedCard"; }
EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t,
                                    cudaStream_t) {
  return LaunchKernel() ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return LaunchKernel() ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
namespace {
struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Configuration> configurations;
}  // namespace
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                            void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                              void* stream) {
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<void**>(stream) = last.stream;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof(*attributes));
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = Capability();
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void*) {
  *function = Something<cudaFunction_t>();
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*,
                                                                 int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned int) {
  *blocks = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size,
                                   cudaMemcpyKind kind, cudaStream_t stream) {
  const Direction way = kind == cudaMemcpyHostToDevice   ? kToDevice
                        : kind == cudaMemcpyDeviceToHost ? kToHost
                                                         : kWithin;
  Enqueue(reinterpret_cast<CUstream>(stream), way, to, from, size);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t stream) {
  Set(reinterpret_cast<CUdeviceptr>(at), value, size, reinterpret_cast<CUstream>(stream));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  JoinStream(reinterpret_cast<CUstream>(stream));
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  if (Races* races = Races::One()) races->HearCard(Current());
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char*, void** found, unsigned long long,
                                           cudaDriverEntryPointQueryResult*) {
  *found = nullptr;
  return cudaErrorNotSupported;
}
EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* nothing = nullptr;
  return &nothing;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*,
                                   uint3*, dim3*, dim3*, int*) {}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT char __cudaInitModule(void**) { return 1; }

// ----------------------------------------------------- inventory: cuDNN, NVML

// TensorFlow refuses an older cuDNN than that of its headers.
EXPORT size_t cudnnGetVersion() { return CUDNN_VERSION; }
EXPORT size_t cudnnGetCudartVersion() { return 12050; }
EXPORT int cudnnGetProperty(int which, int* value) {  // major, minor, patch
  *value = which == 0 ? CUDNN_MAJOR : which == 1 ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return 0;
}

EXPORT int nvmlInit_v2() { return 0; }
EXPORT int nvmlInitWithFlags(unsigned int) { return 0; }
EXPORT int nvmlShutdown() { return 0; }
EXPORT const char* nvmlErrorString(int) { return "the emulated card does not do this"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned int* count) {
  int found = 0;
  cuDeviceGetCount(&found);
  *count = found;
  return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(index + 1));
  return 0;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  int bus = 1;  // after the domain, as in cuDeviceGetPCIBusId
  const char* colon = std::strchr(id, ':');
  if (colon != nullptr) std::sscanf(colon + 1, "%x", &bus);
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
EXPORT int nvmlDeviceGetName(void*, char* name, unsigned int length) {
  std::snprintf(name, length, "%s", Name().c_str());
  return 0;
}
struct NvmlMemory {
  unsigned long long total, free, used;
};
EXPORT int nvmlDeviceGetMemoryInfo(void*, NvmlMemory* memory) {
  size_t free = 0, total = 0;
  cuMemGetInfo(&free, &total);
  *memory = {total, free, total - free};
  return 0;
}
EXPORT int nvmlDeviceGetUUID(void*, char* uuid, unsigned int length) {
  std::snprintf(uuid, length, "GPU-00000000-0000-0000-0000-000000000001");
  return 0;
}
// Returns the first generation whose 16 lanes reach the link's rate; "not supported" (3)
// for NVLink and for a link without a limit.
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned int* generation) {
  const double rate = Setting("LMS_CARD_H2D", 0);
  for (*generation = 1; *generation <= 5; ++*generation) {
    if (0 < rate && rate <= 1.97e9 * (1 << *generation)) return 0;
  }
  return 3;
}
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned int* width) {
  *width = 16;
  return 0;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12050;
  return 0;
}
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned int* generation) {
  if (nvmlDeviceGetMaxPcieLinkGeneration(device, generation) != 0) *generation = 4;
  return 0;  // else TensorFlow complains
}
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned int* width) {
  return nvmlDeviceGetMaxPcieLinkWidth(device, width);
}
EXPORT int nvmlDeviceGetNvLinkState(void*, unsigned int, unsigned int*) { return 3; }
EXPORT int nvmlDeviceGetMigMode(void*, unsigned int*, unsigned int*) { return 3; }
struct NvmlField {
  unsigned int field, scope;
  long long moment, latency;
  int type, result;
  unsigned long long value;
};
EXPORT int nvmlDeviceGetFieldValues(void*, int count, NvmlField* values) {
  for (int i = 0; i < count; ++i) values[i].result = 3;
  return 0;
}
EXPORT int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 3; }
EXPORT int nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  std::snprintf(version, length, "555.42.02");
  return 0;
}

// -------------------------------------------------------------- for the tests

EXPORT int64_t lms_card_counter(const char* name) {
  Counters& all = counters();
  const std::string key(name);
  const char* ways[3] = {"h2d", "d2h", "d2d"};
  for (int i = 0; i < 3; ++i) {
    if (key == ways[i]) return all.bytes[i];
    if (key == std::string(ways[i]) + "_copies") return all.copies[i];
    if (key == std::string(ways[i]) + "_pageable") return all.pageable[i];
  }
  if (key == "kernels") return all.kernels;
  if (key == "launches") return all.launches;
  if (key == "computed") return all.computed;
  if (key == "pinned_peak") return all.pinned_peak;
  if (key == "busy_ns") return all.busy[0];
  if (key == "busy_h2d_ns") return all.busy[1];
  if (key == "busy_d2h_ns") return all.busy[2];
  if (key == "races") return Races::One() == nullptr ? 0 : Races::One()->found();
  return -1;
}

// --------------------------------------------------- for computing.cc and dry.cc

EXPORT double lms_card_setting(const char* name, double otherwise) {
  return Setting(name, otherwise);
}

EXPORT int64_t lms_card_launches() { return launches; }
EXPORT int lms_card_launch() { return LaunchKernel() ? 0 : 3000; }  // not supported
EXPORT int lms_card_is_pinned(const void* at) { return pinned_memory().Holds(at); }
EXPORT void lms_card_pass(void* stream, double seconds, const char* name, int64_t bytes,
                          int computed) {
  counters().kernels += 1;
  counters().computed += computed;
  Of(static_cast<CUstream>(stream)).Add(seconds, 0, name, bytes);
}

// What fronts tell the detector of races. `Begin` and `End` enclose an op that computes; a
// null stream is the host. `Name` says which op calls the driver from this thread.
EXPORT int lms_card_watches() { return Races::One() != nullptr; }
EXPORT void lms_card_name(const char* op) { op_of_thread = op; }
EXPORT void lms_card_begin(void* stream, const char* op) {
  op_of_thread = op;
  Races::One()->Begin(Real(static_cast<CUstream>(stream))->lane);
}
EXPORT void lms_card_end() {
  op_of_thread.clear();
  Races::One()->End();
}
EXPORT void lms_card_pause(int by) { Races::One()->Pause(by); }
EXPORT void lms_card_access(void* stream, const char* kind, const LmsRange* ranges, int count) {
  const int lane = stream == nullptr ? Races::kHost : Real(static_cast<CUstream>(stream))->lane;
  std::vector<LmsRange> known;  // of memory that streams use
  for (int i = 0; i < count; ++i) {
    if (Races::IsWatched(ranges[i].at)) known.push_back(ranges[i]);
  }
  if (known.empty()) return;
  Races::One()->Access(lane, kind, op_of_thread, known.data(), static_cast<int>(known.size()));
}

// Begins a trace (null path), or writes and ends it: a line for each kernel and copy, with
// lane (0 kernels, 1 to the device, 2 to the host), seconds of begin, end and queueing by
// the host, bytes, name. Returns `errno` if the file cannot be written.
EXPORT int lms_card_trace(const char* path) {
  std::lock_guard<std::mutex> lock(trace().mutex);
  if (path != nullptr) {
    FILE* file = std::fopen(path, "w");
    if (file == nullptr) return errno;
    for (const Span& span : trace().spans) {
      std::fprintf(file, "%d %.7f %.7f %.7f %lld %s\n", span.lane, span.begin, span.end,
                   span.queued, static_cast<long long>(span.bytes), span.name.c_str());
    }
    if (std::fclose(file) != 0) return errno;
  }
  trace().spans.clear();
  trace().on = path == nullptr;
  return 0;
}
EXPORT double lms_card_now() { return Now(); }

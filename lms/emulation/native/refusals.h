// A lenient allocator for oneDNN's kernels, which ignore a failed allocation and go on
// without the memory. Here such a kernel gets host memory instead; when the kernel is done
// the op fails, as on a GPU.
#pragma once

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"

namespace card {

using namespace tensorflow;

inline size_t& Refused() {  // bytes of this thread's last failed allocation
  static thread_local size_t bytes = 0;
  return bytes;
}

class LenientAllocator : public Allocator {
 public:
  explicit LenientAllocator(Allocator* own) : own_(own) {}
  std::string Name() override { return own_->Name(); }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return AllocateRaw(alignment, bytes, AllocationAttributes());
  }
  void* AllocateRaw(size_t alignment, size_t bytes,
                    const AllocationAttributes& attributes) override {
    void* found = own_->AllocateRaw(alignment, bytes, attributes);
    if (found != nullptr || bytes == 0) return found;
    Refused() = bytes;
    found = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::lock_guard<std::mutex> lock(mutex_);
    others_.insert(found);
    return found;
  }
  void DeallocateRaw(void* at) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (others_.erase(at) != 0) {
        std::free(at);
        return;
      }
    }
    own_->DeallocateRaw(at);
  }
  bool TracksAllocationSizes() const override { return false; }
  AllocatorMemoryType GetMemoryType() const override { return own_->GetMemoryType(); }
  std::optional<AllocatorStats> GetStats() override { return own_->GetStats(); }

  static LenientAllocator* Of(Allocator* own) {
    static std::mutex* mutex = new std::mutex;
    static auto* all = new std::map<Allocator*, LenientAllocator*>;
    std::lock_guard<std::mutex> lock(*mutex);
    LenientAllocator*& one = (*all)[own];
    if (one == nullptr) one = new LenientAllocator(own);
    return one;
  }

 private:
  Allocator* own_;
  std::mutex mutex_;
  std::set<void*> others_;
};

class LenientDevice : public DeviceBase {
 public:
  explicit LenientDevice(DeviceBase* own) : DeviceBase(own->env()), own_(own) {}
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override {
    return own_->tensorflow_cpu_worker_threads();
  }
  tsl::thread::ThreadPool* tensorflow_device_thread_pool() override {
    return own_->tensorflow_device_thread_pool();
  }
  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    return LenientAllocator::Of(own_->GetAllocator(attributes));
  }
  bool has_eigen_cpu_device() const override { return own_->has_eigen_cpu_device(); }
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override {
    return own_->eigen_cpu_device();
  }
  DeviceBase* UnderlyingDevice() override { return own_->UnderlyingDevice(); }
  const DeviceAttributes& attributes() const override { return own_->attributes(); }
  const std::string& name() const override { return own_->name(); }
  const DeviceNameUtils::ParsedName& parsed_name() const override {
    return own_->parsed_name();
  }
  const std::string& device_type() const override { return own_->device_type(); }

  template <typename Device = LenientDevice>
  static Device* Of(DeviceBase* own) {
    static std::mutex* mutex = new std::mutex;
    static auto* all = new std::map<DeviceBase*, Device*>;
    std::lock_guard<std::mutex> lock(*mutex);
    Device*& one = (*all)[own];
    if (one == nullptr) one = new Device(own);
    return one;
  }

 protected:
  DeviceBase* own_;
};

// A device whose memory is the host's, for kernels that take scratch where a card's take
// none.
class HostDevice : public LenientDevice {
 public:
  using LenientDevice::LenientDevice;
  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    attributes.set_on_host(true);
    return LenientDevice::GetAllocator(attributes);
  }
};

}  // namespace card

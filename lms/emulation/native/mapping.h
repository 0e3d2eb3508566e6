// Virtual memory management of the driver ("Virtual Memory Management" of CUDA's driver
// API): memory is created, addresses are reserved, and the one is mapped to the other.
// TensorFlow 2.22 takes a card's memory in this way, 2.21 takes it with cuMemAlloc.
//
// Memory counts from its creation until it is released and mapped nowhere. An access to
// addresses without memory, or without cuMemSetAccess, ends the program.
//
// Known weaknesses: memory has pages only while it is mapped, so it is mapped in one place
// and whole, and no other process can have it. A granule has 256 bytes, as the unit of
// TensorFlow's allocator, and not 2 MiB: TensorFlow rounds its memory up to granules, and
// 2.22.0rc0 has no limit any more where the rounded memory exceeds the limit.
#pragma once

#include "third_party/gpus/cuda/include/cuda.h"

#include "engine.h"

namespace card {

constexpr size_t kGranule = 256, kPage = 4096;

class Mappings {
 public:
  static Mappings& One() {
    static Mappings* one = new Mappings;
    return *one;
  }

  CUresult Create(CUmemGenericAllocationHandle* handle, size_t size,
                  const CUmemAllocationProp& properties) {
    const int owner = properties.location.id;
    if (size == 0 || size % kGranule != 0 || owner < 0 || owner >= kMostCards) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!Count(size, owner)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> lock(mutex_);
    *handle = ++last_;
    memory_[*handle] = {size, properties};
    return CUDA_SUCCESS;
  }
  CUresult Release(CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = memory_.find(handle);
    if (found == memory_.end() || !found->second.held) return CUDA_ERROR_INVALID_VALUE;
    found->second.held = false;
    DropIfUnused(found);
    return CUDA_SUCCESS;
  }

  CUresult Reserve(CUdeviceptr* at, size_t size, size_t alignment) {
    if (size == 0 || size % kGranule != 0) return CUDA_ERROR_INVALID_VALUE;
    if (alignment > kPage) return CUDA_ERROR_NOT_SUPPORTED;
    void* start = mmap(nullptr, size, PROT_NONE, kFlags, -1, 0);
    if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *at = reinterpret_cast<CUdeviceptr>(start);
    std::lock_guard<std::mutex> lock(mutex_);
    reserved_[*at] = size;
    return CUDA_SUCCESS;
  }
  CUresult Free(CUdeviceptr at, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = reserved_.find(at);
    if (found == reserved_.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
    auto mapped = mapped_.lower_bound(at);
    if (mapped != mapped_.end() && mapped->first < at + size) return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void*>(at), size);
    reserved_.erase(found);
    return CUDA_SUCCESS;
  }

  CUresult Map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = memory_.find(handle);
    if (found == memory_.end() || at % kPage != 0 || !IsFree(at, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Memory& memory = found->second;
    if (offset != 0 || size != memory.size || memory.mapped) return CUDA_ERROR_NOT_SUPPORTED;
    memory.mapped = true;
    mapped_[at] = handle;
    device_memory().Add(at, size, memory.properties.location.id);
    return CUDA_SUCCESS;
  }
  CUresult SetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc* access, size_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!IsMapped(at, size)) return CUDA_ERROR_INVALID_VALUE;
    int allowed = PROT_NONE;
    for (size_t i = 0; i < count; ++i) {
      if (access[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ) allowed |= PROT_READ;
      if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) allowed |= PROT_WRITE;
    }
    mprotect(reinterpret_cast<void*>(at), size, allowed);
    // Else a small value on a dry card would take a page of 2 MiB.
    if (IsDry()) madvise(reinterpret_cast<void*>(at), size, MADV_NOHUGEPAGE);
    return CUDA_SUCCESS;
  }
  CUresult Unmap(CUdeviceptr at, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!IsMapped(at, size)) return CUDA_ERROR_INVALID_VALUE;
    auto mapped = mapped_.lower_bound(at);
    while (mapped != mapped_.end() && mapped->first < at + size) {
      auto memory = memory_.find(mapped->second);
      device_memory().Drop(mapped->first);
      memory->second.mapped = false;
      DropIfUnused(memory);
      mapped = mapped_.erase(mapped);
    }
    mmap(reinterpret_cast<void*>(at), size, PROT_NONE, kFlags | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
  }

 private:
  struct Memory {
    size_t size = 0;
    CUmemAllocationProp properties;
    bool held = true, mapped = false;
  };
  using Handles = std::map<CUmemGenericAllocationHandle, Memory>;
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

  void DropIfUnused(Handles::iterator memory) {
    const Memory& one = memory->second;
    if (one.held || one.mapped) return;
    counters().device_bytes[one.properties.location.id] -= one.size;
    memory_.erase(memory);
  }
  // Returns whether addresses are reserved and have no memory.
  bool IsFree(CUdeviceptr at, size_t size) {
    auto next = reserved_.upper_bound(at);
    if (next == reserved_.begin()) return false;
    --next;
    if (at + size > next->first + next->second) return false;
    auto mapped = mapped_.lower_bound(at);
    if (mapped != mapped_.end() && mapped->first < at + size) return false;
    return !device_memory().Holds(reinterpret_cast<void*>(at));  // from before
  }
  // Returns whether addresses are those of whole mappings, one beside the other.
  bool IsMapped(CUdeviceptr at, size_t size) {
    const CUdeviceptr end = at + size;
    while (at < end) {
      auto mapped = mapped_.find(at);
      if (mapped == mapped_.end()) return false;
      at += memory_[mapped->second].size;
    }
    return size > 0 && at == end;
  }

  std::mutex mutex_;
  CUmemGenericAllocationHandle last_ = 0;
  Handles memory_;
  std::map<CUdeviceptr, size_t> reserved_;                        // sizes
  std::map<CUdeviceptr, CUmemGenericAllocationHandle> mapped_;
};

}  // namespace card

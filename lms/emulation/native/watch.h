// What an op reads and writes, told to the detector of races (races.h).
//
// A kernel reads its inputs and writes its outputs; it writes the scratch that it
// allocates, and the variables that it does not only read. An output in an input's memory
// is written, unless the op is one of those that give views. Ops that compute nothing
// (functions, loops, sends) are asynchronous and not watched.
//
// Known limits: a tensor is read and written whole, also where an op takes some rows. The
// elements of tensor lists, and reference variables of TensorFlow 1, are not seen.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"
#include "xla/stream_executor/stream.h"

#include "range.h"
#include "refusals.h"
#include "registry.h"
#include "roofline.h"

extern "C" {
int lms_card_watches();
void lms_card_name(const char* op);
void lms_card_begin(void* stream, const char* op);
void lms_card_end();
void lms_card_pause(int by);
void lms_card_access(void* stream, const char* kind, const LmsRange* ranges, int count);
}

namespace card {

using namespace tensorflow;

// A private member, by a template's explicit instantiation, which may name it.
template <OpKernelContext::Params* OpKernelContext::*member>
struct ParamsMember {
  friend OpKernelContext::Params* ParamsOf(OpKernelContext* context) { return context->*member; }
};
OpKernelContext::Params* ParamsOf(OpKernelContext* context);
template struct ParamsMember<&OpKernelContext::params_>;

class Watched;
inline Watched*& Watching() {  // the op that this thread computes
  static thread_local Watched* one = nullptr;
  return one;
}

class WatchedAllocator : public Allocator {
 public:
  explicit WatchedAllocator(Allocator* own) : own_(own) {}
  std::string Name() override { return own_->Name(); }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return AllocateRaw(alignment, bytes, AllocationAttributes());
  }
  void* AllocateRaw(size_t alignment, size_t bytes,
                    const AllocationAttributes& attributes) override;
  void DeallocateRaw(void* at) override;
  bool TracksAllocationSizes() const override { return own_->TracksAllocationSizes(); }
  bool AllocatesOpaqueHandle() const override { return own_->AllocatesOpaqueHandle(); }
  size_t RequestedSize(const void* at) const override { return own_->RequestedSize(at); }
  size_t AllocatedSize(const void* at) const override { return own_->AllocatedSize(at); }
  int64_t AllocationId(const void* at) const override { return own_->AllocationId(at); }
  std::optional<AllocatorStats> GetStats() override { return own_->GetStats(); }
  AllocatorMemoryType GetMemoryType() const override { return own_->GetMemoryType(); }

  static WatchedAllocator* Of(Allocator* own) {
    static std::mutex* mutex = new std::mutex;
    static auto* all = new std::map<Allocator*, WatchedAllocator*>;
    std::lock_guard<std::mutex> lock(*mutex);
    WatchedAllocator*& one = (*all)[own];
    if (one == nullptr) one = new WatchedAllocator(own);
    return one;
  }

 private:
  Allocator* own_;
};

class WatchedDevice : public LenientDevice {
 public:
  using LenientDevice::LenientDevice;
  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    Allocator* own = own_->GetAllocator(attributes);
    return attributes.on_host() ? own : WatchedAllocator::Of(own);
  }
  ScopedAllocatorMgr* GetScopedAllocatorMgr() const override {
    return own_->GetScopedAllocatorMgr();
  }
  Allocator* GetScopedAllocator(AllocatorAttributes attributes, int64_t step) override {
    return own_->GetScopedAllocator(attributes, step);
  }
  const AcceleratorDeviceInfo* tensorflow_accelerator_device_info() const override {
    return own_->tensorflow_accelerator_device_info();
  }
  absl::Status MakeTensorFromProto(const TensorProto& proto, AllocatorAttributes attributes,
                                   Tensor* tensor) override {
    return own_->MakeTensorFromProto(proto, attributes, tensor);
  }
  static WatchedDevice* Of(DeviceBase* own) {
    static std::mutex* mutex = new std::mutex;
    static auto* all = new std::map<DeviceBase*, WatchedDevice*>;
    std::lock_guard<std::mutex> lock(*mutex);
    WatchedDevice*& one = (*all)[own];
    if (one == nullptr) one = new WatchedDevice(own);
    return one;
  }
};

// Ops that may give an input's memory, or a part of it, another name.
inline bool GivesViews(const std::string& op) {
  static const auto* all = new std::set<std::string>{
      "All", "Any", "AssignVariableOp", "Bitcast", "BroadcastTo", "Cast", "CheckNumerics",
      "CheckNumericsV2", "Concat", "ConcatV2", "EnsureShape", "Enter", "Exit", "ExpandDims",
      "Identity", "IdentityN", "LoopCond", "Max", "Mean", "Merge", "Min", "NextIteration",
      "Pack", "Pad", "PadV2", "PlaceholderWithDefault", "PreventGradient", "Prod",
      "ReadVariableOp", "RefMerge", "RefSwitch", "Reshape", "ReverseV2", "Slice", "Snapshot",
      "Split", "SplitV", "Squeeze", "StopGradient", "StridedSlice", "Sum", "Switch", "Tile",
      "Transpose", "Unpack", "_Arg", "_EagerConst", "_HostSend", "_ReadVariablesOp", "_Retval",
      "_Send"};
  return all->count(op) != 0;
}

// Ops that need the shapes of their inputs only, and those that leave memory as it is.
inline bool ReadsNothing(const std::string& op) {
  static const auto* all = new std::set<std::string>{"OnesLike", "Rank", "Shape",
                                                     "ShapeN",   "Size", "ZerosLike"};
  return all->count(op) != 0;
}
inline bool WritesNothing(const NodeDef& node) {
  auto init = node.attr().find("init");
  return node.op() == "Empty" && (init == node.attr().end() || !init->second.b());
}

inline bool OnlyReadsVariables(const std::string& op) {
  return op.rfind("ResourceGather", 0) == 0 || op == "ReadVariableOp" ||
         op == "_ReadVariablesOp";
}
inline bool NeedsNoVariable(const std::string& op) {
  static const auto* all = new std::set<std::string>{
      "DestroyResourceOp", "VarHandleOp", "VarIsInitializedOp", "VariableShape",
      "_VarHandlesOp"};
  const bool passes = GivesViews(op) && !OnlyReadsVariables(op) && op != "AssignVariableOp";
  return passes || all->count(op) != 0;  // or it passes a handle on
}

// An op of a card, from its begin to its end, in the thread that computes.
class Watched {
 public:
  Watched(OpKernelContext* context, const OpKernel* kernel)
      : context_(context), kernel_(kernel) {
    auto* device = context->op_device_context();
    if (device == nullptr || device->stream() == nullptr) return;
    stream_ = device->stream()->platform_specific_handle().stream;
    lms_card_begin(stream_, Name().c_str());
    TellHost(true);
    outer_ = std::exchange(Watching(), this);
    OpKernelContext::Params* params = ParamsOf(context);
    device_ = params->device;
    params->device = WatchedDevice::Of(device_);
  }
  ~Watched() {
    if (device_ == nullptr) return;
    ParamsOf(context_)->device = device_;
    Watching() = outer_;
    if (context_->status().ok()) {
      TellHost(false);
      Tell();
    }
    lms_card_end();
  }
  void Took(const void* at, size_t size) { taken_[at] = size; }
  // Scratch is written before another thread can have its memory.
  void Gave(const void* at) {
    auto found = taken_.find(at);
    if (found == taken_.end()) return;
    const std::string name = "scratch of " + Name();
    const LmsRange range = {at, found->second, 1, name.c_str()};
    lms_card_access(stream_, "kernel", &range, 1);
    taken_.erase(found);
  }

 private:
  struct Part {
    const char* at;
    size_t size;
    bool shares(const Part& other) const {
      return size > 0 && other.size > 0 && at < other.at + other.size && other.at < at + size;
    }
  };
  static Part PartOf(const Tensor& tensor) {
    return {static_cast<const char*>(tensor.data()), tensor.TotalBytes()};
  }
  static bool IsPlain(DataType type) {
    return type != DT_RESOURCE && type != DT_VARIANT && type != DT_STRING;
  }
  const std::string& Name() const { return kernel_->name(); }
  bool HasInput(int i) const { return context_->has_input(i) && !context_->input_is_ref(i); }
  std::string InputName(int i) const {
    return i < kernel_->def().input_size() ? kernel_->def().input(i) : Name() + " input";
  }
  std::string OutputName(int i) const { return Name() + ":" + std::to_string(i); }

  void Add(const Part& part, bool writes, std::string name) {
    names_.push_back(std::move(name));
    ranges_.push_back({part.at, part.size, writes, names_.back().c_str()});
  }
  void Send(void* stream, const char* kind) {
    if (!ranges_.empty()) lms_card_access(stream, kind, ranges_.data(), ranges_.size());
    ranges_.clear();
    names_.clear();
  }
  // Inputs in host memory are read by the host while it launches; outputs there, written.
  void TellHost(bool inputs) {
    const auto& types = inputs ? kernel_->input_memory_types() : kernel_->output_memory_types();
    for (int i = 0; i < static_cast<int>(types.size()); ++i) {
      if (types[i] != HOST_MEMORY) continue;
      if (inputs ? !HasInput(i) : context_->mutable_output(i) == nullptr) continue;
      const Tensor& tensor = inputs ? context_->input(i) : *context_->mutable_output(i);
      if (!IsPlain(tensor.dtype()) || !tensor.IsInitialized()) continue;
      if (!inputs && GivesViews(kernel_->type_string())) continue;
      Add(PartOf(tensor), !inputs, inputs ? InputName(i) : OutputName(i));
    }
    Send(nullptr, "op");
  }
  void Tell() {
    const std::string& op = kernel_->type_string();
    const bool views = GivesViews(op);
    std::vector<Part> in, out;
    std::vector<std::pair<Part, std::string>> variables;
    for (int i = 0; i < context_->num_outputs(); ++i) {
      const Tensor* made = context_->mutable_output(i);
      const bool counts = made != nullptr && made->IsInitialized() && IsPlain(made->dtype()) &&
                          kernel_->output_memory_types()[i] != HOST_MEMORY;
      out.push_back(counts ? PartOf(*made) : Part{nullptr, 0});
    }
    auto is_view = [&](const Part& part) {
      bool shared = false;
      for (const Part& one : out) shared |= one.shares(part);
      return views && shared;
    };
    for (int i = 0; i < context_->num_inputs(); ++i) {
      in.push_back({nullptr, 0});
      if (!HasInput(i)) continue;
      if (context_->input_dtype(i) == DT_RESOURCE) AddVariable(i, &variables);
      if (!IsPlain(context_->input_dtype(i))) continue;
      if (kernel_->input_memory_types()[i] == HOST_MEMORY) continue;
      in.back() = PartOf(context_->input(i));
      if (!is_view(in.back()) && !ReadsNothing(op)) Add(in.back(), false, InputName(i));
    }
    for (auto& [part, name] : variables) {
      bool assigned = false;  // the variable took an input's memory
      for (const Part& one : in) assigned |= one.shares(part);
      if (!assigned && !is_view(part)) Add(part, !OnlyReadsVariables(op), name);
      in.push_back(part);
    }
    for (int i = 0; i < static_cast<int>(out.size()); ++i) {
      bool shared = false;
      for (const Part& one : in) shared |= one.shares(out[i]);
      const bool written = !(views && shared) && !WritesNothing(kernel_->def());
      if (out[i].size > 0 && written) Add(out[i], true, OutputName(i));
      taken_.erase(out[i].at);
    }
    for (auto& [at, size] : taken_) {  // kept by the op: a variable's new memory
      Add({static_cast<const char*>(at), size}, true, Name());
    }
    Send(stream_, "kernel");
  }
  void AddVariable(int i, std::vector<std::pair<Part, std::string>>* variables) {
    if (NeedsNoVariable(kernel_->type_string())) return;
    const ResourceHandle& handle = HandleFromInput(context_, i);
    core::RefCountPtr<Var> variable;
    if (!LookupResource(context_, handle, &variable).ok()) return;
    const Tensor& tensor = *variable->tensor();
    if (tensor.IsInitialized()) variables->emplace_back(PartOf(tensor), handle.name());
  }

  OpKernelContext* context_;
  const OpKernel* kernel_;
  void* stream_ = nullptr;
  DeviceBase* device_ = nullptr;
  Watched* outer_ = nullptr;
  std::map<const void*, size_t> taken_;
  std::deque<std::string> names_;
  std::vector<LmsRange> ranges_;
};

// Watches an op where somebody asked for races.
class Watch {
 public:
  Watch(OpKernelContext* context, const OpKernel* kernel) {
    static const bool on = lms_card_watches() != 0;
    if (on) one_ = std::make_unique<Watched>(context, kernel);
  }

 private:
  std::unique_ptr<Watched> one_;
};

inline void* WatchedAllocator::AllocateRaw(size_t alignment, size_t bytes,
                                           const AllocationAttributes& attributes) {
  Watched* watch = Watching();
  if (watch != nullptr) lms_card_pause(1);  // it may wait until others free memory
  void* found = own_->AllocateRaw(alignment, bytes, attributes);
  if (watch == nullptr) return found;
  lms_card_pause(-1);
  if (found != nullptr) watch->Took(found, bytes);
  return found;
}

inline void WatchedAllocator::DeallocateRaw(void* at) {
  if (Watched* watch = Watching()) watch->Gave(at);
  own_->DeallocateRaw(at);
}

// TensorFlow's own ops that queue copies say who they are.
class Named : public AsyncOpKernel {
 public:
  Named(OpKernelConstruction* construction, std::unique_ptr<OpKernel> own)
      : AsyncOpKernel(construction), own_(std::move(own)) {}
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    lms_card_name(name().c_str());
    own_->AsAsync()->ComputeAsync(context, std::move(done));
    lms_card_name("");
  }

 private:
  std::unique_ptr<OpKernel> own_;
};

// Ops of the host that read or write pinned memory.
class OnHost : public OpKernel {
 public:
  OnHost(OpKernelConstruction* construction, std::unique_ptr<OpKernel> own)
      : OpKernel(construction), own_(std::move(own)) {}
  void Compute(OpKernelContext* context) override {
    if (context->op_device_context() != nullptr) return own_->Compute(context);  // a card's
    const bool views = GivesViews(type_string());
    std::vector<LmsRange> ranges;
    for (int i = 0; !views && i < context->num_inputs(); ++i) {
      if (!context->has_input(i) || context->input_is_ref(i)) continue;
      Add(context->input(i), false, &ranges);
    }
    Send(&ranges);
    own_->Compute(context);
    for (int i = 0; !views && i < context->num_outputs(); ++i) {
      const Tensor* made = context->mutable_output(i);
      if (made != nullptr) Add(*made, true, &ranges);
    }
    Send(&ranges);
  }
  bool IsExpensive() override { return own_->IsExpensive(); }
  const Tensor* const_tensor() const override { return own_->const_tensor(); }

 private:
  static void Add(const Tensor& tensor, bool writes, std::vector<LmsRange>* ranges) {
    const DataType type = tensor.dtype();
    if (type == DT_RESOURCE || type == DT_VARIANT || type == DT_STRING) return;
    if (!tensor.IsInitialized() || !lms_card_is_pinned(tensor.data())) return;
    ranges->push_back({tensor.data(), tensor.TotalBytes(), writes, nullptr});
  }
  void Send(std::vector<LmsRange>* ranges) {
    if (ranges->empty()) return;
    lms_card_name(name().c_str());
    lms_card_access(nullptr, "op", ranges->data(), static_cast<int>(ranges->size()));
    lms_card_name("");
    ranges->clear();
  }
  std::unique_ptr<OpKernel> own_;
};

class WatchingFactory : public kernel_factory::OpKernelFactory {
 public:
  explicit WatchingFactory(std::unique_ptr<kernel_factory::OpKernelFactory> own)
      : own_(std::move(own)) {}
  OpKernel* Create(OpKernelConstruction* construction) override {
    static const bool on = lms_card_watches() != 0;
    std::unique_ptr<OpKernel> own(own_->Create(construction));
    if (!on || own == nullptr) return own.release();
    const bool is_async = own->AsAsync() != nullptr;
    if (construction->device_type() == DEVICE_CPU) {
      if (is_async) return own.release();
      return new OnHost(construction, std::move(own));
    }
    if (!is_async) return own.release();
    return new Named(construction, std::move(own));
  }

 private:
  std::unique_ptr<kernel_factory::OpKernelFactory> own_;
};

// Lets ops of the host, and TensorFlow's ops for swaps, be watched.
inline void WatchOthers() {
  mutex_lock lock(registry()->mu);
  for (auto& [key, one] : registry()->all) {
    const bool swaps = one.def.op() == "_CopyFromGpuToHost" || one.def.op() == "_CopyFromHostToGpu";
    if (!swaps && one.def.device_type() != "CPU") continue;
    one.factory = std::make_unique<WatchingFactory>(std::move(one.factory));
  }
}

}  // namespace card

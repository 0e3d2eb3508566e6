// Kernels of device type GPU that allocate and launch, but do not compute.
//
// TensorFlow's own CUDA kernels run: their host code allocates outputs, forwards inputs,
// allocates scratch and launches, exactly as on a card; the launches do nothing. So
// allocations are a GPU's, and need no model. Here each kernel is wrapped:
//
//   - an op that launched something adds a modelled time to the compute stream;
//   - TensorFlow's CPU kernel computes an op that reads and writes small tensors only, at
//     once: counters, conditions and seeds keep their values;
//   - other ops write zeros to small results (true to a bool).
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "xla/stream_executor/stream.h"

#include "interpreted.h"
#include "rnn_gradient.h"
#include "slices.h"
#include "roofline.h"
#include "watch.h"

extern "C" int64_t lms_card_launches();
extern "C" void lms_card_pass(void* stream, double seconds, const char* name,
                              int64_t bytes, int computed);

namespace card {

using namespace tensorflow;

constexpr int64_t kSmall = 16384;  // bytes up to which values are computed, as in engine.h

// Kernels of TensorFlow that are not wrapped: they neither compute nor launch, or must not
// run twice or on another device.
bool StaysAsItIs(const NodeDef& node, const OpDef& op) {
  static const auto* names = new std::set<std::string>{
      "Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "Const", "_Arg",
      "_Retval", "_DeviceArg", "_DeviceRetval", "Shape", "ShapeN", "Size", "Rank",
      "StopGradient", "PreventGradient", "NoOp", "ControlTrigger", "Switch", "Merge",
      "RefSwitch", "RefMerge", "Enter", "Exit", "NextIteration", "LoopCond", "Bitcast",
      "_Send", "_Recv", "_HostSend", "_HostRecv", "Send", "Recv", "_CopyFromGpuToHost",
      "_CopyFromHostToGpu", "ReadVariableOp", "_ReadVariablesOp", "AssignVariableOp",
      "VarHandleOp", "_VarHandlesOp", "VarIsInitializedOp", "DestroyResourceOp", "If",
      "StatelessIf", "While", "StatelessWhile", "Case", "PartitionedCall", "Placeholder",
      "StatefulPartitionedCall", "RemoteCall", "SymbolicGradient", "DeepCopy", "Empty",
      "_ParallelConcatStart", "TensorListReserve", "CheckNumerics", "CheckNumericsV2"};
  if (names->count(node.op())) return true;
  for (const char* part : {"Stack", "Queue", "Collective", "Nccl", "Xla", "Dataset",
                           "Iterator", "TensorList", "Barrier", "Print"}) {
    if (node.op().find(part) != std::string::npos) return true;
  }
  return false;
}

// Excludes ops whose CPU kernel rejects some nodes of a GPU (channels first).
bool MayBeComputed(const NodeDef& node, const OpDef& op) {
  if (node.attr().count("data_format")) return false;
  if (node.op().rfind("_Fused", 0) == 0) return false;
  if (node.op() == "AssignAddVariableOp" || node.op() == "AssignSubVariableOp") return true;
  return !op.is_stateful();
}

class Dry : public OpKernel {
 public:
  Dry(OpKernelConstruction* construction, std::unique_ptr<OpKernel> own,
      std::unique_ptr<OpKernel> on_cpu)
      : OpKernel(construction), own_(std::move(own)), on_cpu_(std::move(on_cpu)) {
    const OpRegistrationData* data = nullptr;
    if (OpRegistry::Global()->LookUp(def().op(), &data).ok()) data_ = data;
    for (auto type : input_memory_types()) has_host_input_ |= type == HOST_MEMORY;
    version_ = construction->graph_def_version();
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TensorShape> in;
    int64_t bytes = 0;
    bool small = true;
    for (int i = 0; i < context->num_inputs(); ++i) {
      in.emplace_back();
      if (!context->has_input(i) || context->input_is_ref(i)) continue;
      const DataType type = context->input_dtype(i);
      if (type == DT_RESOURCE || type == DT_VARIANT || type == DT_STRING) continue;
      const Tensor& input = context->input(i);
      in.back() = input.shape();
      if (input_memory_types()[i] == HOST_MEMORY) continue;
      bool again = false;
      for (int k = 0; k < i && !again; ++k) {
        again = context->has_input(k) && !context->input_is_ref(k) &&
                context->input_dtype(k) == type && context->input(k).SharesBufferWith(input);
      }
      if (!again) bytes += input.TotalBytes();
      small &= static_cast<int64_t>(input.TotalBytes()) <= kSmall;
    }
    const bool computed = on_cpu_ != nullptr && small && MakesLittle(context, in);
    Watch watch(context, this);
    const int64_t before = lms_card_launches();
    int64_t launched = 1;
    if (computed) {
      on_cpu_->Compute(context);
    } else {
      own_->Compute(context);
      launched = lms_card_launches() - before;
    }
    if (!context->status().ok() || launched == 0) return;
    DataType type = DT_FLOAT;
    TensorShape out;
    for (int i = 0; i < num_outputs(); ++i) {
      Tensor* made = context->mutable_output(i);
      if (made == nullptr || output_memory_types()[i] == HOST_MEMORY) continue;
      if (made->dtype() == DT_RESOURCE || made->dtype() == DT_VARIANT) continue;
      if (i == 0) type = made->dtype(), out = made->shape();
      const int64_t size = made->TotalBytes();
      bytes += size;
      if (!computed && size > 0 && size <= kSmall) {
        std::memset(made->data(), made->dtype() == DT_BOOL ? 1 : 0, size);
      }
    }
    auto* device = context->op_device_context();
    if (device == nullptr || device->stream() == nullptr) return;
    const double seconds = Seconds(def(), in, out, type, bytes, launched);
    lms_card_pass(device->stream()->platform_specific_handle().stream,
                  std::max(seconds, LinkSeconds(context, *this)), name().c_str(), bytes,
                  computed);
  }
  bool IsExpensive() override { return own_->IsExpensive(); }
  const Tensor* const_tensor() const override { return own_->const_tensor(); }

 private:
  // Returns whether all outputs are small, by the op's shape function.
  bool MakesLittle(OpKernelContext* context, const std::vector<TensorShape>& in) {
    if (num_outputs() == 0) return true;
    if (data_ == nullptr || data_->shape_inference_fn == nullptr) return false;
    if (!has_host_input_) {
      mutex_lock lock(mutex_);
      if (known_ && last_ == in) return little_;
    }
    std::vector<PartialTensorShape> shapes(in.begin(), in.end());
    std::vector<const Tensor*> values(in.size(), nullptr);
    std::vector<Tensor> held(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const DataType type = context->input_dtype(i);
      if (type == DT_RESOURCE || type == DT_VARIANT) {
        shapes[i] = PartialTensorShape();
      } else if (context->has_input(i) && !context->input_is_ref(i)) {
        held[i] = context->input(i);
        values[i] = &held[i];
      }
    }
    shape_inference::InferenceContext inference(version_, AttrSlice(def()), data_->op_def,
                                                shapes, values, {}, {});
    bool little = inference.construction_status().ok() &&
                  inference.Run(data_->shape_inference_fn).ok();
    for (int i = 0; little && i < num_outputs(); ++i) {
      auto shape = inference.output(i);
      if (!inference.FullyDefined(shape)) {
        little = !HasResource(context);  // decided by its small inputs
        continue;
      }
      int64_t size = DataTypeSize(output_type(i));
      for (int k = 0; k < inference.Rank(shape); ++k) {
        size *= inference.Value(inference.Dim(shape, k));
      }
      little = size <= kSmall;
    }
    if (!has_host_input_) {
      mutex_lock lock(mutex_);
      known_ = true;
      last_ = in;
      little_ = little;
    }
    return little;
  }
  bool HasResource(OpKernelContext* context) {
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (context->input_dtype(i) == DT_RESOURCE) return true;
    }
    return false;
  }

  std::unique_ptr<OpKernel> own_, on_cpu_;
  const OpRegistrationData* data_ = nullptr;
  bool has_host_input_ = false;
  int version_ = 0;
  mutex mutex_;
  bool known_ = false, little_ = false;
  std::vector<TensorShape> last_;
};

// Assertions do nothing, since the numbers that they check were not computed.
class Silent : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext*) override {}
};
class Silencing : public kernel_factory::OpKernelFactory {
  OpKernel* Create(OpKernelConstruction* it) override { return new Silent(it); }
};

class Wrapping : public kernel_factory::OpKernelFactory {
 public:
  Wrapping(std::unique_ptr<kernel_factory::OpKernelFactory> own, bool on_cpu)
      : own_(std::move(own)), on_cpu_(on_cpu) {}
  OpKernel* Create(OpKernelConstruction* construction) override {
    const NodeDef node = construction->def();
    const bool is_rnn = IsRnn(node.op());  // sizes of cuDNN's buffers are unknown
    std::unique_ptr<OpKernel> own(
        is_rnn                      ? MakeRnn(construction)
        : IsUpdateSlice(node.op()) ? new UpdateSlice(construction)
                                    : own_->Create(construction));
    if (own == nullptr || own->AsAsync() != nullptr) return own.release();
    const OpDef* op = nullptr;
    if (!OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok()) return own.release();
    if (StaysAsItIs(node, *op) || IsOnHost(*own)) return own.release();
    OpKernel* made = nullptr;
    if (on_cpu_ && MayBeComputed(node, *op)) {
      std::shared_ptr<const NodeProperties> properties;
      absl::Status status =
          NodeProperties::CreateFromNodeDef(node, OpRegistry::Global(), &properties);
      if (status.ok()) {
        auto* device = static_cast<DeviceBase*>(construction->device());
        status = CreateOpKernel(DeviceType(DEVICE_CPU), device,
                                device->GetAllocator(AllocatorAttributes()),
                                construction->function_library(),
                                construction->resource_manager(), properties,
                                construction->graph_def_version(), &made);
      }
      if (!status.ok()) made = nullptr;
      if (made != nullptr && made->AsAsync() != nullptr) {
        delete made;
        made = nullptr;
      }
    }
    return new Dry(construction, std::move(own), std::unique_ptr<OpKernel>(made));
  }

 private:
  // Returns whether all inputs and outputs lie in host memory: the kernel computes there.
  static bool IsOnHost(const OpKernel& kernel) {
    for (auto type : kernel.input_memory_types()) {
      if (type != HOST_MEMORY) return false;
    }
    for (auto type : kernel.output_memory_types()) {
      if (type != HOST_MEMORY) return false;
    }
    return kernel.num_inputs() + kernel.num_outputs() > 0;
  }

  std::unique_ptr<kernel_factory::OpKernelFactory> own_;
  bool on_cpu_;
};

void WrapAll() {
  std::set<std::string> on_cpu;
  mutex_lock lock(registry()->mu);
  for (auto& one : registry()->all) {
    if (one.second.def.device_type() == "CPU") on_cpu.insert(one.second.def.op());
  }
  for (auto& one : registry()->all) {
    const KernelDef& def = one.second.def;
    if (def.op() == "Assert") one.second.factory = std::make_unique<Silencing>();
    if (def.device_type() != "GPU" || def.op() == "Assert") continue;
    one.second.factory = std::make_unique<Wrapping>(std::move(one.second.factory),
                                                    on_cpu.count(def.op()) != 0);
  }
}

}  // namespace card

// Called when TensorFlow is imported with TF_PLUGGABLE_DEVICE_LIBRARY_PATH set to this
// library; it brings no device of its own.
extern "C" __attribute__((visibility("default"))) void TF_InitKernel() {
  card::WrapAll();
  if (lms_card_watches()) card::WatchOthers();
  card::InterpretCompiled();
}

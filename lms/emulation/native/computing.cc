// Kernels of device type GPU that run TensorFlow's own CPU kernels.
//
// TensorFlow's wheel for Linux registers its CUDA kernels with their types and the
// arguments that must lie in host memory. Each of these kernels is registered here again,
// with a higher priority: so placement and memory types are a real GPU's. The kernel that
// runs is the op's CPU kernel, oneDNN's if there is one, on the emulated device's tensors
// (which are host memory) and with the emulated device's allocator: `LocalDevice` gives
// every device the CPU's thread pool.
//
//   launch (TensorFlow's thread)   | compute | compute |         <- memory is taken
//   compute stream (its clock)         |  passes  |  passes  |   <- events, copies wait
//
// A kernel computes when it is launched; then its modelled time passes on the compute
// stream (`roofline.h`). Where that is longer than the CPU took, launches run ahead of the
// device, as on a GPU.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/util.h"
#include "xla/stream_executor/stream.h"

#include "interpreted.h"
#include "layouts.h"
#include "rnn_gradient.h"
#include "slices.h"
#include "roofline.h"
#include "watch.h"

extern "C" void lms_card_pass(void* stream, double seconds, const char* name,
                              int64_t bytes, int computed);

namespace card {

using namespace tensorflow;

Launch::~Launch() {
  auto* device = context_->op_device_context();
  if (device == nullptr || device->stream() == nullptr || !context_->status().ok()) return;
  void* stream = device->stream()->platform_specific_handle().stream;
  const std::string& op = kernel_->type_string();
  static const std::set<std::string> views = {
      "Identity", "Reshape", "Squeeze", "ExpandDims", "Shape", "NoOp", "StopGradient",
      "ReadVariableOp", "AssignVariableOp"};
  const double link = views.count(op) ? 0 : LinkSeconds(context_, *kernel_);
  if (rates().bandwidth <= 0) {
    lms_card_pass(stream, link, "", 0, 1);
    return;
  }
  std::vector<TensorShape> in;
  int64_t bytes = 0;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    in.emplace_back();
    if (!context_->has_input(i) || context_->input_is_ref(i)) continue;
    const DataType type = context_->input_dtype(i);
    if (type == DT_RESOURCE || type == DT_VARIANT || type == DT_STRING) continue;
    in.back() = context_->input(i).shape();
    if (kernel_->input_memory_types()[i] == HOST_MEMORY) continue;
    bytes += context_->input(i).TotalBytes();
  }
  TensorShape out;
  DataType type = DT_FLOAT;
  for (int i = 0; i < context_->num_outputs(); ++i) {
    Tensor* made = context_->mutable_output(i);
    if (made == nullptr || kernel_->output_memory_types()[i] == HOST_MEMORY) continue;
    if (made->dtype() == DT_RESOURCE || made->dtype() == DT_VARIANT) continue;
    if (i == 0) type = made->dtype(), out = made->shape();
    bytes += made->TotalBytes();
  }
  const double seconds = views.count(op) ? 0 : Seconds(kernel_->def(), in, out, type, bytes, 1);
  lms_card_pass(stream, std::max(seconds, link), kernel_->name().c_str(), bytes, 1);
}

class Delegate : public OpKernel {
 public:
  Delegate(OpKernelConstruction* construction, std::unique_ptr<OpKernel> inner)
      : OpKernel(construction), inner_(std::move(inner)) {}
  void Compute(OpKernelContext* context) override {
    Launch launch(context, this);
    Watch watch(context, this);
    inner_->Compute(context);
  }
  const Tensor* const_tensor() const override { return inner_->const_tensor(); }

 private:
  std::unique_ptr<OpKernel> inner_;
};

class AsyncDelegate : public AsyncOpKernel {
 public:
  AsyncDelegate(OpKernelConstruction* construction, std::unique_ptr<OpKernel> inner)
      : AsyncOpKernel(construction), inner_(std::move(inner)) {}
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    { Launch launch(context, this); }  // takes no time: the outputs are not known yet
    inner_->AsAsync()->ComputeAsync(context, std::move(done));
  }

 private:
  std::unique_ptr<OpKernel> inner_;
};

// oneDNN's kernels by the ops that they replace: kernels that mkl_layout_pass.cc puts
// into a CPU's graph and that have equal inputs and outputs.
inline const std::unordered_map<std::string, std::string>& onednn_ops() {
  static auto* all = new std::unordered_map<std::string, std::string>{
      {"Conv2D", "_MklNativeConv2D"},
      {"Conv2DBackpropInput", "_MklNativeConv2DBackpropInput"},
      {"Conv2DBackpropFilter", "_MklNativeConv2DBackpropFilter"},
      {"Conv3D", "_MklNativeConv3D"},
      {"Conv3DBackpropInputV2", "_MklNativeConv3DBackpropInputV2"},
      {"Conv3DBackpropFilterV2", "_MklNativeConv3DBackpropFilterV2"},
      {"DepthwiseConv2dNative", "_MklNativeDepthwiseConv2dNative"},
      {"DepthwiseConv2dNativeBackpropInput",
       "_MklNativeDepthwiseConv2dNativeBackpropInput"},
      {"DepthwiseConv2dNativeBackpropFilter",
       "_MklNativeDepthwiseConv2dNativeBackpropFilter"},
      {"_FusedConv2D", "_MklNativeFusedConv2D"},
      {"_FusedMatMul", "_MklNativeFusedMatMul"},
      {"MatMul", "_MklMatMul"},
      {"BatchMatMulV2", "_MklBatchMatMulV2"},
      {"FusedBatchNormV3", "_MklNativeFusedBatchNormV3"},
      {"FusedBatchNormGradV3", "_MklNativeFusedBatchNormGradV3"},
      {"AvgPool", "_MklNativeAvgPool"},
      {"AvgPoolGrad", "_MklNativeAvgPoolGrad"},
      {"AvgPool3D", "_MklNativeAvgPool3D"},
      {"AvgPool3DGrad", "_MklNativeAvgPool3DGrad"},
      {"Softmax", "_MklSoftmax"},
  };
  return *all;
}

// Makes a node oneDNN's if oneDNN has a kernel for its op and types; returns whether.
inline bool AsOneDnn(NodeDef* node) {
  if (!IsMKLEnabled()) return false;
  auto found = onednn_ops().find(node->op());
  if (found == onednn_ops().end()) return false;
  auto padding = node->attr().find("padding");
  if (padding != node->attr().end() && padding->second.s() == "EXPLICIT" &&
      node->op() != "Conv2D" && node->op() != "_FusedConv2D") {
    return false;
  }
  auto type = node->attr().find("T");
  if (type == node->attr().end() ||
      !IsDataTypeSupportedByOneDNNOnThisCPU(type->second.type())) {
    return false;
  }
  NodeDef renamed = *node;
  renamed.set_op(found->second);
  (*renamed.mutable_attr())["_kernel"].set_s("MklNameChangeOp");
  const OpDef* op = nullptr;
  if (!OpRegistry::Global()->LookUpOpDef(renamed.op(), &op).ok()) return false;
  AddDefaultsToNodeDef(*op, &renamed);
  const KernelDef* kernel = nullptr;
  if (!FindKernelDef(DeviceType(DEVICE_CPU), renamed, &kernel, nullptr).ok()) return false;
  *node = renamed;
  return true;
}

class Factory : public kernel_factory::OpKernelFactory {
 public:
  OpKernel* Create(OpKernelConstruction* construction) override {
    NodeDef node = construction->def();
    if (IsRnn(node.op())) {
      return new Delegate(construction, std::unique_ptr<OpKernel>(MakeRnn(construction)));
    }
    if (IsUpdateSlice(node.op())) {
      return new Delegate(construction, std::make_unique<UpdateSlice>(construction));
    }
    const bool is_turned = ChannelsLast(&node), is_onednn = AsOneDnn(&node);
    std::shared_ptr<const NodeProperties> properties;
    absl::Status status =
        NodeProperties::CreateFromNodeDef(node, OpRegistry::Global(), &properties);
    OpKernel* made = nullptr;
    if (status.ok()) {
      auto* device = static_cast<DeviceBase*>(construction->device());
      status = CreateOpKernel(DeviceType(DEVICE_CPU), device,
                              device->GetAllocator(AllocatorAttributes()),
                              construction->function_library(),
                              construction->resource_manager(), properties,
                              construction->graph_def_version(), &made);
    }
    std::unique_ptr<OpKernel> inner(made);
    if (!status.ok()) {
      construction->CtxFailure(status);
      return new Nothing(construction);
    }
    const bool takes_none = TakesNone(node.op());
    if (is_turned || is_onednn || takes_none) return new Careful(construction, std::move(inner));
    if (inner->AsAsync() != nullptr) {
      return new AsyncDelegate(construction, std::move(inner));
    }
    return new Delegate(construction, std::move(inner));
  }

 private:
  class Nothing : public OpKernel {
   public:
    using OpKernel::OpKernel;
    void Compute(OpKernelContext*) override {}
  };
};

void RegisterKernels() {
  const KernelList all = GetAllRegisteredKernels();
  std::set<std::string> on_cpu;
  for (const KernelDef& kernel : all.kernel()) {
    if (kernel.device_type() == "CPU") on_cpu.insert(kernel.op());
  }
  for (const KernelDef& kernel : all.kernel()) {
    if (kernel.device_type() != "GPU" || !kernel.label().empty()) continue;
    const bool is_own = IsRnn(kernel.op()) || IsUpdateSlice(kernel.op());
    if (!is_own && !on_cpu.count(kernel.op())) continue;
    const bool is_xla = kernel.op().rfind("Xla", 0) == 0 || kernel.op().rfind("_Xla", 0) == 0;
    if (!is_own && is_xla) continue;
    auto* own = new KernelDef(kernel);  // the registrar keeps it
    own->set_priority(kernel.priority() + 100);
    kernel_factory::OpKernelRegistrar(own, "EmulatedCard",
                                      std::make_unique<Factory>());
  }
}

}  // namespace card

// Called when TensorFlow is imported with TF_PLUGGABLE_DEVICE_LIBRARY_PATH set to this
// library; it brings no device of its own.
extern "C" __attribute__((visibility("default"))) void TF_InitKernel() {
  card::RegisterKernels();
  if (lms_card_watches()) card::WatchOthers();
  card::InterpretCompiled();
}

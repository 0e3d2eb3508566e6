// Kernels with converted inputs and outputs: channels-first ones, which TensorFlow's
// layout optimiser makes where there is a GPU, which Eigen lacks and oneDNN runs slowly;
// and ones of half precision that a CPU lacks. Tensors are converted in host memory, so
// that device memory holds a GPU's bytes. Also runs oneDNN's kernels (`refusals.h`).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

#include "launch.h"
#include "watch.h"
#include "refusals.h"

namespace card {

using namespace tensorflow;

// Positions of an op's inputs and outputs that are images.
struct Images {
  std::vector<int> inputs, outputs;
  int sizes = -1;  // position of the input that holds an image's shape
};

inline const std::map<std::string, Images>& images() {
  static auto* all = new std::map<std::string, Images>{
      {"Conv2D", {{0}, {0}}},
      {"_FusedConv2D", {{0}, {0}}},
      {"Conv2DBackpropInput", {{2}, {0}, 0}},
      {"Conv2DBackpropFilter", {{0, 2}, {}}},
      {"Conv3D", {{0}, {0}}},
      {"Conv3DBackpropInputV2", {{2}, {0}, 0}},
      {"Conv3DBackpropFilterV2", {{0, 2}, {}}},
      {"DepthwiseConv2dNative", {{0}, {0}}},
      {"DepthwiseConv2dNativeBackpropInput", {{2}, {0}, 0}},
      {"DepthwiseConv2dNativeBackpropFilter", {{0, 2}, {}}},
      {"DepthToSpace", {{0}, {0}}},
      {"SpaceToDepth", {{0}, {0}}},
      {"MaxPool", {{0}, {0}}},
      {"MaxPoolGrad", {{0, 1, 2}, {0}}},
      {"MaxPoolGradGrad", {{0, 1, 2}, {0}}},
      {"MaxPool3D", {{0}, {0}}},
      {"MaxPool3DGrad", {{0, 1, 2}, {0}}},
      {"MaxPool3DGradGrad", {{0, 1, 2}, {0}}},
      {"AvgPool", {{0}, {0}}},
      {"AvgPoolGrad", {{1}, {0}, 0}},
      {"AvgPool3D", {{0}, {0}}},
      {"AvgPool3DGrad", {{1}, {0}, 0}},
      {"FusedBatchNormV3", {{0}, {0}}},
      {"_FusedBatchNormEx", {{0}, {0}}},
      {"FusedBatchNormGradV3", {{0, 1}, {0}}},
  };
  return *all;
}

inline bool IsFirst(const NodeDef& node) {
  auto found = node.attr().find("data_format");
  if (found == node.attr().end()) return false;
  return found->second.s() == "NCHW" || found->second.s() == "NCDHW";
}

inline void ChannelToEnd(AttrValue* value, int each) {
  auto* list = value->mutable_list()->mutable_i();
  if (list->size() < 3 * each) return;
  std::vector<int64_t> old(list->begin(), list->end());
  const int n = static_cast<int>(old.size()) / each;
  auto put = [&](int to, int from) {
    for (int k = 0; k < each; ++k) list->Set(to * each + k, old[from * each + k]);
  };
  for (int i = 2; i < n; ++i) put(i - 1, i);
  put(n - 1, 1);
}

// Replaces half precision by single precision in a node's attributes.
inline NodeDef InSingle(NodeDef node) {
  for (auto& [name, value] : *node.mutable_attr()) {
    if (value.type() == DT_HALF) value.set_type(DT_FLOAT);
    if (!value.has_list()) continue;
    for (auto& type : *value.mutable_list()->mutable_type()) {
      if (type == DT_HALF) type = DT_FLOAT;
    }
  }
  return node;
}

inline bool IsOnCpu(const NodeDef& node) {
  const KernelDef* kernel = nullptr;
  return FindKernelDef(DeviceType(DEVICE_CPU), node, &kernel, nullptr).ok();
}

// Returns whether a node is of half precision that only a GPU has, to be computed in
// single precision. CPU kernels of the 2D ops named here reject some nodes; those of the
// 3D ops make a matrix of all windows, which on a card would not be there.
inline bool IsHalf(const NodeDef& node) {
  static const std::set<std::string> refusing = {
      "_FusedConv2D",        "_FusedMatMul",          "Conv2D",
      "Conv2DBackpropInput", "Conv2DBackpropFilter",  "Conv3D",
      "_FusedConv3D",        "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"};
  const NodeDef single = InSingle(node);
  if (single.SerializeAsString() == node.SerializeAsString()) return false;
  return refusing.count(node.op()) || (!IsOnCpu(node) && IsOnCpu(single));
}

// Returns whether an op's CPU kernel takes scratch and cuDNN's takes none: the place of
// each largest element (`DnnPoolingGradOp` in pooling_ops_common.cc).
inline bool TakesNone(const std::string& op) { return op == "MaxPoolGrad"; }

// Converts a node's attributes to channels last; returns whether tensors change, too.
inline bool ChannelsLast(NodeDef* node) {
  const bool is_half = IsHalf(*node);
  if (is_half) *node = InSingle(*node);
  auto& attributes = *node->mutable_attr();
  if (!images().count(node->op()) || !IsFirst(*node)) return is_half;
  attributes["data_format"].set_s(
      attributes["data_format"].s() == "NCHW" ? "NHWC" : "NDHWC");
  for (const char* name : {"strides", "ksize", "dilations"}) {
    if (attributes.count(name)) ChannelToEnd(&attributes[name], 1);
  }
  if (attributes.count("explicit_paddings")) {
    ChannelToEnd(&attributes["explicit_paddings"], 2);
  }
  return true;
}

class Careful : public OpKernel {
 public:
  Careful(OpKernelConstruction* construction, std::unique_ptr<OpKernel> inner)
      : OpKernel(construction), inner_(std::move(inner)), is_half_(IsHalf(def())) {}

  void Compute(OpKernelContext* context) override {
    Launch launch(context, this);
    Watch watch(context, this);
    static const Images* const none = new Images;
    auto entry = images().find(type_string());
    const Images& known =
        entry != images().end() && IsFirst(def()) ? entry->second : *none;
    // Held here: the inner context only has references to its inputs.
    std::vector<Tensor> inputs;
    for (int i = 0; i < context->num_inputs(); ++i) {
      inputs.push_back(context->input(i));
      if (is_half_ && inputs.back().dtype() == DT_HALF) {
        inputs.back() = Cast<Eigen::half, float>(inputs.back());
      }
    }
    for (int i : known.inputs) {
      if (inputs[i].dims() < 3) continue;
      Tensor turned(inputs[i].dtype(), Moved(inputs[i].shape(), true));
      Move(context, inputs[i], true, &turned);
      inputs[i] = turned;
    }
    if (known.sizes >= 0) inputs[known.sizes] = MovedShape(inputs[known.sizes]);
    std::vector<TensorValue> values;
    for (Tensor& input : inputs) values.emplace_back(&input);
    std::vector<AllocatorAttributes> attributes(num_outputs());
    for (int i = 0; i < num_outputs(); ++i) {
      attributes[i] = context->output_alloc_attr(i);
      if (output_memory_types()[i] == HOST_MEMORY || MadeHalf(i)) {
        attributes[i].set_on_host(true);
      }
    }
    for (int i : known.outputs) attributes[i].set_on_host(true);
    OpKernelContext::Params params;
    params.step_id = context->step_id();
    const bool takes_none = TakesNone(type_string());
    auto* device = static_cast<DeviceBase*>(context->device());
    params.device = takes_none ? LenientDevice::Of<HostDevice>(device)
                               : LenientDevice::Of(device);
    params.op_kernel = inner_.get();
    params.resource_manager = context->resource_manager();
    params.function_library = context->function_library();
    params.runner = context->runner();
    params.op_device_context = context->op_device_context();
    params.inputs = values;
    params.output_attr_array = attributes.data();
    params.frame_iter = context->frame_iter();
    OpKernelContext inside(&params);
    Refused() = 0;
    inner_->Compute(&inside);
    std::vector<std::unique_ptr<Tensor>> outputs;
    for (int i = 0; i < num_outputs(); ++i) {
      outputs.emplace_back(inside.release_output(i).tensor);
    }
    OP_REQUIRES_OK(context, inside.status());
    OP_REQUIRES(context, Refused() == 0, Exhausted(context));
    for (int i = 0; i < num_outputs(); ++i) {
      Tensor* made = outputs[i].get();
      if (made == nullptr) continue;
      Tensor result = *made;
      bool is_there = false;
      for (int k : known.outputs) {
        if (k != i || made->dims() < 3) continue;
        const TensorShape shape = Moved(made->shape(), false);
        if (MadeHalf(i)) {
          result = Tensor(made->dtype(), shape);
        } else {
          Tensor* output = nullptr;
          OP_REQUIRES_OK(context, context->allocate_output(i, shape, &output));
          result = *output;
          is_there = true;
        }
        Move(context, *made, false, &result);
      }
      if (MadeHalf(i)) {
        Tensor* output = nullptr;
        OP_REQUIRES_OK(context, context->allocate_output(i, result.shape(), &output));
        auto from = result.flat<float>();
        auto to = output->flat<Eigen::half>();
        for (int64_t k = 0; k < from.size(); ++k) to(k) = static_cast<Eigen::half>(from(k));
        continue;
      }
      if (takes_none && !is_there) {
        Tensor* output = nullptr;
        OP_REQUIRES_OK(context, context->allocate_output(i, made->shape(), &output));
        std::memcpy(output->data(), made->data(), made->TotalBytes());
        continue;
      }
      if (!is_there) context->set_output(i, result);
    }
  }

 private:
  static absl::Status Exhausted(OpKernelContext* context) {
    Allocator* allocator = context->device()->GetAllocator(AllocatorAttributes());
    return absl::ResourceExhaustedError(
        "OOM when allocating tensor of " + std::to_string(Refused()) + " bytes on " +
        context->device()->name() + " by allocator " + allocator->Name());
  }

  // Converts in host memory: a real GPU needs no memory for this.
  template <typename From, typename To>
  static Tensor Cast(const Tensor& from) {
    Tensor to(DataTypeToEnum<To>::value, from.shape());
    auto source = from.flat<From>();
    auto target = to.flat<To>();
    for (int64_t k = 0; k < source.size(); ++k) target(k) = static_cast<To>(source(k));
    return to;
  }

  static TensorShape Moved(const TensorShape& from, bool to_last) {
    const int rank = from.dims();
    TensorShape shape;
    shape.AddDim(from.dim_size(0));
    if (!to_last) shape.AddDim(from.dim_size(rank - 1));
    for (int i = 1; i < rank - 1; ++i) shape.AddDim(from.dim_size(to_last ? i + 1 : i));
    if (to_last) shape.AddDim(from.dim_size(1));
    return shape;
  }

  static void Move(OpKernelContext* context, const Tensor& from, bool to_last,
                   Tensor* to) {
    switch (DataTypeSize(from.dtype())) {
      case 2: return MoveElements<uint16_t>(context, from, to_last, to);
      case 4: return MoveElements<uint32_t>(context, from, to_last, to);
      default: return MoveElements<uint64_t>(context, from, to_last, to);
    }
  }

  template <typename Element>
  static void MoveElements(OpKernelContext* context, const Tensor& from, bool to_last,
                           Tensor* to) {
    const int64_t batch = from.dim_size(0);
    const int64_t channels = from.dim_size(to_last ? 1 : from.dims() - 1);
    if (from.NumElements() == 0) return;
    const int64_t pixels = from.NumElements() / (batch * channels);
    auto* source = static_cast<const Element*>(from.data());
    auto* target = static_cast<Element*>(to->data());
    auto move = [&](int64_t begin, int64_t end) {  // pixels, counted over all images
      for (int64_t at = begin; at < end; ++at) {
        const int64_t first = at / pixels * channels * pixels + at % pixels;
        for (int64_t c = 0; c < channels; ++c) {
          if (to_last) {
            target[at * channels + c] = source[first + c * pixels];
          } else {
            target[first + c * pixels] = source[at * channels + c];
          }
        }
      }
    };
    auto* threads = context->device()->tensorflow_cpu_worker_threads();
    threads->workers->ParallelFor(batch * pixels, 4 * channels, move);
  }

  static Tensor MovedShape(const Tensor& shape) {
    Tensor moved(shape.dtype(), shape.shape());
    const int rank = static_cast<int>(shape.NumElements());
    const size_t size = DataTypeSize(shape.dtype());
    const char* source = static_cast<const char*>(shape.data());
    char* target = static_cast<char*>(moved.data());
    auto put = [&](int to, int from) {
      std::memcpy(target + to * size, source + from * size, size);
    };
    put(0, 0);
    for (int i = 2; i < rank; ++i) put(i - 1, i);
    put(rank - 1, 1);
    return moved;
  }

  // Returns whether an output of half precision was computed in single.
  bool MadeHalf(int i) const { return is_half_ && output_type(i) == DT_HALF; }

  std::unique_ptr<OpKernel> inner_;
  const bool is_half_;
};

}  // namespace card

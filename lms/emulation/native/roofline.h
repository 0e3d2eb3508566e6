// Time of an op on a card of given rates: its bytes over the bandwidth or its
// multiplications and additions over the card's rate, whichever is longer (the roofline of
// Williams, Waterman and Patterson, 2009). A kernel reads and writes pinned host memory
// over the link while it runs (unified addressing).
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

extern "C" double lms_card_setting(const char* name, double otherwise);
extern "C" int lms_card_is_pinned(const void* at);

namespace card {

using namespace tensorflow;

struct Rates {  // per second; 0 where time is not modelled
  double flops = lms_card_setting("LMS_CARD_FLOPS", 0);
  double half_flops = lms_card_setting("LMS_CARD_HALF_FLOPS", flops);
  double bfloat16_flops = lms_card_setting("LMS_CARD_BFLOAT16_FLOPS", flops);
  double bandwidth = lms_card_setting("LMS_CARD_BANDWIDTH", 0);
  double to_device = lms_card_setting("LMS_CARD_H2D", 0);
  double to_host = lms_card_setting("LMS_CARD_D2H", 0);
};

constexpr double kLeast = 3e-6;  // seconds of a launch

inline const Rates& rates() {
  static const Rates* one = new Rates;
  return *one;
}

inline int64_t Product(const TensorShape& shape, int begin, int end) {
  int64_t all = 1;
  for (int i = begin; i < end && i < shape.dims(); ++i) all *= shape.dim_size(i);
  return all;
}

inline bool Starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// Counts 2 for each point of the label space of an einsum equation; 0 with an ellipsis.
inline double EinsumFlops(const std::string& equation, const std::vector<TensorShape>& in) {
  std::map<char, int64_t> sizes;
  size_t input = 0;
  int axis = 0;
  for (char label : equation.substr(0, equation.find("->"))) {
    if (label == ',') ++input, axis = 0;
    if (label == ',' || label == ' ') continue;
    if (label == '.' || input >= in.size() || axis >= in[input].dims()) return 0;
    sizes[label] = in[input].dim_size(axis++);
  }
  double all = 2;
  for (auto [label, size] : sizes) all *= size;
  return all;
}

// Counts multiplications and additions of convolutions, matrix products and RNNs; else 0.
inline double Flops(const NodeDef& node, const std::vector<TensorShape>& in,
                    const TensorShape& out) {
  const std::string& type = node.op();
  const std::string kind = Starts(type, "_Fused") ? type.substr(6) : type;
  auto convolution = [](const TensorShape& kernel, const TensorShape& made) {
    return 2.0 * Product(kernel, 0, kernel.dims() - 1) * made.num_elements();
  };
  if (in.size() >= 3) {
    if (Starts(kind, "Conv2DBackpropFilter") || Starts(kind, "Conv3DBackpropFilter")) {
      return convolution(out, in[2]);
    }
    if (Starts(kind, "Conv2DBackpropInput") || Starts(kind, "Conv3DBackpropInput")) {
      return convolution(in[1], in[2]);
    }
  }
  if (Starts(kind, "CudnnRNN") && in.size() > 3) {  // each parameter, at each step
    const double all = 2.0 * in[3].num_elements() * Product(in[0], 0, 2);
    return kind.find("Backprop") == std::string::npos ? all : 2 * all;
  }
  if (in.size() < 2) return 0;
  if (kind == "Einsum") return EinsumFlops(node.attr().at("equation").s(), in);
  if (Starts(kind, "DepthwiseConv2dNative")) {
    const TensorShape& many = out.num_elements() > in[0].num_elements() ? out : in[0];
    return 2.0 * many.num_elements() * Product(in[1], 0, 2);
  }
  if (Starts(kind, "Conv2D") || Starts(kind, "Conv3D")) return convolution(in[1], out);
  if (kind.find("MatMul") != std::string::npos && in[0].dims() > 1 && out.dims() > 1) {
    const int rank = in[0].dims();
    const double depth = static_cast<double>(in[0].dim_size(rank - 1)) *
                         in[0].dim_size(rank - 2) /
                             std::max<int64_t>(1, out.dim_size(out.dims() - 2));
    return 2.0 * out.num_elements() * depth;
  }
  return 0;
}

// Returns seconds of an op that moves `bytes` in `launches` kernels.
inline double Seconds(const NodeDef& node, const std::vector<TensorShape>& in,
                      const TensorShape& out, DataType type, int64_t bytes,
                      int64_t launches) {
  if (rates().bandwidth <= 0) return 0;
  const double rate = type == DT_HALF       ? rates().half_flops
                      : type == DT_BFLOAT16 ? rates().bfloat16_flops
                                            : rates().flops;
  const double work = rate > 0 ? Flops(node, in, out) / rate : 0;
  return std::max({work, bytes / rates().bandwidth, launches * kLeast});
}

// Returns seconds of the link for host memory that a finished kernel read and wrote.
inline double LinkSeconds(OpKernelContext* context, const OpKernel& kernel) {
  if (rates().to_device <= 0 || rates().to_host <= 0) return 0;
  auto bytes = [](const Tensor& tensor) -> double {
    return lms_card_is_pinned(tensor.data()) ? tensor.TotalBytes() : 0;
  };
  double read = 0, written = 0;
  const std::string& op = kernel.type_string();
  const bool updates = Starts(op, "AssignAdd") || Starts(op, "AssignSub") ||
                       Starts(op, "ResourceApply");
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_is_ref(i)) continue;
    const DataType type = context->input_dtype(i);
    core::RefCountPtr<Var> variable;
    if (type == DT_RESOURCE && updates &&
        LookupResource(context, HandleFromInput(context, i), &variable).ok()) {
      read += bytes(*variable->tensor());
      written += bytes(*variable->tensor());
    } else if (type != DT_RESOURCE && kernel.input_memory_types()[i] == DEVICE_MEMORY) {
      read += bytes(context->input(i));
    }
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    const Tensor* made = context->mutable_output(i);
    if (made == nullptr || kernel.output_memory_types()[i] == HOST_MEMORY) continue;
    written += bytes(*made);
  }
  return read / rates().to_device + written / rates().to_host;
}

}  // namespace card

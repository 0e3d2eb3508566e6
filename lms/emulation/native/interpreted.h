// XLA cannot compile for an emulated card. TensorFlow asks a creator whether a function
// that must be compiled (`jit_compile=True`, Keras's "auto") has a kernel of XLA's. For a
// function that another function calls, this creator says no, and TensorFlow makes a
// plain call. A function that is called by itself would run whole on the card, neither
// placed nor optimised. So the creator makes a kernel that calls the function: its ops are
// placed and its graph is optimised, as without `jit_compile`.
#pragma once

#include <memory>
#include <string>

#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
void RegisterDefaultCustomKernelCreator(CustomKernelCreator* creator);
}

namespace card {

using namespace tensorflow;

class NoCompiler : public CustomKernelCreator {
 public:
  bool CanCreateKernel(
      const FunctionLibraryRuntime& library,
      const std::shared_ptr<const NodeProperties>& properties) const override {
    const NodeDef& node = properties->node_def;
    auto must = node.attr().find("_XlaMustCompile");
    return must != node.attr().end() && must->second.b() &&
           library.GetFunctionLibraryDefinition()->Find(node.op()) != nullptr;
  }

  absl::Status CreateKernel(FunctionLibraryRuntime* library,
                            const std::shared_ptr<const NodeProperties>& properties,
                            std::unique_ptr<OpKernel>* made) const override {
    const NodeDef& node = properties->node_def;
    NodeDef call;
    call.set_name(node.name());
    call.set_op("StatefulPartitionedCall");
    call.set_device(node.device());
    *call.mutable_input() = node.input();
    auto& attributes = *call.mutable_attr();
    for (auto type : properties->input_types) {
      attributes["Tin"].mutable_list()->add_type(type);
    }
    for (auto type : properties->output_types) {
      attributes["Tout"].mutable_list()->add_type(type);
    }
    attributes["Tin"].mutable_list();
    attributes["Tout"].mutable_list();
    attributes["f"].mutable_func()->set_name(node.op());
    for (const char* name : {"config_proto", "executor_type"}) {
      auto given = node.attr().find(name);
      if (given != node.attr().end()) attributes[name] = given->second;
    }
    const OpDef* op = nullptr;
    TF_RETURN_IF_ERROR(OpRegistry::Global()->LookUpOpDef(call.op(), &op));
    AddDefaultsToNodeDef(*op, &call);
    std::shared_ptr<const NodeProperties> of_call;
    TF_RETURN_IF_ERROR(
        NodeProperties::CreateFromNodeDef(call, OpRegistry::Global(), &of_call));
    auto* device = library->device();
    OpKernel* kernel = nullptr;
    TF_RETURN_IF_ERROR(CreateOpKernel(DeviceType(device->device_type()), device,
                                      device->GetAllocator(AllocatorAttributes()), library,
                                      device->resource_manager(), of_call,
                                      library->graph_def_version(), &kernel));
    made->reset(kernel);
    return absl::OkStatus();
  }
};

inline void InterpretCompiled() { RegisterDefaultCustomKernelCreator(new NoCompiler); }

}  // namespace card

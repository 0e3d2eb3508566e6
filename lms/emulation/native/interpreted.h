// XLA cannot compile for an emulated card. TensorFlow asks a creator whether a function
// that must be compiled (`jit_compile=True`, Keras's "auto") has a kernel of XLA's. This
// one says no: such a function is interpreted, op by op, as any other.
#pragma once

#include <memory>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_properties.h"

namespace tensorflow {
void RegisterDefaultCustomKernelCreator(CustomKernelCreator* creator);
}

namespace card {

class NoCompiler : public tensorflow::CustomKernelCreator {
 public:
  bool CanCreateKernel(
      const tensorflow::FunctionLibraryRuntime&,
      const std::shared_ptr<const tensorflow::NodeProperties>&) const override {
    return false;
  }
  absl::Status CreateKernel(tensorflow::FunctionLibraryRuntime*,
                            const std::shared_ptr<const tensorflow::NodeProperties>&,
                            std::unique_ptr<tensorflow::OpKernel>*) const override {
    return absl::InternalError("an emulated card has no compiler");
  }
};

inline void InterpretCompiled() {
  tensorflow::RegisterDefaultCustomKernelCreator(new NoCompiler);
}

}  // namespace card

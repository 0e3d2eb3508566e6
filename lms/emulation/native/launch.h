// A kernel's launch on a computing card: its end queues the kernel's time on the stream.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"

namespace card {

class Launch {
 public:
  Launch(tensorflow::OpKernelContext* context, const tensorflow::OpKernel* kernel)
      : context_(context), kernel_(kernel) {}
  ~Launch();

 private:
  tensorflow::OpKernelContext* context_;
  const tensorflow::OpKernel* kernel_;
};

}  // namespace card

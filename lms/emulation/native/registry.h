// TensorFlow's registry of kernels, as in its op_kernel.cc (2.21, 2.22). Fronts replace
// factories in it; the set of kernels stays.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
void* GlobalKernelRegistry();
}

namespace card {

using namespace tensorflow;

struct Registration {
  const KernelDef def;
  const std::string name;
  std::unique_ptr<kernel_factory::OpKernelFactory> factory;
};
struct Registry {
  mutex mu;
  std::unordered_multimap<std::string, Registration> all;
};

inline Registry* registry() { return static_cast<Registry*>(GlobalKernelRegistry()); }

}  // namespace card

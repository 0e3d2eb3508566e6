// cuDNN and cuBLAS of a card that is not there: each convolution has one algorithm, whose
// workspace is LMS_CARD_WORKSPACE times the bytes of its tensors; nothing is computed.
// What is not here is made by build.sh: functions that do nothing (`missing.cc`).
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#include <cstring>
#include <map>
#include <vector>

#include "engine.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int lms_card_launch();

// --------------------------------------------------- cuDNN's graphs (its backend)

namespace {

struct Value {
  int64_t count;
  std::vector<char> bytes;
};
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, Value> values;
  int64_t bytes = 0;  // of the graph's tensors, where it is known
};

Descriptor* Of(const void* descriptor) {
  return static_cast<Descriptor*>(const_cast<void*>(descriptor));
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
  }
}

std::vector<Descriptor*> Descriptors(const Value& value) {
  std::vector<Descriptor*> all(value.count);
  if (value.count > 0) std::memcpy(all.data(), value.bytes.data(), value.count * 8);
  return all;
}

int64_t TensorBytes(const Descriptor& tensor) {
  auto dims = tensor.values.find(CUDNN_ATTR_TENSOR_DIMENSIONS);
  auto type = tensor.values.find(CUDNN_ATTR_TENSOR_DATA_TYPE);
  if (dims == tensor.values.end()) return 0;
  int64_t all = 4;
  if (type != tensor.values.end()) {
    int kind = 0;
    std::memcpy(&kind, type->second.bytes.data(), 4);
    if (kind == CUDNN_DATA_HALF || kind == CUDNN_DATA_BFLOAT16) all = 2;
    if (kind == CUDNN_DATA_DOUBLE) all = 8;
  }
  for (int64_t i = 0; i < dims->second.count; ++i) {
    int64_t dim;
    std::memcpy(&dim, dims->second.bytes.data() + 8 * i, 8);
    all *= dim;
  }
  return all;
}

// Of all tensors of a graph's convolutions.
int64_t GraphBytes(const Descriptor& graph) {
  static const int names[] = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
  int64_t all = 0;
  auto ops = graph.values.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (ops == graph.values.end()) return 0;
  for (Descriptor* op : Descriptors(ops->second)) {
    for (int name : names) {
      auto value = op->values.find(name);
      if (value == op->values.end()) continue;
      for (Descriptor* one : Descriptors(value->second)) all += TensorBytes(*one);
    }
  }
  return all;
}

}  // namespace

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                  cudnnBackendDescriptor_t* made) {
  *made = new Descriptor{type, {}, 0};
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t one) {
  delete Of(one);
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t) {
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) {
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type,
                                              int64_t count, const void* elements) {
  Descriptor* self = Of(descriptor);
  const char* from = static_cast<const char*>(elements);
  self->values[name] = {count, std::vector<char>(from, from + count * SizeOf(type))};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
      (name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH ||
       name == CUDNN_ATTR_ENGINE_OPERATION_GRAPH)) {
    self->bytes = GraphBytes(*Descriptors(self->values[name])[0]);
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
      (name == CUDNN_ATTR_ENGINECFG_ENGINE ||
       name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)) {
    self->bytes = Descriptors(self->values[name])[0]->bytes;
  }
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type,
                                              int64_t asked, int64_t* count,
                                              void* elements) {
  static double share = card::Setting("LMS_CARD_WORKSPACE", 0);
  Descriptor* self = Of(descriptor);
  int64_t unused = 0;
  if (count == nullptr) count = &unused;
  auto first = [&]() -> Descriptor* {
    return elements == nullptr || asked < 1 ? nullptr : *static_cast<Descriptor**>(elements);
  };
  auto number = [&](int64_t value) {
    *count = 1;
    if (elements != nullptr && asked > 0) *static_cast<int64_t*>(elements) = value;
    return CUDNN_STATUS_SUCCESS;
  };
  switch (static_cast<int>(name)) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:  // one configuration
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      *count = 1;
      if (first() != nullptr) first()->bytes = self->bytes;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return number(0);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return number(1);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return number(static_cast<int64_t>(share * self->bytes) / 256 * 256);
    default: break;
  }
  auto known = self->values.find(name);
  if (known == self->values.end()) {
    *count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  *count = known->second.count;
  if (elements != nullptr) {
    const int64_t some = std::min(asked, known->second.count);
    std::memcpy(elements, known->second.bytes.data(), some * SizeOf(type));
  }
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t,
                                         cudnnBackendDescriptor_t) {
  return static_cast<cudnnStatus_t>(lms_card_launch());
}
EXPORT const char* cudnnGetErrorString(cudnnStatus_t) { return "the card is emulated"; }
EXPORT void cudnnGetLastErrorString(char* text, size_t size) { std::snprintf(text, size, "-"); }

// ------------------------------------------------------------ cuDNN's older functions

EXPORT cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* size) {
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* size) {
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t,
    const cudnnActivationDescriptor_t, const cudnnTensorDescriptor_t, size_t* size) {
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------- cuBLAS

EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = 120503;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
  *mode = CUBLAS_POINTER_MODE_HOST;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT const char* cublasGetStatusString(cublasStatus_t) { return "the card is emulated"; }
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int asked,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = std::min(asked, 1);
  if (*count > 0) std::memset(results, 0, sizeof(results[0]));
  return CUBLAS_STATUS_SUCCESS;
}

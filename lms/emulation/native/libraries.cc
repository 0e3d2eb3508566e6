// cuDNN and cuBLAS of a dry card: each convolution has one algorithm, without a workspace,
// and computes nothing. missing.py makes the other functions.
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
using Descriptor = std::map<int, Value>;  // by the attribute's name

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

}  // namespace

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t,
                                                  cudnnBackendDescriptor_t* made) {
  *made = new Descriptor;
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
  const char* from = static_cast<const char*>(elements);
  (*Of(descriptor))[name] = {count, std::vector<char>(from, from + count * SizeOf(type))};
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type,
                                              int64_t asked, int64_t* count,
                                              void* elements) {
  int64_t unused = 0;
  if (count == nullptr) count = &unused;
  auto number = [&](int64_t value) {
    *count = 1;
    if (elements != nullptr && asked > 0) *static_cast<int64_t*>(elements) = value;
    return CUDNN_STATUS_SUCCESS;
  };
  switch (static_cast<int>(name)) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:  // one configuration
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: return number(0);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return number(1);
    default: break;
  }
  auto known = Of(descriptor)->find(name);
  if (known == Of(descriptor)->end()) {
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

#include <array>

// Part of most toolkits, not of all.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define RESHARD_HAS_NVTX
#endif

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/device/cuda/check_cuda.hpp"
#include "core/device/cuda/kernels.hpp"
#include "core/device/device.hpp"

namespace reshard {

void check_cuda(cudaError_t code, char const* call) {
  if (code == cudaSuccess) return;
  switch (code) {
    case cudaErrorMemoryAllocation:
      fail(ErrorKind::resources,
           "{} failed: {}. Lower run.device_memory, or free the GPU of other programs.", call,
           cudaGetErrorString(code));
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorECCUncorrectable:
    case cudaErrorInitializationError:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      fail(ErrorKind::resources,
           "{} failed: {} ({}). Check the GPU with nvidia-smi, or set run.device = \"host\".", call,
           cudaGetErrorString(code), cudaGetErrorName(code));
    default:
      fail(ErrorKind::internal,
           "{} failed: {} ({}). Check the GPU with nvidia-smi; set run.device = \"host\" to "
           "continue without it.",
           call, cudaGetErrorString(code), cudaGetErrorName(code));
  }
}

namespace {

std::string id_of(cudaDeviceProp const& properties) {
  std::string text;
  for (char const byte : properties.uuid.bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check_cuda(cudaEventCreate(&event_), "cudaEventCreate");
    cudaError_t const recorded = cudaEventRecord(event_, stream);
    if (recorded != cudaSuccess) cudaEventDestroy(event_);
    check_cuda(recorded, "cudaEventRecord");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(CudaEvent const&) = delete;
  CudaEvent& operator=(CudaEvent const&) = delete;

  bool reached() override {
    cudaError_t const code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    check_cuda(code, "a kernel or a copy on the GPU");
    return true;
  }

  double seconds_since(DeviceEvent& earlier) override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<CudaEvent&>(earlier).event_, event_),
               "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3;
  }

  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream final : public DeviceStream {
 public:
  // Non-blocking: the default stream, which libraries may use, holds none of ours back.
  CudaStream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
  }
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  CudaStream(CudaStream const&) = delete;
  CudaStream& operator=(CudaStream const&) = delete;

  void upload(std::byte* to_device, std::byte const* from_host, std::uint64_t bytes) override {
    check_cuda(cudaMemcpyAsync(to_device, from_host, bytes, cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync to the GPU");
  }
  void download(std::byte* to_host, std::byte const* from_device, std::uint64_t bytes) override {
    check_cuda(cudaMemcpyAsync(to_host, from_device, bytes, cudaMemcpyDeviceToHost, stream_),
               "cudaMemcpyAsync from the GPU");
  }
  void copy(std::byte* to, std::byte const* from, std::uint64_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
               "cudaMemcpyAsync on the GPU");
  }
  void fill_zero(std::byte* at, std::uint64_t bytes) override {
    check_cuda(cudaMemsetAsync(at, 0, bytes, stream_), "cudaMemsetAsync");
  }

  void launch(Launch const& launch, LaunchPlaces const& places) override {
    // A launch returns the last error of this thread. Earlier errors ("not ready" of an event, or
    // those of a library) are not this kernel's; an error of the device itself is reported again.
    cudaGetLastError();
    switch (launch.kind) {
      case KernelKind::copy_runs:
      case KernelKind::copy_tiles:
        return check_cuda(start_copy_kernel(launch, places, stream_), "the start of a copy kernel");
      case KernelKind::convert:
      case KernelKind::dequantise:
        return check_cuda(start_value_kernel(launch, places, stream_),
                          "the start of a conversion kernel");
      case KernelKind::digest:
        return check_cuda(start_digest_kernel(launch, places, stream_),
                          "the start of a checksum kernel");
    }
    RESHARD_EXPECT(false);
  }

  std::unique_ptr<DeviceEvent> record() override { return std::make_unique<CudaEvent>(stream_); }
  void wait(DeviceEvent& event) override {
    check_cuda(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).event(), 0),
               "cudaStreamWaitEvent");
  }
  void* handle() override { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(std::uint64_t bytes) : bytes_(bytes) {
    // A multiple of 256: kernels read complete aligned words.
    if (cudaError_t const code = cudaMalloc(&data_, (bytes / 256 + 1) * 256); code != cudaSuccess) {
      cudaGetLastError();  // clears the error of the refused allocation
      fail(ErrorKind::resources,
           "{} of GPU memory cannot be allocated: {}. Lower run.device_memory, or free the GPU of "
           "other programs.",
           human_bytes(bytes), cudaGetErrorString(code));
    }
  }
  ~CudaMemory() override { cudaFree(data_); }
  CudaMemory(CudaMemory const&) = delete;
  CudaMemory& operator=(CudaMemory const&) = delete;
  std::byte* data() override { return static_cast<std::byte*>(data_); }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  void* data_ = nullptr;
  std::uint64_t bytes_;
};

class PinnedMemory final : public DeviceMemory {
 public:
  PinnedMemory(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {
    if (cudaError_t const code = cudaHostRegister(data, bytes, cudaHostRegisterDefault);
        code != cudaSuccess) {
      cudaGetLastError();
      fail(
          ErrorKind::resources,
          "{} of host memory cannot be pinned for the GPU: {}. Lower run.memory, or raise the limit of locked memory (ulimit -l).",
          human_bytes(bytes), cudaGetErrorString(code));
    }
  }
  ~PinnedMemory() override { cudaHostUnregister(data_); }
  PinnedMemory(PinnedMemory const&) = delete;
  PinnedMemory& operator=(PinnedMemory const&) = delete;
  std::byte* data() override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  std::uint64_t bytes_;
};

/// The current device of CUDA belongs to a thread; the user of the device may be another thread
/// than the one that opened it.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int number) : number_(number) {
    select();
    check_cuda(cudaGetDeviceProperties(&properties_, number), "cudaGetDeviceProperties");
    check_cuda(cudaFree(nullptr), "the start of CUDA on the GPU");
    for (auto* const load : {load_copy_kernels, load_value_kernels, load_digest_kernels})
      check_cuda(load(), "the loading of kernels onto the GPU");
  }

  std::string name() const override {
    return fmt::format("{}, {}", properties_.name, human_bytes(properties_.totalGlobalMem));
  }
  std::string id() const override { return id_of(properties_); }
  std::uint64_t free_bytes() const override {
    select();
    std::size_t free = 0;
    std::size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }
  std::unique_ptr<DeviceMemory> allocate(std::uint64_t bytes) override {
    select();
    return std::make_unique<CudaMemory>(bytes);
  }
  std::unique_ptr<DeviceMemory> pin(std::byte* memory, std::uint64_t bytes) override {
    select();
    return std::make_unique<PinnedMemory>(memory, bytes);
  }
  std::unique_ptr<DeviceStream> new_stream() override {
    select();
    return std::make_unique<CudaStream>();
  }

 private:
  void select() const { check_cuda(cudaSetDevice(number_), "cudaSetDevice"); }

  int number_;
  cudaDeviceProp properties_{};
};

}  // namespace

CudaOffer cuda_offer() {
  CudaOffer offer;
  offer.built = true;
  cudaRuntimeGetVersion(&offer.runtime_version);
  cudaDriverGetVersion(&offer.driver_version);
  int devices = 0;
  cudaError_t const code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) {
    offer.devices = devices;
    for (int d = 0; d < devices; ++d) {
      cudaDeviceProp properties{};
      offer.ids.push_back(cudaGetDeviceProperties(&properties, d) == cudaSuccess
                              ? id_of(properties)
                              : fmt::format("device {}", d));
    }
    cudaGetLastError();
    return offer;
  }
  cudaGetLastError();
  if (offer.driver_version == 0)
    offer.why_none = "no NVIDIA driver is installed";
  else if (code == cudaErrorInsufficientDriver)
    offer.why_none =
        fmt::format("the NVIDIA driver is made for CUDA {}.{}, this program needs {}.{}",
                    offer.driver_version / 1000, offer.driver_version % 1000 / 10,
                    offer.runtime_version / 1000, offer.runtime_version % 1000 / 10);
  else if (code == cudaSuccess || code == cudaErrorNoDevice)
    offer.why_none = "no GPU is visible (CUDA_VISIBLE_DEVICES may hide it)";
  else
    offer.why_none = fmt::format("CUDA reports: {}", cudaGetErrorString(code));
  return offer;
}

std::unique_ptr<Device> open_cuda_device(int number) {
  return std::make_unique<CudaDevice>(number);
}

#if defined(RESHARD_HAS_NVTX)
ProfilerRange::ProfilerRange(char const* name) { nvtxRangePushA(name); }
ProfilerRange::~ProfilerRange() { nvtxRangePop(); }
#else
ProfilerRange::ProfilerRange(char const*) {}
ProfilerRange::~ProfilerRange() = default;
#endif

}  // namespace reshard

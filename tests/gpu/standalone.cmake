# What tests/gpu needs of core/, file by file, without the main build's libraries.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
# CMake 3.25.1, that of Debian 12, does not know that nvcc takes it.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_package(CUDAToolkit REQUIRED)
find_package(Threads REQUIRED)

set(root ${CMAKE_CURRENT_SOURCE_DIR}/../..)
set(RESHARD_FMT_INCLUDE_DIR "" CACHE PATH "the folder above fmt/format.h; empty: that of the system")

add_library(reshard_gpu_fmt INTERFACE)
target_compile_definitions(reshard_gpu_fmt INTERFACE FMT_HEADER_ONLY)
if(RESHARD_FMT_INCLUDE_DIR)
  target_include_directories(reshard_gpu_fmt SYSTEM INTERFACE ${RESHARD_FMT_INCLUDE_DIR})
endif()

add_library(reshard_gpu_core STATIC
  ${root}/core/base/threads/activity.cpp
  ${root}/core/base/capture.cpp
  ${root}/core/base/hash/crc64.cpp
  ${root}/core/base/dtype.cpp
  ${root}/core/base/error.cpp
  ${root}/core/base/files/file.cpp
  ${root}/core/base/files/file_stamp.cpp
  ${root}/core/base/files/sight.cpp
  ${root}/core/quant/convert.cpp
  ${root}/core/quant/dequantise.cpp
  ${root}/core/quant/element_tables.cpp
  ${root}/core/quant/number_formats.cpp
  ${root}/core/quant/scheme.cpp
  ${root}/core/device/copy_choice.cpp
  ${root}/core/device/copy_program.cpp
  ${root}/core/device/copy_shape.cpp
  ${root}/core/device/digest_program.cpp
  ${root}/core/device/host/run_digest_on_host.cpp
  ${root}/core/device/host/run_value_on_host.cpp
  ${root}/core/device/strided_digest.cpp
  ${root}/core/device/host/emulated_device.cpp
  ${root}/core/device/host/run_copy_on_host.cpp
  ${root}/core/device/host/run_on_host.cpp
  ${root}/core/device/strided_copy.cpp
  ${root}/core/device/value_program.cpp
  ${root}/core/device/cuda/cuda_device.cpp
  ${root}/core/device/cuda/copy_kernels.cu
  ${root}/core/device/cuda/digest_kernels.cu
  ${root}/core/device/cuda/value_kernels.cu)
target_include_directories(reshard_gpu_core PUBLIC ${root})
target_link_libraries(reshard_gpu_core PUBLIC reshard_gpu_fmt CUDA::cudart_static Threads::Threads)
# As in core/device: kernels must round as the host does.
target_compile_options(reshard_gpu_core PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -fmad=false>)

# The transport over NCCL, with ranks that are processes of this machine. NCCL itself is opened while the program runs.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NCCL_INCLUDE_DIR)
  add_library(reshard_gpu_nccl STATIC
    ${root}/core/transport/comm.cpp
    ${root}/core/transport/lone_start.cpp
    ${root}/core/transport/monitor/patience.cpp
    ${root}/core/transport/ring_order.cpp
    ${root}/core/transport/nccl/communicator.cpp
    ${root}/core/transport/nccl/host_identity.cpp
    ${root}/core/transport/nccl/nccl_api.cpp
    ${root}/core/transport/nccl/nccl_library.cpp
    ${root}/core/transport/nccl/nccl_transport.cpp
    ${root}/core/base/text/wire.cpp
    ${root}/core/transport/nccl/rank_facts.cpp
    ${root}/core/transport/nccl/shared_library.cpp
    local_mpi/local_mpi.cpp)
  target_include_directories(reshard_gpu_nccl PUBLIC local_mpi)
  target_include_directories(reshard_gpu_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
  target_link_libraries(reshard_gpu_nccl PUBLIC reshard_gpu_core ${CMAKE_DL_LIBS})
else()
  message(STATUS "nccl.h was not found (NCCL_INCLUDE_DIR): nccl_check is left out")
endif()

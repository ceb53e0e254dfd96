#pragma once

// Functions that kernels and the host share: index arithmetic, number formats, checksums.
#if defined(__CUDACC__)
#define RESHARD_HOST_DEVICE __host__ __device__
#else
#define RESHARD_HOST_DEVICE
#endif

#pragma once

// As much of MPI as core/transport/comm.cpp uses, for ranks that are processes of one machine with
// one parent: checks of NCCL need no MPI package then. Not for anything else: no messages between
// two ranks, one communicator and its duplicate for a single MPI_Ibarrier, small data.

#include <cstdint>

using MPI_Comm = int;
using MPI_Request = int;
struct MPI_Status {};
enum MPI_Datatype { MPI_BYTE, MPI_INT64_T, MPI_UINT32_T, MPI_UINT64_T };
enum MPI_Op { MPI_MIN, MPI_MAX, MPI_SUM, MPI_BXOR };
enum MPI_Errhandler { MPI_ERRORS_RETURN };

inline constexpr int MPI_SUCCESS = 0;
inline constexpr int MPI_MAX_ERROR_STRING = 256;
inline constexpr int MPI_MAX_LIBRARY_VERSION_STRING = 256;
inline constexpr MPI_Comm MPI_COMM_WORLD = 1;
inline constexpr MPI_Comm MPI_COMM_NULL = 0;
inline constexpr MPI_Request MPI_REQUEST_NULL = 0;
inline constexpr int MPI_THREAD_SERIALIZED = 2;
inline constexpr int MPI_THREAD_MULTIPLE = 3;
inline MPI_Status* const MPI_STATUS_IGNORE = nullptr;
inline void* const MPI_IN_PLACE = reinterpret_cast<void*>(std::intptr_t{-1});

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided);
int MPI_Initialized(int* initialised);
int MPI_Finalize();
int MPI_Get_library_version(char* text, int* length);
int MPI_Abort(MPI_Comm comm, int code);
int MPI_Comm_rank(MPI_Comm comm, int* rank);
int MPI_Comm_size(MPI_Comm comm, int* size);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* duplicate);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Error_string(int code, char* text, int* length);
int MPI_Barrier(MPI_Comm comm);
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request);
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Allreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                  MPI_Comm comm);
int MPI_Iallreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm comm, MPI_Request* request);
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status);
int MPI_Allgather(void const* from, int from_count, MPI_Datatype from_type, void* to, int to_count,
                  MPI_Datatype to_type, MPI_Comm comm);
int MPI_Allgatherv(void const* from, int from_count, MPI_Datatype from_type, void* to,
                   int const* counts, int const* places, MPI_Datatype to_type, MPI_Comm comm);

namespace reshard::test {

/// Forks `ranks` processes that run `work` with their own MPI_Comm_rank, and waits for them: killed
/// after `timeout_seconds`. Returns the highest exit code of a rank, 137 when one was killed. Pre:
/// this process has one thread, and has not used CUDA.
int run_local_ranks(int ranks, double timeout_seconds, int (*work)(int rank));

}  // namespace reshard::test

#include "core/transport/nccl/nccl_library.hpp"

#include <cstdlib>
#include <cstring>

#include <nccl.h>

#include "core/base/error.hpp"
#include "core/transport/comm.hpp"
#include "core/transport/nccl/shared_library.hpp"

namespace reshard {
namespace {

static_assert(sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(static_cast<int>(NcclResult::success) == ncclSuccess &&
              static_cast<int>(NcclResult::unhandled_cuda_error) == ncclUnhandledCudaError &&
              static_cast<int>(NcclResult::system_error) == ncclSystemError &&
              static_cast<int>(NcclResult::internal_error) == ncclInternalError &&
              static_cast<int>(NcclResult::invalid_argument) == ncclInvalidArgument &&
              static_cast<int>(NcclResult::invalid_usage) == ncclInvalidUsage &&
              static_cast<int>(NcclResult::remote_error) == ncclRemoteError &&
              static_cast<int>(NcclResult::in_progress) == ncclInProgress);

constexpr char const* advice =
    "Install NCCL, or name its file in the environment variable RESHARD_NCCL_LIBRARY, or set "
    "run.transport to auto or mpi to continue without it.";

std::string library_name() {
  char const* const chosen = std::getenv("RESHARD_NCCL_LIBRARY");
  return chosen != nullptr && *chosen != '\0' ? chosen : "libnccl.so.2";
}

ncclComm_t comm_of(NcclHandle communicator) { return static_cast<ncclComm_t>(communicator); }
cudaStream_t stream_of(DeviceStream& stream) { return static_cast<cudaStream_t>(stream.handle()); }
NcclResult result_of(ncclResult_t result) { return static_cast<NcclResult>(result); }

/// NCCL as the loader finds it. nccl.h gives types and constants; the library is not linked.
class NcclLibrary final : public NcclApi {
 public:
  NcclAnswer<int> version() override {
    int version = 0;
    return {result_of(get_version_(&version)), version};
  }

  NcclAnswer<NcclUniqueId> unique_id() override {
    ncclUniqueId id{};
    NcclAnswer<NcclUniqueId> answer{result_of(get_unique_id_(&id)), {}};
    std::memcpy(answer.value.data(), id.internal, answer.value.size());
    return answer;
  }

  NcclAnswer<NcclHandle> begin_init(int ranks, NcclUniqueId const& id, int rank) override {
    // The initialiser contains the version of the header; an older or newer library reads the
    // members that both know.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId unique{};
    std::memcpy(unique.internal, id.data(), id.size());
    ncclComm_t communicator = nullptr;
    NcclResult const result =
        result_of(init_rank_config_(&communicator, ranks, unique, rank, &config));
    return {result, communicator};
  }

  NcclResult group_start() override { return result_of(group_start_()); }
  NcclResult send(std::byte const* from, std::uint64_t bytes, int peer, NcclHandle communicator,
                  DeviceStream& stream) override {
    return result_of(send_(from, bytes, ncclUint8, peer, comm_of(communicator), stream_of(stream)));
  }
  NcclResult receive(std::byte* to, std::uint64_t bytes, int peer, NcclHandle communicator,
                     DeviceStream& stream) override {
    return result_of(
        receive_(to, bytes, ncclUint8, peer, comm_of(communicator), stream_of(stream)));
  }
  NcclResult group_end() override { return result_of(group_end_()); }

  NcclAnswer<NcclResult> state(NcclHandle communicator) override {
    ncclResult_t state = ncclSuccess;
    NcclResult const result = result_of(get_async_error_(comm_of(communicator), &state));
    return {result, result_of(state)};
  }

  NcclResult begin_finalize(NcclHandle communicator) override {
    return result_of(finalize_(comm_of(communicator)));
  }
  NcclResult destroy(NcclHandle communicator) override {
    return result_of(destroy_(comm_of(communicator)));
  }
  NcclResult abort(NcclHandle communicator) override {
    return result_of(abort_(comm_of(communicator)));
  }
  std::string text(NcclResult result) override {
    return error_string_(static_cast<ncclResult_t>(result));
  }
  std::string last_error() override { return last_error_(nullptr); }

 private:
  template <class Function>
  Function* function(char const* name) const {
    return library_.function<Function>(name);
  }

  SharedLibrary library_{library_name(), advice};
  decltype(&ncclGetVersion) get_version_ = function<decltype(ncclGetVersion)>("ncclGetVersion");
  decltype(&ncclGetUniqueId) get_unique_id_ =
      function<decltype(ncclGetUniqueId)>("ncclGetUniqueId");
  decltype(&ncclCommInitRankConfig) init_rank_config_ =
      function<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig");
  decltype(&ncclGroupStart) group_start_ = function<decltype(ncclGroupStart)>("ncclGroupStart");
  decltype(&ncclSend) send_ = function<decltype(ncclSend)>("ncclSend");
  decltype(&ncclRecv) receive_ = function<decltype(ncclRecv)>("ncclRecv");
  decltype(&ncclGroupEnd) group_end_ = function<decltype(ncclGroupEnd)>("ncclGroupEnd");
  decltype(&ncclCommGetAsyncError) get_async_error_ =
      function<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError");
  decltype(&ncclCommFinalize) finalize_ = function<decltype(ncclCommFinalize)>("ncclCommFinalize");
  decltype(&ncclCommDestroy) destroy_ = function<decltype(ncclCommDestroy)>("ncclCommDestroy");
  decltype(&ncclCommAbort) abort_ = function<decltype(ncclCommAbort)>("ncclCommAbort");
  decltype(&ncclGetErrorString) error_string_ =
      function<decltype(ncclGetErrorString)>("ncclGetErrorString");
  decltype(&ncclGetLastError) last_error_ =
      function<decltype(ncclGetLastError)>("ncclGetLastError");
};

}  // namespace

std::shared_ptr<NcclApi> open_nccl() {
  static std::shared_ptr<NcclApi> const library = std::make_shared<NcclLibrary>();
  return library;
}

NcclOffer nccl_offer() {
  NcclOffer offer{.built = true, .version = 0, .why_none = {}};
  std::optional<Error> const error = capture([&] {
    auto const nccl = open_nccl();
    auto const version = nccl->version();
    if (version.result != NcclResult::success)
      fail(ErrorKind::resources, "NCCL does not report its version: {}.",
           describe(*nccl, version.result));
    offer.version = version.value;
  });
  if (error)
    offer.why_none = error->sentence().substr(0, error->sentence().find_last_not_of('.') + 1);
  return offer;
}

}  // namespace reshard

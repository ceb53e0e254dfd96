#include <cerrno>
#include <utility>

#include <unistd.h>

#include "core/base/threads/retry.hpp"
#include "core/io/block_mover.hpp"

namespace reshard {
namespace {

MovedBytes moved(ssize_t result) {
  return result < 0 ? MovedBytes{0, errno} : MovedBytes{static_cast<std::size_t>(result), 0};
}

class CallMover final : public BlockMover {
 public:
  explicit CallMover(std::string fallback) : fallback_(std::move(fallback)) {}

  MovedBytes read(int descriptor, std::uint64_t offset_bytes, std::span<std::byte> into) override {
    return moved(retried([&] {
      return ::pread(descriptor, into.data(), into.size(), static_cast<off_t>(offset_bytes));
    }));
  }
  MovedBytes write(int descriptor, std::uint64_t offset_bytes,
                   std::span<std::byte const> bytes) override {
    return moved(retried([&] {
      return ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    }));
  }
  std::string fallback() const override { return fallback_; }

 private:
  std::string fallback_;
};

}  // namespace

std::unique_ptr<BlockMover> call_mover(std::string fallback) {
  return std::make_unique<CallMover>(std::move(fallback));
}

}  // namespace reshard

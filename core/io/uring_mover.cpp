#include "core/io/block_mover.hpp"

#ifndef RESHARD_HAS_URING

namespace reshard {
std::unique_ptr<BlockMover> uring_mover() {
  return call_mover("this program was built without io_uring");
}
}  // namespace reshard

#else

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <liburing.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"

namespace reshard {
namespace {

/// Requests that one thread has under way.
constexpr unsigned depth = 16;
/// The bytes of a request.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// Queues of requests and completions; of one thread at a time.
class Ring {
 public:
  /// nullptr, with the errno in `error`, if the system has none.
  static std::unique_ptr<Ring> make(int& error) {
    std::unique_ptr<Ring> ring(new Ring);
    error = -::io_uring_queue_init(depth, &ring->queues_, 0);
    ring->made_ = error == 0;
    return ring->made_ ? std::move(ring) : nullptr;
  }
  ~Ring() {
    if (made_) ::io_uring_queue_exit(&queues_);
  }
  Ring(Ring const&) = delete;
  Ring& operator=(Ring const&) = delete;

  /// Moves `bytes` bytes in pieces: `prepare` fills in the request for bytes [at, at + count).
  template <class Prepare>
  MovedBytes move(std::size_t bytes, Prepare const& prepare) {
    end_ = {bytes, 0};
    next_ = 0;
    std::size_t under_way = 0;
    for (;;) {
      while (under_way < depth && (!again_.empty() || next_ < end_.bytes) && ask(bytes, prepare))
        ++under_way;
      if (under_way == 0) return end_;
      int const submitted = ::io_uring_submit_and_wait(&queues_, 1);
      // Where the system is short of memory for requests, completions make room.
      RESHARD_EXPECT(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN ||
                     submitted == -EBUSY);
      for (io_uring_cqe* done = nullptr; ::io_uring_peek_cqe(&queues_, &done) == 0;) {
        note(::io_uring_cqe_get_data64(done), done->res, bytes);
        ::io_uring_cqe_seen(&queues_, done);
        --under_way;
      }
    }
  }

 private:
  Ring() = default;

  /// Submits the next piece, or one that has to be repeated.
  template <class Prepare>
  bool ask(std::size_t bytes, Prepare const& prepare) {
    io_uring_sqe* const request = ::io_uring_get_sqe(&queues_);
    if (request == nullptr) return false;
    std::size_t at = next_;
    if (again_.empty()) {
      next_ += std::min(piece_bytes, bytes - next_);
    } else {
      at = again_.back();
      again_.pop_back();
    }
    prepare(request, at, static_cast<unsigned>(std::min(piece_bytes, bytes - at)));
    ::io_uring_sqe_set_data64(request, at);
    return true;
  }

  /// The first incomplete piece ends the transfer.
  void note(std::size_t at, int result, std::size_t bytes) {
    if (result == -EINTR || result == -EAGAIN) return again_.push_back(at);
    std::size_t const whole = std::min(piece_bytes, bytes - at);
    std::size_t const moved = result < 0 ? 0 : static_cast<std::size_t>(result);
    if (moved < whole && at + moved < end_.bytes) end_ = {at + moved, result < 0 ? -result : 0};
  }

  io_uring queues_{};
  bool made_ = false;
  std::size_t next_ = 0;            ///< the first piece not yet submitted
  std::vector<std::size_t> again_;  ///< pieces to submit again (EINTR, EAGAIN)
  MovedBytes end_;
};

class UringMover final : public BlockMover {
 public:
  MovedBytes read(int descriptor, std::uint64_t offset_bytes, std::span<std::byte> into) override {
    if (std::unique_ptr<Ring> ring = take_ring(into.size())) {
      MovedBytes const moved =
          ring->move(into.size(), [&](io_uring_sqe* request, std::size_t at, unsigned count) {
            ::io_uring_prep_read(request, descriptor, into.data() + at, count, offset_bytes + at);
          });
      give_back(std::move(ring));
      return moved;
    }
    return calls_->read(descriptor, offset_bytes, into);
  }

  MovedBytes write(int descriptor, std::uint64_t offset_bytes,
                   std::span<std::byte const> bytes) override {
    if (std::unique_ptr<Ring> ring = take_ring(bytes.size())) {
      MovedBytes const moved =
          ring->move(bytes.size(), [&](io_uring_sqe* request, std::size_t at, unsigned count) {
            ::io_uring_prep_write(request, descriptor, bytes.data() + at, count, offset_bytes + at);
          });
      give_back(std::move(ring));
      return moved;
    }
    return calls_->write(descriptor, offset_bytes, bytes);
  }

  std::string fallback() const override {
    std::lock_guard const lock(mutex_);
    return fallback_;
  }

 private:
  /// nullptr for a single piece, and without io_uring.
  std::unique_ptr<Ring> take_ring(std::size_t bytes) {
    if (bytes <= piece_bytes) return nullptr;
    std::lock_guard const lock(mutex_);
    if (!fallback_.empty()) return nullptr;
    if (!free_.empty()) {
      std::unique_ptr<Ring> ring = std::move(free_.back());
      free_.pop_back();
      return ring;
    }
    int error = 0;
    std::unique_ptr<Ring> ring = Ring::make(error);
    if (!ring) fallback_ = fmt::format("io_uring cannot be used here ({})", system_reason(error));
    return ring;
  }
  void give_back(std::unique_ptr<Ring> ring) {
    std::lock_guard const lock(mutex_);
    free_.push_back(std::move(ring));
  }

  std::unique_ptr<BlockMover> calls_ = call_mover();
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Ring> > free_;
  std::string fallback_;
};

}  // namespace

std::unique_ptr<BlockMover> uring_mover() { return std::make_unique<UringMover>(); }

}  // namespace reshard

#endif

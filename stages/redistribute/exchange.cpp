#include "stages/redistribute/exchange.hpp"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/device/strided_copy.hpp"
#include "core/transport/ring_order.hpp"

namespace reshard {

Exchange::Exchange(Comm const& comm, Transport& transport, double stall_timeout_seconds,
                   std::function<void()> while_waiting, Workers* workers)
    : comm_(comm),
      transport_(transport),
      patience_(stall_timeout_seconds, std::move(while_waiting)),
      workers_(workers) {}

void Exchange::run(RoundWork const& work, std::byte* staging) {
  awaited_.assign(work.receives.size() + work.sends.size(), 1);
  for (ZeroFill const& fill : work.fills) std::memset(staging + fill.at, 0, fill.bytes);
  post_receives(work.receives, staging);
  pack_and_send(work.sends, staging);
  copy(work.copies, staging);
  unpack_as_they_arrive(work, staging);
}

std::span<FlatMessage const> Exchange::flat(std::vector<Message> const& messages,
                                            std::byte* staging) {
  flat_.clear();
  for (Message const& message : messages)
    flat_.push_back({message.peer, staging + message.at, message.bytes});
  return flat_;
}

void Exchange::post_receives(std::vector<Message> const& receives, std::byte* staging) {
  transport_.post(flat(receives, staging), {}, 0);
}

/// Each message leaves as soon as it is packed.
void Exchange::pack_and_send(std::vector<Message> const& sends, std::byte* staging) {
  std::span<FlatMessage const> const messages = flat(sends, staging);
  std::size_t const receives = awaited_.size() - sends.size();
  for (std::size_t const m : ring_order(messages, comm_.rank(), comm_.size(), RingDirection::up)) {
    copy(sends[m].copies, staging);
    transport_.post({}, messages.subspan(m, 1), receives + m);
  }
}

void Exchange::copy(std::vector<StridedCopy> const& copies, std::byte* staging) {
  auto const make = [&](std::size_t copy, std::size_t) {
    StridedCopy const& one = copies[copy];
    copy_strided(staging + one.from, staging + one.to, one.run_bytes, one.dims);
  };
  if (workers_ != nullptr)
    workers_->run(copies.size(), make);
  else
    for (std::size_t copy = 0; copy < copies.size(); ++copy) make(copy, 0);
  for (StridedCopy const& one : copies)
    stats_.bytes_copied += copied_bytes(one.run_bytes, one.dims);
}

void Exchange::unpack_as_they_arrive(RoundWork const& work, std::byte* staging) {
  patience_.begin();
  for (std::size_t left = awaited_.size(); left > 0;) {
    std::uint64_t const landed_before = transport_.bytes_landed();
    landed_.clear();
    transport_.poll(landed_);
    for (Landed const& landed : landed_) land(landed, work, staging);
    left -= landed_.size();
    if (!landed_.empty() || transport_.bytes_landed() > landed_before)
      patience_.begin();
    else if (!patience_.wait())
      give_up(work);
  }
  stats_.waiting_seconds = patience_.waited_seconds();
}

void Exchange::land(Landed const& landed, RoundWork const& work, std::byte* staging) {
  awaited_[landed.number] = 0;
  (landed.received ? stats_.bytes_received : stats_.bytes_sent) += landed.bytes;
  if (landed.received) copy(work.receives[landed.number].copies, staging);
}

void Exchange::give_up(RoundWork const& work) const {
  std::string waiting_for;
  auto const list = [&](std::vector<Message> const& messages, std::size_t first,
                        std::string_view verb) {
    for (std::size_t m = 0; m < messages.size(); ++m)
      if (awaited_[first + m] != 0)
        waiting_for +=
            fmt::format(" {} rank {} ({})", verb, messages[m].peer, human_bytes(messages[m].bytes));
  };
  list(work.receives, 0, "from");
  list(work.sends, work.receives.size(), "to");
  comm_.abort(stalled(patience_.timeout_seconds(), waiting_for));
}

}  // namespace reshard

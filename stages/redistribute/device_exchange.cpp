#include "stages/redistribute/device_exchange.hpp"

#include <algorithm>
#include <thread>

#include "core/base/error.hpp"
#include "core/device/value_program.hpp"
#include "core/quant/convert.hpp"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t block_alignment = 256;
// The longest wait for a device that is abandoned.
constexpr std::chrono::seconds patience_at_end{20};

std::uint64_t whole(std::uint64_t bytes) {
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

void wait_for(DeviceEvent& event) {
  auto const begin = Clock::now();
  while (!event.reached() && Clock::now() - begin < patience_at_end)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

std::uint64_t total(std::vector<ByteRange> const& ranges) {
  std::uint64_t bytes = 0;
  for (ByteRange const& range : ranges) bytes += range.size();
  return bytes;
}

}  // namespace

DeviceExchange::DeviceExchange(Parts parts)
    : parts_(std::move(parts)),
      memory_(parts_.device.allocate(whole(parts_.memory_bytes))),
      space_(whole(parts_.memory_bytes), block_alignment),
      upload_(parts_.device.new_stream()),
      pack_(parts_.device.new_stream()),
      unpack_(parts_.device.new_stream()),
      download_(parts_.device.new_stream()),
      start_(upload_->record()) {
  wait_for(*start_);
  start_time_ = Clock::now();
}

DeviceExchange::~DeviceExchange() {
  for (DeviceStream* const stream : {upload_.get(), pack_.get(), unpack_.get(), download_.get()}) {
    try {
      wait_for(*stream->record());
    } catch (Error const&) {
      // The device has failed: its work has ended.
    }
  }
}

double DeviceExchange::now() const {
  return std::chrono::duration<double>(Clock::now() - start_time_).count();
}

bool DeviceExchange::begin(DeviceRound const& round, std::byte* staging) {
  auto const place = space_.take(round.idle() ? 0 : round.work.staging_bytes);
  if (!place) return false;
  Flight& flight = flights_.emplace_back();
  flight.round = &round;
  flight.staging = staging;
  flight.on_device = memory_->data() + *place;
  flight.number = rounds_++;
  flight.first_message = messages_;
  if (round.idle()) {
    flight.step = Step::unpacking;
    return true;
  }
  flight.receives_left = round.work.receives.size();
  flight.sends_left = round.work.sends.size();
  messages_ += flight.receives_left + flight.sends_left;
  upload_and_pack(flight);
  if (flight.receives_left + flight.sends_left == 0) {
    unpack_and_download(flight);
  } else if (message_place() == MessagePlace::device) {
    parts_.link.stream->wait(*flight.events.packed);
    post(flight);
  } else {
    download_packed(flight);
  }
  return true;
}

void DeviceExchange::upload(std::vector<ByteRange> const& ranges, Flight const& flight) {
  for (ByteRange const& range : ranges)
    upload_->upload(flight.on_device + range.begin, flight.staging + range.begin, range.size());
  stats_.bytes_uploaded += total(ranges);
}

void DeviceExchange::download(std::vector<ByteRange> const& ranges, Flight const& flight) {
  for (ByteRange const& range : ranges)
    download_->download(flight.staging + range.begin, flight.on_device + range.begin, range.size());
  stats_.bytes_downloaded += total(ranges);
}

void DeviceExchange::launch(DeviceStream& stream, Program const& program, std::uint64_t at,
                            Flight const& flight) {
  for (Launch const& one : program.launches)
    stream.launch(one, {flight.on_device + at, flight.on_device, flight.on_device});
}

void DeviceExchange::upload_and_pack(Flight& flight) {
  DeviceRound const& round = *flight.round;
  Events& events = flight.events;
  place_programs(round, flight.staging);
  events.upload_began = began(*upload_);
  upload(round.uploads, flight);
  events.uploaded = upload_->record();
  pack_->wait(*events.uploaded);
  events.pack_began = began(*pack_);
  for (ZeroFill const& fill : round.work.fills)
    pack_->fill_zero(flight.on_device + fill.at, fill.bytes);
  launch(*pack_, round.before, round.before_at, flight);
  events.packed = pack_->record();
  stats_.bytes_copied += round.bytes_copied;
}

/// Downloads packed messages, which are sent from host memory.
void DeviceExchange::download_packed(Flight& flight) {
  download_->wait(*flight.events.packed);
  download(flight.round->packed, flight);
  flight.events.staged = download_->record();
}

void DeviceExchange::post(Flight& flight) {
  RoundWork const& work = flight.round->work;
  std::byte* const base =
      message_place() == MessagePlace::device ? flight.on_device : flight.staging;
  auto const flat = [base](std::vector<Message> const& messages) {
    std::vector<FlatMessage> result;
    for (Message const& message : messages)
      result.push_back({message.peer, base + message.at, message.bytes});
    return result;
  };
  flight.exchange_began = now();
  parts_.link.transport->post(flat(work.receives), flat(work.sends), flight.first_message);
  flight.step = Step::exchanging;
}

void DeviceExchange::unpack_and_download(Flight& flight) {
  DeviceRound const& round = *flight.round;
  Events& events = flight.events;
  if (!round.arrived.empty()) {
    upload(round.arrived, flight);
    events.arrived = upload_->record();
    unpack_->wait(*events.arrived);
  }
  unpack_->wait(*events.packed);
  events.unpack_began = began(*unpack_);
  launch(*unpack_, round.after, round.after_at, flight);
  events.unpacked = unpack_->record();
  download_->wait(*events.unpacked);
  events.download_began = began(*download_);
  download(round.downloads, flight);
  if (round.verdict_at) download({range_at(*round.verdict_at, verdict_bytes)}, flight);
  if (!round.computed_digests.empty())
    download({range_at(round.sums_at, 8 * round.computed_digests.size())}, flight);
  events.downloaded = download_->record();
  flight.step = Step::unpacking;
}

void DeviceExchange::take_landed() {
  landed_.clear();
  parts_.link.transport->poll(landed_);
  for (Landed const& one : landed_) {
    auto const after = std::upper_bound(
        flights_.begin(), flights_.end(), one.number,
        [](std::size_t number, Flight const& flight) { return number < flight.first_message; });
    RESHARD_EXPECT(after != flights_.begin());
    Flight& flight = *std::prev(after);
    --(one.received ? flight.receives_left : flight.sends_left);
    (one.received ? stats_.bytes_received : stats_.bytes_sent) += one.bytes;
  }
}

bool DeviceExchange::advance() {
  bool moved = false;
  if (parts_.link.transport != nullptr) {
    std::uint64_t const before = parts_.link.transport->bytes_landed();
    take_landed();
    moved = !landed_.empty() || parts_.link.transport->bytes_landed() != before;
  }
  bool may_post = true;  // messages leave in the order of the rounds
  for (Flight& flight : flights_) {
    if (flight.step == Step::packing) {
      if (may_post && flight.events.staged->reached()) {
        post(flight);
        moved = true;
      } else {
        may_post = false;
      }
    } else if (flight.step == Step::exchanging && flight.receives_left == 0) {
      flight.exchange_ended = now();
      unpack_and_download(flight);
      moved = true;
    }
  }
  return moved;
}

bool DeviceExchange::take_ended() {
  if (flights_.empty()) return false;
  Flight const& flight = flights_.front();
  if (flight.step != Step::unpacking || flight.receives_left + flight.sends_left > 0) return false;
  if (flight.events.downloaded && !flight.events.downloaded->reached()) return false;
  check_verdict(flight);
  if (parts_.observer && flight.events.downloaded) report(flight);
  flights_.pop_front();
  space_.give_back_oldest();
  return true;
}

/// The first inexact conversion ends the job, with the sentence of the host path.
void DeviceExchange::check_verdict(Flight const& flight) const {
  if (!flight.round->verdict_at) return;
  auto const place = inexact_of(flight.staging + *flight.round->verdict_at);
  if (!place) return;
  std::uint64_t number = 0;
  for (ViewPart const& part : flight.round->computed) {
    SourceView const& view = parts_.views[part.view];
    if (view.kind == ViewKind::dequantise || number++ != place->request) continue;
    auto const size = static_cast<std::uint64_t>(bits(view.stored.dtype) / 8);
    double value = 0;
    quant::convert(view.stored.dtype, {flight.staging + part.stored + place->element * size, size},
                   0, DType::f64, std::as_writable_bytes(std::span(&value, 1)));
    fail_inexact(view, parts_.sources.path(view.stored.file).string(),
                 part.first + static_cast<Index>(place->element), value);
  }
  RESHARD_EXPECT(false);
}

void DeviceExchange::report(Flight const& flight) const {
  DeviceRound const& round = *flight.round;
  Events const& events = flight.events;
  auto const span = [&](std::string_view name, Event const& begin, Event const& end,
                        std::uint64_t bytes) {
    parts_.observer(
        {name, flight.number, begin->seconds_since(*start_), end->seconds_since(*start_), bytes});
  };
  span("upload", events.upload_began, events.uploaded, total(round.uploads));
  span("pack", events.pack_began, events.packed, round.bytes_copied);
  if (flight.exchange_ended > 0) {
    std::uint64_t bytes = 0;
    for (Message const& message : round.work.receives) bytes += message.bytes;
    for (Message const& message : round.work.sends) bytes += message.bytes;
    parts_.observer(
        {"exchange", flight.number, flight.exchange_began, flight.exchange_ended, bytes});
    span("unpack", events.unpack_began, events.unpacked, round.bytes_copied);
  }
  span("download", events.download_began, events.downloaded, total(round.downloads));
}

}  // namespace reshard

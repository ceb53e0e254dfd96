#include "core/containers/dcp/metadata/metadata_source.hpp"

#include <algorithm>
#include <cstring>

namespace reshard::dcp {

PickleSource::PickleSource(File const& file)
    : file_(file),
      size_bytes_(file.size_bytes()),
      buffer_(std::min<std::uint64_t>(size_bytes_, 2 * largest_take)),
      next_(buffer_.data()),
      end_(next_) {
  file.expect_sequential_reads();
}

std::uint64_t PickleSource::number(std::size_t bytes) {
  std::string_view const digits = take(bytes);
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i > 0; --i)
    value = value << 8 | static_cast<unsigned char>(digits[i - 1]);
  return value;
}

void PickleSource::skip(std::uint64_t count) {
  if (count > left()) cut_short(count);
  auto const held = static_cast<std::uint64_t>(end_ - next_);
  if (count <= held) {
    next_ += count;
    return;
  }
  begin_at_ = at() + count;
  next_ = end_ = buffer_.data();
}

std::string PickleSource::tail(std::size_t count) const {
  std::string bytes(std::min<std::uint64_t>(count, size_bytes_), '\0');
  file_.read_at(size_bytes_ - bytes.size(), std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void PickleSource::refill(std::size_t needed) {
  RESHARD_EXPECT(needed <= largest_take);
  if (needed > left()) cut_short(needed);
  auto const held = static_cast<std::size_t>(end_ - next_);
  begin_at_ = at();
  if (held > 0) std::memmove(buffer_.data(), next_, held);
  std::size_t const more =
      std::min<std::uint64_t>(buffer_.size() - held, size_bytes_ - begin_at_ - held);
  file_.read_at(begin_at_ + held, std::as_writable_bytes(std::span(buffer_).subspan(held, more)));
  next_ = buffer_.data();
  end_ = next_ + held + more;
}

void PickleSource::cut_short(std::uint64_t needed) const {
  fail(ErrorKind::source,
       "{}: pickle byte {}: {} more bytes are needed, the file has {}. It is truncated: compare "
       "its size with the original.",
       file_.path().string(), at(), needed, left());
}

}  // namespace reshard::dcp

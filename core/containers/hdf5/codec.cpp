// What a file holds, as bytes. A message is a magic word, the fields in the order of their
// declarations, and the CRC-64 of all that. Numbers have eight bytes, little endian; texts and
// lists begin with their length.

#include <cstring>

#include "core/base/crc64.hpp"
#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {
namespace {

constexpr std::string_view magic = "RH5F0001";

std::uint64_t crc_of(std::string_view bytes) { return crc64(std::as_bytes(std::span(bytes))); }

class Packer {
 public:
  void number(std::uint64_t value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  void text(std::string_view value) {
    number(value.size());
    out_ += value;
  }
  void dataset(FoundDataset const& dataset) {
    text(dataset.name);
    number(static_cast<std::uint64_t>(dataset.dtype));
    number(dataset.shape.size());
    for (Index const extent : dataset.shape) number(static_cast<std::uint64_t>(extent));
    number(dataset.axes.size());
    for (std::string const& axis : dataset.axes) text(axis);
    text(dataset.domain);
    number(dataset.offset_bytes);
    number(dataset.size_bytes);
    number(dataset.digest ? 1 : 0);
    number(dataset.digest.value_or(0));
  }
  void datasets(std::vector<FoundDataset> const& all) {
    number(all.size());
    for (FoundDataset const& each : all) dataset(each);
  }
  std::string take() && {
    number(crc_of(out_));
    return std::move(out_);
  }

 private:
  std::string out_{magic};
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view message) : rest_(message) {
    check(message.size() >= magic.size() + sizeof(std::uint64_t) && message.starts_with(magic),
          "its beginning");
    std::string_view const crc = message.substr(message.size() - sizeof(std::uint64_t));
    rest_.remove_suffix(crc.size());
    std::uint64_t expected = 0;
    std::memcpy(&expected, crc.data(), sizeof expected);
    check(crc_of(rest_) == expected, "its checksum");
    rest_.remove_prefix(magic.size());
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    check(rest_.size() >= sizeof value, "its length");
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::uint64_t at_most(std::uint64_t largest, std::string_view what) {
    std::uint64_t const value = number();
    check(value <= largest, what);
    return value;
  }
  /// A count of things of eight bytes at least: it cannot ask for more memory than some times the
  /// message's size.
  std::size_t count() { return at_most(rest_.size() / sizeof(std::uint64_t), "a count"); }
  std::string text() {
    std::uint64_t const size = number();
    check(size <= rest_.size(), "a text");
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  FoundDataset dataset() {
    FoundDataset found;
    found.name = text();
    found.dtype = static_cast<DType>(at_most(static_cast<std::uint64_t>(last_dtype), "a dtype"));
    for (std::size_t left = count(); left > 0; --left)
      found.shape.push_back(static_cast<Index>(number()));
    for (std::size_t left = count(); left > 0; --left) found.axes.push_back(text());
    found.domain = text();
    found.offset_bytes = number();
    found.size_bytes = number();
    bool const has_digest = at_most(1, "a flag") == 1;
    std::uint64_t const digest = number();
    if (has_digest) found.digest = digest;
    return found;
  }
  std::vector<FoundDataset> datasets() {
    std::vector<FoundDataset> all;
    for (std::size_t left = count(); left > 0; --left) all.push_back(dataset());
    return all;
  }
  void finish() const { check(rest_.empty(), "its length"); }

 private:
  static void check(bool good, std::string_view what) {
    if (!good)
      fail(
          ErrorKind::internal,
          "a message about an HDF5 file: {} is not what pack() writes. This is a bug of reshard: please report it.",
          what);
  }

  std::string_view rest_;
};

}  // namespace

std::string pack(Found const& found) {
  Packer packer;
  packer.number(found.container ? 1 : 0);
  packer.number(found.attributes.size());
  for (auto const& [key, value] : found.attributes) {
    packer.text(key);
    packer.text(value);
  }
  packer.datasets(found.tensors);
  packer.datasets(found.objects);
  return std::move(packer).take();
}

Found unpack(std::string const& packed) {
  Unpacker unpacker(packed);
  Found found;
  found.container = unpacker.at_most(1, "a flag") == 1;
  for (std::size_t left = unpacker.count(); left > 0; --left) {
    std::string key = unpacker.text();
    found.attributes.emplace_back(std::move(key), unpacker.text());
  }
  found.tensors = unpacker.datasets();
  found.objects = unpacker.datasets();
  unpacker.finish();
  return found;
}

}  // namespace reshard::hdf5

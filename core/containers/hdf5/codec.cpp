// A Found as bytes: a magic word, the fields in the order of their declarations, and the CRC-64 of
// all of them.

#include "core/base/hash/crc64.hpp"
#include "core/base/text/wire.hpp"
#include "core/containers/hdf5/container.hpp"

namespace reshard::hdf5 {
namespace {

constexpr std::string_view magic = "RH5F0002";
constexpr std::string_view what = "a message about an HDF5 file";

std::uint64_t crc_of(std::string_view bytes) { return crc64(std::as_bytes(std::span(bytes))); }

/// The fields between the magic word and the checksum.
std::string_view checked(std::string_view message) {
  std::size_t const crc_bytes = sizeof(std::uint64_t);
  bool const whole = message.size() >= magic.size() + crc_bytes && message.starts_with(magic);
  std::string_view const fields = message.substr(0, message.size() - (whole ? crc_bytes : 0));
  WireReader crc(message.substr(fields.size()), what);
  if (!whole || crc.word() != crc_of(fields)) crc.spoil();
  crc.finish();
  return fields.substr(magic.size());
}

}  // namespace

static constexpr auto wire_fields(FoundDataset const&) {
  using T = FoundDataset;
  return std::tuple(&T::name, WireEnum{&T::dtype, last_dtype}, &T::shape, &T::axes, &T::domain,
                    &T::offset_bytes, &T::size_bytes, &T::digest);
}

static constexpr auto wire_fields(Found const&) {
  using T = Found;
  return std::tuple(&T::container, &T::attributes, &T::tensors, &T::objects);
}

std::string pack(Found const& found) {
  WireWriter writer;
  writer.raw(magic).put(found);
  return std::move(writer.word(crc_of(writer.bytes()))).take();
}

Found unpack(std::string const& packed) { return WireReader(checked(packed), what).all<Found>(); }

}  // namespace reshard::hdf5

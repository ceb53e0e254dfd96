#include "core/base/compressed.hpp"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "core/base/error.hpp"

namespace reshard {
namespace {

constexpr std::size_t buffer_bytes = 256U << 10;
constexpr std::string_view digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string deflated(std::string_view text) {
  z_stream stream{};
  RESHARD_EXPECT(::deflateInit(&stream, Z_DEFAULT_COMPRESSION) == Z_OK);
  std::string out;
  std::string buffer(buffer_bytes, '\0');
  int state = Z_OK;
  do {
    auto const part = std::min<std::size_t>(text.size(), std::numeric_limits<uInt>::max() / 2);
    stream.next_in =
        reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // zlib reads through it only
    stream.avail_in = static_cast<uInt>(part);
    int const flush = part == text.size() ? Z_FINISH : Z_NO_FLUSH;
    text.remove_prefix(part);
    do {
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream.avail_out = static_cast<uInt>(buffer.size());
      state = ::deflate(&stream, flush);
      out.append(buffer, 0, buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  } while (state != Z_STREAM_END);
  ::deflateEnd(&stream);
  return out;
}

std::string base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::size_t const count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k)
      word = word << 8U | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      out += k <= count ? digits[word >> (18U - 6U * k) & 63U] : '=';
  }
  return out;
}

}  // namespace reshard

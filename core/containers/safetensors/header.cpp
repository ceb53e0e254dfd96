#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <semaphore>
#include <thread>
#include <utility>

#include <simdjson.h>

#include "core/containers/safetensors/rules.hpp"
#include "core/containers/safetensors/safetensors.hpp"

namespace reshard::safetensors {
namespace {

constexpr std::string_view cut_short =
    "The file is damaged or truncated: compare its size with the original, then run again.";

/// Rules 1 to 3: the length of the JSON.
std::uint64_t json_length(std::span<std::byte const, length_bytes> field, std::uint64_t file_bytes,
                          std::string_view place) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t length = 0;
  std::memcpy(&length, field.data(), sizeof length);
  if (length > largest_header_bytes)
    fail(
        ErrorKind::source,
        "{}: the header length is {} bytes, the format allows at most {}. The file is damaged or is not a safetensors file.",
        place, length, largest_header_bytes);
  if (length > file_bytes - length_bytes)
    fail(ErrorKind::source, "{}: the header needs bytes [0, {}), the file ends at {}. {}", place,
         length_bytes + length, file_bytes, cut_short);
  return length;
}

void check_length_field(std::uint64_t file_bytes, std::string_view place) {
  if (file_bytes < length_bytes)
    fail(ErrorKind::source,
         "{}: {} bytes, a safetensors file has at least the 8 of its header length. {}", place,
         file_bytes, cut_short);
}

/// The JSON without its padding: rules 4 and 5.
std::string_view without_padding(std::string_view json, std::string_view place) {
  if (json.empty() || json.front() != '{')
    fail(
        ErrorKind::source,
        "{}: the header begins with {}, expected '{{'. The file is damaged or is not a safetensors file.",
        place,
        json.empty() ? "nothing"
                     : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(json.front())));
  std::size_t const last = json.find_last_not_of(' ');  // always found: the first byte is '{'
  if (json[last] != '}')
    fail(
        ErrorKind::source,
        "{}: the header's last byte before the padding is 0x{:02x} at offset {}, expected '}}' and only spaces after it. {}",
        place, static_cast<unsigned char>(json[last]), length_bytes + last,
        "The file is damaged: compare it with the original.");
  return json.substr(0, last + 1);
}

Header checked_header(simdjson::padded_string const& text, std::uint64_t file_bytes,
                      std::string_view place) {
  std::string_view const json = without_padding({text.data(), text.size()}, place);
  Header header =
      header_from_json(simdjson::padded_string_view(json.data(), json.size(),
                                                    text.size() + simdjson::SIMDJSON_PADDING),
                       place);
  header.header_bytes = length_bytes + text.size();
  place_tensors(header, file_bytes, place);
  return header;
}

simdjson::padded_string room_for(std::uint64_t length, std::string_view place) {
  simdjson::padded_string text(length);
  if (text.data() == nullptr)
    fail(ErrorKind::resources,
         "{}: no memory for a header of {} bytes. Give this rank more memory.", place, length);
  return text;
}

}  // namespace

Header read_header(File const& file) {
  std::string const place = file.path().string();
  std::uint64_t const file_bytes = file.size_bytes();
  check_length_field(file_bytes, place);
  std::array<std::byte, length_bytes> field{};
  file.read_at(0, field);
  std::uint64_t const length = json_length(field, file_bytes, place);
  simdjson::padded_string text = room_for(length, place);
  file.read_at(length_bytes, std::as_writable_bytes(std::span(text.data(), length)));
  return checked_header(text, file_bytes, place);
}

Header parse_header(std::span<std::byte const> bytes, std::uint64_t file_bytes,
                    std::string_view place) {
  check_length_field(std::min<std::uint64_t>(file_bytes, bytes.size()), place);
  std::uint64_t const length = json_length(bytes.first<length_bytes>(), file_bytes, place);
  if (length > bytes.size() - length_bytes)
    fail(ErrorKind::source, "{}: the header needs bytes [0, {}), {} were read. {}", place,
         length_bytes + length, bytes.size(), cut_short);
  simdjson::padded_string text = room_for(length, place);
  if (length != 0) std::memcpy(text.data(), bytes.data() + length_bytes, length);
  return checked_header(text, file_bytes, place);
}

std::string unchecked_head(File const& file) {
  std::string const place = file.path().string();
  std::uint64_t const file_bytes = file.size_bytes();
  check_length_field(file_bytes, place);
  std::array<std::byte, length_bytes> field{};
  file.read_at(0, field);
  std::string head(length_bytes + json_length(field, file_bytes, place), '\0');
  auto const bytes = std::as_writable_bytes(std::span(head));
  std::ranges::copy(field, bytes.begin());
  file.read_at(length_bytes, bytes.subspan(length_bytes));
  return head;
}

std::string read_head(File const& file) {
  std::string head = unchecked_head(file);
  // Many files wait for a server at a time, but their parsers for a core: a parsed header takes
  // several times the memory of its text.
  static std::counting_semaphore<> cores(std::max(1U, std::thread::hardware_concurrency()));
  struct Core {
    Core() { cores.acquire(); }
    ~Core() { cores.release(); }
  } const core;
  parse_header(std::as_bytes(std::span(head)), file.size_bytes(), file.path().string());
  return head;
}

}  // namespace reshard::safetensors

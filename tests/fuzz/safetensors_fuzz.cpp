// A safetensors header: its tensors lie in the file one behind the other, and what our writer makes
// of them is read as the same tensors.

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "core/containers/safetensors/safetensors.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace reshard {
namespace {

using safetensors::Header;

/// The size that makes the header right, if one does: seeds need not bring their data section with
/// them.
std::uint64_t wanted_file_bytes(std::string_view file) {
  std::uint64_t end = 0;
  for (std::size_t at = file.find("\"data_offsets\""); at != std::string_view::npos;
       at = file.find("\"data_offsets\"", at + 1)) {
    std::size_t const comma = file.find(',', at + 14);
    if (comma == std::string_view::npos) break;
    std::size_t const begin = std::min(file.find_first_of("0123456789", comma), file.size());
    std::uint64_t value = 0;
    std::from_chars(file.data() + begin, file.data() + file.size(), value);
    end = std::max(end, value);
  }
  std::uint64_t header = 0;
  for (std::size_t i = std::min<std::size_t>(file.size(), 8); i > 0; --i)
    header = header << 8U | static_cast<std::uint8_t>(file[i - 1]);
  return std::max<std::uint64_t>(file.size(), (8 + header + end) & INT64_MAX);
}

void expect_packed(Header const& header, std::uint64_t file_bytes) {
  std::uint64_t at = header.header_bytes;
  for (FileTensor const& tensor : header.tensors) {
    FUZZ_EXPECT(tensor.offset_bytes == at);
    FUZZ_EXPECT(tensor.size_bytes <= file_bytes - at);
    at += tensor.size_bytes;
  }
  FUZZ_EXPECT(at == file_bytes);
}

void expect_same_when_written(Header const& header) {
  std::vector<TensorSpec> specs;
  for (FileTensor const& tensor : header.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  auto const plan = fuzz::attempt(ErrorKind::usage,
                                  [&] { return safetensors::plan_file(specs, header.metadata); });
  if (!plan) return;
  Header again =
      safetensors::parse_header(fuzz::bytes_of(plan->header), plan->size_bytes, "written");
  expect_packed(again, plan->size_bytes);
  FUZZ_EXPECT(again.tensors.size() == header.tensors.size());
  auto const by_name = [](FileTensor const& tensor) -> std::string_view { return tensor.name; };
  std::ranges::sort(again.tensors, {}, by_name);
  std::vector<FileTensor> before = header.tensors;
  std::ranges::sort(before, {}, by_name);
  for (std::size_t i = 0; i < before.size(); ++i)
    FUZZ_EXPECT(before[i].name == again.tensors[i].name &&
                before[i].dtype == again.tensors[i].dtype &&
                before[i].shape == again.tensors[i].shape &&
                before[i].size_bytes == again.tensors[i].size_bytes);
  auto written = again.metadata;
  auto read = header.metadata;
  std::ranges::sort(written);
  std::ranges::sort(read);
  FUZZ_EXPECT(written == read);
}

void run(std::string_view file, std::uint64_t file_bytes) {
  auto const header = fuzz::accepted(ErrorKind::source, [&] {
    return safetensors::parse_header(fuzz::bytes_of(file), file_bytes, "fuzz");
  });
  if (!header) return;
  expect_packed(*header, file_bytes);
  expect_same_when_written(*header);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const file = reshard::fuzz::text_of(data, size);
  reshard::run(file, size);
  if (std::uint64_t const wanted = reshard::wanted_file_bytes(file); wanted != size)
    reshard::run(file, wanted);
  return 0;
}

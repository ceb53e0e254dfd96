#include "core/formats/shared_headers.hpp"

#include <algorithm>
#include <cstring>

#include "core/base/integers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Appends a length and bytes; the inverse of take_block.
void put_block(std::string& out, std::string_view bytes) {
  std::uint64_t const size = bytes.size();
  out.append(reinterpret_cast<char const*>(&size), sizeof size);
  out.append(bytes);
}

std::string_view take_block(std::string_view& in) {
  std::uint64_t size = 0;
  RESHARD_EXPECT(in.size() >= sizeof size);
  std::copy_n(in.data(), sizeof size, reinterpret_cast<char*>(&size));
  in.remove_prefix(sizeof size);
  RESHARD_EXPECT(in.size() >= size);
  std::string_view const block = in.substr(0, size);
  in.remove_prefix(size);
  return block;
}

/// The first bytes of a safetensors file up to its data, after the size of the whole file.
std::string safetensors_head(File const& file) {
  safetensors::Header const header =
      safetensors::read_header(file);  // checked here, so that a fault is found once and early
  std::uint64_t const size = file.size_bytes();
  std::string bytes(sizeof size + header.header_bytes, '\0');
  std::copy_n(reinterpret_cast<char const*>(&size), sizeof size, bytes.data());
  file.read_at(0, std::as_writable_bytes(std::span(bytes).subspan(sizeof size)));
  return bytes;
}

}  // namespace

std::vector<std::string> shared_headers(Checkpoint& source, HeaderExchange const& exchange,
                                        std::function<std::string(File const&)> const& read) {
  std::vector<fs::path> const& files = source.files;
  std::string mine;
  exchange.together([&] {
    for (std::size_t f = static_cast<std::size_t>(exchange.rank()); f < files.size();
         f += static_cast<std::size_t>(exchange.size())) {
      File const file = File::open_for_reading(files[f]);
      FileStamp const stamp = file.stamp();
      mine.append(reinterpret_cast<char const*>(&stamp), sizeof stamp);
      put_block(mine, read(file));
    }
  });
  std::vector<std::string> const all = exchange.all_gather(mine);
  std::vector<std::string_view> left(all.begin(), all.end());
  std::vector<std::string> result;
  source.stamps.assign(files.size(), {});
  source.stamped_by.resize(files.size());
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::string_view& in = left[f % all.size()];
    RESHARD_EXPECT(in.size() >= sizeof(FileStamp));
    std::memcpy(&source.stamps[f], in.data(), sizeof(FileStamp));
    in.remove_prefix(sizeof(FileStamp));
    source.stamped_by[f] = static_cast<int>(f % all.size());
    result.emplace_back(take_block(in));
  }
  return result;
}

std::vector<safetensors::Header> shared_safetensors_headers(Checkpoint& source,
                                                            HeaderExchange const& exchange) {
  std::vector<safetensors::Header> headers;
  std::vector<std::string> const heads = shared_headers(source, exchange, safetensors_head);
  exchange.together([&] {
    for (std::size_t f = 0; f < heads.size(); ++f) {
      std::uint64_t size = 0;
      std::copy_n(heads[f].data(), sizeof size, reinterpret_cast<char*>(&size));
      headers.push_back(safetensors::parse_header(
          std::as_bytes(std::span(heads[f])).subspan(sizeof size), size, source.files[f].string()));
    }
  });
  return headers;
}

}  // namespace reshard

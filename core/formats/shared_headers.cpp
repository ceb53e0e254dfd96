#include "core/formats/shared_headers.hpp"

#include <utility>

#include "core/base/wire.hpp"
#include "core/base/workers.hpp"
#include "core/formats/stamped_files.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The first bytes of a safetensors file up to its data, after the size of the whole file. Checked
/// here, so that a fault is found once and early.
std::string safetensors_head(File const& file) {
  std::string const head = safetensors::read_head(file);
  return WireWriter().number(file.size_bytes()).raw(head).bytes();
}

}  // namespace

std::vector<std::string> shared_headers(Checkpoint& source, HeaderExchange const& exchange,
                                        std::function<std::string(File const&)> const& read,
                                        HeaderReads reads) {
  std::vector<fs::path> const& files = source.files;
  WireWriter mine;
  exchange.together([&] {
    std::vector<std::size_t> turns;
    for (auto f = static_cast<std::size_t>(exchange.rank()); f < files.size();
         f += static_cast<std::size_t>(exchange.size()))
      turns.push_back(f);
    std::vector<std::string> stamped(turns.size());
    auto const read_one = [&](std::size_t i) {
      File const file = File::open_for_reading(files[turns[i]]);
      stamped[i] = WireWriter().put(file.stamp()).text(read(file)).bytes();
    };
    if (reads == HeaderReads::overlapped)
      overlapped(turns.size(), read_one);
    else
      for (std::size_t i = 0; i < turns.size(); ++i) read_one(i);
    for (std::string& header : stamped) mine.raw(std::exchange(header, {}));
  });
  std::vector<std::string> const all = exchange.all_gather(mine.bytes());
  std::vector<WireReader> left;
  for (std::string const& headers : all) left.emplace_back(headers, "the headers of a rank");
  std::vector<std::string> result;
  source.stamps.assign(files.size(), {});
  source.stamped_by.resize(files.size());
  for (std::size_t f = 0; f < files.size(); ++f) {
    WireReader& in = left[f % all.size()];
    source.stamps[f] = in.get<FileStamp>();
    source.stamped_by[f] = static_cast<int>(f % all.size());
    result.emplace_back(in.text());
  }
  for (WireReader const& in : left) in.finish();
  return result;
}

std::vector<safetensors::Header> shared_safetensors_headers(Checkpoint& source,
                                                            HeaderExchange const& exchange) {
  std::vector<safetensors::Header> headers;
  std::vector<std::string> const heads = shared_headers(source, exchange, safetensors_head);
  exchange.together([&] {
    for (std::size_t f = 0; f < heads.size(); ++f) {
      WireReader head(heads[f], "the first bytes of a safetensors file");
      std::uint64_t const size = head.number();
      head.check();
      headers.push_back(safetensors::parse_header(std::as_bytes(std::span(head.left())), size,
                                                  source.files[f].string()));
    }
  });
  return headers;
}

}  // namespace reshard

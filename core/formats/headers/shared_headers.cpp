#include "core/formats/headers/shared_headers.hpp"

#include <algorithm>
#include <mutex>
#include <semaphore>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/wire.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/headers/stamped_files.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The first bytes of a safetensors file up to its data, after the size of the file. Checked here,
/// so that a fault is found once and early.
HeaderBytes safetensors_head(File const& file) {
  std::string const head = safetensors::read_head(file);
  return {WireWriter().number(file.size_bytes()).raw(head).bytes(), {}};
}

/// Texts added by several threads, each distinct one stored once.
class CommonBytes {
 public:
  /// Adds a text and returns the first one equal to it, valid while this object lives.
  std::string const* add(std::shared_ptr<std::string const> bytes) {
    if (!bytes) bytes = empty_;
    std::lock_guard const lock(mutex_);
    if (held_.contains(bytes)) return bytes.get();
    auto const [first, is_new] = first_of_.emplace(*bytes, bytes.get());
    if (is_new) held_.insert(std::move(bytes));
    return first->second;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<std::string const> empty_ = std::make_shared<std::string const>();
  std::unordered_set<std::shared_ptr<std::string const>> held_;
  std::unordered_map<std::string_view, std::string const*>
      first_of_;  ///< by the text, which is held
};

}  // namespace

SharedHeaders shared_headers(Checkpoint& source, HeaderExchange const& exchange,
                             std::function<HeaderBytes(File const&)> const& read,
                             HeaderReads reads) {
  FilePaths const& files = source.files;
  std::vector<std::size_t> turns;
  for (auto f = static_cast<std::size_t>(exchange.rank()); f < files.size();
       f += static_cast<std::size_t>(exchange.size()))
    turns.push_back(f);
  std::vector<std::string> stamped(turns.size());
  CommonBytes commons;
  std::vector<std::string const*> common_of(turns.size());
  auto const failure = capture([&] {
    auto const read_one = [&](std::size_t i) {
      File const file = File::open_for_reading(files[turns[i]]);
      WireWriter out;
      out.put(file.stamp());
      HeaderBytes header = read(file);
      common_of[i] = commons.add(std::move(header.common));
      stamped[i] = std::move(out.text(header.own)).take();
    };
    if (reads == HeaderReads::overlapped)
      overlapped(turns.size(), read_one);
    else
      for (std::size_t i = 0; i < turns.size(); ++i) read_one(i);
  });
  // Of several that failed, the first is the lowest without bytes: those before it were read.
  auto const first = static_cast<std::size_t>(std::ranges::find_if(stamped, &std::string::empty) -
                                              stamped.begin());
  end_with_first(exchange, failure, first < turns.size() ? turns[first] : files.size());
  // Numbered in order of the files, whichever thread was first.
  std::unordered_map<std::string const*, std::size_t> number_of;
  std::vector<std::string const*> in_order;
  for (std::string const* common : common_of)
    if (number_of.emplace(common, in_order.size()).second) in_order.push_back(common);
  WireWriter mine;
  mine.number(in_order.size());
  for (std::string const* common : in_order) mine.text(*common);
  for (std::size_t i = 0; i < turns.size(); ++i)
    mine.number(number_of.at(common_of[i])).raw(std::exchange(stamped[i], {}));
  SharedHeaders result;
  result.sent_ = exchange.all_gather(std::exchange(mine, {}).take());
  std::vector<WireReader> left;
  std::vector<std::vector<std::uint32_t>> numbers(result.sent_.size());
  std::unordered_map<std::string_view, std::uint32_t> known;
  for (std::size_t rank = 0; rank < result.sent_.size(); ++rank) {
    WireReader& in = left.emplace_back(result.sent_[rank], "the headers of a rank");
    for (std::size_t count = in.count(); count > 0 && in.good(); --count) {
      std::string_view const common = in.text();
      auto const number = narrow<std::uint32_t>(known.size());
      auto const [at, fresh] = known.emplace(common, number);
      if (fresh) result.commons_.push_back(common);
      numbers[rank].push_back(at->second);
    }
  }
  source.stamps.taken.assign(files.size(), {});
  source.stamps.rank.resize(files.size());
  result.files_.resize(files.size());
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::size_t const rank = f % result.sent_.size();
    WireReader& in = left[rank];
    auto const common = in.number_up_to(numbers[rank].empty() ? 0 : numbers[rank].size() - 1);
    source.stamps.taken[f] = in.get<FileStamp>();
    source.stamps.rank[f] = static_cast<int>(rank);
    result.files_[f].own = in.text();
    in.check();
    result.files_[f].common = numbers[rank].at(common);
  }
  for (WireReader const& in : left) in.finish();
  return result;
}

/// For one process that reads all files: a header is parsed once, and its text is not kept.
static std::vector<safetensors::Header> own_safetensors_headers(Checkpoint& source,
                                                                HeaderExchange const& exchange) {
  FilePaths const& files = source.files;
  std::vector<safetensors::Header> headers(files.size());
  source.stamps.taken.assign(files.size(), {});
  source.stamps.rank.assign(files.size(), 0);
  std::vector<char> read(files.size(), 0);
  // Files wait for a server, many at a time, and parsers for a core.
  std::counting_semaphore<> cores(std::max(1U, std::thread::hardware_concurrency()));
  auto const failure = capture([&] {
    overlapped(files.size(), [&](std::size_t f) {
      File const file = File::open_for_reading(files[f]);
      source.stamps.taken[f] = file.stamp();
      std::string const head = safetensors::unchecked_head(file);
      cores.acquire();
      auto const fault = capture([&] {
        headers[f] = safetensors::parse_header(std::as_bytes(std::span(head)), file.size_bytes(),
                                               files[f].string());
      });
      cores.release();
      if (fault) throw *fault;
      read[f] = 1;
    });
  });
  // Of several that failed, the first is the lowest that was not read.
  end_with_first(exchange, failure,
                 static_cast<std::size_t>(std::ranges::find(read, 0) - read.begin()));
  return headers;
}

std::vector<safetensors::Header> shared_safetensors_headers(Checkpoint& source,
                                                            HeaderExchange const& exchange) {
  if (exchange.size() == 1) return own_safetensors_headers(source, exchange);
  std::vector<safetensors::Header> headers;
  SharedHeaders const heads = shared_headers(source, exchange, safetensors_head);
  exchange.together([&] {
    for (std::size_t f = 0; f < heads.size(); ++f) {
      WireReader head(heads.own(f), "the first bytes of a safetensors file");
      std::uint64_t const size = head.number();
      head.check();
      headers.push_back(safetensors::parse_header(std::as_bytes(std::span(head.left())), size,
                                                  source.files[f].string()));
    }
  });
  return headers;
}

}  // namespace reshard

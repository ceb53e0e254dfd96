#include "pipeline/verify/compare/file_comparison.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include <fmt/ranges.h>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/sha256_sums.hpp"
#include "core/transport/shared_sight.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t block_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t largest_json_bytes = std::uint64_t{512} << 20;

/// Two stretches of two files, of one length.
struct Stretches {
  File const& a;
  File const& b;
  std::uint64_t a_bytes = 0;  ///< where each begins
  std::uint64_t b_bytes = 0;
  std::uint64_t bytes = 0;
};

/// The first byte in which they differ, counted from their begin; `bytes` where there is none.
std::uint64_t first_difference(Stretches const& both) {
  std::vector<std::byte> left(std::min(block_bytes, both.bytes));
  std::vector<std::byte> right(left.size());
  for (std::uint64_t at = 0; at < both.bytes;) {
    std::uint64_t const part = std::min<std::uint64_t>(left.size(), both.bytes - at);
    both.a.read_at(both.a_bytes + at, std::span(left).first(part));
    both.b.read_at(both.b_bytes + at, std::span(right).first(part));
    if (std::memcmp(left.data(), right.data(), part) != 0)
      return at + static_cast<std::uint64_t>(std::ranges::mismatch(left, right).in1 - left.begin());
    at += part;
  }
  return both.bytes;
}

bool same_bytes(File const& a, File const& b) {
  std::uint64_t const bytes = a.size_bytes();
  return bytes == b.size_bytes() && first_difference({a, b, 0, 0, bytes}) == bytes;
}

using Names = std::set<std::string>;

/// "'x', 'y' and 3 more".
std::string some(Names const& names) {
  std::vector<std::string> quoted;
  for (std::string const& name : names)
    quoted.push_back(fmt::format("'{}'", safetensors::shown(name)));
  return listed(quoted, 3);
}

std::string without_padding(std::string const& header) {
  return header.substr(8, header.find_last_not_of(' ') + 1 - 8);
}

/// Two files of tensors whose bytes are not the same.
class SafetensorsPair {
 public:
  SafetensorsPair(File const& a, File const& b)
      : a_(a), b_(b), left_(safetensors::read_header(a)), right_(safetensors::read_header(b)) {
    for (FileTensor const& tensor : right_.tensors) by_name_.emplace(tensor.name.text(), &tensor);
  }

  std::string why() {
    std::string const sets = different_sets();
    if (!sets.empty()) return sets;
    look_at_tensors();
    std::vector<std::string> causes;
    if (!forms_.empty()) causes.push_back("in dtype or shape of " + some(forms_));
    if (!values_.empty())
      causes.push_back(fmt::format("in the bytes of {} of {}: {}", values_.size(),
                                   counted(left_.tensors.size(), "tensor"), some(values_)));
    if (left_.metadata != right_.metadata) causes.emplace_back("in __metadata__");
    if (order_differs()) causes.emplace_back("in the order of their tensors");
    if (causes.empty()) causes.push_back(spelling());
    return fmt::format("differ {}", fmt::join(causes, ", and "));
  }

 private:
  std::string different_sets() const {
    Names only_a;
    Names only_b;
    for (auto const& [name, tensor] : by_name_) only_b.emplace(name);
    for (FileTensor const& tensor : left_.tensors)
      if (only_b.erase(tensor.name) == 0) only_a.insert(tensor.name);
    if (only_a.empty() && only_b.empty()) return "";
    std::string text = "hold other tensors:";
    if (!only_a.empty()) text += fmt::format(" {} only in A", some(only_a));
    if (!only_b.empty())
      text += fmt::format("{} {} only in B", only_a.empty() ? "" : ",", some(only_b));
    return text;
  }

  void look_at_tensors() {
    for (FileTensor const& tensor : left_.tensors) {
      FileTensor const& other = *by_name_.at(tensor.name.text());
      if (tensor.dtype != other.dtype || tensor.shape != other.shape)
        forms_.insert(tensor.name);
      else if (first_difference({a_, b_, tensor.offset_bytes, other.offset_bytes,
                                 tensor.size_bytes}) != tensor.size_bytes)
        values_.insert(tensor.name);
    }
  }

  bool order_differs() const {
    return !std::ranges::equal(
        left_.tensors, right_.tensors, {}, [](auto const& tensor) { return tensor.name.text(); },
        [](auto const& tensor) { return tensor.name.text(); });
  }

  std::string spelling() const {
    std::string const a = safetensors::read_head(a_);
    std::string const b = safetensors::read_head(b_);
    if (without_padding(a) != without_padding(b)) return "only in how the header is written";
    return fmt::format("only in the padding of the header ({} and {} bytes)", a.size(), b.size());
  }

  File const& a_;
  File const& b_;
  safetensors::Header left_;
  safetensors::Header right_;
  std::map<std::string_view, FileTensor const*> by_name_;
  Names forms_;
  Names values_;
};

/// Members at the top that are not the same; those of "weight_map" are counted.
std::string json_difference(fs::path const& a, fs::path const& b) {
  Json const left = parse_json(read_text_file(a, largest_json_bytes), a.string());
  Json const right = parse_json(read_text_file(b, largest_json_bytes), b.string());
  if (left == right) return "differ only in how the same values are written or ordered";
  if (left.members() == nullptr || right.members() == nullptr) return "differ in their values";
  Names names;
  for (auto const* const side : {left.members(), right.members()})
    for (auto const& [name, value] : *side) {
      Json const* const l = left.find(name);
      Json const* const r = right.find(name);
      if (l == nullptr || r == nullptr || !(*l == *r)) names.insert(name);
    }
  if (names.empty()) return "differ only in the order of their members";
  return "differ in " + some(names);
}

bool is_added(fs::path const& path) {
  return path.filename() == manifest_name || path.filename() == sums_name;
}

/// Paths in a folder, sorted; of a file, nothing.
std::vector<std::string> files_in(fs::path const& folder) {
  return seen_names("all files", folder, [&] {
    std::vector<std::string> names;
    std::error_code failed;
    for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
         entry.increment(failed))
      if (entry->is_regular_file() && !is_added(entry->path()))
        names.push_back(entry->path().lexically_relative(folder).string());
    if (failed)
      fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
           folder.string(), failed.message());
    std::ranges::sort(names);
    return names;
  });
}

/// The files to compare: pairs, and those without a partner.
struct Pairs {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::string>> alone;  ///< and which side has it
};

Pairs pairs_of(fs::path const& a, fs::path const& b) {
  for (fs::path const& path : {a, b})
    if (!sees_anything(path))
      fail(ErrorKind::usage, "{}: does not exist. Check the path.", path.string());
  bool const folders = sees_folder(a);
  if (folders != sees_folder(b))
    fail(ErrorKind::usage,
         "verify --files: {} is a folder and {} is not. Give two folders, or two files.",
         (folders ? a : b).string(), (folders ? b : a).string());
  if (!folders) return {{""}, {}};
  std::vector<std::string> const left = files_in(a);
  std::vector<std::string> const right = files_in(b);
  Pairs pairs;
  std::ranges::set_intersection(left, right, std::back_inserter(pairs.names));
  for (std::string const& name : left)
    if (!std::ranges::binary_search(right, name)) pairs.alone.emplace_back(name, "is only in A");
  for (std::string const& name : right)
    if (!std::ranges::binary_search(left, name)) pairs.alone.emplace_back(name, "is only in B");
  return pairs;
}

}  // namespace

std::string why_different(fs::path const& a, fs::path const& b) {
  File const left = File::open_for_reading(a);
  File const right = File::open_for_reading(b);
  if (same_bytes(left, right)) return "";
  std::string why;
  auto const unreadable = capture([&] {
    if (a.extension() == ".safetensors") why = SafetensorsPair(left, right).why();
    if (a.extension() == ".json") why = json_difference(a, b);
  });
  if (!unreadable && !why.empty()) return why;
  if (left.size_bytes() != right.size_bytes())
    return fmt::format("have {} and {} bytes", left.size_bytes(), right.size_bytes());
  return fmt::format("differ from byte {} on",
                     first_difference({left, right, 0, 0, left.size_bytes()}));
}

FileComparison compare_files(fs::path const& a, fs::path const& b, std::size_t row_limit,
                             Comm const& comm) {
  Pairs pairs;
  together_seeing(comm, [&] { pairs = pairs_of(a, b); });
  Json found = Json::array();
  together(comm, [&] {
    for (auto i = static_cast<std::size_t>(comm.rank()); i < pairs.names.size();
         i += static_cast<std::size_t>(comm.size()))
      if (std::string const& name = pairs.names[i],
          why = name.empty() ? why_different(a, b) : why_different(a / name, b / name);
          !why.empty())
        found.push(Json().set("file", name.empty() ? a.filename().string() : name).set("why", why));
  });
  std::map<std::string, std::string> differences(pairs.alone.begin(), pairs.alone.end());
  for (std::string const& list : comm.all_gather(found.dump())) {
    Json const rows = parse_json(list, "the list of a rank");
    for (Json const& row : *rows.items())
      differences.emplace(*row.find("file")->text(), *row.find("why")->text());
  }
  std::size_t const unequal = differences.size() - pairs.alone.size();
  FileComparison result;
  result.same = differences.empty();
  result.text = fmt::format("{} of {} in both are the same bytes\n", pairs.names.size() - unequal,
                            counted(pairs.names.size(), "file"));
  Json rows = Json::array();
  for (auto const& [name, why] : differences) {
    if (rows.items()->size() < row_limit) result.text += fmt::format("  {}: {}\n", name, why);
    rows.push(Json().set("file", name).set("why", why));
  }
  if (differences.size() > row_limit)
    result.text += fmt::format("  and {} more\n", differences.size() - row_limit);
  result.json = Json()
                    .set("same", result.same)
                    .set("files", pairs.names.size())
                    .set("equal", pairs.names.size() - unequal)
                    .set("differences", std::move(rows));
  return result;
}

}  // namespace reshard
